"""How are running client processes begun at one instant, listened to, and stopped in order?"""

import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from inferometer.errors import MeasureError
from inferometer.measure import child_processes
from inferometer.measure.load import messages
from inferometer.measure.load.messages import Report
from inferometer.measure.load.schedule import Session
from inferometer.units import NS_PER_S, s_from_ns

# How are client processes started, told things, and ended?


STOP_S: Final = 15.0
"""Time that a process has to end."""


_BEGIN_AFTER_NS: Final = 20_000_000
"""Time from the start message to the start, so that the slowest process has read it."""
_END_S: Final = 30.0


class Clients(Protocol):
    """The client processes of a session, wherever they run; each is named by its index."""

    @property
    def outlets(self) -> Sequence[int]:
        """File descriptors with the clients' messages, one per client that has not ended."""
        ...

    def begin(self, begins_ns: int) -> int:
        """Send each client the start of the schedule.

        What will CLOCK_MONOTONIC show here at instant 0?
        """
        ...

    def tell_all(self, message: messages.ToClient) -> None:
        """Send a message to each client."""
        ...

    def why_ended(self, index: int) -> str | None:
        """The reason why this client ended; None: it was done, or said itself why it failed."""
        ...


StartClients: TypeAlias = Callable[[Sequence[messages.Job]], AbstractContextManager[Clients]]
"""Starts a client for each job; they are gone when the block ends."""


_BRIEF_S: Final = 3.0
"""After this process's end: what its clients have in flight may end, and is written."""
_CLIENT: Final = (
    f"from inferometer.measure.child_processes import hold; hold(grace_s={_BRIEF_S});"
    " from inferometer.measure.load.worker import main; main()"
)
"""Before the client's own imports, which take a second."""


def start_client() -> "subprocess.Popen[bytes]":
    """A client process, which waits for its job."""
    command = [sys.executable, "-c", _CLIENT]
    # It multiplies no matrices: threads for that would only make numpy's import longer.
    held = child_processes.line()
    variables = {"OPENBLAS_NUM_THREADS": "1", **os.environ, **held.variables}
    # A session of its own: Ctrl-C of the terminal is ours alone, and we tell it.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        env=variables,
        pass_fds=(held.descriptor,),
    )


def end_client(client: "subprocess.Popen[bytes]") -> None:
    """Stop listening to a client, which ends it, or kill it."""
    for pipe in (client.stdin, client.stdout):
        if pipe is not None:
            pipe.close()
    try:
        client.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        client.kill()
        client.wait()


class ClientProcesses:
    """The client processes of this machine and their pipes."""

    def __init__(self, n_processes: int) -> None:
        self.processes = [start_client() for _ in range(n_processes)]

    @property
    def outlets(self) -> tuple[int, ...]:
        """File descriptors with the clients' messages."""
        return tuple(
            client.stdout.fileno() for client in self.processes if client.stdout is not None
        )

    def begin(self, begins_ns: int) -> int:
        """Send each client instant 0 of the run."""
        origin_ns = time.monotonic_ns() + _BEGIN_AFTER_NS - begins_ns
        self.tell_all(messages.Start(origin_ns=origin_ns))
        return origin_ns

    def why_ended(self, index: int) -> str | None:
        """The exit code of one that was killed or failed."""
        code = self.processes[index].wait(timeout=_END_S)
        return f"client process {index} ended with code {code}" if code else None

    def tell(self, client: "subprocess.Popen[bytes]", message: messages.ToClient) -> None:
        """Send a message; a dead client is noticed when its messages are read."""
        assert client.stdin is not None  # noqa: S101 -- asked for above
        try:
            messages.write_all(client.stdin.fileno(), messages.encoded(message))
        except BrokenPipeError:
            return

    def tell_all(self, message: messages.ToClient) -> None:
        """Send a message to each client."""
        for client in self.processes:
            self.tell(client, message)

    def end(self) -> None:
        """End the clients that still run."""
        for client in self.processes:
            end_client(client)


@contextmanager
def started(jobs: Sequence[messages.Job]) -> Generator[ClientProcesses]:
    """A client process for each job, gone when the block ends."""
    clients = ClientProcesses(len(jobs))
    try:
        for client, job in zip(clients.processes, jobs, strict=True):
            clients.tell(client, job)
        yield clients
    finally:
        clients.end()


# How is a load test doing, while it runs?
# Estimates from the first and last reads of answers, for people; the record is decoded later.


_RECENT: Final = 1000
_WINDOW_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Progress of a load test; None: no data yet."""

    elapsed_s: float
    n_planned: int
    n_sent: int
    n_in_flight: int
    n_good: int
    n_failed: int
    sent_per_s: float
    """Over the last seconds."""
    first_bytes_s: float | None
    """Median time from the intended send to the first bytes, of recent answers: about the TTFT
    of streams."""
    first_bytes_p95_s: float | None
    read_gap_s: float | None
    """Median of the mean time between reads, of recent answers: about the TPOT of streams."""
    read_gap_p95_s: float | None
    worst_lag_s: float
    """Delay of the client itself, since the last report."""
    errors: tuple[tuple[str, int], ...]
    """Codes, the most frequent first."""


class ProgressTally:
    """Sums the reports of the client processes."""

    def __init__(self, *, n_planned: int) -> None:
        self._n_planned = n_planned
        self._reports: dict[int, Report] = {}
        self._first_read_ns: deque[int] = deque(maxlen=_RECENT)
        self._read_gap_ns: deque[int] = deque(maxlen=_RECENT)
        self._sent: deque[tuple[float, int]] = deque()
        self._begin_s = time.monotonic()
        self.is_news = False

    def begin(self) -> None:
        """The schedule begins now."""
        self._begin_s = time.monotonic()

    def take(self, report: Report) -> None:
        """Count a report."""
        self._reports[report.process_index] = report
        self._first_read_ns.extend(report.first_read_ns)
        self._read_gap_ns.extend(report.read_gap_ns)
        self.is_news = True

    def progress(self) -> LoadProgress:
        """Progress so far."""
        self.is_news = False
        reports = self._reports.values()
        n_sent = sum(report.n_sent for report in reports)
        errors: dict[str, int] = {}
        for report in reports:
            for code, count in report.errors.items():
                errors[code] = errors.get(code, 0) + count
        return LoadProgress(
            elapsed_s=time.monotonic() - self._begin_s,
            n_planned=self._n_planned,
            n_sent=n_sent,
            n_in_flight=sum(report.n_in_flight for report in reports),
            n_good=sum(report.n_good for report in reports),
            n_failed=sum(report.n_failed for report in reports),
            sent_per_s=self._rate_per_s(n_sent),
            first_bytes_s=_quantile_s(self._first_read_ns, 0.5),
            first_bytes_p95_s=_quantile_s(self._first_read_ns, 0.95),
            read_gap_s=_quantile_s(self._read_gap_ns, 0.5),
            read_gap_p95_s=_quantile_s(self._read_gap_ns, 0.95),
            worst_lag_s=max((report.worst_lag_ns for report in reports), default=0) / NS_PER_S,
            errors=tuple(sorted(errors.items(), key=lambda item: (-item[1], item[0]))),
        )

    def _rate_per_s(self, n_sent: int) -> float:
        now_s = time.monotonic()
        self._sent.append((now_s, n_sent))
        while len(self._sent) > 2 and now_s - self._sent[0][0] > _WINDOW_S:
            self._sent.popleft()
        first_s, first = self._sent[0] if len(self._sent) > 1 else (self._begin_s, 0)
        return (n_sent - first) / (now_s - first_s) if now_s > first_s else 0.0


def _quantile_s(durations_ns: deque[int], fraction: float) -> float | None:
    """The nearest order statistic: this is for eyes that watch, not for the record."""
    if not durations_ns:
        return None
    ordered = sorted(durations_ns)
    return s_from_ns(ordered[min(int(fraction * len(ordered)), len(ordered) - 1)])


_READY_S: Final = 60.0
_LOOK_S: Final = 0.25

OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """How a session ended; its data are in the raw logs."""

    origin_monotonic_ns: int
    """CLOCK_MONOTONIC at instant 0 of the run, also where that lies before its start."""
    begins_ns: int
    n_sent: int
    n_unsent: int
    n_failed: int
    cpu_s: float
    """CPU time of all client processes, from the start of the schedule."""
    is_interrupted: bool
    dead_processes: tuple[str, ...] = ()
    """Why processes ended unexpectedly."""


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
        """Start and watch the clients; returns the outcome."""
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
        """Handle a client's end: finished, failed or killed."""
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
