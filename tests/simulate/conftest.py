"""Compiled code is thrown away when any source of the simulator is newer: numba looks at a function's own file only."""

import math
import sys
from pathlib import Path

import inferometer.simulate

sys.path.insert(0, str(Path(__file__).parent))

SOURCE = Path(inferometer.simulate.__file__).parent
PERFMODEL = SOURCE.parent / "perfmodel"  # the closed form of a step's time is compiled too


def modified_s(path: Path) -> float:
    """When; never, where another test process has just thrown it away."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


CACHED = [path for folder in (SOURCE, PERFMODEL) for path in folder.rglob("*.nb[ic]")]
NEWEST_S = max(path.stat().st_mtime for path in [*SOURCE.rglob("*.py"), *PERFMODEL.glob("steptime_*.py")])
if CACHED and min(modified_s(path) for path in CACHED) < NEWEST_S:
    for stale in CACHED:
        stale.unlink(missing_ok=True)

collect_ignore = [
    "record_sglang_traces.py",
    "record_vllm_traces.py",
    "vllm_driver.py",
    "vllm_engine_loop.py",
]  # for the engines' own environments
