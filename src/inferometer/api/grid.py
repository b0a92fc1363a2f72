"""How does an answer change with its options: one answer for each combination of listed values?

Several values of an option (``batch=[1, 2, 4]``, ``--batch 1,2,4`` or ``1..256``) are an axis; the
points of the grid are all combinations, in the order of the question's fields. A point that cannot
be answered stands in the grid with its reason.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from inferometer import suggestions
from inferometer.api.answer import Answer
from inferometer.api.compute import Executor, opened
from inferometer.api.question import Field, fields_of, is_listed, listed, question_of, value_of
from inferometer.errors import (
    EXIT_ANSWERED,
    EXIT_SLO_MISSED,
    EXIT_UNDECIDED,
    InferometerError,
    SizingError,
    SpecError,
)
from inferometer.inputs.catalog import find_hardware
from inferometer.inputs.objectives import ObjectiveSpec, parse_objective
from inferometer.measure.this_machine import THIS_MACHINE
from inferometer.records.curves import CurveFinding
from inferometer.stats.estimate import Estimate

Q = TypeVar("Q")
A = TypeVar("A", bound=Answer)
Value = str | int | float | bool | None

_MOST_POINTS: Final = 5_000


class Axis(NamedTuple):
    """An option with several values."""

    name: str
    flag: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedNumber:
    """A number at all step times that were simulated, to compare it with that of another point."""

    likely: Estimate
    """At likely step times, with the noise of the requests alone."""
    others: tuple[float | None, ...]
    """At each draw of the step times, or at fast and slow ones; None where time was over before."""


class Headline(NamedTuple):
    """Numbers of one answer that a grid shows."""

    numbers: dict[str, Estimate | None]
    """Numbers by name with unit."""
    words: dict[str, str | None]
    """The limit, and a verdict."""
    paced: dict[str, PacedNumber]
    """What points are ranked by, where it was simulated."""
    machine_share_fraction: float | None = None
    """Share of the variance of a step's log time that all layouts on the device have alike, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One combination of the listed values, and its answer."""

    values: dict[str, Value]
    """The value of each axis, under the option's name."""
    numbers: dict[str, Estimate | None]
    words: dict[str, str | None]
    refused: str | None = None
    """Why this combination has no answer."""
    exit_code: int = EXIT_ANSWERED
    """Of this point; with an SLO: 0 met, 10 missed, 11 undecided."""
    paced: dict[str, PacedNumber] = field(default_factory=dict[str, PacedNumber])
    """The number that points are ranked by, at all step times; none of predictions."""
    machine_share_fraction: float | None = None
    """Share of the variance of a step's log time that all layouts on the device have alike, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridAnswer(Answer):
    """The answers of all combinations of the listed values."""

    table = "points"

    verb: str
    title: str
    """Options that all points share."""
    axes: dict[str, tuple[Value, ...]]
    points: tuple[GridPoint, ...]
    findings: tuple[CurveFinding, ...]
    objective: ObjectiveSpec | None = None
    """The SLO that each point is judged by, where one was named."""

    @property
    def exit_code(self) -> int:
        """With an SLO: 0 if a point meets it, 11 if none does but some may, 10 if all miss it."""
        codes = {point.exit_code for point in self.points if point.refused is None}
        order = (EXIT_ANSWERED, EXIT_UNDECIDED, EXIT_SLO_MISSED)
        none_fits = EXIT_ANSWERED if self.objective is None else SizingError.exit_code
        return next((code for code in order if code in codes), none_fits)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each point: axes, then each number with both ends of its interval."""
        return [dict(_cells(point)) for point in self.points]


def _cells(point: GridPoint) -> list[tuple[str, Value]]:
    cells = list[tuple[str, Value]](point.values.items())
    for name, number in point.numbers.items():
        low, high = (None, None) if number is None else (number.low, number.high)
        cells += [
            (name, None if number is None else number.value),
            (f"{name}_low", low),
            (f"{name}_high", high),
        ]
    return [*cells, *point.words.items(), ("refused", point.refused)]


class Verb(NamedTuple):
    """A verb that can answer a grid."""

    name: str
    question: type[Any]
    answer: Callable[[Any], Answer]
    headline: Callable[[Any], Headline]
    title: Callable[[Mapping[str, object], tuple[Axis, ...]], str]
    findings: Callable[[tuple[Axis, ...], tuple[GridPoint, ...]], tuple[CurveFinding, ...]]
    is_of_one: bool = False
    """Is the answer of one request, or of a batch of equal ones?"""
    is_short: bool = False
    """Does each point take milliseconds, so that processes are not worth their start?"""
    looks_for: frozenset[str] = frozenset()
    """Options at whose value its search only begins: several of them would give one answer."""


def exact(value: float) -> Estimate:
    """A computed number without an interval of its own."""
    return Estimate(
        value=value, low=None, high=None, confidence_fraction=0.9, n_samples=1, method="computed"
    )


def between(value: float, low: float | None, high: float | None) -> Estimate:
    """A load between one that was shown to meet the SLO and one that was shown to miss it."""
    if low is None or high is None or not low <= value <= high:
        return exact(value)
    method = "between loads shown to meet and to miss the SLO"
    return replace(exact(value), low=low, high=high, method=method)


_MOST_NAMED: Final = 3
"""Models that a title names."""


def title_of(values: Mapping[str, object], axes: tuple[Axis, ...]) -> str:
    """What all points share, and what varies."""
    models = next((axis.values for axis in axes if axis.name == "model"), ())
    several = ", ".join(models) if len(models) <= _MOST_NAMED else f"{len(models)} models"
    names = [values.get("model"), several, values.get("hardware")]
    words = [" on ".join(name for name in names if isinstance(name, str) and name)]
    words += [
        f"{_in_words(name)} {value}"
        for name, value in values.items()
        if name not in {"model", "hardware", "out", "report"}
        and isinstance(value, str | int | float)
        and not isinstance(value, bool)
    ]
    over = " and ".join(_in_words(axis.name) for axis in axes)
    return f"{', '.join(words)}, by {over}"


def value_text(value: Value) -> str:
    """A listed value as a user types it."""
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _in_words(name: str) -> str:
    return {"tp": "TP", "slo": "SLO"}.get(name, name.replace("_", " "))


def axes_of(question: type[Any], values: Mapping[str, object]) -> tuple[Axis, ...]:
    """The options with several values, in the order of the question's fields; none: one question.

    Raises
    ------
    SpecError
        A value is not of its option's type or out of its bounds, or the combinations are too many.
    """
    axes = tuple(
        axis
        for field in fields_of(question)
        if field.is_axis and (axis := _axis(field, values.get(field.name))) is not None
    )
    n_points = 1
    for axis in axes:
        n_points *= len(axis.values)
    if n_points > _MOST_POINTS:
        raise SpecError(
            f"{n_points:,} combinations",
            where=", ".join(axis.flag for axis in axes),
            allowed=f"up to {_MOST_POINTS:,}",
            try_="fewer values of one of them",
        )
    return axes


def _axis(field: Field, value: object) -> Axis | None:
    if isinstance(value, str):
        is_file = field.kind is str and Path(value).exists()
        if is_file or not is_listed(value):
            return None
        values: tuple[object, ...] = listed(value, where=field.flag)
    elif isinstance(value, list | tuple | range):
        values = tuple(value)
    else:
        return None
    if not values:
        raise SpecError("an empty list", where=field.flag, allowed="one value or more")
    checked = tuple(dict.fromkeys(value_of(field, one) for one in values))
    for one in checked if field.name == "hardware" else ():
        if one not in {None, THIS_MACHINE}:
            find_hardware(str(one))  # a misspelt one is no point without an answer, but refused
    return Axis(field.name, field.flag, checked)


def grid(verb: Verb, values: Mapping[str, object], axes: tuple[Axis, ...]) -> GridAnswer:
    """Answer each combination, several at once where they take long.

    Raises
    ------
    SpecError
        The options that the points share cannot be, or no point has an answer.
    """
    _check_varied(verb, axes)
    combinations = [
        dict(zip((axis.name for axis in axes), combined, strict=True))
        for combined in itertools.product(*(axis.values for axis in axes))
    ]
    fixed = {name: value for name, value in values.items() if name not in combinations[0]}
    ask = partial(_asked, verb.question, verb.answer, verb.headline, fixed)
    if verb.is_short:
        points = tuple(ask(combined) for combined in combinations)
    else:
        with opened(_where(verb.question, fixed), "points") as executor:
            points = executor.map(ask, combinations)
    if all(point.refused is not None for point in points):
        # the error of the first, with its parts and its exit code
        verb.answer(question_of(verb.question, _of_point(verb.question, fixed, combinations[0])))
    return GridAnswer(
        verb=verb.name,
        title=verb.title(fixed, axes),
        axes={axis.name: axis.values for axis in axes},
        points=points,
        findings=verb.findings(axes, points),
        objective=(
            parse_objective(slo, has_workflows=True, is_of_one=verb.is_of_one)
            if isinstance(slo := fixed.get("slo"), str)
            else None
        ),
    )


def _check_varied(verb: Verb, axes: tuple[Axis, ...]) -> None:
    """Refuse several values of what the verb itself looks for."""
    for axis in axes:
        if axis.name in verb.looks_for:
            values = ",".join(map(value_text, axis.values))
            raise SpecError(
                f"{len(axis.values)} loads, and {verb.name} finds the load itself",
                where=axis.flag,
                allowed="one load, at which the search begins",
                try_=suggestions.command("simulate", "MODEL", axis.flag, values),
            )


def _where(question: type[Any], fixed: Mapping[str, object]) -> Executor:
    """Processes on all cores, unless another executor was chosen."""
    names = {field.name for field in fields_of(Executor)}
    chosen = question_of(Executor, {name: value for name, value in fixed.items() if name in names})
    has_executor = any(field.group == "where" for field in fields_of(question))
    return replace(chosen, executor=chosen.executor or "processes") if has_executor else chosen


def _of_point(
    question: type[Any], fixed: Mapping[str, object], combined: Mapping[str, Any]
) -> dict[str, object]:
    """Options of one point, with an output folder of its own."""
    options = {
        name: value
        for name, value in fixed.items()
        if name not in {"executor", "jobs", "ray_address", "report"}
    }
    label = "_".join(f"{name}={value}" for name, value in combined.items()).replace("/", "-")
    if options.get("out") is not None:
        options["out"] = Path(str(options["out"])) / label
    if any(field.name == "executor" for field in fields_of(question)):
        options["executor"] = "inline"  # the points themselves are done side by side
    return options | dict(combined)


def _asked(
    question: type[Any],
    answer: Callable[[Any], A],
    headline: Callable[[A], Headline],
    fixed: Mapping[str, object],
    combined: Mapping[str, Any],
) -> GridPoint:
    values = dict(combined)
    try:
        answered = answer(question_of(question, _of_point(question, fixed, combined)))
        found = headline(answered)
    except InferometerError as error:
        return GridPoint(values=values, numbers={}, words={}, refused=error.what)
    return GridPoint(
        values=values,
        numbers=found.numbers,
        words=found.words,
        exit_code=answered.exit_code,
        paced=found.paced,
        machine_share_fraction=found.machine_share_fraction,
    )
