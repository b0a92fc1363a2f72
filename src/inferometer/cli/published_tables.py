"""Which rows of published tables does a command mean: of which model and engine, on which device?"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

from inferometer.cli.runs import RunRequest
from inferometer.errors import SpecError
from inferometer.fit.published_loads import BUDGETS, PublishedLoad, published_loads
from inferometer.records.imports.detection import read_results
from inferometer.records.imports.inferencex import is_silicon
from inferometer.spec.types import HardwareSpec

_WHERE = "the published tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """What was said on the command line; None: nothing."""

    framework: str | None
    precision: str | None
    n_tensor: int | None


class ChosenLoads(NamedTuple):
    """Rows of one model, engine and precision, and of which device and how many of them step times are asked."""

    loads: tuple[PublishedLoad, ...]
    hardware: HardwareSpec
    n_tensor: int


_OPTIONS = (
    click.option("--framework", type=click.Choice(tuple(BUDGETS)), help="Of a published table: rows of this engine."),
    click.option("--precision", type=click.Choice(("bf16", "fp8", "fp4", "int4")), help="Of a published table: rows of this format."),
    click.option("--tp", "n_tensor", type=click.IntRange(min=1), help="Of a published table: step times of so many devices."),
)


def takes_table_choice(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose rows of published tables; the command gets them as ``choice: TableChoice``."""

    @functools.wraps(command)
    def with_choice(*, framework: str | None, precision: str | None, n_tensor: int | None, **others: object) -> None:
        command(choice=TableChoice(framework=framework, precision=precision, n_tensor=n_tensor), **others)

    wrapped: Callable[..., None] = with_choice
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def are_published(paths: Sequence[Path]) -> bool:
    """Are these files of published tables, rather than runs or tables of a sweep?"""
    return all(path.is_file() and (path.suffix.lower() == ".json" or _is_collected(path)) for path in paths)


def chosen_loads(request: RunRequest, choice: TableChoice) -> ChosenLoads:
    """The rows that were meant. Where a device was named that has none, those of all others, which tell of it.

    Raises
    ------
    SpecError
        None are, or they are of several kinds; the message names these.
    """
    loads: list[PublishedLoad] = []
    for path in request.paths:
        points = read_results(path).points
        if points is None:
            raise SpecError("no published table", where=str(path), allowed="InferenceX's agg_*.json, AIConfigurator's silicon_sample.csv")
        loads += published_loads(points).loads
    meant = [one for one in loads if _is_meant(one, request, choice)]
    own = [one for one in meant if request.hardware is None or request.hardware.hardware_id == one.hardware.hardware_id]
    chosen = own or meant
    kinds = sorted({_flags_of(one, has_device=bool(own)) for one in chosen})
    if len(kinds) != 1:
        what = "several kinds of rows" if kinds else "no such rows"
        known = kinds or sorted({_flags_of(one, has_device=True) for one in loads})
        raise SpecError(what, where=_WHERE, allowed="; ".join(known), try_="one of these")
    degrees = sorted({one.engine.tensor_parallel_size for one in chosen})
    if choice.n_tensor is None and len(degrees) > 1:
        raise SpecError("of how many devices?", where="--tp", allowed=", ".join(map(str, degrees)) + ", or another")
    return ChosenLoads(tuple(chosen), request.hardware or chosen[0].hardware, choice.n_tensor or degrees[0])


def _is_meant(one: PublishedLoad, request: RunRequest, choice: TableChoice) -> bool:
    model = request.table.model
    return (
        (model is None or model.model_id == one.model.model_id)
        and choice.framework in {None, one.framework}
        and choice.precision in {None, one.precision or "bf16"}
    )


def _flags_of(one: PublishedLoad, *, has_device: bool) -> str:
    device = f" --hardware {one.hardware.hardware_id}" if has_device else ""
    return f"--model {one.model.model_id}{device} --framework {one.framework} --precision {one.precision or 'bf16'}"


def _is_collected(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return is_silicon(file.readline().strip().split(","))


__all__ = ["ChosenLoads", "TableChoice", "are_published", "chosen_loads", "takes_table_choice"]
