"""How are requests written before they are due, off the hot path and in bounded memory?

As many as fit are written before the run begins; later some in each pause between two instants.
What is not ready when it is due (a follower, whose turn nobody can know) is written then.
"""

import time
from collections.abc import Sequence
from typing import Final

from inferometer.measure.load.bodies import BodyWriter

_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_AHEAD: Final = 100_000
_PAUSE_NS: Final = 2_000_000
"""A pause must last so long for something to be written in it."""
_PART_NS: Final = 500_000
"""So much of it is used: answers come in pauses too."""


class MessagesAhead:
    """The messages (head and body) of requests in the order of their instants."""

    def __init__(
        self, bodies: BodyWriter, head: tuple[bytes, bytes], id_prefix: str, rows: Sequence[int]
    ) -> None:
        self._bodies = bodies
        self._before_id, self._before_length = head
        self._id_prefix = id_prefix
        self._rows = rows
        self._next = 0
        self._ready: dict[int, bytes] = {}
        self._n_ready_bytes = 0

    def take(self, row: int) -> bytes:
        """The message of a request, which is then forgotten."""
        message = self._ready.pop(row, None)
        if message is None:
            return self._written(row)
        self._n_ready_bytes -= len(message)
        return message

    def prepare_for(self, at_most_ns: int) -> None:
        """Write messages until so much time is gone, or enough are ready."""
        until_ns = time.monotonic_ns() + at_most_ns
        while self._has_room() and time.monotonic_ns() < until_ns:
            self._prepare_one()

    def prepare(self, next_due_ns: int | None) -> None:
        """Use the pause until something is due."""
        if next_due_ns is None or next_due_ns - time.monotonic_ns() >= _PAUSE_NS:
            self.prepare_for(_PART_NS)

    def skip_to(self, n_sent: int) -> None:
        """So many have been sent: those are not written any more."""
        self._next = max(self._next, n_sent)

    def _has_room(self) -> bool:
        return (
            self._next < len(self._rows)
            and len(self._ready) < _MOST_AHEAD
            and self._n_ready_bytes < _MOST_BYTES
        )

    def _prepare_one(self) -> None:
        row = self._rows[self._next]
        self._next += 1
        message = self._written(row)
        self._ready[row] = message
        self._n_ready_bytes += len(message)

    def _written(self, row: int) -> bytes:
        body = self._bodies.body(row)
        return b"%b%b-%d%b%d\r\n\r\n%b" % (
            self._before_id,
            self._id_prefix.encode(),
            row,
            self._before_length,
            len(body),
            body,
        )
