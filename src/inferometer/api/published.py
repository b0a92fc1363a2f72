"""Which rows of published tables does a command name, and which of them can be simulated?"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.api.question import option
from inferometer.api.runs import RunRequest
from inferometer.errors import SpecError
from inferometer.fit.published.loads import BUDGETS, PublishedLoad, first_of_shape, published_loads
from inferometer.inputs.types import HardwareSpec
from inferometer.records import foreign_sweeps
from inferometer.records.imports.concurrency_table import closed_loops, is_concurrency_table
from inferometer.records.imports.detection import read_results
from inferometer.records.imports.imported import PublishedPointTable
from inferometer.records.imports.inference_perf import is_stages
from inferometer.records.imports.inferencex import is_inferencex_csv, is_silicon
from inferometer.records.imports.json_fields import DOOR

WHERE = "the published tables"
_TABLES = (
    "InferenceX's agg_*.json, or these points as CSV; AIConfigurator's silicon_sample.csv; a table"
    " of latencies by concurrency; statistics of closed loops (vLLM's bench, AIPerf, GuideLLM, …)"
)


def are_published(paths: Sequence[Path]) -> bool:
    """Are these files of published tables, rather than runs or tables of a sweep?"""
    return all(
        path.is_file()
        and (
            (
                path.suffix.lower() in {".json", ".jsonl"}
                and not foreign_sweeps.is_json(_start_of(path))
            )
            or _is_collected(path)
        )
        for path in paths
    )


def _with_facts(
    points: PublishedPointTable, request: RunRequest, choice: "TableChoice", where: str
) -> PublishedPointTable:
    """The points, completed by facts from the command line."""
    model, hardware = request.table.model, request.hardware
    stated = {
        "model": "" if model is None else model.model_id,
        "hardware_id": "" if hardware is None else hardware.hardware_id,
        "framework": choice.framework or "vllm",
        "precision": choice.precision or "",
    }
    filled = {
        name: np.where(getattr(points, name) == "", value, getattr(points, name))
        for name, value in stated.items()
    }
    for name, flag in (("model", "--model"), ("hardware_id", "--hardware")):
        if (filled[name] == "").all():
            raise SpecError(
                f"the table does not name its {name.removesuffix('_id')}",
                where=where,
                allowed=f"a column {name.removesuffix('_id')}, or {flag}",
                try_=f"{flag} {'llama-3.1-8b' if flag == '--model' else 'h100'}",
            )
    n_tensor = np.where(points.tensor_parallel < 1, choice.tp or 1, points.tensor_parallel)
    return points._replace(**filled, tensor_parallel=n_tensor, n_devices=n_tensor)


def table_rows(
    request: RunRequest, choice: "TableChoice"
) -> tuple[list[PublishedLoad], Counter[str]]:
    """Rows of all tables that can be simulated, and why others cannot.

    Raises
    ------
    SpecError
        A file is no published table, or none of the rows can be simulated.
    """
    loads: list[PublishedLoad] = []
    left_out: Counter[str] = Counter()
    for path in request.paths:
        results = read_results(path)
        is_own = results.points is None or results.tool == "table"
        points = results.points
        if points is None:
            points = closed_loops(results.summaries, path.name)
        if points is None:
            what = f"results of {results.tool}, no published table of closed loops"
            raise SpecError(
                what,
                where=str(path),
                allowed=_TABLES,
                try_="inferometer import, which reads them; fit --load for load tests",
            )
        if is_own:
            points = _with_facts(points, request, choice, str(path))
        found = published_loads(points)
        loads += found.loads
        left_out += found.left_out
    if not loads:
        raise SpecError(
            "no row can be simulated",
            where=WHERE,
            allowed="closed loops on one engine",
            try_=f"other rows; here: {reasons(left_out)}",
        )
    return loads, left_out


def reasons(left_out: Counter[str]) -> str:
    """Why rows are left out, in words."""
    return ", ".join(f"{number} {why}" for why, number in left_out.most_common())


def _start_of(path: Path) -> str:
    return DOOR.start_of(path, 2**16).decode("utf-8", "replace")


def _is_collected(path: Path) -> bool:
    first = _start_of(path).partition("\n")[0].strip()
    header = first.split(",")
    is_known = is_silicon(header) or is_inferencex_csv(header) or is_stages(header)
    return is_known or is_concurrency_table(first)


_LEAST_OWN = 4
_MOST_NAMED = 12
_INDENT = "\n           "


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """Selection of rows in published tables."""

    framework: str | None = option(
        None, "Published table: rows of this engine.", "Runs", choices=tuple(BUDGETS)
    )
    precision: str | None = option(
        None,
        "Published table: rows of this format.",
        "Runs",
        choices=("bf16", "fp8", "fp4", "int4"),
    )
    series: str | None = option(
        None,
        "Published statistics of rates: rows of this configuration.",
        "Runs",
        metavar="NAME",
    )
    tp: int | None = option(
        None, "Published table: rows of this number of devices.", "Runs", least=1
    )


class ChosenLoads(NamedTuple):
    """Rows of one model, engine and precision, and the devices to fit."""

    loads: tuple[PublishedLoad, ...]
    hardware: HardwareSpec
    n_tensor: int
    left_out: Counter[str]
    """Reasons why other rows cannot be simulated, with their numbers."""


def chosen_loads(request: RunRequest, choice: TableChoice) -> ChosenLoads:
    """The rows that were meant.

    Where a device was named that has few or none, those of all others too, which tell of it.

    Raises
    ------
    SpecError
        None are, or they are of several kinds; the message names these.
    """
    loads, left_out = table_rows(request, choice)
    meant = _meant(loads, request, choice)
    own = [
        one
        for one in meant
        if request.hardware is None or request.hardware.hardware_id == one.hardware.hardware_id
    ]
    has_own = len(own) >= _LEAST_OWN or request.hardware is None
    chosen = own if has_own else meant
    kinds = Counter(_flags_of(one, has_device=has_own) for one in chosen)
    if len(kinds) > 1:
        raise SpecError(
            "several kinds of rows", where=WHERE, allowed=_listed(kinds), try_="one of these"
        )
    # Of one replica that does all: others tell of its step times, and are not offered.
    alone = [one for one in own or chosen if one.n_devices == one.plan.n_tensor]
    degrees = sorted({one.plan.n_tensor for one in alone or own or chosen})
    if choice.tp is None and len(degrees) > 1:
        raise SpecError(
            "of how many devices?",
            where="--tp",
            allowed=", ".join(map(str, degrees)) + ", or another",
            try_=suggestions.flags("--tp", degrees[0]),
        )
    return ChosenLoads(
        tuple(chosen), request.hardware or chosen[0].hardware, choice.tp or degrees[0], left_out
    )


def _meant(
    loads: Sequence[PublishedLoad], request: RunRequest, choice: TableChoice
) -> list[PublishedLoad]:
    """The selected rows; an error names the first flag that leaves none."""
    model = None if request.table.model is None else first_of_shape(request.table.model)
    wanted: tuple[tuple[str, str | None, Callable[[PublishedLoad], str]], ...] = (
        ("--model", None if model is None else model.model_id, lambda one: one.model.model_id),
        ("--framework", choice.framework, lambda one: one.framework),
        ("--precision", choice.precision, lambda one: one.precision or "bf16"),
    )
    meant = list(loads)
    for flag, value, value_of in wanted:
        matching = [one for one in meant if value in {None, value_of(one)}]
        if not matching:
            known = Counter(f"{flag} {value_of(one)}" for one in meant)
            raise SpecError(
                f"no such rows: {flag} {value}",
                where=WHERE,
                allowed=_listed(known),
                try_="one of these",
            )
        meant = matching
    return meant


def _listed(kinds: Counter[str]) -> str:
    """One kind a line, those with the most rows first."""
    lines = [f"{kind}   ({number} rows)" for kind, number in kinds.most_common(_MOST_NAMED)]
    more = [f"and {len(kinds) - _MOST_NAMED} more"] if len(kinds) > _MOST_NAMED else []
    return _INDENT.join([*lines, *more])


def _flags_of(one: PublishedLoad, *, has_device: bool) -> str:
    device = f" --hardware {one.hardware.hardware_id}" if has_device else ""
    return (
        f"--model {one.model.model_id}{device} --framework {one.framework} --precision"
        f" {one.precision or 'bf16'}"
    )
