"""How are running client processes begun at one instant, listened to, and stopped in order?"""

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inferometer.errors import MeasureError
from inferometer.measure.load import messages
from inferometer.measure.load.processes import STOP_S, Clients
from inferometer.measure.load.progress import LoadProgress, ProgressTally
from inferometer.measure.load.sessions import Session
from inferometer.units import NS_PER_S

_READY_S: Final = 60.0
_LOOK_S: Final = 0.25

OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """How a session went; what came over the wire is in the raw logs."""

    origin_monotonic_ns: int
    """What CLOCK_MONOTONIC showed (or would have shown) at instant 0 of the run."""
    begins_ns: int
    n_sent: int
    n_unsent: int
    n_failed: int
    cpu_s: float
    """Of all client processes, from the schedule's begin on."""
    is_interrupted: bool
    dead_processes: tuple[str, ...] = ()
    """Why processes ended that should not have."""


class Watch:
    """Listens to the clients until the last is done."""

    def __init__(self, clients: Clients, session: Session, on_progress: OnProgress) -> None:
        self._clients = clients
        self._session = session
        self._on_progress = on_progress
        self._tally = ProgressTally(n_planned=session.n_requests)
        self._done: list[messages.Done] = []
        self._dead: list[str] = []
        self._n_ready = 0
        self._origin_ns = 0
        self._selector = selectors.DefaultSelector()
        self._outlets = tuple(clients.outlets)
        for outlet in self._outlets:
            self._selector.register(outlet, selectors.EVENT_READ, messages.Inbox())

    def outcome(self) -> LoadOutcome:
        """Begin, watch, and say how it went."""
        try:
            self._until(
                lambda: self._n_ready == len(self._outlets) or bool(self._dead), within_s=_READY_S
            )
            if self._dead or self._n_ready < len(self._outlets):
                raise MeasureError(
                    "a client process did not start",
                    where="; ".join(self._dead) or "no word from it",
                    try_="--processes 1",
                )
            self._origin_ns = self._clients.begin(self._session.begins_ns)
            try:
                self._until(self._is_over)
            except KeyboardInterrupt:
                self._clients.tell_all(messages.Stop())
                self._until(self._is_over, within_s=STOP_S)
        finally:
            self._selector.close()
        return self._said()

    def _is_over(self) -> bool:
        return not self._selector.get_map()

    def _until(self, is_there: Callable[[], bool], *, within_s: float | None = None) -> None:
        end_ns = None if within_s is None else time.monotonic_ns() + round(within_s * NS_PER_S)
        while not is_there() and (end_ns is None or time.monotonic_ns() < end_ns):
            for key, _ in self._selector.select(timeout=_LOOK_S):
                data = os.read(key.fd, 1 << 16)
                if data:
                    for message in key.data.take(data):
                        self._take(message)
                else:
                    self._selector.unregister(key.fd)
                    self._on_end(self._outlets.index(key.fd))
            if self._tally.is_news:
                self._on_progress(self._tally.progress())

    def _take(self, message: messages.FromClient) -> None:
        match message:
            case messages.Ready():
                self._n_ready += 1
                if self._n_ready == len(self._outlets):
                    self._tally.begin()
            case messages.Report():
                self._tally.take(message)
            case messages.Done():
                self._done.append(message)
            case messages.Failed():
                self._dead.append(message.why)

    def _on_end(self, index: int) -> None:
        """A client's end: it is done, has said why it failed, or was killed."""
        why = self._clients.why_ended(index)
        if why is not None and not any(done.process_index == index for done in self._done):
            self._dead.append(why)

    def _said(self) -> LoadOutcome:
        return LoadOutcome(
            origin_monotonic_ns=self._origin_ns,
            begins_ns=self._session.begins_ns,
            n_sent=sum(done.n_sent for done in self._done),
            n_unsent=sum(done.n_unsent for done in self._done),
            n_failed=sum(done.n_failed for done in self._done),
            cpu_s=sum(done.cpu_s for done in self._done),
            is_interrupted=any(done.is_interrupted for done in self._done),
            dead_processes=tuple(dict.fromkeys(self._dead)),
        )
