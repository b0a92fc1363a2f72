"""How far off was the clock of each sending host, and what are its instants on ours?

Each host counts on its own CLOCK_MONOTONIC. Before and after a run the driver asks it for the time,
again and again: a reading that was taken between ``begin`` and ``end`` of the driver bounds the
offset by ``there - end`` and ``there - begin``, and all bounds hold at once. Source: Cristian,
Probabilistic clock synchronization, Distributed Computing 3 (1989).

Beside the raw logs of a session lies ``session-000-clocks.json``, the clocks of its hosts.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door, shortened
from inferometer.records import durability, raw_log
from inferometer.records.columns import I64
from inferometer.records.types import ClockReading, HostClock

_MOST_NS: Final = 2**61
_MOST_DRIFT_RATIO: Final = 0.1
"""Clocks of machines drift by less than a thousandth of this."""
_DOOR: Final = Door(
    noun="file of the hosts' clocks", allowed="the file as it was written", refusal=RecordError
)


def reading_from(exchanges: Iterable[tuple[int, int, int]]) -> ClockReading:
    """What (begin, there, end) of at least one exchange say together.

    Example
    -------
    >>> reading = reading_from([(100, 1160, 200), (300, 1330, 340)])
    >>> reading.offset_ns, reading.doubt_ns
    (1010, 20)
    """
    listed = tuple(exchanges)
    low = max(there - end for _, there, end in listed)
    high = min(there - begin for begin, there, _ in listed)
    return ClockReading(
        at_ns=listed[-1][2],
        offset_ns=(low + high) // 2,
        doubt_ns=max(high - low + 1, 0) // 2,
        n_exchanges=len(listed),
    )


def write_clocks(folder: Path, session_index: int, clocks: Sequence[HostClock]) -> None:
    """Keep the clocks of a session's hosts.

    Raises
    ------
    RecordError
        The folder cannot be written.
    """
    durability.make_folder(folder / raw_log.RAW_FOLDER)
    durability.replace_file(
        _path(folder, session_index),
        msgspec.json.format(msgspec.json.encode(clocks), indent=2) + b"\n",
    )


def clock_of(folder: Path, raw_path: Path) -> HostClock | None:
    """The clock by which this raw log of a run's folder was written; None: the driver's own.

    Raises
    ------
    RecordError
        The file is damaged.
    """
    session_index, process_index = raw_log.indices_of(raw_path)
    path = _path(folder, session_index)
    if not path.exists():
        return None
    clocks = _DOOR.json(_DOOR.bytes_of(path), tuple[HostClock, ...], where=str(path))
    for clock in clocks:
        for reading in (clock.before, clock.after):
            if (
                reading is not None
                and max(abs(reading.at_ns), abs(reading.offset_ns), abs(reading.doubt_ns))
                > _MOST_NS
            ):
                raise RecordError(
                    f"a clock reads {shortened(reading.offset_ns)} ns",
                    where=str(path),
                    allowed=f"{_MOST_NS} ns",
                )
        if abs(clock.drift_ratio) > _MOST_DRIFT_RATIO:
            raise RecordError(
                f"a clock drifts by {clock.drift_ratio:g}",
                where=str(path),
                allowed=f"{_MOST_DRIFT_RATIO:g}",
            )
    return next((clock for clock in clocks if clock.process_index == process_index), None)


def on_driver_clock(frame: raw_log.Frame, clock: HostClock) -> raw_log.Frame:
    """The frame with the instants that the driver's clock would have shown.

    The host's schedule began by the offset that was measured before; what the offset grew by until
    an instant was the clock's drift.
    """
    drift = clock.drift_ratio
    if not drift:
        return frame

    def at(instant_ns: int) -> int:
        return instant_ns - round(drift * (instant_ns - clock.before.at_ns))

    def packed(instants: bytes) -> bytes:
        there: I64 = raw_log.int64s(instants)
        here: I64 = there - np.rint(drift * (there - clock.before.at_ns)).astype(np.int64)
        return here.astype("<i8").tobytes()

    return _moved(frame, at, packed)


def _moved(
    frame: raw_log.Frame, at: Callable[[int], int], packed: Callable[[bytes], bytes]
) -> raw_log.Frame:
    match frame:
        case raw_log.RequestFrame():
            there = {
                name: getattr(frame, name)
                for name in ("intended_ns", "sent_ns", "connected_ns", "head_ns", "finished_ns")
            }
            known = {
                name: at(instant_ns) for name, instant_ns in there.items() if instant_ns is not None
            }
            return msgspec.structs.replace(frame, **known, read_ns=packed(frame.read_ns))
        case raw_log.LagFrame():
            return msgspec.structs.replace(frame, due_ns=packed(frame.due_ns))
        case raw_log.EndFrame():
            return msgspec.structs.replace(frame, ended_ns=at(frame.ended_ns))
        case raw_log.SessionFrame():
            return frame


def _path(folder: Path, session_index: int) -> Path:
    return folder / raw_log.RAW_FOLDER / f"session-{session_index:03d}-clocks.json"
