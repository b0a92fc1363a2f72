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


def compiled(function: Function) -> Function:
    """The same function, compiled at its first call. It may write to arrays and allocate none."""
    return cast("Function", numba.njit(**_OPTIONS)(function))


def inlined(function: Function) -> Function:
    """The same, as a part of each compiled function that calls it: for what every step does.

    A call hands over each array of the state as seven numbers, some 220 in all: more work than most functions do.
    """
    return cast("Function", numba.njit(**_OPTIONS, forceinline=True)(function))


def compiled_like(model: object, function: Function) -> Function:
    """The function, compiled as ``model`` is."""
    options: dict[str, Any] = getattr(model, "targetoptions", {})
    return inlined(function) if options.get("forceinline", False) else compiled(function)


__all__ = ["compiled", "compiled_like", "inlined"]
