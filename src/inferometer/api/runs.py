"""Which runs does a command mean: folders of ours, or tables of others?"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from inferometer.api.analysis import Analysis, analyse, label_runs
from inferometer.api.foreign_runs import read_file
from inferometer.api.load_run import open_run
from inferometer.api.load_sending import is_open
from inferometer.api.question import Option, option
from inferometer.errors import SpecError
from inferometer.inputs import catalog, resolve
from inferometer.inputs.types import DType, EngineMode, EngineSpec, HardwareSpec
from inferometer.records import reading, run_folder, sweep_csv
from inferometer.records.types import Run

_TABLES = {".csv", ".tsv", ".md", ".txt", ".log", ".sql", ".json", ".jsonl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The named runs, and facts about them from the command line."""

    paths: tuple[Path, ...]
    skip_damaged: bool
    hardware: HardwareSpec | None
    table: sweep_csv.TableFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs, and facts about tables among them."""

    runs: Annotated[
        tuple[Path, ...],
        Option(
            "Folders of runs, tables of sweeps, or requests of another tool (vLLM bench, AIPerf, …).",
            heading="Runs",
            is_argument=True,
            metavar="RUN...",
        ),
    ]
    skip_damaged: bool = option(
        False, "Read the intact part of a damaged record.", "Runs", is_common=True
    )
    hardware: str | None = option(
        None,
        "Judge by this device's datasheet too (inferometer catalog hardware).",
        "Runs",
        is_common=True,
        metavar="ID",
    )
    model: str | None = option(
        None, "Model of a table of measurements (CSV).", "Runs", is_common=True, metavar="MODEL"
    )
    dtype: DType | None = option(None, "Number format of a table.", "Runs", formats=get_args(DType))
    mode: EngineMode = option("eager", "Engine mode of a table.", "Runs")
    prompt_tokens: int | None = option(
        None,
        "Prompt length of a table without such a column.",
        "Runs",
        least=1,
        flags=("--prompt",),
    )
    batch_size: int | None = option(
        None, "Batch size of a table without such a column.", "Runs", least=1, flags=("--batch",)
    )
    gen_tokens: int | None = option(
        None, "Generated tokens of a table without such a column.", "Runs", least=1
    )


def load_runs(request: RunRequest, *, takes_partial: bool = False) -> tuple[Run, ...]:
    """Every named run; with ``takes_partial`` unfinished load tests too."""
    return tuple(
        open_run(path) if takes_partial and is_open(path) else load_run(path, request)
        for path in request.paths
    )


def analyses_of(request: RunRequest, runs: tuple[Run, ...] | None = None) -> tuple[Analysis, ...]:
    """Analyse every run that was named, read before or now."""
    runs = load_runs(request) if runs is None else runs
    labels = label_runs(runs)
    return tuple(
        analyse(run, path, label=label, hardware=request.hardware)
        for run, path, label in zip(runs, request.paths, labels, strict=True)
    )


def load_sweeps(request: RunRequest, *, otherwise: str) -> tuple[Run, ...]:
    """Every named run, all of them sweeps; ``otherwise`` is the command for runs of requests.

    Raises
    ------
    SpecError
        One of them is a run of requests.
    """
    runs = load_runs(request)
    of_requests = [
        path
        for run, path in zip(runs, request.paths, strict=True)
        if run.sweep is None and run.requests is not None
    ]
    if of_requests:
        raise SpecError(
            "a run of requests has no points of a sweep",
            where=str(of_requests[0]),
            allowed="runs of inferometer sweep or quick, or tables of a sweep",
            try_=f"{otherwise} {shlex.join(map(str, of_requests))}",
        )
    return runs


def load_run(path: Path, request: RunRequest) -> Run:
    """The run at this path; tables use the model and engine of the command line.

    Raises
    ------
    RecordError, SpecError
        There is none, or it is damaged; a model was named for a table, and no number format.
    """
    if not path.is_file() or not is_table(path):
        return reading.read_run(path, skip_damaged=request.skip_damaged)
    if request.table.model is not None and request.table.engine is None:
        raise SpecError(
            "a table's number format is not known",
            where="--model without --dtype",
            try_="--dtype float16",
        )
    return read_file(path, request.table)


def stated_facts(options: Runs) -> tuple[str, ...]:
    """The flags of this command that state facts of a table."""
    facts = {
        "--model": options.model,
        "--dtype": options.dtype,
        "--prompt": options.prompt_tokens,
        "--batch": options.batch_size,
        "--gen-tokens": options.gen_tokens,
    }
    return tuple(flag for flag, value in facts.items() if value is not None)


def shown_of(options: Runs) -> RunRequest:
    """The runs of these options, for a verb to which runs state their own model.

    Raises
    ------
    SpecError
        As ``request_of``; or facts of a table are given, and no RUN is one.
    """
    stated = stated_facts(options)
    if stated and not any(is_table(path) for path in options.runs):
        raise SpecError(
            f"{stated[0]} is of a table, and none of the runs is one",
            where=", ".join(stated),
            allowed="facts of tables: a folder of a run states its own",
            try_="the same command without " + ", ".join(stated),
        )
    return request_of(options)


def is_table(path: Path) -> bool:
    """Is this, by its name, a table or another tool's file, not a run's folder?"""
    return path.suffix.lower() in _TABLES and path.name != run_folder.MANIFEST_NAME


def request_of(options: Runs) -> RunRequest:
    """The runs of these options.

    Raises
    ------
    SpecError
        A model or device is not known.
    """
    model = (
        None
        if options.model is None
        else resolve.resolve_model(options.model, load_format="dummy").spec
    )
    named = options.hardware
    hardware = None if named is None else catalog.find_hardware(named, where="--hardware")
    engine = None
    if options.dtype is not None:
        is_gpu = hardware is not None and hardware.kind == "gpu"
        engine = EngineSpec(
            mode=options.mode, dtype=options.dtype, device="cuda" if is_gpu else "cpu"
        )
    return RunRequest(
        paths=options.runs,
        skip_damaged=options.skip_damaged,
        hardware=hardware,
        table=sweep_csv.TableFacts(
            prompt_tokens=options.prompt_tokens,
            batch_size=options.batch_size,
            gen_tokens=options.gen_tokens,
            model=model,
            engine=engine,
        ),
    )
