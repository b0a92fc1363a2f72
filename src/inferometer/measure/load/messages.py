"""What do the command and its client processes say to each other?

MessagePack over the processes' standard pipes, lengths in front.
"""

import os
import resource
from struct import Struct
from typing import Final, TypeAlias

import msgspec
import numpy as np

from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.workload.plan import RequestPlan, column_types
from inferometer.measure.load.connections import Exchange
from inferometer.measure.load.target import Secrets

_LENGTH: Final = Struct("<I")
ATOMIC_BYTES: Final = 4096
"""A pipe takes this number of bytes at once or none (POSIX's PIPE_BUF on Linux)."""


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and size limits; None: as for the whole answer."""

    connect_s: float = 10.0
    head_s: float | None = None
    read_s: float | None = None
    """Between two reads of an answer."""
    head_bytes: int = 64 * 1024
    body_bytes: int | None = None
    """None: enough for an answer of the requested length with all metadata."""
    kept_bytes: int = 1024 * 1024 * 1024
    """Limit of all answers in flight together; beyond it, answers fail as too long."""


class Tracing(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests carry a ``traceparent`` header, so that the server traces them."""

    run_name: str
    """Ids of spans follow from it."""
    sample_fraction: float


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """Everything a client process needs to start; instants are relative to the run."""

    load: LoadPlan
    limits: ClientLimits
    secrets: Secrets
    addresses: tuple[str, ...]
    columns: dict[str, bytes]
    """The whole ``RequestPlan``: prompts may begin with those of other processes' requests."""
    rows: bytes
    """int32: requests of this process that have an instant, in order of it."""
    due_ns: bytes
    """int64: that instant."""
    waiting_for: dict[int, tuple[int, ...]]
    """Requests that are sent after the end of each."""
    n_awaited: dict[int, int]
    """Ends for which each of those waits."""
    session_index: int
    process_index: int
    n_processes: int
    begins_ns: int
    cutoff_ns: int | None
    """Time after which nothing is sent."""
    started_utc: str
    raw_path: str
    id_prefix: str
    """Prefix of ``X-Request-Id``."""
    tracing: Tracing | None = None
    """None: no such header is sent."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start message: CLOCK_MONOTONIC at instant 0 of the run."""

    origin_ns: int


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Send nothing more, and end soon."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Everything is at hand; the schedule may begin."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Events since the last report; ``n_`` counts are since the start."""

    process_index: int
    n_sent: int
    n_in_flight: int
    n_good: int
    n_failed: int
    worst_lag_ns: int
    first_read_ns: tuple[int, ...]
    """Times from intended send to the first bytes of the body, of some requests."""
    read_gap_ns: tuple[int, ...]
    """Mean time between reads of the same."""
    errors: dict[str, int]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The process's schedule is over and its raw log is written."""

    process_index: int
    n_sent: int
    n_unsent: int
    n_failed: int
    cpu_s: float
    is_interrupted: bool


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The process cannot continue."""

    process_index: int
    why: str


ToClient: TypeAlias = Job | Start | Stop
FromClient: TypeAlias = Ready | Report | Done | Failed

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_TO_CLIENT: Final = msgspec.msgpack.Decoder(ToClient)
_FROM_CLIENT: Final = msgspec.msgpack.Decoder(FromClient)


def encoded(message: ToClient | FromClient) -> bytes:
    """The message with its length in front."""
    payload = _ENCODE(message)
    return _LENGTH.pack(len(payload)) + payload


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, waiting for room."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_message(descriptor: int) -> ToClient | None:
    """The next message for a client, waited for; None where the command is gone."""
    head = _read_exactly(descriptor, _LENGTH.size)
    payload = None if head is None else _read_exactly(descriptor, int(_LENGTH.unpack(head)[0]))
    return None if payload is None else _TO_CLIENT.decode(payload)


class Inbox:
    """Messages from one client so far."""

    def __init__(self) -> None:
        self._buffered = bytearray()

    def take(self, data: bytes) -> list[FromClient]:
        """The messages that ``data`` completes."""
        self._buffered += data
        messages: list[FromClient] = []
        while len(self._buffered) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._buffered)[0])
            if len(self._buffered) < end:
                break
            messages.append(_FROM_CLIENT.decode(self._buffered[_LENGTH.size : end]))
            del self._buffered[:end]
        return messages


def packed_plan(plan: RequestPlan) -> dict[str, bytes]:
    """The plan's columns as bytes."""
    return {name: np.ascontiguousarray(column).tobytes() for name, column in plan._asdict().items()}


def unpacked_plan(columns: dict[str, bytes]) -> RequestPlan:
    """The plan of these columns."""
    return RequestPlan(
        **{name: np.frombuffer(columns[name], dtype) for name, dtype in column_types().items()}
    )


def _read_exactly(descriptor: int, n_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    while n_bytes:
        part = os.read(descriptor, min(n_bytes, 1 << 20))
        if not part:
            return None
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


# What does a client process count while it runs, for the live view?


_MOST_SAMPLES: Final = 128
"""Most samples of a report, which must fit into the pipe."""


class Tally:
    """Counts for the live view; cheap, and no part of the record."""

    def __init__(self) -> None:
        self.n_sent = 0
        self.n_good = 0
        self.n_failed = 0
        self._errors: dict[str, int] = {}
        self._first_read_ns: list[int] = []
        self._read_gap_ns: list[int] = []

    def count(self, exchange: Exchange) -> None:
        """An exchange is over."""
        answer = exchange.answer
        if answer.error:
            self.n_failed += 1
            self._errors[answer.error] = self._errors.get(answer.error, 0) + 1
            return
        self.n_good += 1
        if answer.read_ns and len(self._first_read_ns) < _MOST_SAMPLES:
            self._first_read_ns.append(answer.read_ns[0] - exchange.intended_ns)
            if len(answer.read_ns) > 1:
                self._read_gap_ns.append(
                    (answer.read_ns[-1] - answer.read_ns[0]) // (len(answer.read_ns) - 1)
                )

    def report(
        self, process_index: int, n_in_flight: int, worst_lag_ns: int, *, n_waiting: int
    ) -> Report:
        """Events since the last report."""
        report = Report(
            process_index=process_index,
            n_sent=self.n_sent - n_waiting,
            n_in_flight=n_in_flight,
            n_good=self.n_good,
            n_failed=self.n_failed,
            worst_lag_ns=worst_lag_ns,
            first_read_ns=tuple(self._first_read_ns),
            read_gap_ns=tuple(self._read_gap_ns),
            errors=dict(self._errors),
        )
        self._first_read_ns.clear()
        self._read_gap_ns.clear()
        return report


def cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
