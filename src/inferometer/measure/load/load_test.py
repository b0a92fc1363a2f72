"""How is a whole load test run: client processes started, begun at one instant, watched, and stopped in order?"""

import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer.errors import MeasureError
from inferometer.measure.load import messages
from inferometer.measure.load.progress import LoadProgress, ProgressTally
from inferometer.measure.load.sessions import Past, Session, session_after
from inferometer.measure.load.target import Secrets, target_of
from inferometer.measure.manifest import now_utc
from inferometer.records.raw_log import RAW_FOLDER, file_name
from inferometer.spec.load_plan import LoadPlan
from inferometer.spec.workload.plan import RequestPlan
from inferometer.units import NS_PER_S

_BEGIN_AFTER_NS: Final = 20_000_000
"""From the word to begin to the instant: the slowest process must have heard it."""
_READY_S: Final = 60.0
_END_S: Final = 30.0
"""Beyond what the plan may take: then a client process that does not end is ended."""
_STOP_S: Final = 15.0
_LOOK_S: Final = 0.25

OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadQuestion:
    """Everything a session needs beside the plan."""

    load: LoadPlan
    plan: RequestPlan
    past: Past
    folder: Path
    id_prefix: str
    secrets: Secrets
    limits: messages.ClientLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """How a session went; what came over the wire is in the raw logs."""

    begins_ns: int
    n_sent: int
    n_unsent: int
    n_failed: int
    cpu_s: float
    """Of all client processes, from the schedule's begin on."""
    is_interrupted: bool
    dead_processes: tuple[str, ...] = ()
    """Why processes ended that should not have."""


def run_session(question: LoadQuestion, on_progress: OnProgress) -> LoadOutcome:
    """Send what is left of the plan; Ctrl-C ends it early and in order.

    Raises
    ------
    MeasureError
        The server's name is unknown, nobody listens there, or no client process could start.
    """
    load = question.load
    addresses = resolved(load)
    session = session_after(question.past, question.plan, for_s=load.for_s, n_processes=load.n_processes)
    jobs = [_job(question, session, addresses, index) for index in range(load.n_processes)]
    with _clients(len(jobs)) as clients:
        for client, job in zip(clients.processes, jobs, strict=True):
            clients.tell(client, job)
        return _Watch(clients, session, on_progress).outcome()


def resolved(load: LoadPlan) -> tuple[str, ...]:
    """The addresses of the first hop, the one that answers first.

    Raises
    ------
    MeasureError
        Its name is unknown, or nobody listens there.
    """
    hop = target_of(load).first_hop
    where = f"{hop.host}:{hop.port}"
    try:
        found = socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MeasureError(f"the host's name cannot be resolved: {error.strerror}", where=where, try_="check the URL's host") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    why: OSError | None = None
    for address in tuple(addresses):
        try:
            socket.create_connection((address, hop.port), timeout=10.0).close()
        except OSError as error:
            why = error
            addresses.append(addresses.pop(0))
        else:
            return tuple(addresses)
    raise MeasureError(f"nobody answers: {why}", where=where, try_="start the server, or check the URL") from why


def _job(question: LoadQuestion, session: Session, addresses: tuple[str, ...], process_index: int) -> messages.Job:
    share, past = session.shares[process_index], question.past
    return messages.Job(
        load=question.load,
        limits=question.limits,
        secrets=question.secrets,
        addresses=addresses,
        columns=messages.packed_plan(question.plan),
        rows=share.rows.tobytes(),
        due_ns=share.due_ns.tobytes(),
        follower_of=share.follower_of,
        session_index=past.n_sessions,
        process_index=process_index,
        n_processes=question.load.n_processes,
        begins_ns=session.begins_ns,
        cutoff_ns=session.cutoff_ns,
        started_utc=now_utc(),
        raw_path=str(question.folder / RAW_FOLDER / file_name(past.n_sessions, process_index)),
        id_prefix=question.id_prefix,
    )


class _Clients:
    """The client processes and their pipes."""

    def __init__(self, n_processes: int) -> None:
        command = [sys.executable, "-m", "inferometer.measure.load.worker"]
        # A session of their own: Ctrl-C of the terminal is ours alone, and we tell them.
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
            for _ in range(n_processes)
        ]

    def tell(self, client: "subprocess.Popen[bytes]", message: messages.ToClient) -> None:
        """Send a message; a client that is gone is found out when it is listened to."""
        assert client.stdin is not None  # noqa: S101 -- asked for above
        try:
            messages.write_all(client.stdin.fileno(), messages.encoded(message))
        except BrokenPipeError:
            return

    def tell_all(self, message: messages.ToClient) -> None:
        """The same to each."""
        for client in self.processes:
            self.tell(client, message)

    def end(self) -> None:
        """Whatever still runs is ended."""
        for client in self.processes:
            for pipe in (client.stdin, client.stdout):
                if pipe is not None:
                    pipe.close()
            if client.poll() is None:
                try:
                    client.wait(timeout=_STOP_S)
                except subprocess.TimeoutExpired:
                    client.kill()
                    client.wait()


@contextmanager
def _clients(n_processes: int) -> Generator[_Clients]:
    clients = _Clients(n_processes)
    try:
        yield clients
    finally:
        clients.end()


class _Watch:
    """Listens to the clients until the last is done."""

    def __init__(self, clients: _Clients, session: Session, on_progress: OnProgress) -> None:
        self._clients = clients
        self._session = session
        self._on_progress = on_progress
        self._tally = ProgressTally(n_planned=session.n_requests)
        self._done: list[messages.Done] = []
        self._dead: list[str] = []
        self._n_ready = 0
        self._selector = selectors.DefaultSelector()
        for client in clients.processes:
            assert client.stdout is not None  # noqa: S101 -- asked for when it was started
            self._selector.register(client.stdout, selectors.EVENT_READ, messages.Inbox())

    def outcome(self) -> LoadOutcome:
        """Begin, watch, and say how it went."""
        try:
            self._until(lambda: self._n_ready == len(self._clients.processes) or bool(self._dead), within_s=_READY_S)
            if self._dead or self._n_ready < len(self._clients.processes):
                raise MeasureError("a client process did not start", where="; ".join(self._dead) or "no word from it", try_="--processes 1")
            begin_ns = time.monotonic_ns() + _BEGIN_AFTER_NS
            self._clients.tell_all(messages.Start(origin_ns=begin_ns - self._session.begins_ns))
            try:
                self._until(self._is_over)
            except KeyboardInterrupt:
                self._clients.tell_all(messages.Stop())
                self._until(self._is_over, within_s=_STOP_S)
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
                    self._selector.unregister(key.fileobj)
                    self._on_end(key.fileobj)
            if self._tally.is_news:
                self._on_progress(self._tally.progress())

    def _take(self, message: messages.FromClient) -> None:
        match message:
            case messages.Ready():
                self._n_ready += 1
                if self._n_ready == len(self._clients.processes):
                    self._tally.begin()
            case messages.Report():
                self._tally.take(message)
            case messages.Done():
                self._done.append(message)
            case messages.Failed():
                self._dead.append(message.why)

    def _on_end(self, pipe: object) -> None:
        """A pipe's end: its process is done, has said why it failed, or was killed."""
        index = next(i for i, client in enumerate(self._clients.processes) if client.stdout is pipe)
        code = self._clients.processes[index].wait(timeout=_END_S)
        if code and not any(done.process_index == index for done in self._done):
            self._dead.append(f"client process {index} ended with code {code}")

    def _said(self) -> LoadOutcome:
        return LoadOutcome(
            begins_ns=self._session.begins_ns,
            n_sent=sum(done.n_sent for done in self._done),
            n_unsent=sum(done.n_unsent for done in self._done),
            n_failed=sum(done.n_failed for done in self._done),
            cpu_s=sum(done.cpu_s for done in self._done),
            is_interrupted=any(done.is_interrupted for done in self._done),
            dead_processes=tuple(dict.fromkeys(self._dead)),
        )


__all__ = ["LoadOutcome", "LoadQuestion", "OnProgress", "resolved", "run_session"]
