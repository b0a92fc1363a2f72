"""How much memory did this process and its children hold at most, and how much is left?

An engine's worker asks too, in the engine's own environment: this module needs no other package.

Linux keeps each process's peak resident set (VmHWM in /proc/PID/status) and forgets it when 5 is
written to /proc/PID/clear_refs (proc(5)). Elsewhere, and where that is forbidden, the answer is
None.
"""

import os
from pathlib import Path
from typing import Final

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
