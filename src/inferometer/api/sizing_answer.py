"""What does a sizing answer: the pick, the best replicas of each device, and what cannot be?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from inferometer.api import missed as misses, sized_fleets, sizing_cautions
from inferometer.api.answer import Answer, row_of
from inferometer.api.sized_fleets import SizedGroups
from inferometer.decide.candidates import DEFAULT_TP, Candidates, Offer, Refusal
from inferometer.decide.capacity import TIME_LIMIT
from inferometer.decide.elastic import Course, Elastic, PolicyOutcome, Scaling, capacities_of
from inferometer.decide.failure import FailureOutcome
from inferometer.decide.sizing_types import (
    Costs,
    Done,
    PacedAnswer,
    Searched,
    ServedBy,
    SizedKind,
    SizingQuestion,
    costs_of,
    mean_tokens,
)
from inferometer.decide.traffic import plan_at
from inferometer.errors import EXIT_OF_SLO
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.prices import ApiPrice, OwnedPrice
from inferometer.inputs.types import Caution, PriceSpec
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import Percentile
from inferometer.simulate import deployment, engine_config, fleet
from inferometer.stats.estimate import Estimate, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One policy under the whole traffic, simulated."""

    name: str
    verdict: Verdict
    """Verdict on all requests."""
    slo_met_fraction: float
    """Share of the windows whose requests met the SLO, as it was seen in them."""
    good: Estimate | None
    """Share of the requests within every limit."""
    weakest: str | None
    usd: float | None
    replica_s: float
    """Paid for."""
    n_replicas: tuple[int, ...]
    """Ready in each window."""
    has_converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """The pick under traffic that changes."""

    window_s: float
    start_up_s: float
    target_fraction: float
    rates_per_s: tuple[float, ...]
    """Rate of each window."""
    capacities_per_s: tuple[float, ...]
    """Capacity of 1, 2, … replicas."""
    policies: tuple[PolicyRow, ...]
    """The cheapest first."""


def over_time(
    question: SizingQuestion,
    kind: SizedKind,
    course: Course,
    *,
    start_up_s: float,
    target_fraction: float,
) -> OverTime:
    """Each scaling policy for the pick under this course of traffic."""
    capacities = capacities_of(question, kind, max(course.rates_per_s) / target_fraction)
    scaling = Scaling(
        capacities_per_s=capacities,
        target_fraction=target_fraction,
        start_up_s=start_up_s,
        window_s=course.window_s,
    )
    outcomes = Elastic(question=question, kind=kind, course=course, scaling=scaling).outcomes()
    return OverTime(
        window_s=course.window_s,
        start_up_s=start_up_s,
        target_fraction=target_fraction,
        rates_per_s=course.rates_per_s,
        capacities_per_s=capacities,
        policies=tuple(
            _row(one)
            for one in sorted(
                outcomes, key=lambda one: one.replica_s if one.usd is None else one.usd
            )
        ),
    )


def _row(outcome: PolicyOutcome) -> PolicyRow:
    weakest = outcome.judgement.weakest
    return row_of(
        PolicyRow,
        outcome,
        verdict=outcome.judgement.verdict,
        good=outcome.judgement.good,
        weakest=None if weakest is None else f"{weakest.threshold.text}: {weakest.why}",
        n_replicas=outcome.schedule.ready,
    )


_SHOWN_FRACTION: Final = 0.95
_NOTED_SPREAD: Final = 0.05
"""A range of KV blocks below this share of them is not printed."""
_KNOBS: Final = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    *("max_running_requests", "chunked_prefill_size", "context_length"),
    *("max_batch_size", "max_num_tokens", "max_seq_len"),
)
"""max_num_seqs, budget of a step and longest context: vLLM's, SGLang's and TensorRT-LLM's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """All replicas behind the router under the whole traffic, simulated."""

    n_replicas: int
    verdict: Verdict
    weakest: str | None
    """The limit of the SLO that is nearest under this traffic."""
    ttft: Percentile | None
    """At the percentile of the objective, or the 95th."""
    tpot: Percentile | None
    e2e: Percentile | None
    workflow: Percentile | None
    """None where the traffic has no workflows."""
    good: Estimate | None
    """Share of the requests that were within every limit."""


class Carried(NamedTuple):
    """The highest load within the SLO: requests per second, or users."""

    load: float
    """Load at which the first limit is reached, if between the other two; else ``low``."""
    low: float
    """The highest load that was shown to meet the SLO."""
    high: float | None
    """The lowest that was shown to miss it; None: none was."""

    def beyond(self, load: float) -> "Carried":
        """Capacity above this load, as shares of the load."""
        high = None if self.high is None else self.high / load - 1
        return Carried(self.load / load - 1, self.low / load - 1, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRow:
    """The replicas of the answer, if steps take so long."""

    step_times: deployment.Pace
    served: ServedRow
    breaks_first: str | None
    """Limit of the SLO that is missed first with more traffic."""
    met_requests_per_s: float | None
    """The highest rate of all replicas together that was shown to meet the SLO."""
    missed_requests_per_s: float | None
    located_requests_per_s: float | None
    """Rate at which short runs reach the first limit."""
    n_replicas: int | None
    """Replicas that this pace would need."""
    is_examined: bool = True
    """False: the time limit ended the search for that number."""
    met_users: int | None = None
    """In a closed loop, in place of a rate: the most users shown to be within the SLO."""
    missed_users: int | None = None
    located_users: int | None = None

    @property
    def carried(self) -> Carried | None:
        """Capacity of all replicas within the SLO; None where no load meets it."""
        met, missed, located = (
            (self.met_requests_per_s, self.missed_requests_per_s, self.located_requests_per_s)
            if self.met_users is None
            else (self.met_users, self.missed_users, self.located_users)
        )
        if met is None:
            return None
        if missed is None or located is None or not met <= located <= missed:
            return Carried(met, met, missed)
        return Carried(located, met, missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """The best replicas of one device, and the conditions of its numbers."""

    hardware_id: str
    hardware: str
    layout: str
    model_id: str
    engine: str
    """Engine whose scheduler was simulated."""
    weights_dtype: str
    kv_cache_dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    parallelism: str
    """``TP8 PP2``"""
    knobs: tuple[tuple[str, int], ...]
    mean_prompt_tokens: float
    """Mean over the simulated requests."""
    mean_output_tokens: float
    in_flight_load: float
    """Requests in one replica on average (concurrency)."""
    tokens_per_s_per_user: Estimate | None
    n_replicas: int
    n_devices: int
    verdict: Verdict
    usd_per_hour: float | None
    rent: PriceSpec | None
    owned: OwnedPrice | None
    owned_break_even_fraction: float | None
    """Share of hours in use above which buying is cheaper than renting; None: never, or unknown."""
    costs: Costs
    instance_requests_per_s: float | None
    """The highest rate of a replica that was shown to meet the SLO, in this cluster."""
    device_requests_per_s: float | None
    headroom_fraction: float | None
    """Further traffic within the SLO at the shown capacity, as a share of this; None: unknown."""
    headroom_low_fraction: float | None
    """At the highest load that was shown to meet the SLO."""
    headroom_high_fraction: float | None
    """At the lowest load that was shown to miss it; None: none was."""
    without_one: ServedRow | None
    """Results with one replica less; None where there is one."""
    n_replicas_if_one_fails: int
    """The number of replicas that meet the SLO when one of them fails."""
    n_kv_blocks: int
    n_kv_blocks_low: int
    """With slow step times: the fewest blocks that are plausible."""
    n_kv_blocks_high: int
    sized_at: deployment.Pace
    paces: tuple[PaceRow, ...]
    step_times_from: str

    @property
    def sized_pace(self) -> PaceRow:
        """At the step times that it was sized for."""
        return next(pace for pace in self.paces if pace.step_times == self.sized_at)


def kv_blocks_words(pick: KindRow) -> str:
    """The ends of the number of KV blocks, which differs between versions of the engine."""
    if pick.n_kv_blocks_high - pick.n_kv_blocks_low < _NOTED_SPREAD * pick.n_kv_blocks:
        return ""
    return (
        f"; {pick.n_kv_blocks_low:,} KV blocks with slow steps to {pick.n_kv_blocks_high:,} with"
        " fast ones"
    )


def kind_row(kind: SizedKind, apis: tuple[ApiPrice, ...]) -> KindRow:
    """The row of these replicas."""
    candidate, served = kind.candidate, kind.sized_at.served
    engine = candidate.deployment.engine
    config = candidate.deployment.config
    offer = candidate.offer
    tokens_in, tokens_out = mean_tokens(served)
    fewest, most = candidate.deployment.kv_block_ends
    met = None if kind.is_of_users else kind.sized_at.capacity.met_load
    paces = tuple(_pace(answer) for answer in kind.paces.values())
    carried = next(pace for pace in paces if pace.step_times == kind.asked_pace).carried
    headroom = None if carried is None else carried.beyond(kind.offered_load)
    return row_of(
        KindRow,
        kind,
        engine=config.engine,
        tensor_parallel_size=engine.tensor_parallel_size,
        parallelism=candidate.parallelism,
        n_kv_blocks=config.n_kv_blocks,
        n_kv_blocks_low=fewest,
        n_kv_blocks_high=most,
        model_id=candidate.deployment.model.model_id,
        weights_dtype=engine.quantization or engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype or engine.dtype,
        pipeline_parallel_size=engine_config.n_stages_of(config),
        knobs=tuple((name, getattr(config, name)) for name in _KNOBS if hasattr(config, name)),
        mean_prompt_tokens=tokens_in,
        mean_output_tokens=tokens_out,
        in_flight_load=served.in_flight_load,
        tokens_per_s_per_user=served.summary.tokens_per_s_per_user,
        rent=offer.price,
        owned=offer.owned,
        owned_break_even_fraction=_break_even_fraction(offer),
        costs=costs_of(kind, apis),
        instance_requests_per_s=None if met is None else met / kind.n_replicas,
        device_requests_per_s=None if met is None else met / kind.n_devices,
        headroom_fraction=None if headroom is None else headroom.load,
        headroom_low_fraction=None if headroom is None else headroom.low,
        headroom_high_fraction=None if headroom is None else headroom.high,
        without_one=None if kind.without_one is None else served_row(kind.without_one),
        sized_at=kind.asked_pace,
        paces=paces,
        step_times_from=candidate.deployment.step_times.origin,
    )


def _break_even_fraction(offer: Offer) -> float | None:
    if offer.owned is None or offer.price is None:
        return None
    return offer.owned.break_even_fraction(offer.price.usd_per_hour)


def served_row(served: ServedBy) -> ServedRow:
    """Results of the traffic."""
    weakest = served.judgement.weakest
    why = None if weakest is None else f"{weakest.threshold.text}: {weakest.why}"

    def shown(latency: Latency) -> Percentile | None:
        observed = next(
            (
                one.seen
                for one in served.judgement.thresholds
                if one.threshold.metric == latency and one.seen is not None
            ),
            None,
        )
        found = next((one for one in served.summary.latencies if one.latency == latency), None)
        return observed or (None if found is None else found.percentile(_SHOWN_FRACTION))

    return ServedRow(
        n_replicas=served.n_replicas,
        verdict=served.verdict,
        weakest=why if served.nearest is None else served.nearest.why,
        ttft=shown("ttft"),
        tpot=shown("tpot"),
        e2e=shown("e2e"),
        workflow=shown("workflow"),
        good=served.judgement.good,
    )


def _users(load: float | None) -> int | None:
    return None if load is None else round(load)


def _pace(answer: PacedAnswer) -> PaceRow:
    found = answer.capacity
    is_of_users = found.kind == "users"
    return PaceRow(
        step_times=answer.step_times,
        served=served_row(answer.served),
        breaks_first=answer.capacity.weakest,
        met_requests_per_s=None if is_of_users else found.met_load,
        missed_requests_per_s=None if is_of_users else found.missed_load,
        located_requests_per_s=None if is_of_users else found.located_load,
        met_users=_users(found.met_load) if is_of_users else None,
        missed_users=_users(found.missed_load) if is_of_users else None,
        located_users=_users(found.located_load) if is_of_users else None,
        n_replicas=answer.n_replicas,
        is_examined=answer.n_replicas is not None or answer.capacity.why != TIME_LIMIT,
    )


_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A device without a layout that meets the SLO, and the nearest one."""

    hardware: str
    layout: str
    why: str
    """The limit that forbids it."""
    margin_ratio: float | None
    """Observed value of that limit / the limit; None: not observed."""
    larger_tp: int | None
    """The next tensor parallel size that was not tried, of those tried by default; None: all were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer(Answer):
    """What to buy; ``verdict`` is the pick's, at likely, fast and slow step times."""

    table = "kinds"

    model_id: str
    workload_name: str
    rate_per_s: float | None
    """None where it follows from users who wait, and nothing serves them within the SLO."""
    objective: str
    router: fleet.Router
    sized_for: deployment.Pace
    """The step times at which the SLO must be met."""
    n_prefill_replicas: int | None = None
    """Replicas that compute prompts alone, besides those of the pick; None: each computes both."""
    gate: GateSpec | None = None
    """Before every fleet that was tried."""
    verdict: Verdict
    pick: KindRow | None
    """None: nothing meets the SLO."""
    kinds: tuple[KindRow, ...]
    """The best of each device, the pick first."""
    impossible: tuple[Impossible, ...]
    """Nearest to the SLO first."""
    refused: tuple[Refusal, ...]
    n_candidates: int
    n_searched: int
    n_unexamined: int
    """Kinds of replica that the time limit left out."""
    cautions: tuple[Caution, ...]
    failure: FailureOutcome | None = None
    """Effect of a failure, where the pick has several replicas."""
    failure_why_not: str | None = None
    """Why a failure was not examined."""
    over_time: OverTime | None = None
    """The pick's scaling policies, for varying traffic; ``rate_per_s`` is then the peak's."""
    users: int | None = None
    """Users of a closed loop; ``rate_per_s`` is then what they complete."""
    best_use: sized_fleets.BestUse | None = None
    """With --total-gpus: the layouts; ``rate_per_s`` is then the best one's capacity."""
    groups: SizedGroups | None = None
    """With --groups: replicas of each group, in place of a pick."""
    next_step: str | None = None
    """What would decide a verdict that noise, or the time limit, leaves open."""

    @property
    def at_busiest(self) -> str:
        """Words for a rate that is that of the busiest window; '' where the traffic is steady."""
        return "" if self.over_time is None else " at its busiest"

    @property
    def exit_code(self) -> int:
        """Exit code of the SLO's verdict."""
        return EXIT_OF_SLO[self.verdict]

    def rows(self) -> list[dict[str, Any]]:
        """The main table: the best of each device, or the groups."""
        return Answer.rows(self) if self.groups is None else self.rows_of("groups.rows")


def size_answer(
    question: SizingQuestion,
    model_id: str,
    candidates: Candidates,
    found: Sequence[Done],
    apis: tuple[ApiPrice, ...] = (),
) -> SizeAnswer:
    """The answer from the results of each device."""
    best = sorted((done.best for done in found if done.best is not None), key=_rank)
    rows = tuple(kind_row(kind, apis) for kind in best)
    searched = [one for done in found for one in done.searched]
    n_unexamined = sum(not one.is_examined for one in searched)
    is_open = any(not (one.is_examined and one.is_decided) for one in searched)
    verdict = rows[0].verdict if rows else "undecided" if is_open else "missed"
    asked_verdict = best[0].sized_at.served.verdict if best else verdict
    return SizeAnswer(
        model_id=model_id,
        workload_name=question.spec.name,
        rate_per_s=(
            question.offered_load
            if not question.is_of_users
            else best[0].requests_per_s
            if best
            else None
        ),
        users=round(question.offered_load) if question.is_of_users else None,
        objective=question.objective.text,
        router=question.fleets.router,
        n_prefill_replicas=question.fleets.n_prefill or None,
        sized_for=question.pace,
        verdict=verdict,
        pick=rows[0] if rows else None,
        kinds=rows,
        impossible=tuple(
            sorted(
                (_impossible(done, candidates.refused) for done in found if done.best is None),
                key=_distance,
            )
        ),
        refused=candidates.refused,
        n_candidates=len(candidates.possible),
        n_searched=sum(one.n_probes > 0 for one in searched),
        n_unexamined=n_unexamined,
        cautions=(
            *sizing_cautions.out_of_time(best[0] if best else None, found),
            *sizing_cautions.not_the_fewest(question, best[0] if best else None),
            *sizing_cautions.cautions_of(best),
            *sizing_cautions.box_cautions(question, candidates),
        ),
        next_step=_next_step(question, () if rows else searched, asked_verdict),
    )


def _next_step(
    question: SizingQuestion, missing: Sequence[Searched], verdict: Verdict
) -> str | None:
    """What decides an open answer, or lets the ``missing`` kinds accept prompts beyond a step."""
    if verdict == "undecided":
        return misses.what_decides(question)
    plan = plan_at(question.spec, question.offered_load, question.n_requests)
    remedies = (misses.what_takes_prompts(one.candidate.deployment, plan) for one in missing)
    return next((remedy for remedy in remedies if remedy is not None), None)


def pick_of(found: Sequence[Done]) -> SizedKind | None:
    """The answer: the cheapest of all devices; None where nothing meets the SLO."""
    return min((done.best for done in found if done.best is not None), key=_rank, default=None)


def _rank(kind: SizedKind) -> tuple[bool, float, int]:
    """Sort key: undecided ones come last."""
    usd_per_hour = _NEVER if kind.usd_per_hour is None else kind.usd_per_hour
    return kind.sized_at.served.verdict == "undecided", usd_per_hour, kind.n_devices


def _impossible(done: Done, refused: Sequence[Refusal]) -> Impossible:
    """The nearest kind of replica of this device, and why it misses the SLO."""
    nearest = min(
        (one for one in done.searched if one.n_probes), key=_distance, default=done.searched[0]
    )
    hardware = nearest.candidate.offer.hardware.name
    tried = [one.candidate.deployment.engine.tensor_parallel_size for one in done.searched]
    tried += [one.tensor_parallel_size for one in refused if one.hardware == hardware]
    return Impossible(
        hardware=hardware,
        layout=nearest.candidate.layout,
        why=nearest.why,
        margin_ratio=None if nearest.margin_ratio == _NEVER else nearest.margin_ratio,
        larger_tp=next((tp for tp in DEFAULT_TP if tp > max(tried)), None),
    )


def _distance(one: Searched | Impossible) -> float:
    return _NEVER if one.margin_ratio is None else one.margin_ratio
