"""Raw logs: a load test's client stores the received bytes, to decode them after the run.

A folder ``raw/`` holds one file per process and session (a session is one call of the command; a
resumed run has several): ``session-000-process-00.raw``. A file is ``MAGIC`` and then frames, each

    u32 little-endian  length of the payload in bytes
    u32 little-endian  CRC-32 of the payload
    payload            MessagePack: [tag, field, field, …] of one of the four structs below

A killed process leaves at most one cut frame at the end: readers stop there and report the number
of unread bytes. All times are nanoseconds of CLOCK_MONOTONIC since the start of the run, in every
session.
"""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door

I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]

MAGIC: Final = b"inferometer raw log 1\n"
RAW_FOLDER: Final = "raw"
_HEAD: Final = Struct("<II")
DOOR: Final = Door(
    noun="raw log",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="--skip-damaged, or the run again",
)


class SessionFrame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="session"):
    """First frame of every file: its process, and the start of its clock."""

    session_index: int
    process_index: int
    n_processes: int
    begins_ns: int
    """Time since the start of the run at which this session's schedule begins; 0 for the first."""
    origin_monotonic_ns: int
    """CLOCK_MONOTONIC at the start of the run, which may precede that of the process."""
    started_utc: str
    scheduled: str = ""
    """CPU scheduling of this process: real-time, short slices, usual; '' where unknown."""
    origin_unix_ns: int = 0
    """Wall clock at instant 0 of the run (ns since 1970); 0 where unknown."""


class RequestFrame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="request"):
    """One request that ended in any way; None: it did not reach this event."""

    request_index: int
    """Row of the workload's ``RequestPlan``."""
    process_index: int
    connection_index: int
    """Number of the connection within the process; -1 where none could be opened."""
    is_reused: bool
    intended_ns: int
    sent_ns: int | None
    """Time when the request was passed to the socket."""
    connected_ns: int | None
    """Time when the new connection was open (with TLS and proxy); None where reused."""
    head_ns: int | None
    """End of the read that completed the response's head."""
    finished_ns: int
    """Time when the response was complete, or cancelled."""
    http_status: int | None
    error: str
    """'' or a code of ``records.exchange_errors``."""
    detail: str
    """The operating system's error message."""
    content_type: str
    retry_after: str
    """The header's text; '' without it."""
    asked_prompt_tokens: int
    asked_output_tokens: int
    """``max_tokens`` of the request."""
    sent_bytes: int
    """Size of the request: headers and body."""
    received_bytes: int
    """Bytes of the response's body (without transfer coding), stored or not."""
    read_ns: bytes
    """int64 little-endian: end of each read with bytes of the body."""
    read_bytes: bytes
    """int32 little-endian: number of bytes of the body in each of these reads; they add up to
    ``len(body)``."""
    body: bytes
    """The body as received, cut at the limit (then shorter than ``received_bytes``)."""


class LagFrame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="lag"):
    """Delays in one second of the sending process's timer, which is due every few milliseconds."""

    process_index: int
    due_ns: bytes
    """int64 little-endian."""
    lag_ns: bytes
    """int64 little-endian."""
    n_in_flight: bytes
    """int32 little-endian."""


class EndFrame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="end"):
    """Last frame of a file whose process ended normally."""

    process_index: int
    ended_ns: int
    is_interrupted: bool
    """It was stopped before the end of its schedule."""
    n_unsent: int
    """Requests of its share that were not sent, because the schedule was cut."""
    cpu_s: float
    """CPU time of the process over its schedule."""


Frame: TypeAlias = SessionFrame | RequestFrame | LagFrame | EndFrame

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Frame)


def file_name(session_index: int, process_index: int) -> str:
    """Name of this process's file in this session; names sort by session, then by process."""
    return f"session-{session_index:03d}-process-{process_index:02d}.raw"


def indices_of(path: Path) -> tuple[int, int]:
    """Session and process of a file."""
    _, session, _, process = path.stem.split("-")
    return int(session), int(process)


def encode_frame(frame: Frame) -> bytes:
    """Bytes of a frame in a file."""
    payload = _ENCODER.encode(frame)
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


class RawLogReader:
    """The frames of one file in order, one in memory at a time.

    Afterwards ``n_left_bytes`` is the size of a cut tail and ``n_read_bytes`` its start, from which
    to read on once more was written.
    """

    def __init__(self, path: Path, *, from_byte: int = 0) -> None:
        self._path = path
        self.n_read_bytes = from_byte
        self.n_left_bytes = 0

    def __iter__(self) -> Iterator[Frame]:
        """Read the file from its start, or from ``from_byte``.

        Raises
        ------
        RecordError
            The file is not a raw log, or cannot be read.
        """
        with DOOR.refusing(str(self._path)), self._path.open("rb") as file:
            start = file.read(len(MAGIC))
            if not MAGIC.startswith(start):
                raise RecordError(
                    "this is no raw log",
                    where=str(self._path),
                    allowed=f"a file that begins with {MAGIC!r}",
                )
            n_bytes = self._path.stat().st_size
            good = max(file.tell(), self.n_read_bytes)
            file.seek(good)
            while (
                payload := _payload(file.read(_HEAD.size), n_bytes - good, file.read)
            ) is not None:
                yield _DECODER.decode(payload)
                good = file.tell()
                self.n_read_bytes = good
            self.n_left_bytes = n_bytes - good


def raw_logs(folder: Path) -> tuple[Path, ...]:
    """The raw logs of a run's folder, by session and process."""
    return tuple(sorted((folder / RAW_FOLDER).glob("session-*-process-*.raw")))


def session_frames(folder: Path) -> tuple[SessionFrame, ...]:
    """The first frame of each raw log of a run's folder.

    Raises
    ------
    RecordError
        A raw log cannot be read.
    """
    firsts = (next(iter(RawLogReader(path)), None) for path in raw_logs(folder))
    return tuple(frame for frame in firsts if isinstance(frame, SessionFrame))


def int64s(packed: bytes) -> I64:
    """Numbers of a packed int64 field."""
    return np.frombuffer(packed, "<i8")


def int32s(packed: bytes) -> I32:
    """Numbers of a packed int32 field."""
    return np.frombuffer(packed, "<i4")


def _payload(head: bytes, left_bytes: int, read: Callable[[int], bytes]) -> bytes | None:
    """The next frame's payload; None where the file ends or is cut or damaged."""
    if len(head) < _HEAD.size:
        return None
    n_bytes, crc = _HEAD.unpack(head)
    if n_bytes > left_bytes:
        return None
    payload = read(n_bytes)
    return payload if len(payload) == n_bytes and zlib.crc32(payload) == crc else None
