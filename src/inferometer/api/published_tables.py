"""Which rows of published tables does a command mean: of which model and engine, on which device?"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from inferometer.api.published_rows import WHERE, table_rows
from inferometer.api.question import Option
from inferometer.api.runs import RunRequest
from inferometer.errors import SpecError
from inferometer.fit.published.loads import BUDGETS, PublishedLoad, first_of_shape
from inferometer.inputs.types import HardwareSpec

_LEAST_OWN = 4
_MOST_NAMED = 12
_INDENT = "\n           "


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """Which rows of published tables."""

    framework: Annotated[
        str | None,
        Option(
            "Of a published table: rows of this engine.", heading="Runs", choices=tuple(BUDGETS)
        ),
    ] = None
    precision: Annotated[
        str | None,
        Option(
            "Of a published table: rows of this format.",
            heading="Runs",
            choices=("bf16", "fp8", "fp4", "int4"),
        ),
    ] = None
    series: Annotated[
        str | None,
        Option(
            "Of published statistics of rates: those of this configuration.",
            heading="Runs",
            metavar="NAME",
        ),
    ] = None
    tp: Annotated[
        int | None,
        Option(
            "Of a published table: step times of this number of devices.", heading="Runs", least=1
        ),
    ] = None


class ChosenLoads(NamedTuple):
    """Rows of one model, engine and precision, and of which device and how many of them step times are asked."""

    loads: tuple[PublishedLoad, ...]
    hardware: HardwareSpec
    n_tensor: int
    left_out: Counter[str]
    """Why other rows of the tables cannot be simulated."""


def chosen_loads(request: RunRequest, choice: TableChoice) -> ChosenLoads:
    """The rows that were meant.

    Where a device was named that has few or none, those of all others too, which tell of it.

    Raises
    ------
    SpecError
        None are, or they are of several kinds; the message names these.
    """
    loads, left_out = table_rows(request.paths)
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
        )
    return ChosenLoads(
        tuple(chosen),
        request.hardware or chosen[0].hardware,
        choice.tp or degrees[0],
        left_out,
    )


def _meant(
    loads: Sequence[PublishedLoad], request: RunRequest, choice: TableChoice
) -> list[PublishedLoad]:
    """Flag by flag, so that the first that leaves nothing is the one that is named."""
    model = None if request.table.model is None else first_of_shape(request.table.model)
    wanted: tuple[tuple[str, str | None, Callable[[PublishedLoad], str]], ...] = (
        ("--model", None if model is None else model.model_id, lambda one: one.model.model_id),
        ("--framework", choice.framework, lambda one: one.framework),
        ("--precision", choice.precision, lambda one: one.precision or "bf16"),
    )
    meant = list(loads)
    for flag, value, value_of in wanted:
        kept = [one for one in meant if value in {None, value_of(one)}]
        if not kept:
            known = Counter(f"{flag} {value_of(one)}" for one in meant)
            raise SpecError(
                f"no such rows: {flag} {value}",
                where=WHERE,
                allowed=_listed(known),
                try_="one of these",
            )
        meant = kept
    return meant


def _listed(kinds: Counter[str]) -> str:
    """One a line, those with the most rows first."""
    lines = [f"{kind}   ({number} rows)" for kind, number in kinds.most_common(_MOST_NAMED)]
    more = [f"and {len(kinds) - _MOST_NAMED} more"] if len(kinds) > _MOST_NAMED else []
    return _INDENT.join([*lines, *more])


def _flags_of(one: PublishedLoad, *, has_device: bool) -> str:
    device = f" --hardware {one.hardware.hardware_id}" if has_device else ""
    return (
        f"--model {one.model.model_id}{device} --framework {one.framework} --precision"
        f" {one.precision or 'bf16'}"
    )
