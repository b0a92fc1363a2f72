"""Step-time models from sweeps, published tables, or tables of measured kernels."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from inferometer import suggestions
from inferometer.api.known_facts import ServerKnowledge
from inferometer.api.progress import talk
from inferometer.api.published import TableChoice, are_published, chosen_loads, reasons
from inferometer.api.runs import RunRequest, load_sweeps
from inferometer.errors import SpecError
from inferometer.fit.loads import load_tests, requests
from inferometer.fit.published.serving import published_subject
from inferometer.fit.published.step_time import published_step_time
from inferometer.fit.sweeps.kernels import model_from_kernels
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.inputs.types import EngineSpec, HardwareSpec
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.types import FitSubject, subject_of
from inferometer.records.imports import kernel_tables, llmservingsim
from inferometer.report.tables import estimate_cell

_ALONE: Final = "steps composed of kernels that were timed alone: no step was measured"
_FORMAT: Final = "bfloat16"
"""Number format of the tables that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutStatistic:
    """A statistic of the second half of the requests: measured, and simulated from the first."""

    latency: str
    statistic: str
    measured_s: float
    simulated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFit:
    """Step times fitted to the first half of a run, and their error on the second half."""

    model: StepTimeModel
    held_out: tuple[HeldOutStatistic, ...]
    held_out_words: str = "second half of the requests"
    """What was held out, in words."""
    """Mean and percentiles of TTFT, TPOT and E2E."""


def are_kernels(request: RunRequest) -> bool:
    """Are these folders of kernel tables, rather than runs?"""
    return all(kernel_tables.is_kernel_folder(path) for path in request.paths)


def fit_kernels(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The step-time model of the kernels in the folder that was named.

    Raises
    ------
    SpecError
        Several folders, no model or device, or another number format than that of the tables.
    ModelError
        The tables have no kernels of these sizes.
    """
    folder, *others = request.paths
    if others:
        raise SpecError(
            f"{len(request.paths)} folders of kernels",
            where="RUN",
            allowed="those of one device",
            try_=_example(folder),
        )
    model, hardware = request.table.model, _named(request.hardware, folder)
    if model is None:
        raise SpecError(
            "kernel tables name no model", where="--model", allowed="a model", try_=_example(folder)
        )
    engine = _engine(request, choice.tp or 1)
    found = model_from_kernels(
        model, engine, kernel_tables.read_kernel_tables(folder), hardware=hardware.hardware_id
    )
    return replace(found, subject=replace(_subject(engine, hardware, folder), reservation=_ALONE))


def fit_served(request: RunRequest, known: ServerKnowledge) -> ServedFit:
    """Step times from the requests of a published run of vLLM, which start as the kernels of its device let expect.

    ``known.workload`` is the file with the prefix blocks of its prompts. The first half of the
    requests is learned from.

    Raises
    ------
    SpecError
        There is no such run, no device, or several runs; or facts are named, which the run states
        itself.
    ModelError
        The catalogue does not have its model, or too few requests ended.
    """
    folder, *others = request.paths
    if known.kernels is None or known.known is not None:
        raise SpecError(
            "the run states its server's settings",
            where="--known",
            allowed="--kernels alone",
            try_="the same command without --known",
        )
    if others or not folder.is_dir() or llmservingsim.log_of(folder) is None:
        raise SpecError(
            "no published run of requests",
            where=" ".join(map(str, request.paths)),
            allowed="one folder of LLMServingSim's: requests.csv or requests.jsonl, and meta.json",
            try_="--load, for load tests, without --kernels",
        )
    hardware = _named(request.hardware, folder)
    serving = llmservingsim.read_llmservingsim(
        folder, None if known.workload is None else Path(known.workload)
    )
    subject = published_subject(serving, kernel_tables.read_kernel_tables(known.kernels), hardware)
    table = serving.run.requests
    if table is None:
        raise ValueError("the reader gives requests")
    is_first = np.arange(len(table.sent_ns)) < len(table.sent_ns) // 2
    talk(
        f"simulating {len(table.sent_ns)} requests until the first half of them takes as long as it"
        " did: about a minute"
    )
    fit = requests.fit_requests(serving.run, subject.replay, subject.prior, keep=is_first)
    simulated = subject.replay.simulated(table, fit.model, fit.front_end_s.value)
    held_out = tuple(
        HeldOutStatistic(
            latency=one.metric,
            statistic=one.statistic,
            measured_s=one.measured_s,
            simulated_s=one.simulated_s,
        )
        for one in load_tests.agreements(
            load_tests.latencies(table, table),
            load_tests.latencies(table, simulated.requests),
            ~is_first,
        )
    )
    of = _subject(fit.model.engine, hardware, None)
    return ServedFit(
        model=replace(fit.model, front_end_s=fit.front_end_s, subject=of), held_out=held_out
    )


def _named(hardware: HardwareSpec | None, path: Path) -> HardwareSpec:
    if hardware is None:
        raise SpecError(
            "the files do not name the device",
            where="--hardware",
            allowed="a device of the catalogue",
            try_=_example(path),
        )
    return hardware


def _engine(request: RunRequest, n_tensor: int) -> EngineSpec:
    requested = request.table.engine
    if requested is not None and requested.dtype != _FORMAT:
        raise SpecError(
            f"kernels in {requested.dtype}",
            where="--dtype",
            allowed=f"{_FORMAT}, in which the tables are",
            try_="no --dtype",
        )
    return EngineSpec(
        engine="vllm", mode="compiled", dtype=_FORMAT, device="cuda", tensor_parallel_size=n_tensor
    )


def _subject(engine: EngineSpec, hardware: HardwareSpec, kernels: Path | None) -> FitSubject:
    return subject_of(
        engine,
        hardware,
        device=None,
        name="vllm",
        version=None if kernels is None else kernel_tables.version_of(kernels),
    )


def _example(path: Path) -> str:
    return suggestions.command("fit", path, "--model", "llama-3.1-8b", "--hardware", "h100_sxm")


def fit_steps(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The step-time model of these runs, from any source.

    Raises
    ------
    SpecError
        They are runs of requests, not sweeps.
    """
    if are_kernels(request):
        return fit_kernels(request, choice)
    served = next(
        (
            path
            for path in request.paths
            if path.is_dir() and llmservingsim.log_of(path) is not None
        ),
        None,
    )
    if served is not None:
        raise SpecError(
            "a published run of requests, whose steps were not timed",
            where=str(served),
            allowed="with --kernels: the tables of its device's kernels, from which its fit starts",
            try_="--load, after " + suggestions.command("import", served, "--out", "runs/NAME"),
        )
    if are_published(request.paths):
        return published_fit(request, choice)
    return fit_step_time(
        load_sweeps(request, otherwise="inferometer fit --load"), hardware=request.hardware
    )


# Which step-time model do the chosen rows of published tables carry?


def published_fit(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The model of the selected rows, with a request's time outside of the engine.

    Raises
    ------
    SpecError, ModelError
        No rows were meant, too few, or rows of several kinds.
    """
    chosen = chosen_loads(request, choice)
    if chosen.left_out:
        talk(f"rows of the tables left out: {reasons(chosen.left_out)}")
    devices = sorted({one.hardware.name for one in chosen.loads} - {chosen.hardware.name})
    if devices:
        talk(
            f"{chosen.hardware.name} has few rows or none: its datasheet, and rows of"
            f" {', '.join(devices)}, tell of it"
        )
    talk(f"simulating {len(chosen.loads)} published loads, and fitting them: up to some minutes")
    model = published_step_time(chosen.loads, chosen.hardware, n_tensor=chosen.n_tensor)
    n_held = model.trained_on.n_configurations
    if n_held < len(chosen.loads):
        talk(
            f"{len(chosen.loads) - n_held} rows left out: the engine would not have room for such"
            " requests"
        )
    if model.front_end_s is not None:
        talk(
            f"a request spends {estimate_cell(model.front_end_s, 1e3)} ms outside of the engine;"
            " simulations add that"
        )
    return model
