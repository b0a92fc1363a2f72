"""Which events does a text/event-stream hold, and when was each of them there?

A body comes in reads that end anywhere: in the middle of a line, of a character, between CR and LF.
An event is there when the read ends that brings the first byte of the line end of its blank line.
No bytes make this fail.

Source: WHATWG HTML, section 9.2.6, interpreting an event stream. One thing differs: an event that
the end of the body cuts off is given too and says so, because its bytes did arrive.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_COMMENT: Final = ord(":")


class Event(NamedTuple):
    """One event of a stream."""

    end: int
    """How many bytes of the body it takes until it is complete."""
    name: bytes
    """b'' where the stream gives it none."""
    data: bytes
    """Its data lines, joined by line feeds."""
    is_whole: bool
    """False where the body ended before the event did."""


def events_of(body: bytes) -> list[Event]:
    r"""All events with data, in order; comments, keep-alives and fields that are none of ours are none.

    Example
    -------
    >>> [event.data for event in events_of(b"data: a\n\n: keep-alive\n\ndata: b\ndata: c\n\n")]
    [b'a', b'b\nc']
    """
    usual = _usual_events(body)
    return _events_by_lines(body) if usual is None else usual


def _usual_events(body: bytes) -> list[Event] | None:
    """The same in little more than half the time, where every event is one line of data; None elsewhere."""
    *pieces, rest = body.split(b"\n\n")
    if rest or b"\r" in body:
        return None
    events: list[Event] = []
    end = 0
    for piece in pieces:
        if piece[:6] != b"data: " or b"\n" in piece:
            return None
        end += len(piece) + 2
        events.append(Event(end, b"", piece[6:], is_whole=True))
    return events


def _events_by_lines(body: bytes) -> list[Event]:
    start = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    events: list[Event] = []
    name, lines = b"", list[bytes]()
    for match in _LINE_END.finditer(body, start):
        line_end, line_start, start = match.start(), start, match.end()
        if line_end > line_start:
            name = _taken(body[line_start:line_end], lines, name)
            continue
        if lines:
            events.append(Event(line_end + 1, name, b"\n".join(lines), is_whole=True))
        name, lines = b"", []
    if start < len(body):
        name = _taken(body[start:], lines, name)
    if lines:
        events.append(Event(len(body), name, b"\n".join(lines), is_whole=False))
    return events


def reads_of(ends: Sequence[int], read_bytes: Sequence[int]) -> list[int]:
    """The index of the read that brought the last byte of each (rising) end offset.

    What lies beyond all reads is of the last one.

    Example
    -------
    >>> reads_of([3, 4, 9], [3, 0, 4, 2])
    [0, 2, 3]
    """
    found: list[int] = []
    index, arrived, last = 0, read_bytes[0] if read_bytes else 0, len(read_bytes) - 1
    for end in ends:
        while arrived < end and index < last:
            index += 1
            arrived += read_bytes[index]
        found.append(index)
    return found


def _taken(line: bytes, lines: list[bytes], name: bytes) -> bytes:
    """Take a line into the event that is being read; gives the event's name."""
    if line[0] == _COMMENT:
        return name
    field, _, value = line.partition(b":")
    value = value.removeprefix(b" ")
    if field == b"data":
        lines.append(value)
    return value if field == b"event" else name
