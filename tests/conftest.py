"""A gate must not be a lottery: in CI Hypothesis draws the same examples each time; at a desk it looks for new ones. Ctrl-C interrupts."""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)  # a busy machine is not an error
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(scope="session", autouse=True)
def _interruptible():
    """Ctrl-C interrupts, also where the tests were started in the background by a shell that has it ignored; children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
