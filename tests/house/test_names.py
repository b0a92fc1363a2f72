"""Do names carry units, and does every module say what it offers?"""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import types
import typing

import pytest

import inferometer
from inferometer.units import SUFFIXES

ENGINE_ROOM = "inferometer.measure.engines."
MODULES = sorted(
    info.name for info in pkgutil.walk_packages(inferometer.__path__, "inferometer.") if not info.name.startswith(ENGINE_ROOM + "worker_")
)

# A number whose unit belongs to whoever holds it.
UNITLESS_FIELDS = {
    "inferometer.spec.types.Constant.value",
    "inferometer.stats.estimate.Estimate.value",
    "inferometer.stats.estimate.Estimate.low",
    "inferometer.stats.estimate.Estimate.high",
}


def own_classes():
    for name in MODULES:
        for member in vars(importlib.import_module(name)).values():
            if inspect.isclass(member) and member.__module__ == name and dataclasses.is_dataclass(member):
                yield member


def is_float(annotation) -> bool:
    if annotation is float:
        return True
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(is_float(part) for part in typing.get_args(annotation))
    return False


@pytest.mark.parametrize("owner", list(own_classes()), ids=lambda owner: f"{owner.__module__}.{owner.__name__}")
def test_float_fields_carry_units(owner):
    hints = typing.get_type_hints(owner)
    for field in dataclasses.fields(owner):
        full_name = f"{owner.__module__}.{owner.__name__}.{field.name}"
        if is_float(hints[field.name]) and full_name not in UNITLESS_FIELDS:
            assert f"_{field.name}".endswith(SUFFIXES), f"{full_name} is a float without a unit; allowed endings: {', '.join(SUFFIXES)}"


def test_a_bare_float_would_be_caught():
    assert is_float(float | None)
    assert not "duration".endswith(SUFFIXES)


@pytest.mark.parametrize("owner", list(own_classes()), ids=lambda owner: f"{owner.__module__}.{owner.__name__}")
def test_travelling_data_is_frozen(owner):
    if owner.__name__.startswith("_"):
        return  # it does not travel
    assert owner.__dataclass_params__.frozen, f"{owner.__name__} can be changed after birth"
    assert hasattr(owner, "__slots__"), f"{owner.__name__} has no slots"


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_complete(name):
    module = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(module))
    if hasattr(module, "__path__"):
        return
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert hasattr(module, "__all__"), f"{name} does not say what it offers"
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    missing = public - set(module.__all__)
    assert not missing, f"{name}.__all__ lacks {sorted(missing)}"
