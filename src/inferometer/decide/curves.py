"""Curves around a decision: over load, and over stricter or laxer limits.

How do speed, throughput and goodput go with the load, and what does a stricter promise cost?
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from inferometer.decide.probing import locate, probe_of
from inferometer.decide.sizing_types import SizedKind, SizingQuestion
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.records.request_summaries import (
    Judgement,
    RequestSummary,
    judge_objective,
    summarise_requests,
)

LOAD_RATIOS: Final = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3)
"""Loads, relative to the highest one shown to meet the SLO."""
_EFFORT: Final = 1
"""Filling and draining, in which replicas are not full, are a small part of so long a run."""
LIMIT_RATIOS: Final = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Limits, relative to the SLO's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """All replicas of a kind at one load."""

    offered_requests_per_s: float
    summary: RequestSummary
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPoint:
    """The same traffic under stricter or laxer limits."""

    limit_ratio: float
    objective: ObjectiveSpec
    n_replicas: int | None
    """By short runs; None where no load meets it."""
    usd_per_hour: float | None


def load_curve(question: SizingQuestion, kind: SizedKind) -> tuple[LoadPoint, ...]:
    """The replicas of the answer at loads from idle to beyond capacity."""
    probe = probe_of(question, kind.candidate, question.pace, kind.n_replicas)
    full = kind.sized_at.capacity.met_load or question.offered_load
    points = list[LoadPoint]()
    for ratio in LOAD_RATIOS:
        run = probe.run(full * ratio, _EFFORT)
        judgement = judge_objective(run, question.objective)
        summary = summarise_requests(run)
        points.append(
            LoadPoint(
                offered_requests_per_s=_offered_per_s(question, full * ratio, summary),
                summary=summary,
                judgement=judgement,
            )
        )
    return tuple(points)


def _offered_per_s(question: SizingQuestion, load: float, summary: RequestSummary) -> float:
    """The offered rate; in a closed loop the completed one."""
    done = summary.completed_requests_per_s
    return load if not question.is_of_users or done is None else done.value


def limit_curve(question: SizingQuestion, kind: SizedKind) -> tuple[LimitPoint, ...]:
    """Replicas that the traffic needs under stricter and laxer limits."""
    points = list[LimitPoint]()
    probe = probe_of(question, kind.candidate, question.pace, kind.n_replicas)
    for ratio in LIMIT_RATIOS:
        objective = with_limits(question.objective, ratio)
        load = locate(replace(probe, objective=objective), question.offered_load)
        n_replicas = (
            None
            if load is None
            else max(1, math.ceil(question.offered_load * kind.n_replicas / load * (1 - 1e-9)))
        )
        hourly = None if n_replicas is None else kind.candidate.usd_per_hour_of(n_replicas)
        points.append(
            LimitPoint(
                limit_ratio=ratio, objective=objective, n_replicas=n_replicas, usd_per_hour=hourly
            )
        )
    return tuple(points)


def with_limits(objective: ObjectiveSpec, ratio: float) -> ObjectiveSpec:
    """The same objective with each limit times this ratio."""
    return ObjectiveSpec(
        thresholds=tuple(replace(one, limit_s=one.limit_s * ratio) for one in objective.thresholds)
    )
