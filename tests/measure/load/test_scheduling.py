"""Does a client process get its core at once, whatever computes there?"""

import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="schedulers of other systems are left alone"
)
ASK = "from inferometer.measure.load.worker import wake_at_once; wake_at_once()"
REFUSED = "import os\ndef refuse(*_): raise PermissionError\nos.sched_setscheduler = refuse\n"
SAY = "\nimport os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
WAKE = """
import time
lags = []
for _ in range(200):
    asked_ns = time.monotonic_ns() + 5_000_000
    time.sleep(0.005)
    lags.append(time.monotonic_ns() - asked_ns)
print(sorted(lags)[190])
"""


def said(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


def may_have_priority():
    return (
        subprocess.run(
            [sys.executable, "-c", "import os; os.sched_setscheduler(0, 2, os.sched_param(1))"],
            check=False,
            stderr=-3,
        ).returncode
        == 0
    )


def test_what_the_user_may_have_is_taken():
    policy, _ = said(ASK + SAY)
    assert int(policy) == (os.SCHED_RR if may_have_priority() else os.SCHED_OTHER)


def test_without_the_right_nothing_breaks_and_niceness_stays():
    lowered = str(os.nice(0) + 3)  # the tests themselves may run at a lowered priority
    assert said(REFUSED + "os.nice(3)\n" + ASK + SAY) == [str(os.SCHED_OTHER), lowered]


@pytest.mark.slow
def test_neighbours_do_not_make_it_late():
    if not may_have_priority():
        pytest.skip("this user may not have real-time priority")
    core = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, {{{core}}})\n"
    neighbours = [
        subprocess.Popen([sys.executable, "-c", pinned + "while True: pass"]) for _ in range(4)
    ]
    try:
        time.sleep(0.5)
        ordinary_ns = int(said(pinned + WAKE)[0])
        prompt_ns = int(said(pinned + ASK + WAKE)[0])
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert prompt_ns < 2_000_000 < ordinary_ns, "one in twenty wakings is later than that"
