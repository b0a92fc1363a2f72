"""Which steps does a server publish while it runs (Forward Pass Metrics over ZeroMQ)?

A thread subscribes and keeps messages; they are decoded when the window is over. Nothing is
sent to the server. ZeroMQ's binding is the extra ``fpm``: it is imported when an endpoint is named.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.records.step_logs import (
    MESSAGES,
    ForwardPass,
    Numbered,
    StepLog,
    forward_passes,
)

_WHERE: Final = "--fpm"
_POLL_MS: Final = 100
_MOST_WAITING: Final = 100_000
_MOST_KEPT: Final = 2_000_000
_NUMBER_BYTES: Final = 8
_SCHEMES: Final = ("tcp://", "ipc://")


class Listener:
    """The messages of one endpoint, as they came."""

    def __init__(self, endpoint: str) -> None:
        """Listen to the publisher that is bound to ``endpoint``."""
        self.endpoint = endpoint
        self._frames: list[tuple[bytes, ...]] = []

    @property
    def n_messages(self) -> int:
        """The number of messages received so far."""
        return len(self._frames)

    def hear(self, zmq: ModuleType, socket: Any, stopped: threading.Event) -> None:  # noqa: ANN401
        """Store messages until stopped."""
        while not stopped.is_set():
            if socket.poll(_POLL_MS):
                frames = tuple(socket.recv_multipart(zmq.NOBLOCK))
                if len(self._frames) < _MOST_KEPT:
                    self._frames.append(frames)

    def step_log(self) -> StepLog:
        """The steps received so far.

        Raises
        ------
        MeasureError
            There are none: nobody publishes there, or in another version.
        """
        messages: list[Numbered] = []
        n_damaged = 0
        for frames in self._frames:
            number = int.from_bytes(frames[-2], "big") if _has_number(frames) else None
            try:
                message = MESSAGES.msgpack(frames[-1], ForwardPass, where=self.endpoint)
            except RecordError:
                n_damaged += 1
            else:
                messages.append(Numbered(number, message))
        log = forward_passes(messages)
        log = log._replace(n_refused=log.n_refused + n_damaged)
        if not len(log.duration_s):
            heard = f"{len(self._frames):,} messages were published, {log.n_refused:,} of them in"
            heard += " another version or damaged, and none of them is a step"
            raise MeasureError(
                heard if self._frames else "nothing is published there",
                where=f"{_WHERE} {self.endpoint}",
                allowed=(
                    "the endpoint to which a server under load binds its Forward Pass Metrics"
                    " (version 1): Dynamo's relay, or SGLang's --enable-forward-pass-metrics"
                ),
                try_="the same command without --fpm, which reads only the metrics",
            )
        return log


def _has_number(frames: tuple[bytes, ...]) -> bool:
    return len(frames) > 1 and len(frames[-2]) == _NUMBER_BYTES


@contextmanager
def listening(endpoint: str | None) -> Generator[Listener | None]:
    """Receive the steps published at this endpoint inside the context; None: no endpoint.

    Raises
    ------
    SpecError
        It is no endpoint, or ZeroMQ's binding is not installed.
    """
    if endpoint is None:
        yield None
        return
    if not endpoint.startswith(_SCHEMES):
        raise SpecError(
            f"{endpoint!r} is no endpoint",
            where=_WHERE,
            allowed="tcp://HOST:PORT or ipc://PATH",
            try_=f"{_WHERE} tcp://127.0.0.1:20380",
        )
    zmq = _zmq()
    context: Any = zmq.Context()
    socket = context.socket(zmq.SUB)
    listener, stopped = Listener(endpoint), threading.Event()
    try:
        socket.setsockopt(zmq.RCVHWM, _MOST_WAITING)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise SpecError(
                f"{endpoint!r} is no endpoint: {error}",
                where=_WHERE,
                allowed="tcp://HOST:PORT or ipc://PATH",
            ) from error
        thread = threading.Thread(target=listener.hear, args=(zmq, socket, stopped), daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            stopped.set()
            thread.join()
    finally:
        socket.close(linger=0)
        context.term()


def _zmq() -> ModuleType:
    try:
        return import_module("zmq")
    except ImportError as error:
        raise SpecError(
            "ZeroMQ's binding is not installed in this Python",
            where=_WHERE,
            try_="pip install 'inferometer[fpm]'",
        ) from error
