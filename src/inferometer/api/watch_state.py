"""What does a watched server show now: its latencies, how full it is, what changed, what limits it?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from inferometer.api import diagnose_source, diagnosis
from inferometer.api.answer import Answer
from inferometer.api.watch_prediction import METRICS, Prediction
from inferometer.decide.diagnosis import rebuilding
from inferometer.decide.watching import intervals, regimes
from inferometer.errors import EXIT_OF_SLO, InferometerError
from inferometer.fit.loads.server import Limit
from inferometer.inputs.objectives import Metric, ObjectiveSpec, percentile_name
from inferometer.records import exposition, server_names, server_series, server_summaries
from inferometer.stats.estimate import Verdict

Scrapes: TypeAlias = list[tuple[int, tuple[exposition.PageSample, ...] | None]]
"""Pages, with ns since the watching began; None: no answer."""
_USUAL: Final = (0.5, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLatency:
    """One percentile of the window, by the server's histogram."""

    name: str
    """``ttft:p95``"""
    metric: Metric
    percentile_fraction: float
    n: int
    low_s: float
    """Edges of the bucket in which it lies."""
    high_s: float | None
    """None: in the last bucket, which has no end."""
    interval_low_s: float | None
    """95 % interval, to the edges of buckets; None: too few requests."""
    interval_high_s: float | None
    """None: too few requests, or in the last bucket."""
    n_needed: int | None
    """Requests that both ends need; None: there are enough."""
    limit_s: float | None
    verdict: Verdict | None
    """Verdict of the interval; None without a limit."""
    breach_soonest_s: float | None
    """Seconds until the limit is missed at the present slope; None: no slope beyond chance."""
    breach_latest_s: float | None
    predicted_low_s: float | None
    """Ends with fast and slow steps; None: too few requests were simulated for an interval."""
    predicted_s: float | None
    predicted_high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A mean of the window, and the predicted one."""

    metric: str
    measured_s: float
    predicted_s: float
    residual_ratio: float
    """measured / predicted - 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLimit:
    """What limits the server, by ``diagnose``; or why that is unknown."""

    at_utc: str
    words: str
    cause: str | None = None
    shares_fraction: dict[str, float]
    """Share of the first latency, by cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeChange:
    """A regime that began or ended."""

    url: str
    replica: str | None = None
    at_utc: str
    condition: regimes.Condition
    has_begun: bool
    text: str
    residual_ratio: float | None = None
    since_utc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedServer:
    """Current state of one server; None: not reported, or not yet known."""

    url: str
    at_utc: str
    conditions: tuple[regimes.Condition, ...]
    """None of them: healthy."""
    server: str | None = None
    replica: str | None = None
    """Which of several replicas on its page this is: ``engine=1``; all else is of this one."""
    n_replicas: int = 1
    n_added_up: int = 1
    """Engines that share their counters: all numbers are those of all of them together."""
    window_s: float = 0.0
    n_requests: int | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    n_running: int | None = None
    """At the last scrape; so the next two."""
    n_waiting: int | None = None
    kv_used_fraction: float | None = None
    n_preemptions: int | None = None
    prefix_hit_fraction: float | None = None
    acceptance_fraction: float | None = None
    latencies: tuple[WatchedLatency, ...] = ()
    step_residual_ratio: float | None = None
    """Step time now / as learned of this server at this load - 1; None while it is learned."""
    model_valid: bool | None = None
    """Is the traffic the predicted one? None without --predicted."""
    why_not_valid: str = ""
    residuals: tuple[Residual, ...] = ()
    slo_verdict: Verdict | None = None
    """None without --slo; *undecided* until there are enough requests for its percentiles."""
    headroom_ratio: float | None = None
    """1 - percentile / limit, the least of all limits: 0 at the limit. None without --slo."""
    limit: WatchedLimit | None = None

    @property
    def name(self) -> str:
        """The address, and the replica on its page where there are several."""
        return self.url if self.replica is None else f"{self.url} {self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHistory:
    """Requests in a server at each scrape of the window; None: not answered, or not reported."""

    url: str
    replica: str | None = None
    at_s: tuple[float, ...]
    """Since the start of the window."""
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAnswer(Answer):
    """The servers at the end, and every change of regime before."""

    table = "servers"

    servers: tuple[WatchedServer, ...]
    changes: tuple[RegimeChange, ...]
    watched_s: float
    objective: str | None
    slo_verdict: Verdict | None
    """Verdict of all servers' windows at the end."""
    histories: tuple[ServerHistory, ...] = ()
    """Of the window of a single look (--once), of servers that answered twice or more."""

    @property
    def exit_code(self) -> int:
        """0 met or no SLO, 10 missed, 11 undecided."""
        return EXIT_OF_SLO[self.slo_verdict]


def words_of(
    change: regimes.Change, url: str, replica: str | None, utc: Mapping[float, str]
) -> RegimeChange:
    """The change as a line; ``utc`` has its instants."""
    words = regimes.WORDS[change.condition]
    at_utc = utc[change.at_s]
    since_utc = None if change.since_s is None else utc[change.since_s]
    if change.residual_ratio is not None and change.has_begun:
        size = (
            f"step times {math.expm1(change.residual_ratio):+.0%}"
            if change.condition in {"slower", "faster"}
            else f"{change.residual_ratio * 100:+.0f} points"
        )
        words = f"{words}: {size} since {since_utc}"
    text = words if change.has_begun else f"over: {words.partition(':')[0]}"
    return RegimeChange(
        url=url,
        replica=replica,
        at_utc=at_utc,
        condition=change.condition,
        has_begun=change.has_begun,
        text=" ".join((at_utc, url, *(() if replica is None else (f"{replica}:",)), text)),
        residual_ratio=change.residual_ratio,
        since_utc=since_utc,
    )


def latencies_of(
    record: server_series.ServerRecord,
    objective: ObjectiveSpec | None,
    prediction: Prediction | None,
) -> tuple[WatchedLatency, ...]:
    """p50 and p95 of TTFT, TPOT and E2E, and the SLO's percentiles."""
    limits: dict[tuple[Metric, float], float] = {
        (one.metric, one.percentile_fraction): one.limit_s
        for one in (() if objective is None else objective.thresholds)
        if one.percentile_fraction is not None
    }
    metrics: tuple[Metric, ...] = ("ttft", "tpot", "e2e")
    usual: list[tuple[Metric, float]] = [
        (metric, fraction) for metric in metrics for fraction in _USUAL
    ]
    names: dict[tuple[Metric, float], None] = dict.fromkeys([*usual, *limits])
    found = (_latency(record, name, limits.get(name), prediction) for name in names)
    return tuple(one for one in found if one is not None)


def _latency(
    record: server_series.ServerRecord,
    name: tuple[Metric, float],
    limit_s: float | None,
    prediction: Prediction | None,
) -> WatchedLatency | None:
    """One latency; None where the server has no buckets of it, or no request ended."""
    metric, fraction = name
    histogram = _histogram(record, metric)
    growth = None if histogram is None else server_series.histogram_growth(record, histogram)
    bucket = None if growth is None else server_summaries.bucket_percentile(growth, fraction)
    if histogram is None or growth is None or bucket is None:
        return None
    now_s = bucket.low_s if math.isinf(bucket.high_s) else (bucket.low_s + bucket.high_s) / 2
    if limit_s is not None and bucket.low_s < limit_s <= bucket.high_s:
        now_s = min(now_s, limit_s)
    breach = None if limit_s is None else _breach(record, histogram, now_s, limit_s)
    certain = intervals.certainty_of(
        growth.edges, server_series.bucket_series(record, histogram), fraction
    )
    bounds = None if prediction is None else prediction.quantiles_s.get(name)
    return WatchedLatency(
        name=f"{metric}:{percentile_name(fraction)}",
        metric=metric,
        percentile_fraction=fraction,
        n=growth.n,
        low_s=bucket.low_s,
        high_s=_finite(bucket.high_s),
        interval_low_s=None if certain is None else certain.low_s,
        interval_high_s=None if certain is None else _finite(certain.high_s),
        n_needed=None if certain is None else certain.n_needed,
        limit_s=limit_s,
        verdict=None if limit_s is None else intervals.verdict_of(certain, limit_s),
        breach_soonest_s=None if breach is None else breach.soonest_s,
        breach_latest_s=None if breach is None else breach.latest_s,
        predicted_low_s=None if bounds is None else bounds.low_s,
        predicted_s=None if bounds is None else bounds.mid_s,
        predicted_high_s=None if bounds is None else bounds.high_s,
    )


def _histogram(record: server_series.ServerRecord, metric: Metric) -> server_names.Histogram | None:
    """Histogram of this latency; that of gaps between tokens where there is none of TPOT."""
    if metric == "workflow":
        return None  # no server knows what belongs together
    names: tuple[server_names.Histogram, ...] = ("tpot", "itl") if metric == "tpot" else (metric,)
    return next(
        (name for name in names if server_series.histogram_series(record, name) is not None), None
    )


def _breach(
    record: server_series.ServerRecord,
    histogram: server_names.Histogram,
    now_s: float,
    limit_s: float,
) -> regimes.Breach | None:
    series = server_series.histogram_series(record, histogram)
    if series is None:
        return None
    n, total = series
    return regimes.time_to_breach(*regimes.part_means(n.at_s, n.value, total.value), now_s, limit_s)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def acceptance_of(record: server_series.ServerRecord) -> float | None:
    """Accepted / drafted tokens of the window; None without speculation."""
    drafted, accepted = (
        server_series.counter_series(record, name) for name in ("draft_tokens", "accepted_tokens")
    )
    if drafted is None or accepted is None or drafted.value[-1] <= 0:
        return None
    return float(accepted.value[-1] / drafted.value[-1])


def residuals_of(
    summary: server_summaries.ServerSummary, prediction: Prediction
) -> tuple[Residual, ...]:
    """Means, which histograms have exactly."""
    found: list[Residual] = []
    for metric in METRICS:
        predicted = prediction.means_s.get(metric)
        names: tuple[server_names.Histogram, ...] = (
            ("tpot", "itl") if metric == "tpot" else ("ttft",) if metric == "ttft" else ("e2e",)
        )
        time = next((one for one in map(summary.time, names) if one is not None), None)
        if predicted is not None and time is not None and predicted.mid_s > 0:
            found.append(
                Residual(
                    metric=metric,
                    measured_s=time.mean_s,
                    predicted_s=predicted.mid_s,
                    residual_ratio=time.mean_s / predicted.mid_s - 1,
                )
            )
    return tuple(found)


def headroom_of(latencies: tuple[WatchedLatency, ...]) -> float | None:
    """The least of 1 - percentile / limit, by the bucket's upper edge; None without limits."""
    rooms = [
        1
        - (one.low_s if one.high_s is None else min(one.high_s, max(one.low_s, one.limit_s)))
        / one.limit_s
        for one in latencies
        if one.limit_s is not None
    ]
    return min(rooms) if rooms else None


def verdict_of(
    latencies: tuple[WatchedLatency, ...], objective: ObjectiveSpec | None
) -> Verdict | None:
    """Missed where one limit is, met where all are, else undecided."""
    n_limits = 0 if objective is None else len(objective.percentile_fractions)
    if not n_limits:
        return None
    seen = [one.verdict for one in latencies if one.verdict is not None]
    if "missed" in seen:
        return "missed"
    is_met = len(seen) == n_limits and set(seen) == {"met"}
    return "met" if is_met else "undecided"


def limit_of(
    url: str,
    scrapes: Scrapes,
    objective: ObjectiveSpec | None,
    known: Mapping[Limit, int],
    at_utc: str,
) -> WatchedLimit:
    """What limits the server in this window, by simulation (``diagnose``), or why it is unknown."""
    try:
        source = diagnose_source.scraped_source(url, server_series.table_of(scrapes))
        stated = diagnose_source.stated_limits(source, known)
        limits: dict[Limit, int] = {name: one.value for name, one in stated.items()}
        agreement = rebuilding.rebuilt_servers(source.window, limits)
        agreement.check()
        answer = diagnosis.answer_of(url, source, agreement, objective, stated).answer
    except InferometerError as error:
        return WatchedLimit(at_utc=at_utc, words=f"not known: {error.what}", shares_fraction={})
    return WatchedLimit(
        at_utc=at_utc,
        words=_limit_words(answer),
        cause=answer.cause,
        shares_fraction=_shares(answer),
    )


def _limit_words(answer: diagnosis.DiagnoseAnswer) -> str:
    row = next((one for one in answer.causes if one.name == answer.cause), None)
    if row is None:
        return "nothing: no setting costs a tenth of the latency"
    share = _shares(answer).get(row.name)
    part = "" if share is None else f", {share:.0%} of {answer.latencies[0].name}"
    maybe = "undecided, may be " if answer.finding == "undecided" else ""
    of = "" if answer.replica is None else f" ({answer.replica} of {answer.n_replicas} replicas)"
    return f"{maybe}{row.words}{part}{of}; {row.change}"


def _shares(answer: diagnosis.DiagnoseAnswer) -> dict[str, float]:
    now_s = answer.latencies[0].simulated_s.value
    if now_s <= 0:
        return {}
    return {
        one.name: float(np.clip(one.shares_s[0].value / now_s, 0.0, 1.0)) for one in answer.causes
    }
