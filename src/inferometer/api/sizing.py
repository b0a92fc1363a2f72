"""What does a sizing answer: the pick, the best of each device, and what cannot be?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from inferometer.api import sizing_cautions, sizing_over_time
from inferometer.api.answer import Answer
from inferometer.api.best_use_view import BestUse
from inferometer.api.sizing_rows import KindRow, kind_row
from inferometer.decide.candidates import Candidates, Refusal
from inferometer.decide.failure import FailureOutcome
from inferometer.decide.sizing_types import Done, Searched, SizedKind, SizingQuestion
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.prices import ApiPrice
from inferometer.records.types import Caution
from inferometer.simulate import deployment, fleet
from inferometer.stats.estimate import Verdict

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A device of which nothing keeps the promise, and what comes nearest."""

    hardware: str
    layout: str
    why: str
    """Which term forbids it."""
    margin_ratio: float | None
    """What was seen of that term / its limit; None where nothing was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer(Answer):
    """What to buy. ``verdict`` is that of the pick at likely, fast and slow step times."""

    table: ClassVar[str | None] = "kinds"

    model_id: str
    workload_name: str
    rate_per_s: float
    objective: str
    router: fleet.Router
    sized_for: deployment.Pace
    """The step times at which the promise is to be kept."""
    n_prefill_replicas: int | None = None
    """Replicas that compute prompts alone, besides those of the pick; None: each computes both."""
    gate: GateSpec | None = None
    """Before every fleet that was tried."""
    verdict: Verdict
    pick: KindRow | None
    """None: nothing keeps the promise."""
    kinds: tuple[KindRow, ...]
    """The best of each device, the pick first."""
    impossible: tuple[Impossible, ...]
    """Nearest to the promise first."""
    refused: tuple[Refusal, ...]
    n_candidates: int
    n_searched: int
    n_unexamined: int
    """Kinds of replica that the time limit left out."""
    cautions: tuple[Caution, ...]
    failure: FailureOutcome | None = None
    """Of the pick, where it has several replicas."""
    failure_why_not: str | None = None
    """Why a failing replica of these was not examined."""
    over_time: sizing_over_time.OverTime | None = None
    """Of the pick, where the traffic changes; ``rate_per_s`` is then that of its busiest window."""
    best_use: BestUse | None = None
    """With --total-gpus: the layouts of these devices, instead of a pick; ``rate_per_s`` is then
    what the best of them carries."""


def size_answer(
    question: SizingQuestion,
    model_id: str,
    candidates: Candidates,
    found: Sequence[Done],
    apis: tuple[ApiPrice, ...] = (),
) -> SizeAnswer:
    """The answer from what was found of each device."""
    best = sorted((done.best for done in found if done.best is not None), key=_rank)
    rows = tuple(kind_row(kind, apis) for kind in best)
    n_unexamined = sum(not one.is_examined for done in found for one in done.searched)
    return SizeAnswer(
        model_id=model_id,
        workload_name=question.spec.name,
        rate_per_s=question.rate_per_s,
        objective=question.objective.text,
        router=question.fleets.router,
        n_prefill_replicas=question.fleets.n_prefill or None,
        sized_for=question.pace,
        verdict=rows[0].verdict if rows else "undecided" if n_unexamined else "missed",
        pick=rows[0] if rows else None,
        kinds=rows,
        impossible=tuple(
            sorted((_impossible(done) for done in found if done.best is None), key=_distance)
        ),
        refused=candidates.refused,
        n_candidates=len(candidates.possible),
        n_searched=sum(one.n_probes > 0 for done in found for one in done.searched),
        n_unexamined=n_unexamined,
        cautions=(
            *sizing_cautions.cautions_of(best),
            *sizing_cautions.box_cautions(question, candidates),
        ),
    )


def pick_of(found: Sequence[Done]) -> SizedKind | None:
    """The answer: the cheapest of all devices; None where nothing keeps the promise."""
    return min((done.best for done in found if done.best is not None), key=_rank, default=None)


def _rank(kind: SizedKind) -> tuple[float, int]:
    return _NEVER if kind.usd_per_hour is None else kind.usd_per_hour, kind.n_devices


def _impossible(done: Done) -> Impossible:
    """The kind of replica of this device that comes nearest, and why it does not keep the promise."""
    nearest = min(
        (one for one in done.searched if one.n_probes), key=_nearness, default=done.searched[0]
    )
    return Impossible(
        hardware=nearest.candidate.offer.hardware.name,
        layout=nearest.candidate.layout,
        why=nearest.why,
        margin_ratio=None if nearest.margin_ratio == _NEVER else nearest.margin_ratio,
    )


def _nearness(searched: Searched) -> float:
    return _NEVER if searched.margin_ratio is None else searched.margin_ratio


def _distance(impossible: Impossible) -> float:
    return _NEVER if impossible.margin_ratio is None else impossible.margin_ratio
