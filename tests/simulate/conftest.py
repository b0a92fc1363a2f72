"""Modules beside the tests are imported by their own names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore = [
    "record_sglang_traces.py",
    "record_vllm_traces.py",
    "vllm_driver.py",
    "vllm_engine_loop.py",
]  # for the engines' own environments
