"""How is a function compiled? The one place that knows numba's options.

The compiled code is cached beside its source. numba notices a change of a function's own file only, not of the functions that
it calls: after editing a kernel, delete ``__pycache__`` (the tests do).
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_OPTIONS: Final[dict[str, Any]] = {
    "cache": True,
    "fastmath": False,  # floats keep their order, so that results do not depend on the processor
    "error_model": "python",
    "nogil": True,  # threads run simulations side by side
    "_nrt": False,  # nothing is allocated, so nothing is counted: counting references of the state's arrays took 95 % of the time
}

_WITHIN: Final[dict[str, Any]] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Only compiled code calls it: handing over a state's arrays from Python took a third of the time that compiling took."""


def entry(function: Function) -> Function:
    """The same function, compiled at its first call, for Python to call. It may write to arrays and allocate none."""
    return cast("Function", numba.njit(**_OPTIONS)(function))


def compiled(function: Function) -> Function:
    """The same for compiled code to call. Python must not: there is nothing to call, and the process would crash."""
    return cast("Function", numba.njit(**_OPTIONS, **_WITHIN)(function))


def inlined(function: Function) -> Function:
    """The same, as a part of each compiled function that calls it: for what every step does.

    A call hands over each array of the state as seven numbers, some 220 in all: more work than most functions do.
    """
    return cast("Function", numba.njit(**_OPTIONS, **_WITHIN, forceinline=True)(function))


def merged(function: Function) -> Function:
    """The same, written into its one caller before that is compiled: for the few that call most of the others.

    Compiled by itself, and again with its caller, each of them cost as much as all that it calls. The smaller functions of a step are
    faster as ``inlined``: a fifth of a step, were they merged too.
    """
    return cast("Function", numba.njit(**_OPTIONS, **_WITHIN, inline="always")(function))


def compiled_like(model: object, function: Function) -> Function:
    """The function, compiled as ``model`` is."""
    options: dict[str, Any] = getattr(model, "targetoptions", {})
    return cast("Function", numba.jit(**options, cache=True)(function))


__all__ = ["compiled", "compiled_like", "entry", "inlined", "merged"]
