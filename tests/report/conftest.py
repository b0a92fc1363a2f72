"""Views of the report room: of sweeps from the numbers in example_view.py, of requests from a recorded run."""

import importlib.util
from pathlib import Path

import pytest


def _loaded(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_EXAMPLES = _loaded("example_view")
_REQUESTS = _loaded("request_example")


@pytest.fixture(scope="session")
def example_view():
    return _EXAMPLES.example_view()


@pytest.fixture(scope="session")
def one_run_view():
    return _EXAMPLES.one_run_view()


@pytest.fixture(scope="session")
def bare_view():
    return _EXAMPLES.bare_view()


@pytest.fixture(scope="session")
def recorded_requests():
    return _REQUESTS.recorded_run()


@pytest.fixture(scope="session")
def request_example():
    return _REQUESTS.request_example()
