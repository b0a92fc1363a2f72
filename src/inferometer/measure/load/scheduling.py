"""How does a client process get its core at once when something is due, however busy its neighbours are?

A process that wakes waits until the one that runs has used up its slice, some milliseconds;
lateness of a client is mostly that. Where the system lets this user have real-time priority, the
lowest of it is taken: whoever computes is interrupted, and the client, which needs a fraction of a
core, soon sleeps again. Elsewhere the process asks for short slices, which Linux grants to anybody
since 6.12: short slices are due earlier. Where there is neither, nothing changes: the run says how
late it was.

Source: sched(7); sched_setattr(2); Linux, kernel/sched/fair.c, PREEMPT_SHORT.
"""

import ctypes
import os
import platform
import sys
from typing import Final

_SLICE_NS: Final = 100_000
"""The shortest that Linux grants."""
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which older C libraries have no function for."""


class _Attributes(ctypes.Structure):
    """``struct sched_attr``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def wake_at_once() -> str:
    """Ask for the promptest waking that this user may have, and say which that is.

    Threads that are started later have it too.
    """
    if sys.platform != "linux":
        return "usual"
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return "short slices" if _has_short_slices() else "usual"
    return "real-time"


def _has_short_slices() -> bool:
    """Ask for them; does the system know what is asked?"""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is None:
        return False
    asked = _Attributes(
        size=ctypes.sizeof(_Attributes), nice=os.getpriority(os.PRIO_PROCESS, 0), runtime=_SLICE_NS
    )
    return int(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(asked), 0)) == 0
