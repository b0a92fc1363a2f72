"""A compiled function that only compiled code may call, for a test to call."""

from functools import cache
from types import FunctionType

from inferometer.simulate.compiling import entry


@cache
def from_python(function):
    """Compiled once more; the suffix tells the two apart in the cache."""
    plain = function.py_func
    again = FunctionType(plain.__code__, plain.__globals__, plain.__name__)
    again.__qualname__ = f"{plain.__name__}_from_python"
    return entry(again)
