"""inferometer diagnose: what limits this running server, and which change would help?"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

import numpy as np

from inferometer.api.answer import Answer
from inferometer.api.known_facts import known_facts
from inferometer.api.load_record import is_open
from inferometer.api.load_run import open_run
from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import DURATION, Option
from inferometer.decide.diagnosis import causes, shares, verdict
from inferometer.decide.diagnosis.rebuilding import BUDGETS, Agreement, rebuilt_servers
from inferometer.decide.diagnosis.window import ServerWindow, observed_window
from inferometer.errors import MeasureError, SpecError
from inferometer.fit.loads.server import Limit
from inferometer.inputs.objectives import Metric, ObjectiveSpec, Threshold, parse_objective
from inferometer.measure.scrape import scraping
from inferometer.records import reading
from inferometer.records.load_types import ServerSampleTable
from inferometer.stats.estimate import Estimate, Verdict

_EVERY_S: Final = 0.5
"""Gauges' highest values matter, and pass quickly."""
_LEAST_S: Final = 10.0
_USUAL: Final[shares.Percentiles] = (("ttft", 0.95), ("tpot", 0.95))
_SEED: Final = 1
_WHERE_METRICS_ARE: Final = (
    "the address of the metrics page itself (trtllm-serve: /prometheus/metrics); SGLang has one"
    " with enable-metrics, llama.cpp with metrics"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose:
    """A server, and what is promised of it."""

    target: Annotated[
        str,
        Option(
            "URL of a server, or a load test that kept its metrics.",
            heading="Runs",
            is_argument=True,
            metavar="URL|RUN",
        ),
    ]
    slo: Annotated[
        str | None,
        Option(
            "What is promised: ttft:p95<500ms, tpot:p95<50ms. Without it TTFT p95 is explained.",
            heading="Limits",
            is_common=True,
            metavar="SLO",
        ),
    ] = None
    duration: Annotated[
        float,
        Option(
            "For how long the metrics are read. [60s]",
            heading="Limits",
            is_common=True,
            flags=("--for",),
            metavar="DURATION",
            parse=DURATION,
            shows_default=False,
        ),
    ] = 60.0
    known: Annotated[
        str | None,
        Option(
            "Limits of the server that are known, such as"
            " max_num_seqs=256,max_num_batched_tokens=2048.",
            heading="Engine",
            is_common=True,
            metavar="NAME=VALUE,…",
        ),
    ] = None
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One latency as the server measured it, and as the rebuilt server has it."""

    name: str
    """``ttft:p95``"""
    measured_low_s: float | None
    """Edges of the bucket in which it lies; None: the server has no buckets."""
    measured_high_s: float | None
    simulated_s: Estimate
    limit_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """What one cause costs, in the order of the latencies."""

    name: causes.CauseName
    kind: causes.Kind
    words: str
    change: str
    costs: str
    shares_s: tuple[Estimate, ...]
    """By what each latency falls without it."""
    predicted_s: tuple[Estimate, ...]
    """Each latency with the change; of the work itself, which has no setting, without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """A limit of the server, as it was identified or known."""

    name: str
    low: int
    high: int | None
    """None: it was not reached, or nothing tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseAnswer(Answer):
    """What limits the server, by how much, and what would change it."""

    table: ClassVar[str | None] = "causes"

    target: str
    server: str
    window_s: float
    n_requests: int
    """That ended in the window."""
    finding: verdict.Finding
    objective: str | None
    slo_verdict: Verdict | None
    cause: causes.CauseName | None
    """Named where the finding is *limited*; of an *undecided* one, what may be the cause."""
    latencies: tuple[LatencyRow, ...]
    causes: tuple[CauseRow, ...]
    """The one that is named first, then by their shares of the first latency."""
    limits: tuple[LimitRow, ...]
    agreement: dict[str, tuple[float, float]]
    """Means of the window: measured, and of the nearest simulated server."""
    requests_per_s: float
    running: float
    waiting: float
    kv_usage_highest: float | None
    n_preemptions: int | None
    is_closed_loop: bool


def diagnose(question: Diagnose) -> DiagnoseAnswer:
    """What limits this running server, how much of the latency is it, and which change would help?

    Nothing is sent to the server: its metrics are read, the requests that it got are rebuilt from
    them, and the server is simulated with one limit lifted after the other.

    Raises
    ------
    SpecError, MeasureError, RecordError
        There is no such run, or no metrics can be read.
    ModelError
        The window tells too little, or no simulated server resembles this one.
    """
    objective = None if question.slo is None else parse_objective(question.slo)
    known = known_facts(question.known).limits
    if question.duration < _LEAST_S:
        raise SpecError(
            f"{question.duration:g} s of metrics",
            where="--for",
            allowed=f"{_LEAST_S:g} s or more",
            try_="60s",
        )
    window = observed_window(_samples(question))
    talk("looking for servers that would show the same metrics")
    agreement = rebuilt_servers(window, known, _SEED)
    agreement.check()
    return answer_of(question.target, window, agreement, objective, known)


def answer_of(
    target: str,
    window: ServerWindow,
    agreement: Agreement,
    objective: ObjectiveSpec | None,
    known: Mapping[Limit, int],
) -> DiagnoseAnswer:
    """What these servers, which show what the window shows, say of the objective, or of TTFT and TPOT."""
    draws = [one.rebuilt for one in agreement.draws]
    thresholds = _by_need(agreement, objective)
    percentiles = _percentiles(thresholds) or _USUAL
    base = np.stack(
        [shares.seconds_at(one.rebuilt, one.simulation, percentiles) for one in agreement.draws]
    )
    now = shares.estimates(base)
    limits_s: list[float | None] = [one.limit_s for one in thresholds]
    limits_s = limits_s or [None] * len(now)
    latencies = tuple(
        _latency(window, *which, simulated, limit_s)
        for which, simulated, limit_s in zip(percentiles, now, limits_s, strict=True)
    )
    slo = _slo_verdict(latencies)
    found = shares.shares_of(
        draws,
        base,
        percentiles,
        on_done=lambda done, of: talk(PartsDone("causes", done, of)),
    )
    said = verdict.conclusion(found, now[0], slo)
    summary = window.summary
    return DiagnoseAnswer(
        target=target,
        server=summary.kind,
        window_s=window.duration_s,
        n_requests=window.prompt_lengths.n,
        finding=said.finding,
        objective=None if objective is None else objective.text,
        slo_verdict=slo,
        cause=None if said.cause is None else said.cause.cause.name,
        latencies=latencies,
        causes=tuple(
            _row(one)
            for one in sorted(found, key=lambda one: (one is not said.cause, -one.shares[0].value))
        ),
        limits=_limits(window, agreement, known),
        agreement={
            name: (agreement.measured[name], value)
            for name, value in agreement.draws[0].means.items()
        },
        requests_per_s=float(window.arrivals.sum()) / window.duration_s,
        running=float(window.running.mean()),
        waiting=float(window.waiting.mean()),
        kv_usage_highest=None if summary.kv_usage is None else summary.kv_usage.highest,
        n_preemptions=summary.n_preemptions,
        is_closed_loop=window.is_closed_loop,
    )


def _samples(question: Diagnose) -> ServerSampleTable:
    """The metrics of a stored load test, or those of a server from now on."""
    target = question.target
    if "://" in target:
        return _scraped(target, question.duration)
    folder = Path(target)
    run = open_run(folder) if is_open(folder) else reading.read_run(folder)
    if run.server is None:
        raise SpecError(
            f"{target} holds no metrics of a server",
            where="the run",
            allowed="a load test of a server that reports metrics",
            try_="inferometer load URL --metrics-url URL, or the server's own URL here",
        )
    return run.server


def _scraped(url: str, for_s: float) -> ServerSampleTable:
    started_ns = time.monotonic_ns()
    n_parts = max(round(for_s / _EVERY_S), 1)
    try:
        with scraping(url, started_ns=started_ns, every_s=_EVERY_S) as scraper:
            talk(f"reading the metrics of {url} for {for_s:.0f} s; nothing is sent to the server")
            for part in range(n_parts):
                time.sleep(_EVERY_S)
                talk(PartsDone("half seconds", part + 1, n_parts))
    except MeasureError as error:
        raise MeasureError(
            error.what, where=error.where, allowed=error.allowed, try_=_WHERE_METRICS_ARE
        ) from error
    return scraper.table()


def _by_need(agreement: Agreement, objective: ObjectiveSpec | None) -> tuple[Threshold, ...]:
    """The thresholds of percentiles, the one nearest to its limit, or furthest beyond, first."""
    if objective is None:
        return ()
    asked = [one for one in objective.thresholds if one.percentile_fraction is not None]
    near = agreement.draws[0]
    seconds = shares.seconds_at(near.rebuilt, near.simulation, _percentiles(asked))
    ratios = [seen / one.limit_s for seen, one in zip(seconds.tolist(), asked, strict=True)]
    return tuple(asked[index] for index in np.argsort(ratios)[::-1])


def _percentiles(thresholds: Sequence[Threshold]) -> shares.Percentiles:
    return tuple(
        (one.metric, one.percentile_fraction)
        for one in thresholds
        if one.percentile_fraction is not None
    )


def _latency(
    window: ServerWindow,
    metric: Metric,
    fraction: float,
    simulated: Estimate,
    limit_s: float | None,
) -> LatencyRow:
    found = window.summary.time(metric)
    bucket = None
    if found is not None:
        bucket = next(
            (one for one in found.percentiles if abs(one.percentile_fraction - fraction) < 1e-9),
            None,
        )
    return LatencyRow(
        name=f"{metric}:p{100 * fraction:g}",
        measured_low_s=None if bucket is None else bucket.low_s,
        measured_high_s=None if bucket is None else bucket.high_s,
        simulated_s=simulated,
        limit_s=limit_s,
    )


def _slo_verdict(latencies: Sequence[LatencyRow]) -> Verdict | None:
    """Missed where one is: by the server's own buckets, and within them by the simulated ones."""
    said: list[Verdict] = [_kept(one, one.limit_s) for one in latencies if one.limit_s is not None]
    if not said:
        return None
    return "missed" if "missed" in said else "undecided" if "undecided" in said else "met"


def _kept(row: LatencyRow, limit_s: float) -> Verdict:
    low, high = row.measured_low_s, row.measured_high_s
    if high is not None and high <= limit_s:
        return "met"
    if low is not None and low > limit_s:
        return "missed"
    simulated = row.simulated_s
    if simulated.high is not None and simulated.high <= limit_s:
        return "met"
    return "missed" if simulated.low is not None and simulated.low > limit_s else "undecided"


def _row(share: shares.Share) -> CauseRow:
    value = share.change.value
    cause = share.cause
    return CauseRow(
        name=cause.name,
        kind=cause.kind,
        words=cause.words,
        change=cause.change.format(value="" if value is None else f"{value:,}".replace(",", "")),
        costs=cause.costs,
        shares_s=share.shares,
        predicted_s=share.change.predicted,
    )


def _limits(
    window: ServerWindow, agreement: Agreement, known: Mapping[Limit, int]
) -> tuple[LimitRow, ...]:
    """Of the servers that show what this one shows: between which values lies each limit?"""
    configs = [one.rebuilt.config for one in agreement.draws]
    seats = [one.max_num_seqs for one in configs]
    budgets = [one.max_num_batched_tokens for one in configs]
    most_running = round(float(window.running.max()))
    is_reached = "max_num_seqs" in known or max(seats) == most_running
    is_bounded = "max_num_batched_tokens" in known or max(budgets) < BUDGETS[-1]
    blocks = known.get("n_kv_blocks") or window.summary.n_kv_blocks
    return (
        LimitRow(
            name="max_num_seqs",
            low=min(*seats, most_running) if not is_reached else min(seats),
            high=max(seats) if is_reached else None,
        ),
        LimitRow(
            name="max_num_batched_tokens",
            low=min(budgets),
            high=max(budgets) if is_bounded else None,
        ),
        LimitRow(name="num_gpu_blocks", low=blocks or 1, high=blocks),
    )
