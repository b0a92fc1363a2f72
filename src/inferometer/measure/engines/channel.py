"""How do messages travel between the worker and us?

One line of JSON each, over a socket pair of their own.
"""

import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

_CHUNK_BYTES: Final = 2**20
_MessageT = TypeVar("_MessageT")


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel(Generic[_MessageT]):
    """One end of the wire: sends any message, receives messages of one type."""

    def __init__(self, end: socket.socket, decoder: "msgspec.json.Decoder[_MessageT]") -> None:
        self._end = end
        self._decoder = decoder
        self._buffered = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Write one message.

        Raises
        ------
        ChannelClosed
            The other end is gone.
        """
        try:
            self._end.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            raise ChannelClosed from None

    def receive(self, timeout_s: float | None = None) -> _MessageT:
        """Wait for one message.

        Raises
        ------
        ChannelClosed, TimeoutError
            The other end is gone; nothing came in time.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (line_end := self._buffered.find(b"\n")) < 0:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
            readable, _, _ = select.select([self._end], [], [], left_s)
            if not readable:
                raise TimeoutError
            try:
                chunk = self._end.recv(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            if not chunk:
                raise ChannelClosed
            self._buffered += chunk
        line = bytes(self._buffered[:line_end])
        del self._buffered[: line_end + 1]
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close this end; the other sees the end of the stream."""
        self._end.close()


def until_gone(channel: Channel[_MessageT]) -> Iterator[_MessageT]:
    """Messages as they come. When the other end closes, this process and its group end at once.

    A thread of its own waits for them, so that the end of the stream is seen while a point runs.
    """
    waiting: queue.SimpleQueue[_MessageT] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                waiting.put(channel.receive())
        except ChannelClosed:
            _leave()

    threading.Thread(target=listen, name="channel", daemon=True).start()
    while True:
        yield waiting.get()


def _leave() -> None:
    """The parent is gone: so are we, and every process that the engine started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
