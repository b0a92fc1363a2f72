"""Do the processes that a command started end when it is killed, whatever they are doing?"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found by /proc"
)

POOL = """
import sys, threading
sys.path.insert(0, {folder!r})
import parts_to_do
from inferometer.measure.executors.local import Processes

def work():
    Processes(2).map(parts_to_do.{part}, [{marker!r}] * 2)

if __name__ == "__main__":
    {start}
"""
STARTS = {
    "main thread": "work()",
    "another thread": "it = threading.Thread(target=work); it.start(); it.join()",
}


def started(code: str, script: Path) -> subprocess.Popen:
    script.write_text(code)
    return subprocess.Popen([sys.executable, str(script)], start_new_session=True)


def waited_for(folder: Path, n_files: int, patience_s: float = 60.0) -> list[int]:
    """The ids of the processes that said that they work."""
    end_s = time.monotonic() + patience_s
    while len(list(folder.iterdir())) < n_files:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return [int(path.name) for path in folder.iterdir()]


def still_there(pids: list[int]) -> list[int]:
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize(("part", "start"), [("asleep", "another thread"), ("deaf", "main thread")])
def test_workers_end_with_their_parent(number, part, start, tmp_path):
    """``deaf`` holds the interpreter's lock, as a compiler does: only the kernel can end it."""
    marker = tmp_path / "pids"
    marker.mkdir()
    folder = str(Path(__file__).parent / "executors")
    parent = started(
        POOL.format(folder=folder, part=part, marker=str(marker), start=STARTS[start]),
        tmp_path / "parent.py",
    )
    pids = waited_for(marker, 2)
    parent.send_signal(number)
    assert parent.wait(timeout=10) == -number
    end_s = time.monotonic() + 5
    while (left := still_there(pids)) and time.monotonic() < end_s:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


GROUP = """
import os, subprocess, sys, time
from inferometer.measure import child_processes
child = "import os, subprocess, sys, time; from inferometer.measure import child_processes; child_processes.hold(is_group=True); " \\
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " \\
        "[open(os.path.join({marker!r}, str(pid)), 'w') for pid in (os.getpid(), inner.pid)]; time.sleep(600)"
held = child_processes.line()
variables = dict(os.environ) | held.variables
subprocess.Popen([sys.executable, "-c", child], env=variables, pass_fds=(held.descriptor,), start_new_session=True).wait()
"""


def test_a_group_ends_with_its_leaders_parent(tmp_path):
    marker = tmp_path / "pids"
    marker.mkdir()
    parent = started(GROUP.format(marker=str(marker)), tmp_path / "parent.py")
    pids = waited_for(marker, 2)
    parent.kill()
    parent.wait(timeout=10)
    end_s = time.monotonic() + 5
    while (left := still_there(pids)) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not left


def test_a_process_started_by_hand_holds_nothing():
    code = (
        "from inferometer.measure import child_processes; child_processes.hold(); child_processes.hold_in_pool(True);"
        " print('works')"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "works\n"
    )
