"""Is every process of a command gone seconds after the command was killed?

``bench/bench_kills.py`` asks the same at more moments.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from bench_kills import VERBS, outcomes, places

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="processes are found by /proc"
    ),
]


LIKE_OTHERS = ("capacity", "simulate", "verify", "quick")
"""Worker processes that simulate, as those of ``size``; ``verify`` loads as ``load`` does, too, and
``quick`` measures as ``sweep`` does."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def known(folder):
    """What the commands need, a server among it: once for all."""
    with places(folder) as found:
        yield found


@pytest.mark.parametrize(
    "verb",
    [pytest.param(one, marks=[pytest.mark.long] * (one in LIKE_OTHERS)) for one in VERBS],
)
def test_a_killed_command_leaves_no_process(verb, known, folder):
    """Each signal once, at moments spread over its life."""
    left = [one for one in outcomes(verb, 3, known, folder) if one.left_s is None]
    assert not left
