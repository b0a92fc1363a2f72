"""Modules beside the tests are imported by their own names."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

collect_ignore = [
    "record_sglang_traces.py",
    "record_vllm_traces.py",
    "vllm_driver.py",
    "vllm_engine_loop.py",
]  # for the engines' own environments


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A quarter of the examples of a property take seconds: a slow test. All of them: a long one."""
    from examples import WHICH

    marks = {"few": (), "quarter": ("slow",), "all": ("slow", "long")}[WHICH]
    for item in items:
        is_drawn = getattr(item.obj, "is_hypothesis_test", False) or "compared" in item.fixturenames
        if is_drawn and HERE in item.path.parents:
            for mark in marks:
                item.add_marker(mark)
