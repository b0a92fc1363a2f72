"""Do names carry units, and does every module say what it offers?"""

import dataclasses
import importlib
import inspect
import pkgutil
import types
import typing

import inferometer
from inferometer.api.question import fields_of
from inferometer.units import SUFFIXES

ENGINE_ROOM = "inferometer.measure.engines."
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(inferometer.__path__, "inferometer.")
    if not info.name.startswith(ENGINE_ROOM + "worker_")
)

# A number whose unit belongs to whoever holds it.
UNITLESS_FIELDS = {
    "inferometer.api.quality.QualityAnswer.perplexity",
    "inferometer.records.quality.QualityDifference.perplexity",
    "inferometer.records.quality.DepthQuality.perplexity",
    "inferometer.records.quality.DepthQuality.reference_perplexity",
    # Counts that were read between two samples.
    *(f"inferometer.measure.telemetry.Telemetry.{name}_faults" for name in ("minor", "major")),
    "inferometer.inputs.types.Constant.value",
    "inferometer.stats.estimate.Estimate.value",
    "inferometer.stats.estimate.Estimate.low",
    "inferometer.stats.estimate.Estimate.high",
    "inferometer.api.question.Option.least",
    "inferometer.api.question.Option.most",
    # Of whatever is drawn: the unit is in words beside it.
    *(f"inferometer.report.page.Number.{name}" for name in ("value", "low", "high", "limit")),
    *(f"inferometer.report.charts.plot.Axis.{name}" for name in ("low", "high")),
    *(f"inferometer.report.charts.plot.{name}" for name in ("Rule.at", "Text.x", "Text.y")),
}


CLASSES = [
    member
    for name in MODULES
    for member in vars(importlib.import_module(name)).values()
    if inspect.isclass(member) and member.__module__ == name and dataclasses.is_dataclass(member)
]


def is_float(annotation) -> bool:
    if annotation is float:
        return True
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(is_float(part) for part in typing.get_args(annotation))
    return False


def floats_of(owner) -> list[str]:
    """The full names of its float fields; an option has the name of its flag, and its help says the unit."""
    options = {one.name for one in fields_of(owner)}
    hints = typing.get_type_hints(owner)
    return [
        f"{owner.__module__}.{owner.__name__}.{field.name}"
        for field in dataclasses.fields(owner)
        if is_float(hints[field.name]) and field.name not in options
    ]


def carries_a_unit(full_name: str) -> bool:
    return f"_{full_name.rpartition('.')[2]}".endswith(SUFFIXES)


def test_float_fields_carry_units():
    floats = [full_name for owner in CLASSES for full_name in floats_of(owner)]
    assert len(floats) > 200
    assert set(floats) >= UNITLESS_FIELDS
    bare = [
        full_name
        for full_name in floats
        if full_name not in UNITLESS_FIELDS and not carries_a_unit(full_name)
    ]
    assert not bare, (
        f"floats without a unit; allowed endings are {', '.join(SUFFIXES)}:\n" + "\n".join(bare)
    )


def test_a_bare_float_would_be_caught():
    assert is_float(float | None)
    assert not carries_a_unit("inferometer.somewhere.Owner.duration")


def test_travelling_data_is_frozen():
    travelling = [owner for owner in CLASSES if not owner.__name__.startswith("_")]
    offenders = [
        f"{owner.__name__} can be changed after birth"
        for owner in travelling
        if not owner.__dataclass_params__.frozen
    ]
    offenders += [
        f"{owner.__name__} has no slots" for owner in travelling if not hasattr(owner, "__slots__")
    ]
    assert not offenders, "\n".join(offenders)


def test_only_packages_list_what_they_offer():
    """Inside a room a name without a leading underscore is public: a second list of them grows old."""
    listing = [
        name
        for name in MODULES
        if not hasattr(module := importlib.import_module(name), "__path__")
        and hasattr(module, "__all__")
    ]
    assert not listing, listing
