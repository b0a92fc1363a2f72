"""Which compiled loop runs an engine's rules? One for each kind, so that only the rules that are asked for are compiled.

One loop with the rules of all engines took 90 s to compile, four times as long as vLLM's alone: the compiler optimises whatever
a function may call together with it. Here ``kernel_run`` and ``kernel_policy`` are compiled again for each kind, as they stand, with
that kind as a constant, so that the branches of the others are left out.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from inferometer.simulate import kernel_policy, kernel_run
from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel_config import Kind


@cache
def loop_of(kind: Kind) -> Callable[..., int]:
    """``kernel_run.run`` for the rules of this kind only."""
    rules = ModuleType(f"{kernel_policy.__name__}_{kind.name}")
    vars(rules).update(_compiled_again(kernel_policy, {"KIND": int(kind)}, kind.name))
    run: Callable[..., int] = _compiled_again(kernel_run, {"kernel_policy": rules}, kind.name)["run"]
    return run


def _compiled_again(module: ModuleType, changes: dict[str, Any], suffix: str) -> dict[str, Any]:
    """What the module defines, its compiled functions anew and in sight of one another; the suffix tells them apart in the cache."""
    scope = vars(module) | changes
    for name, value in vars(module).items():
        plain = getattr(value, "py_func", None)
        if isinstance(plain, FunctionType) and plain.__module__ == module.__name__:
            again = FunctionType(plain.__code__, scope, name)
            again.__qualname__ = f"{name}_{suffix}"
            scope[name] = compiled(again)
    return scope


__all__ = ["loop_of"]
