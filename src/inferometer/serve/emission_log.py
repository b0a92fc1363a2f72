"""Log of what an emulated server sent, and when.

It is the truth that a load client's timestamps are compared with.

The file is a row of frames, each a letter, a length and a payload: ``E`` holds emissions (int64),
``R`` requests (msgpack). It grows while the server runs; a last frame that was cut off is left out.
Instants are nanoseconds of ``time.perf_counter_ns``, which on Linux is CLOCK_MONOTONIC: the same
for every process of a machine.
"""

import struct
from array import array
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from inferometer.errors import RecordError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.columns import I64

_DOOR: Final = Door(
    noun="emission log", allowed="a file of inferometer emulate", refusal=RecordError
)

_MAGIC: Final = b"inferometer emissions 1\n"
_FRAME: Final = struct.Struct("<cQ")
_N_COLUMNS: Final = 5
_ROWS_PER_FRAME: Final = 4096


class EmissionKind(IntEnum):
    """What one write to a client carried."""

    HEADERS = 0
    TOKENS = 1
    """A chunk with tokens; the last one of a request carries its end too."""
    END = 2
    """An end without tokens: an error, or a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request as the server saw it, written when it has ended."""

    number: int
    client_id: str
    """Its X-Request-Id; '' without one."""
    path: str
    is_streaming: bool
    accepted_ns: int
    """Time when its last byte had been read."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    """Generated tokens; a fault may have suppressed some."""
    end: str
    """``stop``, ``length``, ``abort``, ``error``, ``refused``, or ``unfinished`` where the
    server was stopped first."""
    fault: str | None
    """The fault that was applied."""


class EmissionLog(NamedTuple):
    """E emissions in the order of their writing, and the requests that had ended."""

    number: I64
    """Number of the request, counted from 0."""
    kind: I64
    n_tokens: I64
    due_ns: I64
    """When it should be written: the end of the simulated step that made it."""
    written_ns: I64
    """When the write to the socket returned."""
    requests: tuple[LoggedRequest, ...]

    def token_instants_ns(self, number: int) -> I64:
        """Write time of each token of this request; tokens of one chunk share it."""
        mine = (self.number == number) & (self.kind == EmissionKind.TOKENS)
        instants_ns: I64 = np.repeat(self.written_ns[mine], self.n_tokens[mine])
        return instants_ns

    def lateness_ns(self) -> I64:
        """Delay of each chunk with tokens: written minus due."""
        is_token = self.kind == EmissionKind.TOKENS
        late_ns: I64 = self.written_ns[is_token] - self.due_ns[is_token]
        return late_ns


class EmissionWriter:
    """Collects emissions and requests, and writes them to a file every few thousand."""

    def __init__(self, path: Path | None) -> None:
        self._file: FileIO | None = None if path is None else _opened(path)
        self._problem: RecordError | None = None
        self._rows = array("q")
        self._requests: list[LoggedRequest] = []
        if self._file is not None:
            self._write(self._file, _MAGIC)

    def emitted(
        self, number: int, kind: EmissionKind, n_tokens: int, due_ns: int, written_ns: int
    ) -> None:
        """Note one write to a client.

        The event loop calls this, where an error would be lost: ``flush`` raises it.
        """
        if self._file is None:
            return
        self._rows.extend((number, kind, n_tokens, due_ns, written_ns))
        if len(self._rows) >= _N_COLUMNS * _ROWS_PER_FRAME:
            with suppress(RecordError):
                self.flush()

    def ended(self, request: LoggedRequest) -> None:
        """Note a request that has ended."""
        if self._file is not None:
            self._requests.append(request)

    def flush(self) -> None:
        """Write all that was noted to the file.

        Raises
        ------
        RecordError
            The disk is full, or the file cannot be written for another reason.
        """
        if self._problem is not None:
            raise self._problem
        if self._file is None:
            return
        if self._rows:
            self._frame(b"E", self._rows.tobytes())
            self._rows = array("q")
        if self._requests:
            self._frame(b"R", msgspec.msgpack.encode(self._requests))
            self._requests = []

    def close(self) -> None:
        """Write the rest and close the file; nothing may be noted afterwards."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _frame(self, letter: bytes, payload: bytes) -> None:
        if self._file is not None:
            self._write(self._file, _FRAME.pack(letter, len(payload)) + payload)

    def _write(self, file: FileIO, data: bytes) -> None:
        """Write without a buffer: one that cannot be emptied complains again at the end."""
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as problem:
            file.close()
            self._file = None
            self._problem = RecordError(
                f"cannot write the emission log: {problem.strerror}",
                where=str(file.name),
                allowed="free space",
                try_="another file, or none: answers do not need it",
            )
            raise self._problem from problem


def _opened(path: Path) -> FileIO:
    try:
        return path.open("wb", buffering=0)
    except OSError as problem:
        raise SpecError(
            f"cannot write: {problem}", where="--emission-log", try_="a folder that exists"
        ) from problem


def read_emission_log(path: Path) -> EmissionLog:
    """Read what the server has written so far, also while it runs.

    Raises
    ------
    RecordError
        No such file, or one of another kind.
    """
    content = _DOOR.bytes_of(path)
    if not content.startswith(_MAGIC):
        raise RecordError(
            "this is no emission log",
            where=str(path),
            allowed=f"a file that begins with {_MAGIC.decode().strip()!r}",
        )
    with _DOOR.refusing(str(path)):
        return _read(content)


def _read(content: bytes) -> EmissionLog:
    rows, requests = list[I64](), list[LoggedRequest]()
    start = len(_MAGIC)
    while start + _FRAME.size <= len(content):
        letter, length = _FRAME.unpack_from(content, start)
        payload = content[start + _FRAME.size : start + _FRAME.size + length]
        if len(payload) < length:
            break
        start += _FRAME.size + length
        if letter == b"E":
            rows.append(np.frombuffer(payload, dtype=np.int64).reshape(-1, _N_COLUMNS))
        else:
            requests += msgspec.msgpack.decode(payload, type=list[LoggedRequest])
    table = np.concatenate(rows) if rows else np.empty((0, _N_COLUMNS), np.int64)
    number, kind, n_tokens, due_ns, written_ns = table.T
    return EmissionLog(number, kind, n_tokens, due_ns, written_ns, tuple(requests))
