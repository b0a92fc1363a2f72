"""Views of the report room, from the numbers in example_view.py."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("example_view", Path(__file__).parent / "example_view.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_EXAMPLES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_EXAMPLES)


@pytest.fixture(scope="session")
def example_view():
    return _EXAMPLES.example_view()


@pytest.fixture(scope="session")
def one_run_view():
    return _EXAMPLES.one_run_view()


@pytest.fixture(scope="session")
def bare_view():
    return _EXAMPLES.bare_view()
