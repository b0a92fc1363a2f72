"""What is found of a running server: what limits it, by how much, and what would change it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from inferometer.api.answer import Answer
from inferometer.api.diagnose_check import Advised, SealedCheck
from inferometer.api.diagnose_latencies import (
    Cautions,
    LatencyRow,
    cautions_of,
    latencies_of,
    replica_cautions,
    verdicts_of,
    with_all_limits,
)
from inferometer.api.diagnose_probe import Probe
from inferometer.api.diagnose_source import LimitSource, Source, StatedLimit
from inferometer.api.progress import PartsDone, talk
from inferometer.decide.diagnosis import causes, limit_draws, observed, rebuilding
from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.errors import EXIT_ANSWERED, EXIT_OF_SLO, EXIT_UNDECIDED
from inferometer.fit.loads.server import LIMITS, Limit
from inferometer.inputs.objectives import ObjectiveSpec, Threshold
from inferometer.records.pitfalls import CheckRow, PitfallName
from inferometer.records.server_names import ServerKind
from inferometer.records.server_summaries import Level
from inferometer.records.types import SchedulerFacts
from inferometer.stats.estimate import Estimate, Verdict, worst_verdict

Named: TypeAlias = causes.CauseName | PitfallName

_USUAL: Final[causes.Percentiles] = (("ttft", 0.95), ("tpot", 0.95))


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """Part of each latency that one cause explains."""

    name: causes.CauseName
    kind: causes.Kind
    words: str
    change: str
    costs: str
    decided_by: str
    """What would decide, where metrics alone do not; '': a longer window."""
    shares_s: tuple[Estimate, ...]
    """Decrease of each latency without this cause."""
    predicted_s: tuple[Estimate, ...]
    """Each latency with the change, in another window of the same traffic.
    For the work itself, which no setting changes: without it, in this window.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """A limit of the server, as it was identified or known."""

    name: str
    low: int
    high: int | None
    """None: it was not reached, or nothing tells."""
    source: LimitSource
    """``known``: of ``--known``; ``server``: it says so of itself; ``command``: its command line,
    with ``--local``; ``metrics``: they report it; ``identified``: servers with it show the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseAnswer(Answer):
    """What limits the server, by how much, and which change would help."""

    table = "causes"

    target: str
    server: str
    version: str | None
    """As reported by the server; None: not reported."""
    model: str | None
    replica: str | None
    """Which of several replicas on its page was diagnosed: ``engine=1``; None: there is one."""
    n_replicas: int
    when: str | None
    """The past time, in UTC, by Prometheus; None: as it is now, or in a load test."""
    window_s: float
    n_requests: int
    """Requests that ended in the window."""
    finding: causes.Finding
    objective: str | None
    slo_verdict: Verdict | None
    cause: Named | None
    """Named where the finding is *limited*; of an *undecided* one, what may be the cause. *outside*:
    the client, a proxy, or the network. A check that loses requests is named where nothing else is."""
    latencies: tuple[LatencyRow, ...]
    causes: tuple[CauseRow, ...]
    """The named cause first, then by share of the first latency."""
    checks: tuple[CheckRow, ...]
    """Pitfalls by the metrics, without a simulation."""
    limits: tuple[LimitRow, ...]
    reported: SchedulerFacts | None
    """Scheduler settings that the server reports; None: not reported."""
    agreement: dict[str, tuple[float, float]]
    """Means of the window: measured, and of the nearest simulated server."""
    requests_per_s: float
    in_flight: Level | None
    """Requests in the batch."""
    in_queue: Level | None
    kv_usage: Level | None
    """Shares of the KV cache."""
    n_preemptions: int | None
    is_closed_loop: bool
    outside: tuple[observed.OutsideRow, ...]
    """For a load test: latencies of its clients beside those of the server."""
    probe: Probe | None = None
    """Result of a small probe load; None: nothing was sent."""
    cautions: Cautions = ()
    check: SealedCheck | None = None
    """Sealed prediction of the change; None: no setting is to be changed."""

    @property
    def exit_code(self) -> int:
        """Exit code of the SLO's verdict if it was not met, else 11 where the cause is unknown."""
        of_slo = EXIT_OF_SLO[self.slo_verdict]
        return of_slo or (EXIT_UNDECIDED if self.finding == "undecided" else EXIT_ANSWERED)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cause, with what it costs of each latency."""
        return [
            row
            | {
                f"{latency.name}.{name}.{end}": getattr(seconds[rank], end)
                for rank, latency in enumerate(self.latencies)
                for name, seconds in (("share_s", one.shares_s), ("predicted_s", one.predicted_s))
                for end in ("value", "low", "high")
            }
            for row, one in zip(self.rows_of("causes"), self.causes, strict=True)
        ]


class Diagnosed(NamedTuple):
    """An answer, and the change that it advises."""

    answer: DiagnoseAnswer
    advised: Advised | None
    """None: no setting is to be changed."""


def answer_of(
    target: str,
    source: Source,
    agreement: rebuilding.Agreement,
    objective: ObjectiveSpec | None,
    stated: Mapping[Limit, StatedLimit],
) -> Diagnosed:
    """Diagnosis by the plausible servers, for the SLO's latencies, else TTFT and TPOT."""
    window = source.window
    draws = [one.rebuilt for one in agreement.draws]
    percentiles = _percentiles(thresholds := _by_need(agreement, objective)) or _USUAL
    base = with_all_limits(agreement, percentiles)
    now = causes.estimates(base)
    latencies = latencies_of(window, percentiles, now, thresholds)
    slo = worst_verdict(verdicts := verdicts_of(latencies))
    fresh = rebuilding.under_fresh_requests(window, agreement.draws)
    found = causes.shares_of(draws, base, percentiles, on_done=_talk_of_causes, fresh=fresh)
    n_waiting = rebuilding.mean_waiting(window, agreement)
    concluded = causes.conclusion(found, now[0], slo, verdicts, mean_waiting=n_waiting)
    checks = observed.checked(source.window, source.outside, source.local)
    finding, cause = cause_named(concluded, checks)
    answer = DiagnoseAnswer(
        target=target,
        server=window.summary.kind,
        version=None if source.identity.facts is None else source.identity.facts.version,
        model=_model(source),
        replica=None if window.replica is None else window.replica.name,
        n_replicas=1 if window.replica is None else window.replica.n_replicas,
        when=source.when,
        window_s=window.duration_s,
        n_requests=window.prompt_lengths.seen.n,
        finding=finding,
        objective=None if objective is None else objective.text,
        slo_verdict=slo,
        cause=cause,
        latencies=latencies,
        causes=_rows(found, concluded.cause, window.summary.kind),
        checks=checks,
        limits=_limits(window, agreement, stated),
        reported=source.identity.scheduler,
        agreement=agreement.compared,
        requests_per_s=float(window.arrivals.sum()) / window.duration_s,
        in_flight=window.summary.running,
        in_queue=window.summary.waiting,
        kv_usage=window.summary.kv_usage,
        n_preemptions=window.summary.n_preemptions,
        is_closed_loop=window.is_closed_loop,
        outside=source.outside,
        cautions=(*replica_cautions(window.replica), *cautions_of(latencies)),
    )
    return Diagnosed(answer, _advised(answer, concluded.cause, fresh))


def _model(source: Source) -> str | None:
    """The replica's own model, where the replicas have several; else as the server reports it."""
    replica = source.window.replica
    own = None if replica is None else replica.labels.get("model_name")
    return source.identity.model if own is None else own


def _advised(
    answer: DiagnoseAnswer, named: causes.Share | None, fresh: Sequence[rebuilding.Rebuilt]
) -> Advised | None:
    """The change of the setting that limits the server; None where none does."""
    if named is None or named.cause.kind != "setting" or answer.finding != "limited":
        return None
    if answer.cause != named.cause.name:
        return None
    change = next(row.change for row in answer.causes if row.name == answer.cause)
    return Advised(share=named, change=change, fresh=fresh)


def _talk_of_causes(n_done: int, n_causes: int) -> None:
    talk(PartsDone("causes", n_done, n_causes))


def cause_named(
    concluded: causes.Conclusion, checks: Sequence[CheckRow]
) -> tuple[causes.Finding, Named | None]:
    """The cause to name, unless most of TTFT passes before or after the engine.

    What makes every step slow is named before the work itself, which no setting changes.
    """
    found = [one for one in checks if one.finding == "found"]
    if any(one.name == "outside" for one in found):
        return "limited", "outside"
    lost = next((one for one in found if one.is_loss), None)
    if lost is not None and concluded.finding != "limited":
        return "limited", lost.name
    cause = None if concluded.cause is None else concluded.cause.cause
    slow = next((one for one in found if one.is_slow_work), None)
    if slow is not None and cause is not None and cause.kind == "work":
        return "limited", slow.name
    return concluded.finding, None if cause is None else cause.name


def _by_need(
    agreement: rebuilding.Agreement, objective: ObjectiveSpec | None
) -> tuple[Threshold, ...]:
    """Limits on percentiles, the one nearest to or furthest beyond its limit first."""
    if objective is None:
        return ()
    limited = [one for one in objective.thresholds if one.percentile_fraction is not None]
    near = agreement.draws[0]
    seconds = causes.seconds_at(near.rebuilt, near.simulation, _percentiles(limited))
    ratios = [seen / one.limit_s for seen, one in zip(seconds.tolist(), limited, strict=True)]
    worst_first = sorted(range(len(ratios)), key=lambda index: -ratios[index])
    return tuple(limited[index] for index in worst_first)


def _percentiles(thresholds: Sequence[Threshold]) -> causes.Percentiles:
    return tuple(
        (one.metric, one.percentile_fraction)
        for one in thresholds
        if one.percentile_fraction is not None
    )


def _rows(
    found: Sequence[causes.Share], named: causes.Share | None, kind: ServerKind
) -> tuple[CauseRow, ...]:
    """The named cause first, then by their shares."""
    ranked = sorted(found, key=lambda one: (one is not named, -one.shares[0].value))
    return tuple(_row(one, kind) for one in ranked)


def _row(share: causes.Share, kind: ServerKind) -> CauseRow:
    value = share.change.value
    cause = share.cause
    return CauseRow(
        name=cause.name,
        kind=cause.kind,
        words=cause.words,
        change=cause.changes.get(kind, cause.change).format(value="" if value is None else value),
        costs=cause.costs,
        decided_by=cause.decided_by,
        shares_s=share.shares,
        predicted_s=share.change.predicted,
    )


def _limits(
    window: ServerWindow, agreement: rebuilding.Agreement, stated: Mapping[Limit, StatedLimit]
) -> tuple[LimitRow, ...]:
    """Range of each limit over the plausible servers."""
    configs = [one.rebuilt.config for one in agreement.draws]
    at_once = [one.max_num_seqs for one in configs]
    budgets = [one.max_num_batched_tokens for one in configs]
    most_running = round(float(window.running.max()))
    is_reached = "max_num_seqs" in stated or max(at_once) == most_running
    is_bounded = "max_num_batched_tokens" in stated or max(budgets) < limit_draws.BUDGETS[-1]
    sources = dict[Limit, LimitSource](dict.fromkeys(LIMITS, "identified"))
    sources |= {"n_kv_blocks": "metrics"}
    sources |= {name: one.source for name, one in stated.items()}
    n_blocks = stated.get("n_kv_blocks")
    blocks = window.summary.n_kv_blocks if n_blocks is None else n_blocks.value
    return (
        LimitRow(
            name="max_num_seqs",
            source=sources["max_num_seqs"],
            low=min(*at_once, most_running) if not is_reached else min(at_once),
            high=max(at_once) if is_reached else None,
        ),
        LimitRow(
            name="max_num_batched_tokens",
            source=sources["max_num_batched_tokens"],
            low=min(budgets),
            high=max(budgets) if is_bounded else None,
        ),
        *(
            (
                LimitRow(
                    name="num_gpu_blocks", low=blocks, high=blocks, source=sources["n_kv_blocks"]
                ),
            )
            if blocks
            else ()
        ),
    )
