"""What is left to send, at which instants, by which process, on a clock to the microsecond?

A session is one call of the command. A later one goes on where the earlier ended: what they sent is
not sent again; what is left keeps its spacing from the new session's begin on, so the run has one
seam and no burst.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.records.raw_log import (
    I32,
    I64,
    EndFrame,
    LagFrame,
    RawLogReader,
    RequestFrame,
    SessionFrame,
    int64s,
    raw_logs,
)
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


_NOT_SENT_ENOUGH: Final = frozenset({"interrupted"})
"""Ends that are no answer to the question: such a request is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Results of earlier sessions."""

    n_sessions: int = 0
    done: frozenset[int] = frozenset()
    """Requests that need not be sent again."""
    ended_ns: int = 0
    """The last instant of the run that is recorded."""
    n_left_bytes: int = 0
    """Bytes of frames that were cut when a process was killed."""


class Share(NamedTuple):
    """One process's part of a session."""

    rows: I32
    """Requests that have an instant of their own, in order of it."""
    due_ns: I64
    waiting_for: dict[int, tuple[int, ...]]
    """Requests that are sent after the end of each."""
    n_awaited: dict[int, int]
    """Ends for which each of those waits."""


class Session(NamedTuple):
    """All that a session sends."""

    begins_ns: int
    cutoff_ns: int | None
    """Instant of the run after which nothing is sent."""
    n_requests: int
    """At most: followers that would come after the cutoff are counted too."""
    shares: tuple[Share, ...]


def past_of(folder: Path) -> Past:
    """Read the raw logs in a run's folder.

    Raises
    ------
    RecordError
        A raw log cannot be read.
    """
    done: set[int] = set()
    ended_ns = n_left_bytes = 0
    n_sessions = 0
    for path in raw_logs(folder):
        reader = RawLogReader(path)
        for frame in reader:
            match frame:
                case SessionFrame(session_index=index, begins_ns=at_ns):
                    n_sessions, ended_ns = max(n_sessions, index + 1), max(ended_ns, at_ns)
                case RequestFrame(request_index=row, error=error, finished_ns=at_ns):
                    ended_ns = max(ended_ns, at_ns)
                    if error not in _NOT_SENT_ENOUGH:
                        done.add(row)
                case LagFrame(due_ns=due_ns):
                    ended_ns = max(ended_ns, int(int64s(due_ns)[-1]))
                case EndFrame(ended_ns=at_ns):
                    ended_ns = max(ended_ns, at_ns)
        n_left_bytes += reader.n_left_bytes
        n_sessions = max(n_sessions, 1 + int(path.name.split("-")[1]))
    return Past(
        n_sessions=n_sessions, done=frozenset(done), ended_ns=ended_ns, n_left_bytes=n_left_bytes
    )


def session_after(
    past: Past, plan: RequestPlan, *, for_s: float | None, n_processes: int
) -> Session:
    """The rest of the plan after ``past``, dealt to processes by each session's first request."""
    is_done = np.zeros(plan.n_requests, np.bool_)
    is_done[[row for row in past.done if row < plan.n_requests]] = True
    arrivals = np.flatnonzero((plan.follows == NONE) & ~is_done)
    before, after = _waits(plan, is_done)
    n_awaited = np.bincount(after, minlength=plan.n_requests)
    led_on = np.flatnonzero((plan.follows != NONE) & ~is_done & (n_awaited == 0))
    reached_ns = min(
        past.ended_ns, int(plan.arrival_ns[arrivals[0]]) if arrivals.size else past.ended_ns
    )
    cutoff_ns = (
        None
        if for_s is None
        else max(past.ended_ns - reached_ns + round(for_s * NS_PER_S), past.ended_ns)
    )
    rows = np.concatenate([arrivals, led_on]).astype(np.int32)
    due_ns = past.ended_ns + np.concatenate(
        [plan.arrival_ns[arrivals] - reached_ns, plan.think_ns[led_on]]
    ).astype(np.int64)
    order = np.argsort(due_ns, kind="stable")
    rows, due_ns = rows[order], due_ns[order]
    if cutoff_ns is not None:
        rows, due_ns = rows[due_ns <= cutoff_ns], due_ns[due_ns <= cutoff_ns]
    process = _chain_of(plan) % n_processes
    shares = tuple(
        Share(
            rows=rows[process[rows] == index],
            due_ns=due_ns[process[rows] == index],
            waiting_for=_grouped(before[process[after] == index], after[process[after] == index]),
            n_awaited={
                row: int(n_awaited[row])
                for row in np.unique(after[process[after] == index]).tolist()
            },
        )
        for index in range(n_processes)
    )
    followers = np.flatnonzero((plan.follows != NONE) & ~is_done)
    n_requests = len(np.union1d(rows, followers))
    return Session(
        begins_ns=past.ended_ns, cutoff_ns=cutoff_ns, n_requests=n_requests, shares=shares
    )


def _waits(plan: RequestPlan, is_done: NDArray[np.bool_]) -> tuple[I64, I64]:
    """Each end that is still to come, and the unsent request that waits for it."""
    followers, joining = np.flatnonzero(plan.follows != NONE), np.flatnonzero(plan.joins != NONE)
    before = np.concatenate([plan.follows[followers], joining]).astype(np.int64)
    after = np.concatenate([followers, plan.joins[joining]]).astype(np.int64)
    companions = np.flatnonzero(plan.accompanies != NONE)
    if companions.size:  # what joins one of them is awaited by all that are sent with it
        joining = joining[np.argsort(plan.joins[joining], kind="stable")]
        begin, end = (
            np.searchsorted(plan.joins[joining], plan.accompanies[companions], side=side)
            for side in ("left", "right")
        )
        shift = begin - (np.cumsum(end - begin) - (end - begin))
        place = np.repeat(shift, end - begin) + np.arange(int((end - begin).sum()))
        before = np.concatenate([before, joining[place]])
        after = np.concatenate([after, np.repeat(companions, end - begin)])
    is_open = ~is_done[before] & ~is_done[after]
    return before[is_open], after[is_open]


def _grouped(before: I64, after: I64) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for end, waiting in zip(before.tolist(), after.tolist(), strict=True):
        found.setdefault(end, []).append(waiting)
    return {end: tuple(waiting) for end, waiting in found.items()}


def _chain_of(plan: RequestPlan) -> I64:
    """Chain of each request, in order of first requests; waiting requests share a chain."""
    chain = (np.cumsum(plan.follows == NONE) - 1).tolist()
    joined = list(range(len(chain)))
    """Of the number of each chain, the one that it is part of."""

    def whole(number: int) -> int:
        while joined[number] != number:
            joined[number] = joined[joined[number]]
            number = joined[number]
        return number

    for row, leader in enumerate(plan.follows.tolist()):
        if leader != NONE:
            chain[row] = chain[leader]
    for row in np.flatnonzero(plan.joins != NONE).tolist():
        one, other = whole(chain[row]), whole(chain[int(plan.joins[row])])
        joined[max(one, other)] = min(one, other)
    return np.array([whole(number) for number in chain], np.int64)
