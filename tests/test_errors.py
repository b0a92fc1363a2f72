"""Does every error say what, where, what is allowed and what to try, and carry its exit code?"""

import inspect
import re

import pytest

from inferometer import errors
from inferometer.errors import InferometerError

CLASSES = [
    member
    for member in vars(errors).values()
    if inspect.isclass(member) and issubclass(member, InferometerError)
]
FOUR_PARTS = [owner for owner in CLASSES if owner is not errors.StoppedError]
"""A stopped measurement has its remedy: the same command."""
CODES = {
    "InferometerError": 1,
    "SpecError": 2,
    "MissingEngineError": 2,
    "TooLargeError": 6,
    "MeasureError": 3,
    "EngineError": 3,
    "StoppedError": 130,
    "RecordError": 4,
    "ModelError": 5,
    "OutOfRangeError": 5,
    "SizingError": 6,
}


def test_exit_codes_are_those_of_the_contract():
    assert {owner.__name__: owner.exit_code for owner in CLASSES} == CODES
    assert (errors.EXIT_ANSWERED, errors.EXIT_SLO_MISSED, errors.EXIT_UNDECIDED) == (0, 10, 11)


def test_the_drawn_tree_is_the_real_one():
    drawn = dict(re.findall(r"(\w+Error)\s+(\d+)", errors.__doc__ or ""))
    assert {name: int(code) for name, code in drawn.items()} == CODES


def test_a_stopped_measurement_prints_the_command_that_goes_on():
    error = errors.StoppedError("stopped", where="out", command=("inferometer", "sweep", "a b"))
    assert error.try_ == "the same command goes on: inferometer sweep 'a b'"
    assert (
        errors.StoppedError("stopped", where="out", command=()).try_ == "the same command goes on"
    )


@pytest.mark.parametrize("owner", FOUR_PARTS, ids=lambda owner: owner.__name__)
def test_the_four_parts_are_told_in_order(owner):
    error = owner("batch = 0", where="--batch-sizes", allowed="1 or more", try_="--batch-sizes 1,2")
    assert (
        str(error)
        == "batch = 0\n  from: --batch-sizes\n  allowed: 1 or more\n  try: --batch-sizes 1,2"
    )
    assert (error.what, error.where, error.allowed, error.try_) == (
        "batch = 0",
        "--batch-sizes",
        "1 or more",
        "--batch-sizes 1,2",
    )


def test_parts_that_are_not_known_are_left_out():
    assert str(InferometerError("it broke")) == "it broke"
    assert str(InferometerError("it broke", try_="again")) == "it broke\n  try: again"


def test_one_class_catches_all_but_not_programming_errors():
    assert all(issubclass(owner, InferometerError) for owner in CLASSES)
    assert not issubclass(ValueError, InferometerError)
