"""A compiled function that only compiled code may call, for a test to call."""

from functools import cache

import numba

WITHIN = ("no_cpython_wrapper", "no_cfunc_wrapper")


@cache
def from_python(function):
    """Compiled once more, and not cached: the cache does not tell the two apart."""
    options = {name: value for name, value in function.targetoptions.items() if name not in WITHIN}
    return numba.jit(**options)(function.py_func)
