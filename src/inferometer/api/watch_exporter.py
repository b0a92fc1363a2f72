"""What does Prometheus see of watched servers: predictions with their bounds, residuals, the limit?"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from inferometer.api.watch_prediction import METRICS, Prediction
from inferometer.api.watch_state import WatchedServer
from inferometer.decide.watching.regimes import WORDS
from inferometer.errors import SpecError

LOOPBACK: Final = "127.0.0.1"
_PREFIX: Final = "inferometer_"
_WHO: Final = ("server", "replica")


class WatchExporter(Collector):
    """The servers at the last scrape; unknown values are left out."""

    def __init__(
        self, read: Callable[[], tuple[WatchedServer, ...]], prediction: Prediction | None
    ) -> None:
        self._read, self._prediction = read, prediction

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: the servers have not been read yet."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All metrics; prometheus_client calls this."""
        servers = self._read()
        yield _family("regime", "1 while a condition is on.", [*_WHO, "condition"], [
            ([*_who(one), name], float(name in one.conditions)) for one in servers for name in WORDS
        ])  # fmt: skip
        yield _family("residual_ratio", "Measured / expected - 1.", [*_WHO, "metric"], [
            *(
                ([*_who(one), residual.metric], residual.residual_ratio)
                for one in servers
                for residual in one.residuals
            ),
            *(
                ([*_who(one), "step"], one.step_residual_ratio)
                for one in servers
                if one.step_residual_ratio is not None
            ),
        ])  # fmt: skip
        yield _family("limit_share", "Of the first latency.", [*_WHO, "cause"], [
            ([*_who(one), cause], share)
            for one in servers
            if one.limit is not None
            for cause, share in one.limit.shares_fraction.items()
        ])  # fmt: skip
        yield _family("headroom_ratio", "1 - percentile / limit, the least.", list(_WHO), [
            (_who(one), one.headroom_ratio) for one in servers if one.headroom_ratio is not None
        ])  # fmt: skip
        yield _family("model_valid", "Is the traffic the predicted one?", list(_WHO), [
            (_who(one), float(one.model_valid)) for one in servers if one.model_valid is not None
        ])  # fmt: skip
        if self._prediction is not None:
            yield from _predicted(self._prediction)


def _who(server: WatchedServer) -> list[str]:
    """Values of ``_WHO``; Prometheus takes an empty label as none."""
    return [server.url, server.replica or ""]


def _predicted(made: Prediction) -> Iterator[GaugeMetricFamily]:
    for metric in METRICS:
        yield _family(f"predicted_{metric}_seconds", "By simulation.", ["quantile", "bound"], [
            ([f"{fraction:g}", name], bound_s)
            for (of, fraction), bounds in made.quantiles_s.items()
            if of == metric
            for name, bound_s in zip(("low", "mid", "high"), bounds, strict=True)
            if bound_s is not None
        ])  # fmt: skip
    yield _family("model_info", "What predicts.", ["fit", "engine", "version"], [
        ([made.fit, made.engine.rpartition(" ")[0], made.engine.rpartition(" ")[2]], 1.0)
    ])  # fmt: skip


def _family(
    name: str, says: str, labels: list[str], rows: list[tuple[list[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(_PREFIX + name, says, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


@contextmanager
def exporting(port: int | None, exporter: WatchExporter) -> Generator[None]:
    """Until the end of the block, ``/metrics`` on this port of loopback; None: nothing listens.

    Raises
    ------
    SpecError
        The port is taken.
    """
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(exporter)
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except OSError as error:
        raise SpecError(
            f"cannot listen: {error}", where="--export-port", try_="another port"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
