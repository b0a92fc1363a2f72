"""What does Prometheus see of a load test while it runs?

Requests are read from the raw logs when somebody scrapes, by the same decoder as the run's tables:
counts and buckets are those of the run, not estimates. Native histograms are not written by
prometheus_client; classic buckets here are 10 % wide.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.measure.load.bodies import token_ends_of
from inferometer.measure.load.load_test import LoadQuestion
from inferometer.measure.load.watch import LoadProgress
from inferometer.records import latencies, raw_log, tables
from inferometer.records.answers import TokenEnds
from inferometer.records.load_decoding import decode_frames
from inferometer.records.types import ABSENT, RequestStatus, RequestTable
from inferometer.units import NS_PER_S

LOOPBACK: Final = "127.0.0.1"
EDGES_S: Final = tuple(float(f"{edge:.4g}") for edge in np.geomspace(1e-4, 1e3, 170))
_PREFIX: Final = "inferometer_load_"
_LONGEST_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.1


class LoadExporter(Collector):
    """The metrics of one load test; a scrape brings them up to date."""

    def __init__(self, folder: Path, plan: RequestPlan, token_ends: TokenEnds | None) -> None:
        self.registry = CollectorRegistry()
        self.scrapes_s: list[float] = []
        self._folder, self._plan, self._token_ends = folder, plan, token_ends
        self._read_bytes: dict[Path, int] = {}
        self._seen = set[int]()
        self.registry.register(self)

        def histogram(name: str, says: str) -> Histogram:
            return Histogram(_PREFIX + name, says, buckets=EDGES_S, registry=self.registry)

        self._requests = Counter(
            f"{_PREFIX}requests", "Requests that ended.", ["outcome"], registry=self.registry
        )
        self._tokens = Counter(
            f"{_PREFIX}tokens", "Tokens of answers and prompts.", ["type"], registry=self.registry
        )
        self._late = histogram("sent_late_seconds", "From the intended to the actual send.")
        self._times: dict[latencies.Latency, Histogram] = {
            "ttft": histogram("ttft_seconds", "From the intended send to the first token."),
            "tpot": histogram("tpot_seconds", "Per token after the first."),
            "e2e": histogram("e2e_seconds", "From the intended send to the last token."),
        }
        self._in_flight = Gauge(f"{_PREFIX}in_flight", "Requests.", registry=self.registry)
        self._lag = Gauge(
            f"{_PREFIX}loop_lag_seconds",
            "By how much the client itself was late at most, since its last report.",
            registry=self.registry,
        )

    def describe(self) -> Iterator[Metric]:
        """Nothing: metrics are known only when collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Bring the others up to date; prometheus_client calls this first of all."""
        self.scrapes_s.append(time.monotonic())
        frames = [frame for path in raw_log.raw_logs(self._folder) for frame in self._new(path)]
        decoded = decode_frames(frames, self._plan, self._token_ends).requests
        is_new = np.array([index not in self._seen for index in decoded.request_index.tolist()])
        self._seen.update(decoded.request_index.tolist())
        if is_new.any():
            self._count(tables.select(decoded, np.flatnonzero(is_new)))
        return iter(())

    def hear(self, progress: LoadProgress) -> None:
        """The clients' own report."""
        self._in_flight.set(progress.n_in_flight)
        self._lag.set(progress.worst_lag_s)

    def is_seen_to_the_end(self, ended_s: float) -> bool:
        """Was there a scrape after the end, or none for twice the scrape interval?"""
        if not self.scrapes_s or self.scrapes_s[-1] >= ended_s:
            return True
        gaps_s = np.diff(self.scrapes_s)
        usual_s = float(gaps_s.max()) if len(gaps_s) else _LONGEST_WAIT_S
        return time.monotonic() - ended_s > min(2 * usual_s, _LONGEST_WAIT_S)

    def _new(self, path: Path) -> Iterator[raw_log.Frame]:
        reader = raw_log.RawLogReader(path, from_byte=self._read_bytes.get(path, 0))
        yield from reader
        self._read_bytes[path] = reader.n_read_bytes

    def _count(self, requests: RequestTable) -> None:
        for status in requests.status.tolist():
            self._requests.labels(RequestStatus(status).name.lower()).inc()
        self._tokens.labels("output").inc(int(requests.output_tokens.sum()))
        self._tokens.labels("prompt").inc(int(requests.prompt_tokens.sum()))
        sent = requests.sent_ns != ABSENT
        late_ns = (requests.sent_ns - requests.intended_send_ns)[sent]
        for late_s in (late_ns / NS_PER_S).tolist():
            self._late.observe(late_s)
        for latency, histogram in self._times.items():
            samples = latencies.latency_samples(requests, latency, at_ns=0)
            for seconds in samples.upper_s[np.isfinite(samples.upper_s)].tolist():
                histogram.observe(seconds)


@contextmanager
def exporting(port: int, question: LoadQuestion) -> Generator[Callable[[LoadProgress], None]]:
    """Until the end of the block, and the scrape after it, ``/metrics`` on this port of loopback.

    Gives what hears the clients' reports.

    Raises
    ------
    SpecError
        The port is taken.
    """
    tokenizer = question.load.tokenizer
    token_ends = None if tokenizer is None else token_ends_of(tokenizer)
    exporter = LoadExporter(question.folder, question.plan, token_ends)
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=exporter.registry)
    except OSError as error:
        raise SpecError(
            f"cannot listen: {error}", where="--metrics-port", try_="another port"
        ) from error
    try:
        yield exporter.hear
        ended_s = time.monotonic()
        while not exporter.is_seen_to_the_end(ended_s):
            time.sleep(_LOOK_S)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
