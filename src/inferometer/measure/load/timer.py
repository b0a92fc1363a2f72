"""When is the next thing due, to the microsecond, on a schedule that is never moved?

Event loops time in milliseconds and may fire early; a Linux timerfd is a file that becomes readable
at an absolute instant of CLOCK_MONOTONIC. Elsewhere the loop's own timer is set again until the
instant is reached.
"""

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable
from typing import Final

from inferometer.units import NS_PER_S

_TFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_MOST_AT_ONCE: Final = 32
"""Then the loop reads what came in before more is done."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


class Agenda:
    """Calls functions at their due times (ns of CLOCK_MONOTONIC), in order, never early."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: list[tuple[int, int, Callable[[int], None]]] = []
        self._n_added = 0
        self._armed_ns: int | None = None
        self._alarm = (
            _TimerFile(loop, self._on_alarm)
            if hasattr(_libc(), "timerfd_create")
            else _LoopTimer(loop, self._on_alarm)
        )

    def add(self, due_ns: int, call: Callable[[int], None]) -> None:
        """Call ``call(due_ns)`` at that instant, or at once where it is past."""
        self._n_added += 1
        heapq.heappush(self._entries, (due_ns, self._n_added, call))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm()

    def close(self) -> None:
        """Forget all that is due."""
        self._entries.clear()
        self._alarm.close()

    def next_ns(self) -> int | None:
        """When the next call is due."""
        return self._entries[0][0] if self._entries else None

    def _arm(self) -> None:
        self._armed_ns = self._entries[0][0]
        self._alarm.set(self._armed_ns)

    def _on_alarm(self) -> None:
        self._armed_ns = -1  # what is added meanwhile is looked at below
        try:
            for _ in range(_MOST_AT_ONCE):
                if not self._entries or self._entries[0][0] > time.monotonic_ns():
                    break
                due_ns, _, call = heapq.heappop(self._entries)
                call(due_ns)
        finally:
            self._armed_ns = None
            if self._entries:
                self._arm()


class _TimerFile:
    """A timerfd in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_alarm: Callable[[], None]) -> None:
        self._loop = loop
        self._on_alarm = on_alarm
        self._settime = _libc().timerfd_settime
        self._descriptor = _libc().timerfd_create(time.CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _TimerSpec()
        self._spec_there = ctypes.byref(self._spec)
        loop.add_reader(self._descriptor, self._on_readable)

    def set(self, due_ns: int) -> None:
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(due_ns, 1), NS_PER_S)  # 0 would disarm it
        self._settime(self._descriptor, _TFD_TIMER_ABSTIME, self._spec_there, None)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _on_readable(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set anew after it had fired
            return
        self._on_alarm()


class _LoopTimer:
    """The loop's own timer, set again where it fires early."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_alarm: Callable[[], None]) -> None:
        self._loop = loop
        self._on_alarm = on_alarm
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_ns: int) -> None:
        self.close()
        self._handle = self._loop.call_later(
            max(due_ns - time.monotonic_ns(), 0) / NS_PER_S, self._on_alarm
        )

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
