"""Is every process of a command gone seconds after the command was killed?

``bench/bench_kills.py`` asks the same at more moments.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from bench_kills import VERBS, outcomes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="processes are found by /proc"
    ),
]


LIKE_OTHERS = ("capacity", "simulate", "verify", "quick")
"""Worker processes that simulate, as those of ``size``; ``verify`` loads as ``load`` does, too, and
``quick`` measures as ``sweep`` does."""


@pytest.mark.parametrize(
    "verb",
    [pytest.param(one, marks=[pytest.mark.long] * (one in LIKE_OTHERS)) for one in VERBS],
)
def test_a_killed_command_leaves_no_process(verb):
    """Each signal once, at moments spread over its life."""
    left = [one for one in outcomes([verb], 3) if one.left_s is None]
    assert not left
