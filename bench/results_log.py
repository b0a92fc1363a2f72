"""How is a benchmark's outcome written down: one row of RESULTS.md, with the machine, the commit and an interval."""

import os
import platform
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import psutil

from inferometer.measure.host import host_facts
from inferometer.stats.estimate import Estimate

QUIET_FRACTION = 0.08
ResultT = TypeVar("ResultT")
RESULTS = Path(__file__).with_name("RESULTS.md")
_HEADER = """# What the benchmarks gave

A claim about speed without a row here is not made. Ratios come from one interleaved run each; intervals are 95 %.

| date (UTC) | commit | machine | benchmark | result | sentence |
|---|---|---|---|---|---|
"""


def log_row(benchmark: str, result: str, sentence: str) -> None:
    """Print a row, and append it where INFEROMETER_LOG_BENCH is set: only runs that somebody looked at are kept."""
    facts = host_facts(n_threads=None, uses_device=False)
    machine = f"{facts.cpu_model}, {facts.n_cores} cores, Linux {platform.release().split('-')[0]}"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=RESULTS.parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    row = (
        f"| {datetime.now(UTC):%Y-%m-%d} | {commit} | {machine} | {benchmark} | {result} |"
        f" {sentence} |\n"
    )
    print(row, end="")
    if os.environ.get("INFEROMETER_LOG_BENCH"):
        text = RESULTS.read_text() if RESULTS.exists() else _HEADER
        RESULTS.write_text(text + row)


def require_passive_threads() -> None:
    """Threads that spin at barriers measure the neighbours.

    The variable is read when torch is loaded: it must come from outside.
    """
    if os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive":
        raise SystemExit("set OMP_WAIT_POLICY=passive, as `make bench` does")


def quiet(measurement: Callable[[], ResultT], n_tries: int = 200) -> ResultT | None:
    """The measurement, taken again until nobody else computed just before and just after it.

    None if that never happens.
    """
    for _ in range(n_tries):
        if psutil.cpu_percent(interval=0.7) < 100 * QUIET_FRACTION:
            result = measurement()
            if psutil.cpu_percent(interval=0.3) < 100 * QUIET_FRACTION:
                return result
    return None


def words(estimate: Estimate | None) -> str:
    """``1.003 [0.998, 1.006] (n = 40)``."""
    if estimate is None or estimate.low is None:
        return "undecided"
    return (
        f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}] (n = {estimate.n_samples})"
    )
