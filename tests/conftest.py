"""A gate must not be a lottery: in CI Hypothesis draws the same examples each time.

At a desk it looks for new ones. Ctrl-C interrupts.
"""

import atexit
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

from inferometer import suggestions

sys.path.insert(0, str(Path(__file__).parent))
gc.disable()  # what collection makes stays: going through it again and again took half of its time
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)  # a busy machine is not an error
settings.load_profile("ci" if os.environ.get("CI") else "desk")


SLOWEST_FILES = (Path(__file__).parent / "slowest_files.txt").read_text().split()
"""Of the slow suite, the longest first."""


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    """Tests have no examples in their docstrings: only the package is searched for those."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_ignore_collect(collection_path, config):
    """For the slow suite, a file without a slow test is not imported: all of them took 12 CPU s in each process."""
    if not config.option.markexpr.startswith("slow and ") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_drawn = os.environ.get("INFEROMETER_EXAMPLES", "few") != "few" and (
        "@given" in text or "compared" in text
    )  # simulate/conftest.py
    return None if "mark.slow" in text or is_drawn else True


@pytest.hookimpl(trylast=True)  # after those that are left out
def pytest_collection_modifyitems(items):
    """The longest files of slow tests start first, so that no process is left alone with one at the end.

    xdist hands them out in this order where it is given ``--no-loadscope-reorder``.
    """
    places = {name: place for place, name in enumerate(SLOWEST_FILES)}

    def place(item):
        return places.get(item.nodeid.partition("::")[0], len(places))

    if any(item.get_closest_marker("slow") for item in items):
        items.sort(key=place)


def pytest_collection_finish():
    """Garbage is collected again, but for the 600,000 objects of modules and tests, which stay."""
    gc.freeze()
    gc.enable()


atexit.register(gc.unfreeze)
"""At its end Python itself goes through them: nanobind reports what is left as leaked.

Not earlier: pytest's last collections took 2 CPU s.
"""


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


@pytest.fixture
def one_core(monkeypatch):
    """A search or a grid starts no processes: each takes a second and a half to import what it needs."""
    monkeypatch.setattr("inferometer.measure.executors.local.n_cores", lambda: 1)


@pytest.fixture(scope="session", autouse=True)
def _suggestions_are_parsed():
    """No suggested command escapes: whatever a test makes the code suggest is given to the command line's own parser.

    The parser imports every verb, so nothing may be suggested while a module is imported.
    """
    with pytest.MonkeyPatch.context() as patched:
        written = suggestions._written

        def checked(*words: str) -> str:
            import suggested  # it imports every verb: only where something is suggested

            suggested.check_words(words)
            return written(*words)

        patched.setattr(suggestions, "_written", checked)
        yield
