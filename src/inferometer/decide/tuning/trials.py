"""How good is a variant of a server under its traffic: simulated pairs on common random numbers.

A pair is one plausible machine (its step times) and one draw of the traffic. Each variant
is simulated in the same pairs, so that what differs between two variants is what was changed. The
least and the most of 19 pairs are the ends of an interval of 90 %, of step times and traffic
together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import scipy

from inferometer.decide.probing import (
    run_plan,
    worst_reading,
)
from inferometer.decide.traffic import Traffic, plan_at
from inferometer.decide.tuning.playbook import Variant
from inferometer.inputs.objectives import ClassObjective, ObjectiveSpec
from inferometer.inputs.workload import replay
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import ClosedArrivals, OpenArrivals, WorkloadSpec
from inferometer.records.request_summaries import Judgement, judge_objective, summarise_requests
from inferometer.records.types import Run
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.fleet import Fleet
from inferometer.stats.estimate import Estimate, Verdict

Goal: TypeAlias = Literal["interactive", "throughput", "cost"]

N_PAIRS: Final = 19
_RANKS: Final = (
    9,
    1,
    17,
    5,
    13,
    *(rank for rank in range(N_PAIRS) if rank not in {9, 1, 17, 5, 13}),
)
"""Order of the machines, the fastest 0: the first few represent all."""
_FAST_RANKS: Final = range(6)
_SLOW_RANKS: Final = range(13, N_PAIRS)
_FRESH: Final = 1000
"""Between the seeds of the search and those of the confirmation."""
_N_DRAWS: Final = 100
"""Their mean is off by a tenth of what differs between draws, that of 16 pairs by a fourth."""
_DRAWS_APART: Final = 2_000_000
"""Distance from the seeds of pairs."""
_NOTHING: Final = 1e-9
"""Least score, so that ratios of scores exist."""
_STEP_RATIO: Final = 1.5
_MOST_STEPS: Final = 16
_PROBE_S: Final = 30.0
_LIMITS_LONG: Final = 4
_CLOSE_RATIO: Final = 0.005
_METHOD: Final = "median, least and most of {n} simulated pairs of a machine and its traffic"


class Built(NamedTuple):
    """A variant that can be simulated."""

    deployment: Deployment
    fleet: Callable[[Case], Fleet]
    n_devices: int
    """Devices of all replicas."""
    n_replicas: int
    router: str


class Pair(NamedTuple):
    """A machine, by its rank among 19, and the seed of its traffic."""

    rank: int
    seed: int


class Outcome(NamedTuple):
    """Result of one pair."""

    score: float
    """Higher is better: see ``Aim``."""
    margin_ratio: float
    """The weakest latency / its limit, at the load that was given."""
    latencies_s: tuple[float, ...]
    """At the thresholds' percentiles; NaN where there is none."""
    good_requests_per_s: float
    """Goodput."""
    output_tokens_per_s: float
    n_preemptions: int | None
    """None: unknown, as for a client."""
    n_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The goal of tuning, and its traffic.

    *interactive*: the factor by which the weakest latency is below its limit. *throughput*: the
    highest rate of an open loop that meets the SLO; of a closed loop its goodput. *cost*: the same
    for each device.
    """

    goal: Goal
    objective: ObjectiveSpec
    spec: WorkloadSpec
    load: float
    """Users, or requests per second."""
    n_requests: int

    @property
    def class_objectives(self) -> tuple[ClassObjective, ...]:
        """SLOs of the classes that have their own; they count in addition to the common one."""
        return self.spec.class_objectives

    @property
    def limits(self) -> tuple[tuple[str, float], ...]:
        """Each limited percentile and its limit (seconds), in the order of outcomes' latencies."""
        slos = (
            ("", self.objective),
            *((f"{one.name}: ", one.objective) for one in self.class_objectives),
        )
        return tuple(
            (f"{name}{one.text}", one.limit_s)
            for name, slo in slos
            for one in slo.thresholds
            if one.percentile_fraction
        )

    @property
    def is_capacity(self) -> bool:
        """Is the score a capacity, for which the load is searched?"""
        return self.goal != "interactive" and isinstance(self.spec.arrivals, OpenArrivals)

    def n_requests_at(self, rate_per_s: float) -> int:
        """Requests at this rate: doubled until they last long compared to the limits of the SLO.

        The same few requests at a high rate are a burst, which is over before a server falls behind.
        """
        longest_s = max((one.limit_s for one in self.objective.thresholds), default=0.0)
        wanted = rate_per_s * max(_PROBE_S, _LIMITS_LONG * longest_s)
        n_doubled = max(math.ceil(math.log2(wanted / self.n_requests)), 0)
        most = max(Traffic(spec=self.spec).most_requests, self.n_requests)
        return min(self.n_requests << n_doubled, most)


def pairs_of(n_pairs: int, seed: int, *, is_fresh: bool = False) -> tuple[Pair, ...]:
    """The first pairs; fresh pairs have other seeds, so other requests in another order."""
    first = seed + (_FRESH if is_fresh else 0)
    return tuple(Pair(rank, first + index) for index, rank in enumerate(_RANKS[:n_pairs]))


class Trials:
    """Simulates variants, each pair of them once."""

    def __init__(self, build: Callable[[Variant], Built], aim: Aim) -> None:
        self.aim = aim
        self.n_simulations = 0
        self._build = build
        self._built = dict[Variant, Built]()
        self._done = dict[tuple[Variant, Pair], Outcome]()
        self._plans = dict[int, RequestPlan]()

    def built(self, variant: Variant) -> Built:
        """The variant's fleet.

        Raises
        ------
        SpecError, ModelError
            The variant is impossible.
        """
        if variant not in self._built:
            self._built[variant] = self._build(variant)
        return self._built[variant]

    def plan(self, seed: int) -> RequestPlan:
        """The requests of this seed, at the load that was given."""
        if seed not in self._plans:
            self._plans[seed] = replay.draw_workload(_seeded(self.aim, seed)).plan
        return self._plans[seed]

    def outcomes(self, variants: Sequence[Variant], pairs: Sequence[Pair]) -> tuple[Outcome, ...]:
        """Result of each pair; with several plausible variants, pairs take them in turn."""
        return tuple(
            self._outcome(variants[index % len(variants)], pair) for index, pair in enumerate(pairs)
        )

    def log_gain(self, variant: Variant, spec: WorkloadSpec) -> float:
        """Logarithm of the score with this variant over that without, of the requests of this draw.

        On the middle machine, at the load that was given.
        """
        plan = replay.draw_workload(spec).plan
        scores = []
        for one in (variant, ()):
            built = self.built(one)
            fleet = built.fleet(case_of(built.deployment, _RANKS[0]))
            outcome = scored(self._at(fleet, plan), self.aim.goal, built.n_devices)
            scores.append(outcome.score)
        return math.log(scores[0] / scores[1])

    def _outcome(self, variant: Variant, pair: Pair) -> Outcome:
        key = variant, pair
        if key not in self._done:
            self._done[key] = self._simulated(self.built(variant), pair)
        return self._done[key]

    def _simulated(self, built: Built, pair: Pair) -> Outcome:
        fleet = built.fleet(case_of(built.deployment, pair.rank))
        at_load = self._at(fleet, self.plan(pair.seed))
        if self.aim.is_capacity:
            capacity_per_s = self._capacity_per_s(fleet, pair.seed)
            at_load = at_load._replace(good_requests_per_s=capacity_per_s)
        return scored(at_load, self.aim.goal, built.n_devices)

    def _at(self, fleet: Fleet, plan: RequestPlan) -> Outcome:
        """Simulate these requests; without a score."""
        self.n_simulations += 1
        is_of_users = isinstance(self.aim.spec.arrivals, ClosedArrivals)
        run = run_plan(fleet, plan, is_of_users=is_of_users)
        return outcome_of(run, self.aim.objective, self.aim.class_objectives)

    def _capacity_per_s(self, fleet: Fleet, seed: int) -> float:
        """The rate at which the weakest latency reaches its limit, or the queue grows without bound.

        The same requests come at each rate between the last that is met and the first that is not.
        """
        spec = _seeded(self.aim, seed)

        @cache
        def margin(log_load: float, n_requests: int) -> float:
            ratio = self._margin_ratio(fleet, plan_at(spec, math.exp(log_load), n_requests))
            return math.log(min(max(ratio, _NOTHING), 1 / _NOTHING))

        step, at = math.log(_STEP_RATIO), math.log(self.aim.load)
        n_requests = self.aim.n_requests_at(self.aim.load)
        for _ in range(_MOST_STEPS):
            if margin(at, n_requests) > 0:
                break
            at += step
            n_requests = self.aim.n_requests_at(math.exp(at))
        else:
            return math.exp(at)
        for _ in range(_MOST_STEPS):
            if margin(at - step, n_requests) <= 0:
                ends = (at - step, at)
                found = scipy.optimize.root_scalar(
                    margin, (n_requests,), bracket=ends, method="brentq", xtol=_CLOSE_RATIO
                )
                return math.exp(float(found.root))
            at -= step
        return 0.0

    def _margin_ratio(self, fleet: Fleet, plan: RequestPlan) -> float:
        """The weakest latency / its limit; infinite where the queue grows without bound."""
        self.n_simulations += 1
        run = run_plan(fleet, plan)
        return worst_reading(run, self.aim.objective, self.aim.class_objectives).margin_ratio


@dataclass(frozen=True, slots=True)
class DrawEffects:
    """Simulated effect of one draw of the requests on a gain, relative to the mean of draws.

    Near saturation this is most of what differs between pairs, and is subtracted from what they show
    (a control variate: Glasserman, Monte Carlo Methods in Financial Engineering, section 4.1). Where
    simulations are wrong of a draw, intervals are wider; the gain is as unbiased as before.
    """

    trials: Trials
    variant: Variant
    mean_log_ratio: float
    """Over draws that no pair has."""

    def of(self, spec: WorkloadSpec) -> float:
        """Effect of this draw as the logarithm of a ratio."""
        return self.trials.log_gain(self.variant, spec) - self.mean_log_ratio


def draw_effects(trials: Trials, variant: Variant, spec: WorkloadSpec) -> DrawEffects:
    """The effects of draws on the gain of this variant."""
    seeds = range(spec.seed + _DRAWS_APART, spec.seed + _DRAWS_APART + _N_DRAWS)
    logs = [trials.log_gain(variant, msgspec.structs.replace(spec, seed=seed)) for seed in seeds]
    return DrawEffects(trials, variant, float(np.mean(logs)))


def outcome_of(
    run: Run, objective: ObjectiveSpec, class_objectives: Sequence[ClassObjective] = ()
) -> Outcome:
    """Latencies and goodput of a run, simulated or measured; without a score."""
    judgement = judge_objective(run, objective)
    summary = summarise_requests(run, percentiles=())
    seconds, ratios = _reached(judgement)
    for _, own, index in class_objectives:
        rows = None if run.requests is None else run.requests.class_index == index
        more_s, more_ratios = _reached(judge_objective(run, own, rows=rows))
        seconds += more_s
        ratios += more_ratios if rows is not None and rows.any() else []
    tokens = summary.output_tokens_per_s
    return Outcome(
        score=math.nan,
        margin_ratio=max(ratios, default=math.inf),
        latencies_s=tuple(seconds),
        good_requests_per_s=judgement.good_requests_per_s or 0.0,
        output_tokens_per_s=math.nan if tokens is None else tokens.value,
        n_preemptions=summary.n_preemptions,
        n_requests=summary.n_requests,
    )


def _reached(judgement: Judgement) -> tuple[list[float], list[float]]:
    """The latency at each limited percentile, NaN where there is none, and its share of the limit."""
    judged = [one for one in judgement.thresholds if one.threshold.percentile_fraction]
    seconds = [math.nan if one.seen is None else one.seen.seconds.value for one in judged]
    ratios = [
        math.inf if math.isnan(seen) else seen / one.threshold.limit_s
        for seen, one in zip(seconds, judged, strict=True)
    ]
    return seconds, ratios


def scored(outcome: Outcome, goal: Goal, n_devices: int) -> Outcome:
    """The outcome with its score by this goal; for *throughput* and *cost* the goodput."""
    if goal == "interactive":
        return outcome._replace(score=max(1 / max(outcome.margin_ratio, _NOTHING), _NOTHING))
    share = n_devices if goal == "cost" else 1
    return outcome._replace(score=max(outcome.good_requests_per_s, _NOTHING) / share)


def _seeded(aim: Aim, seed: int) -> WorkloadSpec:
    changes: dict[str, object] = {"seed": seed}
    if aim.spec.classes:
        changes |= {"n_requests": aim.n_requests, "duration_s": None}
    seeded: WorkloadSpec = msgspec.structs.replace(aim.spec, **changes)
    return seeded


def case_of(deployment: Deployment, rank: int) -> Case:
    """The machine of this rank; where only the ends of the step times are known, one of three."""
    if deployment.draws:
        return rank
    return "fast" if rank in _FAST_RANKS else "slow" if rank in _SLOW_RANKS else "likely"


def estimate_of(values: Sequence[float]) -> Estimate | None:
    """The median of pairs between the least and the most; no interval below 19 of them."""
    known = np.array([value for value in values if math.isfinite(value)])
    if not known.size:
        return None
    is_whole = known.size >= N_PAIRS
    return Estimate(
        value=float(np.median(known)),
        low=float(known.min()) if is_whole else None,
        high=float(known.max()) if is_whole else None,
        confidence_fraction=0.9,
        n_samples=int(known.size),
        method=_METHOD.format(n=known.size),
    )


def gain_of(after: Sequence[Outcome], before: Sequence[Outcome]) -> Estimate | None:
    """Relative gain of the score by the change."""
    return estimate_of([new.score / old.score - 1 for new, old in zip(after, before, strict=True)])


def score_of(outcomes: Sequence[Outcome]) -> Estimate | None:
    """The score of these pairs; 0 where nothing meets the SLO."""
    return estimate_of([0.0 if is_nothing(one) else one.score for one in outcomes])


def is_nothing(outcome: Outcome) -> bool:
    """Is the score the floor below which there is no ratio, so that nothing meets the SLO?"""
    return outcome.score <= _NOTHING


def mean_log_ratio(after: Sequence[Outcome], before: Sequence[Outcome]) -> float:
    """Mean log ratio of the scores over pairs, which counts failures on single machines."""
    ratios = [new.score / old.score for new, old in zip(after, before, strict=True)]
    return float(np.mean(np.log(ratios)))


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """Met or missed where 18 of 19 pairs agree, else undecided."""
    n_met = sum(one.margin_ratio <= 1 for one in outcomes)
    if n_met >= len(outcomes) - 1:
        return "met"
    return "missed" if n_met <= 1 else "undecided"
