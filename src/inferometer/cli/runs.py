"""Which runs does a command mean: folders of ours, or tables of others?"""

import functools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from inferometer.cli.analysis import Analysis, analyse, label_runs
from inferometer.cli.format_option import FORMAT
from inferometer.cli.load_record import is_open
from inferometer.cli.load_run import open_run
from inferometer.errors import SpecError
from inferometer.records import reading, sweep_csv
from inferometer.records.types import Run
from inferometer.spec import catalog, resolve
from inferometer.spec.types import EngineMode, EngineSpec, HardwareSpec

_TABLES = {".csv", ".tsv", ".md", ".txt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The runs that were named, and what was said about them on the command line."""

    paths: tuple[Path, ...]
    skip_damaged: bool
    hardware: HardwareSpec | None
    table: sweep_csv.TableFacts


_OPTIONS = (
    click.argument(
        "runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN..."
    ),
    click.option("--skip-damaged", is_flag=True, help="Read what is whole of a damaged record."),
    click.option(
        "--hardware",
        metavar="ID",
        help="Judge by this device's datasheet too (inferometer catalog hardware).",
    ),
    click.option("--model", metavar="MODEL", help="A table's model."),
    click.option("--dtype", type=FORMAT, help="A table's number format."),
    click.option(
        "--mode",
        type=click.Choice(get_args(EngineMode)),
        default="eager",
        show_default=True,
        help="A table's engine mode.",
    ),
    click.option(
        "--prompt",
        "prompt_tokens",
        type=click.IntRange(min=1),
        help="A table's prompt length, where no column has it.",
    ),
    click.option(
        "--batch",
        "batch_size",
        type=click.IntRange(min=1),
        help="A table's batch size, where no column has it.",
    ),
    click.option(
        "--gen-tokens",
        type=click.IntRange(min=1),
        help="A table's generated tokens, where no column has them.",
    ),
)


def takes_runs(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments that name runs; the command gets them as ``request: RunRequest``."""

    @functools.wraps(command)
    def with_request(**flags: object) -> None:
        names = (
            "runs",
            "skip_damaged",
            "hardware",
            "model",
            "dtype",
            "mode",
            "prompt_tokens",
            "batch_size",
            "gen_tokens",
        )
        command(request=_request({name: flags.pop(name) for name in names}), **flags)

    wrapped: Callable[..., None] = with_request
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def load_runs(request: RunRequest, *, takes_partial: bool = False) -> tuple[Run, ...]:
    """Every run that was named; with ``takes_partial`` also what there is of a load test that is not over."""
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
    """Every run that was named, all sweeps; ``otherwise`` is the command for runs of requests.

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
    """The run at this path; a table becomes one of the model and engine that the command line names.

    Raises
    ------
    RecordError, SpecError
        There is none, or it is damaged; a model was named for a table, and no number format.
    """
    if not path.is_file() or path.suffix.lower() not in _TABLES:
        return reading.read_run(path, skip_damaged=request.skip_damaged)
    if request.table.model is not None and request.table.engine is None:
        raise SpecError(
            "a table's number format is not known",
            where="--model without --dtype",
            try_="--dtype float16",
        )
    return sweep_csv.read_sweep_csv(path, request.table)


def _request(flags: dict[str, Any]) -> RunRequest:
    model = (
        None
        if flags["model"] is None
        else resolve.resolve_model(flags["model"], load_format="dummy").spec
    )
    paths: Sequence[Path] = flags["runs"]
    hardware = None if flags["hardware"] is None else catalog.find_hardware(flags["hardware"])
    engine = None
    if flags["dtype"] is not None:
        is_gpu = hardware is not None and hardware.kind == "gpu"
        engine = EngineSpec(
            mode=flags["mode"], dtype=flags["dtype"], device="cuda" if is_gpu else "cpu"
        )
    return RunRequest(
        paths=tuple(paths),
        skip_damaged=flags["skip_damaged"],
        hardware=hardware,
        table=sweep_csv.TableFacts(
            prompt_tokens=flags["prompt_tokens"],
            batch_size=flags["batch_size"],
            gen_tokens=flags["gen_tokens"],
            model=model,
            engine=engine,
        ),
    )
