"""Child processes: they end with us, and how much memory they and we hold.

Each child holds the reading end of a pipe whose writing end only its parent has: when the parent is
gone the pipe ends, and a thread of the child ends the child. On Linux the kernel is asked to do the
same (PR_SET_PDEATHSIG), because a child whose interpreter is busy, in a compiler for example, runs
no thread for many seconds. Every child calls ``hold`` or ``hold_in_pool`` before anything else.

An engine's worker asks too, in the engine's own environment: this module needs no other package.

Linux keeps each process's peak resident set (VmHWM in /proc/PID/status) and forgets it when 5 is
written to /proc/PID/clear_refs (proc(5)). Elsewhere, and where that is forbidden, the answer is
None.
"""

import ctypes
import functools
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

_VARIABLE: Final = "INFEROMETER_LIFELINE"
_PR_SET_PDEATHSIG: Final = 1
"""Constant of <sys/prctl.h>."""


class Line(NamedTuple):
    """A descriptor that a child inherits, and the variables by which it finds it."""

    descriptor: int
    variables: dict[str, str]


def line() -> Line:
    """The line that a child started now holds.

    ``pass_fds=(line.descriptor,)``, and ``line.variables`` in its environment.
    """
    descriptor = _pipe()[0]
    return Line(
        descriptor, {_VARIABLE: f"{descriptor} {os.getpid()} {int(starts_in_main_thread())}"}
    )


@contextmanager
def without_script() -> Generator[None]:
    """Children spawned in the block do not import the main script.

    ``multiprocessing`` imports the script of its parent in each child, for functions that are
    defined there; ours are not. A script without ``if __name__ == "__main__"`` would start
    children of its own.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def starts_in_main_thread() -> bool:
    """May a child of this thread use the kernel's parent-death signal?

    Its signal comes at the end of the *thread* that started the child.
    """
    return threading.current_thread() is threading.main_thread()


@functools.cache
def _pipe() -> tuple[int, int]:
    """The one pipe for all children of this process.

    Python inherits neither end by itself; the writing end closes when this process ends.
    """
    return os.pipe()


def hold(*, grace_s: float = 0.0, is_group: bool = False) -> None:
    """End this process when its parent is gone; does nothing in a process that was started by hand.

    Parameters
    ----------
    grace_s
        The child sees by itself that the parent is gone, and has this long to write what it holds.
    is_group
        This process leads a group, all of which ends with it: the kernel's signal would reach this
        process alone.
    """
    words = os.environ.pop(_VARIABLE, None)
    if words is None:
        return
    descriptor, parent, may_ask_kernel = (int(word) for word in words.split())
    _hold(
        descriptor,
        parent,
        may_ask_kernel=bool(may_ask_kernel) and not grace_s and not is_group,
        grace_s=grace_s,
        is_group=is_group,
    )


def hold_in_pool(
    may_ask_kernel: bool,  # noqa: FBT001 -- an initializer of a pool gets it by place
) -> None:
    """End with the parent, in a process of ``multiprocessing``, which has a pipe of its own."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    _hold(parent.sentinel, parent.pid, may_ask_kernel=may_ask_kernel, grace_s=0.0, is_group=False)


def _hold(
    descriptor: int, parent: int, *, may_ask_kernel: bool, grace_s: float, is_group: bool
) -> None:
    watch = threading.Thread(
        target=_leave_after, args=(descriptor, grace_s, is_group), name="lifeline", daemon=True
    )
    watch.start()
    if may_ask_kernel and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        _leave_after(descriptor, grace_s, is_group)


def _leave_after(descriptor: int, grace_s: float, is_group: bool) -> None:  # noqa: FBT001 -- the target of a thread
    select.select([descriptor], [], [])  # nobody writes: it is readable at its end
    time.sleep(grace_s)
    if is_group and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


_PROC: Final = Path("/proc")


def reset_peak_resident() -> bool:
    """Forget the peaks so far; False where the system does not let us."""
    try:
        for pid in _family():
            (_PROC / str(pid) / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int | None:
    """The sum of the peak resident sets of this process and its descendants, since the last reset."""
    peaks = [_kernel_number(_PROC / str(pid) / "status", "VmHWM:") for pid in _family()]
    known = [1024 * peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def available_bytes() -> int | None:
    """Memory available without swapping: MemAvailable, or the control group's limit if lower."""
    available_kib = _kernel_number(_PROC / "meminfo", "MemAvailable:")
    limits = [
        None if available_kib is None else 1024 * available_kib,
        _control_group_free_bytes(),
    ]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _family() -> list[int]:
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for children in (_PROC / str(pid) / "task").glob("*/children"):
            try:
                waiting += [int(child) for child in children.read_text().split()]
            except OSError:  # a thread that ended while we looked
                continue
    return found


def _kernel_number(path: Path, name: str) -> int | None:
    """The number behind this name in a file of /proc; None where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)


def _control_group_free_bytes() -> int | None:
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        used_bytes = int((root / "memory.current").read_text())
    except OSError:
        return None
    return None if limit == "max" else int(limit) - used_bytes
