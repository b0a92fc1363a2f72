"""Which server do load tests show, or the published statistics of a rate sweep?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from inferometer import suggestions
from inferometer.api import fitted_steps, progress, published
from inferometer.api.known_facts import ServerKnowledge, known_facts, with_known
from inferometer.api.runs import RunRequest, load_run
from inferometer.errors import InferometerError, SpecError
from inferometer.fit.loads import estimation, load_tests, reported
from inferometer.fit.loads.requests import STATISTICS, RateFit, RateStatistics, fit_rates
from inferometer.inputs import foreign_bytes, plans, types
from inferometer.inputs.workload import reading, replay
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.perfmodel.steptime_levels import fitted_levels
from inferometer.records import validity
from inferometer.records.imports.detection import read_results
from inferometer.records.imports.imported import PublishedSummary
from inferometer.records.types import Run
from inferometer.simulate.deployment import Knobs, deploy

_LOG: Final = foreign_bytes.Door(
    noun="server's log",
    allowed="a text file",
    try_="its first megabytes, in which vLLM reports its limits",
)

_UNNAMED: Final = "server"
"""The model of imported runs that name none."""


def fit_load_tests(
    request: RunRequest, known: ServerKnowledge, *, n_tensor: int | None, forced: bool
) -> estimation.JudgedFit:
    """The server behind the load tests that were named.

    Raises
    ------
    SpecError
        They are load tests of different servers, or what is known contradicts what the server
        reported.
    MeasureError
        One of them is INVALID, and nobody ``forced`` it.
    """
    runs = [load_run(path, request) for path in request.paths]
    for run in runs:
        validity.require_valid(run, forced=forced)
    hardware, table = request.hardware, request.table
    log = (
        None
        if known.server_log is None
        else _LOG.bytes_of(known.server_log).decode("utf-8", "replace")
    )
    stated = reported.StatedServer(hardware, table.engine, n_tensor)
    facts = reported.server_subject(runs, log, stated)
    model = table.model or _imported_model(runs)
    subject = estimation.Subject(
        address=_address(runs, _UNNAMED if model is None else model.model_id),
        model=model,
        hardware=hardware,
        engine=reported.server_engine(facts, stated),
        facts=facts,
        reported=with_known(reported.reported_by_server(runs, log), known_facts(known.known)),
    )
    tests = [load_tests.LoadTest(run=run, plan=_plan(run, known.workload)) for run in runs]
    progress.talk("simulating the load tests until they do as they did: about a minute")
    return estimation.judged_server(tests, subject)


def _address(runs: Sequence[Run], name: str) -> estimation.Address:
    """Address of the load tests; imported runs went to a server of this ``name``."""
    plans = [run.manifest.load for run in runs if run.manifest.load is not None]
    found = {estimation.Address(plan.url, plan.served_model, _flags(plan)) for plan in plans}
    if len({address.served_model for address in found}) > 1:
        names = ", ".join(sorted(address.served_model for address in found))
        raise SpecError(
            f"load tests of several models: {names}",
            where="--load",
            allowed="load tests of one server",
        )
    return next(iter(sorted(found)), estimation.Address(url="URL", served_model=name))


def _flags(plan: plans.LoadPlan) -> tuple[str, ...]:
    """Flags with which further prompts are sent in the same way."""
    endpoint = () if plan.endpoint == "chat" else ("--endpoint", plan.endpoint)
    return (
        *endpoint,
        *(("--prompts", plan.prompt_form) if plan.prompt_form == "token-ids" else ()),
    )


def _imported_model(runs: Sequence[Run]) -> types.ModelSpec | None:
    """The one model that imported runs name; of a simulated server only its name is known."""
    models = {None if run.manifest.model is None else run.manifest.model.model_id for run in runs}
    is_imported = all(run.manifest.origin == "published" for run in runs)
    return runs[0].manifest.model if is_imported and len(models) == 1 else None


def _plan(run: Run, workload: str | None) -> RequestPlan | None:
    """The workload as drawn, with its shared prefixes; None where it cannot be drawn again."""
    if workload is not None:
        return _named_plan(run, workload)
    if run.manifest.load is None:
        return None
    try:
        return replay.draw_workload(run.manifest.load.workload).plan
    except InferometerError:  # a trace that is gone: prompts are taken to have nothing in common
        return None


def _named_plan(run: Run, workload: str) -> RequestPlan:
    spec = reading.resolve_workload(workload)
    plan = None if spec.replay is None else replay.draw_workload(spec).plan
    if plan is None or run.requests is None or not load_tests.is_plan_of(plan, run.requests):
        raise SpecError(
            f"the prompts of {workload} are not those of {run.manifest.run_id}",
            where="--workload",
            allowed=(
                "the trace that was sent: as many prompts, of the same lengths, in the same order"
            ),
        )
    return plan


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
    if not published.are_published(paths):
        return ()
    results = [read_results(path) for path in paths]
    if any(one.points is not None for one in results):
        return ()
    return tuple(
        one
        for result in results
        for one in result.summaries
        if one.offered_requests_per_s is not None and not one.is_closed_loop
    )


def fit_rate_statistics(
    request: RunRequest,
    choice: published.TableChoice,
    known: ServerKnowledge,
    summaries: Sequence[PublishedSummary],
) -> fitted_steps.ServedFit:
    """Step times that explain the rates, starting from the kernels of the device.

    Raises
    ------
    SpecError
        No kernels, or rates of several series.
    ModelError
        Too few rates below the server's saturation.
    """
    if known.kernels is None:
        what = "statistics of rates, which are not enough for step times alone"
        raise SpecError(
            what,
            where="RUN",
            allowed="with the tables of the device's kernels",
            try_=suggestions.command("fit", *request.paths, *_EXAMPLE),
        )
    chosen = _series(summaries, choice.series)
    prior = fitted_steps.fit_kernels(replace(request, paths=(known.kernels,)), choice)
    config = deploy(
        prior.model, prior.engine, request.hardware, fitted_levels(prior), _knobs(known)
    ).config
    progress.talk(
        f"simulating {len(chosen)} rates until their statistics are as published: about a minute"
    )
    fit = fit_rates([_rate(one) for one in chosen], config, prior)
    subject = (
        None
        if prior.subject is None
        else replace(prior.subject, reservation=None, engine_version=None)
    )
    return fitted_steps.ServedFit(
        model=replace(fit.model, subject=subject),
        held_out=_held_out(fit),
        held_out_words=(
            "" if fit.held_out is None else f"held out: {fit.held_out.offered_per_s:g} requests/s"
        ),
    )


def _knobs(known: ServerKnowledge) -> Knobs:
    """The server's known limits and switches, by the names under which a simulation takes them."""
    facts = known_facts(known.known)
    shared = dict[str, int](facts.limits.items())
    if "n_kv_blocks" in shared:
        shared["num_blocks"] = shared.pop("n_kv_blocks") + 1  # vLLM's null block
    if facts.block_tokens is not None:
        shared["block_size"] = facts.block_tokens
    if facts.max_model_len is not None:
        shared["max_model_len"] = facts.max_model_len
    return Knobs(shared=shared, own={name: str(value) for name, value in facts.switches.items()})


def _held_out(fit: RateFit) -> tuple[fitted_steps.HeldOutStatistic, ...]:
    """Measured and simulated statistics at the held-out rate."""
    if fit.held_out is None or not fit.held_out.seconds:
        return ()
    return tuple(
        fitted_steps.HeldOutStatistic(
            latency=name,
            statistic="mean" if at is None else f"p{at * 100:g}",
            measured_s=measured_s,
            simulated_s=simulated_s,
        )
        for (name, at), measured_s, simulated_s in zip(
            STATISTICS, fit.held_out.seconds, fit.simulated_s, strict=True
        )
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
    """A published summary as the statistics of one rate; 0 where one was not published."""
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
