"""inferometer size --total-gpus: the layouts of a number of devices, each format of each device by itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer.api import compute, sizing_cautions
from inferometer.api.fleet import FleetOptions
from inferometer.api.sized_fleets import best_use_of
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.decide import best_use
from inferometer.decide.candidates import Candidate, Candidates
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.errors import SpecError
from inferometer.inputs import resolve
from inferometer.inputs.types import Caution

NOT_CARRIED: Final = frozenset(
    {"model", "gpus", "total_gpus", "tp", "rate", "concurrency", "sure", "likely", "report", "out"}
    | {"quantization", "kv_dtype"}
)
"""The argument, and what the command which sizes for the found load says itself, or has no use for."""


class Devices(NamedTuple):
    """Devices at hand, and the executor."""

    n_total: int
    limit: compute.TimeLimit
    where: compute.Executor
    model: str
    """The model as named."""
    words: list[object]
    """Options that a sizing for a rate takes too."""
    asked_load: float | None
    """The rate, or the users, that were named beside their number."""


def check_options(options: FleetOptions) -> None:
    """Refuse options that fix the number of replicas, which follows from --total-gpus."""
    one = options.cluster
    for flag, is_given in (
        ("--replicas", one.replicas is not None),
        ("--data-parallel-size", one.data_parallel_size > 1),
    ):
        if is_given:
            raise SpecError(
                f"{flag} with --total-gpus",
                where=flag,
                allowed="one of them: the devices make the replicas",
            )


def answer_of(
    resolved: resolve.ResolvedModel,
    question: SizingQuestion,
    tried: Candidates,
    devices: Devices,
) -> SizeAnswer:
    """The best layouts of each format."""
    groups = _by_format(tried.possible)
    share = devices.limit.share(compute.share_of_part(devices.where, len(groups)))
    tasks = [
        best_use.UseTask(_limited(question, share), tuple(group), devices.n_total)
        for group in groups
    ]
    with compute.opened(devices.where, "formats") as executor:
        found = executor.map(best_use.best_use, tasks)
    used = best_use_of(
        devices.model,
        devices.n_total,
        found,
        resolved.quantization(),
        # A sizing counts at slow step times by default: at others it buys other numbers.
        [*devices.words, "--sure" if question.pace == "slow" else "--likely"],
        devices.asked_load,
        is_of_users=question.is_of_users,
    )
    best = used.best
    offered_per_s = None if question.is_of_users else question.offered_load
    return SizeAnswer(
        model_id=resolved.spec.model_id,
        workload_name=question.spec.name,
        rate_per_s=best.located_requests_per_s if best is not None else offered_per_s,
        users=round(question.offered_load) if question.is_of_users else None,
        objective=question.objective.text,
        router=question.fleets.router,
        sized_for=question.pace,
        verdict=used.verdict,
        pick=None,
        kinds=(),
        impossible=(),
        refused=tried.refused,
        n_candidates=used.n_candidates,
        n_searched=used.n_candidates - used.n_unexamined,
        n_unexamined=used.n_unexamined,
        cautions=(*_cautions(tried), *sizing_cautions.box_cautions(question, tried)),
        best_use=used,
    )


def _limited(question: SizingQuestion, share: compute.TimeLimit) -> SizingQuestion:
    return replace(question, time_limit=share)


def _by_format(possible: Sequence[Candidate]) -> list[list[Candidate]]:
    groups = dict[tuple[str, str | None, str | None], list[Candidate]]()
    for one in possible:
        engine = one.deployment.engine
        groups.setdefault(
            (one.offer.hardware.hardware_id, engine.quantization, engine.kv_cache_dtype), []
        ).append(one)
    return list(groups.values())


def _cautions(tried: Candidates) -> list[Caution]:
    if all(one.deployment.step_times.basis != "datasheet" for one in tried.possible):
        return []
    text = (
        "step times are those of datasheets, and rates are those of likely ones: layouts compare"
        " better than their rates hold"
    )
    return [
        Caution(
            code="DATASHEET",
            text=text,
            remedy="inferometer fit on the device, then --fit FILE; --sure for the slow end",
        )
    ]
