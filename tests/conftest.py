"""A gate must not be a lottery: in CI Hypothesis draws the same examples each time.

At a desk it looks for new ones. Ctrl-C interrupts.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from inferometer import suggestions

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)  # a busy machine is not an error
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(scope="session", autouse=True)
def _interruptible():
    """Ctrl-C and a hang-up interrupt, also where the shell that started the tests has them ignored.

    Children inherit that.
    """
    before = (
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGHUP, before[1])


@pytest.fixture(scope="session", autouse=True)
def _suggestions_are_parsed():
    """No suggested command escapes: whatever a test makes the code suggest is given to the command line's own parser."""
    with pytest.MonkeyPatch.context() as patched:
        written = suggestions._written

        def checked(*words: str) -> str:
            import suggested  # it imports every verb: only where something is suggested

            suggested.check_words(words)
            return written(*words)

        patched.setattr(suggestions, "_written", checked)
        yield
