"""Which verbs answer grids, what is shown of each point, and which studies have a name?"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.api import capacity as capacities, predict as predictions, simulate as simulations
from inferometer.api.decision_pages import CapacityAnswer
from inferometer.api.fleet import PrefillReplicas
from inferometer.api.grid import Headline, PacedNumber, Verb, between, exact, title_of
from inferometer.api.grid_findings import (
    capacity_findings,
    disaggregation_findings,
    predict_findings,
    simulate_findings,
)
from inferometer.api.prediction import PredictAnswer, e2e_s
from inferometer.api.simulation import SimulateAnswer
from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.perfmodel.datasheet import DatasheetPrediction, sheet_at
from inferometer.perfmodel.types import least_share, weakest_basis
from inferometer.records.request_summaries import RequestSummary
from inferometer.stats.estimate import Estimate


def _of_prediction(answer: PredictAnswer) -> Headline:
    sheet, fitted = answer.datasheet, answer.fitted
    speeds = fitted or sheet.speeds
    n_output = sheet.scenario.output_tokens
    decodes = n_output > 1
    limits = (
        (sheet.prefill.bound.bound_by, sheet.decode.bound.bound_by)
        if fitted is None
        else (fitted.prefill_limited_by, fitted.decode_limited_by)
    )
    return Headline(
        numbers={
            "ttft_s": speeds.ttft_s,
            "tpot_s": speeds.tpot_s if decodes else None,
            "e2e_s": e2e_s(speeds.ttft_s, speeds.tpot_s, n_output),
            "decode_tokens_per_s": speeds.decode_tokens_per_s if decodes else None,
            **_rates(sheet if fitted is None else sheet_at(sheet, speeds.ttft_s, speeds.tpot_s)),
            "largest_batch_sequences": exact(sheet.sizes.largest_batch_size),
            "memory_bytes": exact(sheet.sizes.memory.total_bytes - sheet.sizes.memory.free_bytes),
        },
        words={
            "prefill_limited_by": limits[0],
            "decode_limited_by": limits[1] if decodes else None,
            "fits": "yes" if sheet.sizes.memory.fits else "no",
            "step_times": answer.basis,
            **({} if answer.slo is None else {"slo": answer.slo.verdict}),
        },
        paced={},
        machine_share_fraction=None if fitted is None else fitted.machine_share_fraction,
    )


def _rates(sheet: DatasheetPrediction) -> dict[str, Estimate | None]:
    speeds = sheet.speeds
    return {
        "output_tokens_per_s": speeds.output_tokens_per_s,
        "total_tokens_per_s": speeds.total_tokens_per_s,
        "mbu_fraction": speeds.mbu_fraction if sheet.scenario.output_tokens > 1 else None,
        "mfu_fraction": speeds.mfu_fraction,
        "usd_per_million_tokens": sheet.costs.usd_per_million_tokens,
    }


def _of_simulation(answer: SimulateAnswer) -> Headline:
    """Likely step times, with an interval that holds all step times and the requests' noise."""
    summaries = [level.summary for level in answer.levels]
    numbers = {
        "requests_per_s": _all([one.completed_requests_per_s for one in summaries]),
        "output_tokens_per_s": _all([one.output_tokens_per_s for one in summaries]),
        "ttft_p50_s": _percentile(summaries, "ttft", 0.5),
        "ttft_p95_s": _percentile(summaries, "ttft", 0.95),
        "tpot_p50_s": _percentile(summaries, "tpot", 0.5),
        "tpot_p95_s": _percentile(summaries, "tpot", 0.95),
        "e2e_p95_s": _percentile(summaries, "e2e", 0.95),
        "busy_fraction": _all([exact(level.busy_fraction) for level in answer.levels]),
    }
    kinds = (answer.deployment, *(one.deployment for one in answer.groups))
    if answer.disaggregation is not None:
        kinds = (*kinds, answer.disaggregation.prefill)
    basis = weakest_basis(one.step_times_basis for one in kinds)
    return Headline(
        numbers=numbers,
        words={"step_times": basis, "slo": answer.verdict},
        paced=_paced("requests_per_s", [one.completed_requests_per_s for one in summaries]),
        machine_share_fraction=least_share(one.machine_share_fraction for one in kinds),
    )


def _paced(name: str, estimates: list[Estimate | None]) -> dict[str, PacedNumber]:
    """The number at each of the step times, the likely first; nothing where one is not known."""
    known = [one for one in estimates if one is not None]
    if len(known) < len(estimates) or len(known) < 2:
        return {}
    return {name: PacedNumber(likely=known[0], others=(*(one.value for one in known[1:]),))}


def _percentile(summaries: list[RequestSummary], latency: str, fraction: float) -> Estimate | None:
    """The percentile; None where unfinished requests leave a lower bound alone."""
    found = [one.latency(latency).percentile(fraction) for one in summaries]  # type: ignore[arg-type]
    return _all([None if one is None or one.is_lower_bound else one.seconds for one in found])


def _all(estimates: list[Estimate | None]) -> Estimate | None:
    """The likely estimate (the first), with an interval that covers all of them.

    The page of a single simulation spans its numbers in the same way.
    """
    known = [one for one in estimates if one is not None]
    if not known or len(known) < len(estimates):
        return None
    likely = known[0]
    ends = [end for end in (likely.low, likely.high) if end is not None]
    ends += [one.value for one in known]
    return replace(
        known[0],
        low=min(ends) if len(ends) > 1 else None,
        high=max(ends) if len(ends) > 1 else None,
        method="all step times, and the requests' noise",
    )


def _of_capacity(answer: CapacityAnswer) -> Headline:
    found = [level.capacity for level in answer.levels]
    loads = [found[0].located_load, *(one.highest_load for one in found[1:])]
    known = [one for one in loads if one is not None]
    number = None
    if loads[0] is not None:
        is_whole = len(known) == len(loads) > 1
        number = replace(
            exact(loads[0]),
            low=min(known) if is_whole else None,
            high=max(known) if is_whole else None,
            method="all step times",
        )
    weakest = None if found[0].weakest is None else found[0].weakest.partition(": ")[0]
    name = "capacity_users" if answer.unit == "users" else "capacity_requests_per_s"
    return Headline(
        numbers={name: number},
        words={"step_times": answer.step_times_basis, "breaks_first": weakest},
        paced=(
            {}
            if number is None or len(loads) < 2
            else {
                name: PacedNumber(
                    likely=between(number.value, found[0].met_load, found[0].missed_load),
                    others=(*loads[1:],),
                )
            }
        ),
        machine_share_fraction=answer.machine_share_fraction,
    )


def _of_all_replicas(question: capacities.Capacity) -> CapacityAnswer:
    """The capacity of a total of ``--replicas``: some may compute prompts alone.

    Raises
    ------
    SpecError
        No replica is left that generates answers.
    """
    fleet = question.fleet
    n_all, n_prefill = fleet.cluster.replicas or 1, fleet.prefill.prefill_replicas or 0
    if n_prefill >= n_all:
        raise SpecError(
            f"{n_prefill} prefill replicas of {n_all} in all",
            where="--prefill-replicas",
            allowed=f"0 to {n_all - 1}",
            try_=suggestions.flags("--replicas", n_prefill + 1),
        )
    changed = replace(
        fleet,
        cluster=replace(fleet.cluster, replicas=n_all - n_prefill),
        prefill=fleet.prefill if n_prefill else PrefillReplicas(),
    )
    return capacities.capacity(replace(question, fleet=changed))


def _per_gpu(answer: CapacityAnswer) -> Headline:
    found = _of_capacity(answer)
    share = 1 / (answer.n_devices or 1)
    of_gpus = {
        f"gpu_{name}": None if one is None else one.scaled(share)
        for name, one in found.numbers.items()
    }
    paced = {
        f"gpu_{name}": PacedNumber(
            likely=one.likely.scaled(share),
            others=tuple(None if load is None else load * share for load in one.others),
        )
        for name, one in found.paced.items()
    }
    return found._replace(numbers={**found.numbers, **of_gpus}, paced=paced)


PREDICT: Final = Verb(
    "predict", predictions.Predict, predictions.predict, _of_prediction, title_of, predict_findings,
    is_of_one=True, is_short=True,
)  # fmt: skip
SIMULATE: Final = Verb(
    "simulate", simulations.Simulate, simulations.simulate, _of_simulation, title_of,
    simulate_findings,
)  # fmt: skip
CAPACITY: Final = Verb(
    "capacity", capacities.Capacity, capacities.capacity, _of_capacity, title_of, capacity_findings,
    looks_for=frozenset({"rate", "concurrency"}),
)  # fmt: skip
DISAGGREGATION: Final = CAPACITY._replace(
    answer=_of_all_replicas, headline=_per_gpu, findings=disaggregation_findings
)
GRIDDED: Final = {verb.name: verb for verb in (PREDICT, SIMULATE, CAPACITY)}
"""Verbs whose options may have several values."""


class Study(NamedTuple):
    """A common grid, under a name."""

    answers: str
    verb: Verb
    axes: dict[str, str]
    """Options and the values that they get unless they are given."""
    example: str


STUDIES: Final[dict[str, Study]] = {
    "length": Study(
        "How do latency and throughput change with the prompt's length?",
        PREDICT,
        {"prompt": "128..16384"},
        "inferometer study length llama-3.1-8b --hardware h100_sxm --batch 1,8",
    ),
    "batch": Study(
        "How do latency and throughput change with the batch?",
        PREDICT,
        {"batch": "1..256"},
        "inferometer study batch llama-3.1-8b --hardware h100_sxm --prompt 1024",
    ),
    "tp": Study(
        "What do more tensor-parallel devices gain?",
        PREDICT,
        {"tp": "1..8"},
        "inferometer study tp llama-3.1-70b --hardware h100_sxm",
    ),
    "devices": Study(
        "Which device of the catalogue is fast, which is cheap?",
        PREDICT,
        {"hardware": "all"},
        "inferometer study devices llama-3.1-8b --batch 16",
    ),
    "precision": Study(
        "What do fewer bits of the weights gain?",
        PREDICT,
        {"quantization": "none,float8,int8,int4"},
        "inferometer study precision llama-3.1-8b --hardware h100_sxm",
    ),
    "concurrency": Study(
        "What do more users at once cost each of them?",
        SIMULATE,
        {"concurrency": "1..256"},
        "inferometer study concurrency llama-3.1-8b --hardware h100_sxm --workload 512x128",
    ),
    "policies": Study(
        "What does continuous batching gain over static and dynamic batching?",
        SIMULATE,
        {"policy": "none,static,dynamic,vllm", "concurrency": "1..2048"},
        "inferometer study policies llama-3.1-8b --hardware h100_sxm --workload 512x128",
    ),
    "disaggregation": Study(
        "Is splitting prefill and decode worth it, on as many GPUs?",
        DISAGGREGATION,
        {"replicas": "4", "prefill_replicas": "0,1,2,3", "time_limit": "15s"},
        "inferometer study disaggregation llama-3.1-8b --hardware h100_sxm --workload 2000x200"
        " --slo 'ttft:p95<1s, tpot:p95<30ms'",
    ),
}


def study_options(name: str, values: Mapping[str, object]) -> dict[str, object]:
    """Options of a study: its own lists, unless given; none of users where a rate is given.

    Raises
    ------
    SpecError
        There is no study of that name, or a rate is given to one that is only about users.
    """
    study = STUDIES.get(name)
    if study is None:
        raise SpecError(
            f"there is no study {name!r}", where="STUDY", allowed=", ".join(STUDIES), try_="batch"
        )
    has_rate = values.get("rate") is not None and values.get("concurrency") is None
    if has_rate and tuple(study.axes) == ("concurrency",):
        raise SpecError(
            f"a rate, and the study {name!r} varies the number of users",
            where="--rate",
            allowed="--concurrency, several values of it; a grid of rates is one of simulate",
            try_=suggestions.command("simulate", "MODEL", "--rate", "1,2,4,8"),
        )
    own = {one: text for one, text in study.axes.items() if one != "concurrency" or not has_rate}
    options: dict[str, object] = {**own, **values}
    n_all = str(options.get("replicas"))
    if "prefill_replicas" in own and "prefill_replicas" not in values and n_all.isdigit():
        options["prefill_replicas"] = list(range(int(n_all)))
    if options.get("hardware") == "all":
        options["hardware"] = [
            one.hardware_id for one in catalog.load_hardware() if one.kind == "gpu"
        ]
    return options
