"""Which step-time model do published statistics of a rate sweep carry?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inferometer import suggestions
from inferometer.api.kernel_fitting import HeldOutStatistic, ServedFit, fit_kernels
from inferometer.api.known_facts import ServerKnowledge, known_facts
from inferometer.api.progress import talk
from inferometer.api.published_rows import are_published
from inferometer.api.published_tables import TableChoice
from inferometer.api.runs import RunRequest
from inferometer.errors import SpecError
from inferometer.fit.loads.requests import STATISTICS, RateStatistics, fit_rates
from inferometer.perfmodel.steptime_levels import fitted_levels
from inferometer.records.imports.detection import read_results
from inferometer.records.imports.imported import PublishedSummary
from inferometer.simulate.deployment import Knobs, deploy

_EXAMPLE = (
    "--model",
    "llama-3.1-8b",
    "--hardware",
    "h100_sxm",
    "--kernels",
    "KERNELS",
    "--known",
    "max_num_seqs=128",
)


def rate_statistics(paths: Sequence[Path]) -> tuple[PublishedSummary, ...]:
    """The statistics of rates in these files; none where they are runs, tables of a sweep or closed loops."""
    if not are_published(paths):
        return ()
    results = [read_results(path) for path in paths]
    if any(one.points is not None for one in results):
        return ()
    return tuple(
        one
        for result in results
        for one in result.summaries
        if one.offered_requests_per_s is not None
    )


def fit_rate_statistics(
    request: RunRequest,
    choice: TableChoice,
    known: ServerKnowledge,
    summaries: Sequence[PublishedSummary],
) -> ServedFit:
    """Step times that explain the rates, starting from the kernels of the device.

    Raises
    ------
    SpecError
        No kernels, or rates of several series.
    ModelError
        Too few rates at which the server kept up.
    """
    if known.kernels is None:
        what = "statistics of rates, which are not enough for step times alone"
        raise SpecError(
            what,
            where="RUN",
            allowed="with the tables of the device's kernels",
            try_=_command(request.paths),
        )
    chosen = _series(summaries, choice.series)
    prior = fit_kernels(replace(request, paths=(known.kernels,)), choice)
    facts = known_facts(known.known)
    shared = dict[str, int](
        (name, value) for name, value in facts.limits.items() if name != "n_kv_blocks"
    )
    shared |= (
        {"num_blocks": facts.limits["n_kv_blocks"] + 1} if "n_kv_blocks" in facts.limits else {}
    )
    shared |= {} if facts.block_tokens is None else {"block_size": facts.block_tokens}
    shared |= {} if facts.max_model_len is None else {"max_model_len": facts.max_model_len}
    knobs = Knobs(shared=shared, own={name: str(value) for name, value in facts.switches.items()})
    config = deploy(prior.model, prior.engine, request.hardware, fitted_levels(prior), knobs).config
    talk(f"simulating {len(chosen)} rates until their statistics are as published: about a minute")
    fit = fit_rates([_rate(one) for one in chosen], config, prior)
    subject = (
        None
        if prior.subject is None
        else replace(prior.subject, reservation=None, engine_version=None)
    )
    seen = () if fit.held_out is None else fit.held_out.seconds
    rows = zip(STATISTICS, seen, fit.simulated_s, strict=True) if seen else ()
    return ServedFit(
        model=replace(fit.model, subject=subject),
        held_out=tuple(
            HeldOutStatistic(
                latency=name,
                statistic="mean" if at is None else f"p{at * 100:g}",
                measured_s=measured_s,
                simulated_s=simulated_s,
            )
            for (name, at), measured_s, simulated_s in rows
        ),
        held_out_words=(
            "" if fit.held_out is None else f"held out: {fit.held_out.offered_per_s:g} requests/s"
        ),
    )


def _series(summaries: Sequence[PublishedSummary], wanted: str | None) -> list[PublishedSummary]:
    named = [(one.label.rpartition(",")[0] or one.label, one) for one in summaries]
    names = list(dict.fromkeys(name for name, _ in named))
    chosen = [one for name, one in named if wanted in {None, name}]
    if not chosen or (wanted is None and len(names) > 1):
        what = "statistics of several series" if chosen else f"no series {wanted!r}"
        raise SpecError(
            what,
            where="--series",
            allowed=", ".join(names),
            try_=suggestions.flags("--series", names[0]),
        )
    return chosen


def _rate(one: PublishedSummary) -> RateStatistics:
    seconds = list[float]()
    for name, at in STATISTICS:
        latency = one.latency("ttft" if name == "ttft" else "e2e")
        value_s = (
            None if latency is None else latency.mean_s if at is None else latency.percentile_s(at)
        )
        seconds.append(0.0 if value_s is None else value_s)
    return RateStatistics(
        offered_per_s=one.offered_requests_per_s or 0.0,
        completed_per_s=one.completed_requests_per_s or 0.0,
        n_requests=one.n_completed or 0,
        n_failed=one.n_failed or 0,
        prompt_tokens=one.mean_prompt_tokens or 0.0,
        output_tokens=one.mean_output_tokens or 0.0,
        seconds=tuple(seconds),
    )


def _command(paths: Sequence[Path]) -> str:
    return suggestions.command("fit", *paths, *_EXAMPLE)
