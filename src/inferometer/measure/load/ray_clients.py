"""How are clients on the hosts of a Ray cluster started together, and their raw logs copied?

Requests that ended are in the raw log on their host's disk within a quarter of a second, and on the
driver's within about half a second more. A host that dies takes no more than that with it; the
other hosts go on.
"""

import contextlib
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from inferometer.errors import MeasureError
from inferometer.measure.executors import ray_cluster
from inferometer.measure.host import hostname_hash
from inferometer.measure.load import messages, watch
from inferometer.records import load_decoding, types

# A client process on a host of a Ray cluster, and the way to it: this runs there, as an actor.
#
# The client itself is the same process as on one machine, with its own interpreter: nothing of Ray is
# near its loop. It writes its raw log to this host's disk; the driver fetches what is new several
# times a second.


_WAIT_S: Final = 0.25
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of a raw log in one message."""


class News(NamedTuple):
    """Messages and raw log of a client since the last call."""

    output: bytes
    """Messages to the driver, cut anywhere."""
    raw: bytes
    """The raw log from where it was expected for."""
    exit_code: int | None
    """None: it still runs, or there is more to fetch."""


class HostedClient:
    """One client process on this host."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="inferometer-load-", ignore_cleanup_errors=True
        )
        self._client: subprocess.Popen[bytes] | None = None
        self._raw_path = Path(self._folder.name)
        self._is_silent = False

    def greet(self, expected: ray_cluster.OwnCode) -> str:
        """Hash of the host's name, after checking that it runs the command's code.

        Raises
        ------
        MeasureError
            The host runs other code.
        """
        ray_cluster.require_same_code(expected)
        return hostname_hash()

    def clock_ns(self) -> int:
        """CLOCK_MONOTONIC of this host."""
        return time.monotonic_ns()

    def begin(self, job: messages.Job) -> None:
        """Start the client, with its raw log on this host's disk."""
        self._raw_path = Path(self._folder.name) / Path(job.raw_path).name
        self._client = watch.start_client()
        self.tell(messages.encoded(msgspec.structs.replace(job, raw_path=str(self._raw_path))))

    def tell(self, message: bytes) -> None:
        """Pass a message to the client; a dead client is noticed at the next ``news``."""
        assert self._client is not None and self._client.stdin is not None  # noqa: S101, PT018 -- begun before
        with contextlib.suppress(BrokenPipeError):
            messages.write_all(self._client.stdin.fileno(), message)

    def news(self, n_raw_bytes: int) -> News:
        """Wait briefly for messages; also the raw log after this number of bytes."""
        assert self._client is not None and self._client.stdout is not None  # noqa: S101, PT018 -- begun before
        output, descriptor = b"", self._client.stdout.fileno()
        if not self._is_silent and select.select([descriptor], [], [], _WAIT_S)[0]:
            output = os.read(descriptor, 1 << 16)
            self._is_silent = not output
        raw = self._raw_after(n_raw_bytes)
        is_over = self._is_silent and not raw
        return News(output, raw, self._client.wait() if is_over else None)

    def close(self) -> None:
        """End the client, and remove fetched files."""
        if self._client is not None:
            watch.end_client(self._client)
        self._folder.cleanup()

    def _raw_after(self, n_bytes: int) -> bytes:
        try:
            with self._raw_path.open("rb") as file:
                file.seek(n_bytes)
                return file.read(_MOST_BYTES)
        except OSError:
            return b""


_READY_S: Final = 60.0
_END_S: Final = 30.0
_N_EXCHANGES: Final = 50
_BEGIN_AFTER_NS: Final = 500_000_000


class _Hosted:
    """A client on another host, seen from here: a pipe for its messages, a copy of its raw log."""

    def __init__(
        self, cluster: ray_cluster.RayCluster, host: ray_cluster.RayHost, job: messages.Job
    ) -> None:
        self.host = host
        self.job = job
        self._ray = cluster.ray
        near = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            node_id=host.node_id, soft=False
        )
        actor = self._ray.remote(num_cpus=1, max_concurrency=4, max_restarts=0)(HostedClient)
        self._actor = actor.options(scheduling_strategy=near).remote()
        self.outlet, self._inlet = os.pipe()
        self.why_dead: str | None = None
        self._pump = threading.Thread(
            target=self._bring, name=f"client {job.process_index}", daemon=True
        )

    def ask(self, method: str, *arguments: object, within_s: float = _READY_S) -> Any:  # noqa: ANN401
        """The answer of the actor.

        Raises
        ------
        MeasureError
            What the actor raised, or that it is gone or silent.
        """
        failures = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=within_s)
        except failures.RayTaskError as error:
            raise MeasureError(
                f"client process {self.job.process_index}: {error.cause}", where=self.host.address
            ) from error
        except (failures.RayError, TimeoutError) as error:
            why = (
                "no free core, or no word from it"
                if isinstance(error, TimeoutError)
                else _first_line(error)
            )
            raise MeasureError(
                f"client process {self.job.process_index}: {why}", where=f"host {self.host.address}"
            ) from error

    def begin(self) -> None:
        """Start the client and forward its messages."""
        self.ask("begin", self.job)
        self._pump.start()

    def reading(self) -> types.ClockReading:
        """The host's clock beside ours."""

        def exchange() -> tuple[int, int, int]:
            begin_ns = time.monotonic_ns()
            there_ns: int = self.ask("clock_ns")
            return begin_ns, there_ns, time.monotonic_ns()

        return load_decoding.reading_from([exchange() for _ in range(_N_EXCHANGES)])

    def tell(self, message: messages.ToClient) -> None:
        """Send a message; a dead client is noticed when its messages are read."""
        with suppress(MeasureError):
            self.ask("tell", messages.encoded(message))

    def end(self) -> None:
        """End the client, here and on its host."""
        with suppress(MeasureError):
            self.ask("close", within_s=_END_S)
        self._ray.kill(self._actor)
        if self._pump.ident is not None:
            self._pump.join(_END_S)
        os.close(self.outlet)

    def _bring(self) -> None:
        """Until the client is over, or gone."""
        path, n_bytes = Path(self.job.raw_path), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb", buffering=0) as file:
                while True:
                    news: News = self.ask("news", n_bytes)
                    file.write(news.raw)
                    n_bytes += len(news.raw)
                    messages.write_all(self._inlet, news.output)
                    if news.exit_code is not None:
                        os.fsync(file.fileno())
                        break
            if news.exit_code:
                self.why_dead = (
                    f"client process {self.job.process_index} on {self.host.address} ended with"
                    f" code {news.exit_code}"
                )
        except (MeasureError, OSError) as error:
            self.why_dead = f"{getattr(error, 'what', error)} (host {self.host.address})"
        finally:
            os.close(self._inlet)

    def why_ended(self) -> str | None:
        """None: as it should."""
        self._pump.join(_END_S)
        return self.why_dead


class RayClients:
    """The client processes of a session, on several hosts."""

    def __init__(self, cluster: ray_cluster.RayCluster, jobs: Sequence[messages.Job]) -> None:
        self._folder = Path(jobs[0].raw_path).parents[1]
        self._session_index = jobs[0].session_index
        self._clocks: list[types.HostClock] = []
        self._host_hashes: list[str] = []
        self._origin_ns = 0
        self._hosted = [
            _Hosted(cluster, cluster.hosts[index % len(cluster.hosts)], job)
            for index, job in enumerate(jobs)
        ]

    @property
    def outlets(self) -> tuple[int, ...]:
        """File descriptors with the clients' messages."""
        return tuple(one.outlet for one in self._hosted)

    def start(self) -> None:
        """Start all clients on hosts with the same code.

        Raises
        ------
        MeasureError
            A host has no free core, runs other code, or is gone.
        """
        self._host_hashes = [str(one.ask("greet", ray_cluster.own_code())) for one in self._hosted]
        for one in self._hosted:
            one.begin()

    def begin(self, begins_ns: int) -> int:
        """Compare the clocks and send each client the start of the run on its own clock."""
        before = [one.reading() for one in self._hosted]
        origin_ns = time.monotonic_ns() + _BEGIN_AFTER_NS - begins_ns
        for one, reading in zip(self._hosted, before, strict=True):
            one.tell(messages.Start(origin_ns=origin_ns + reading.offset_ns))
        self._origin_ns = origin_ns
        self._keep(
            [
                types.HostClock(
                    process_index=index,
                    host_hash=host_hash,
                    before=reading.since(origin_ns),
                    after=None,
                )
                for index, (host_hash, reading) in enumerate(
                    zip(self._host_hashes, before, strict=True)
                )
            ]
        )
        return origin_ns

    def tell_all(self, message: messages.ToClient) -> None:
        """Send a message to each client."""
        for one in self._hosted:
            one.tell(message)

    def why_ended(self, index: int) -> str | None:
        """None: as it should."""
        return self._hosted[index].why_ended()

    def finish(self) -> None:
        """Read the clocks of hosts that are still there."""
        self._keep(
            [
                clock.read_again(self._last_reading(one))
                for clock, one in zip(self._clocks, self._hosted, strict=True)
            ]
        )

    def end(self) -> None:
        """End the clients, here and on their hosts."""
        for one in self._hosted:
            one.end()

    def _last_reading(self, one: _Hosted) -> types.ClockReading | None:
        try:
            return one.reading().since(self._origin_ns)
        except MeasureError:
            return None

    def _keep(self, clocks: list[types.HostClock]) -> None:
        self._clocks = clocks
        load_decoding.write_clocks(self._folder, self._session_index, clocks)


def of(
    cluster: ray_cluster.RayCluster,
) -> Callable[[Sequence[messages.Job]], AbstractContextManager[RayClients]]:
    """A function that starts a load test's clients on this cluster."""
    return lambda jobs: started(cluster, jobs)


@contextmanager
def started(cluster: ray_cluster.RayCluster, jobs: Sequence[messages.Job]) -> Generator[RayClients]:
    """A client for each job, in turn on the hosts of the cluster, all gone when the block ends.

    Raises
    ------
    MeasureError
        A host has no free core, runs other code, or is gone.
    """
    clients = RayClients(cluster, jobs)
    try:
        clients.start()
        yield clients
        clients.finish()
    finally:
        clients.end()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
