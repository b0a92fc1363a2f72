"""When was each phase of a run over, without disturbing it?

On a CPU the clock is read after each step. On CUDA work is asynchronous: an event is recorded in
the stream after each step and read when all is over, so that no step waits for a synchronisation of
ours; phases are synchronised.
"""

import time
from typing import Any, Protocol

import torch


class PhaseClock(Protocol):
    """Marks, in order; the durations are those between them."""

    def mark(self) -> None:
        """Say that what was submitted so far belongs to the interval that ends here."""
        ...

    def settle(self) -> None:
        """Wait until the device has done all that was submitted."""
        ...

    def durations_ns(self) -> tuple[int, ...]:
        """The intervals between the marks, once settled."""
        ...


class CpuClock:
    """Reads the monotonic clock: operations on a CPU are over when they return."""

    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        """Read the clock."""
        self._marks_ns.append(time.perf_counter_ns())

    def settle(self) -> None:
        """Nothing is under way on a CPU."""

    def durations_ns(self) -> tuple[int, ...]:
        """The intervals between readings."""
        return tuple(
            after - before
            for before, after in zip(self._marks_ns, self._marks_ns[1:], strict=False)
        )


class CudaClock:
    """Records events in the current stream."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def mark(self) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def durations_ns(self) -> tuple[int, ...]:
        """The intervals between events; their resolution is about half a microsecond."""
        return tuple(
            round(before.elapsed_time(after) * 1e6)
            for before, after in zip(self._events, self._events[1:], strict=False)
        )


def clock_for(device: str) -> PhaseClock:
    """A fresh clock for one run on this device."""
    return CpuClock() if device == "cpu" else CudaClock()
