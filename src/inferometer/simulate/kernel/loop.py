"""Compiled event loops, one for each kind of engine.

Only the rules in use are compiled. One loop with the rules of all engines took 90 s to compile,
four times as long as vLLM's alone: the compiler optimises a function together with all that it may
call. Here the loops, ``kernel/steps.py`` and ``kernel/policy.py`` are compiled again for each kind,
with the kind as a constant, so that the branches of other kinds are left out.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType, ModuleType

from inferometer.simulate.compiling import compiled_like
from inferometer.simulate.fleet import Fleet
from inferometer.simulate.kernel import (
    blocks,
    cluster_run,
    one_replica,
    policy,
    pool,
    preemption,
    price,
    steps,
    vllm,
)
from inferometer.simulate.kernel.config import Kind


@cache
def loop_of(kind: Kind) -> Callable[..., int]:
    """``kernel.one_replica.run`` for the rules of this kind only."""
    run: Callable[..., int] = _compiled_again(
        one_replica, kind.name, {"steps": _steps_of(kind)}
    ).run
    return run


def loop_of_fleet(kind: Kind, fleet: Fleet) -> Callable[..., int]:
    """The loop of several replicas, with the code that this fleet needs."""
    return _cluster_loop_of(
        kind,
        has_gate=fleet.gate is not None,
        is_split=fleet.prefill is not None,
        is_lockstep=fleet.replicas.in_lockstep,
    )


@cache
def _cluster_loop_of(
    kind: Kind, *, has_gate: bool, is_split: bool = False, is_lockstep: bool = False
) -> Callable[..., int]:
    """``kernel.cluster_run.run`` for the rules of this kind only.

    Without the code for a gate, a link or steps in lockstep if they are not used.
    """
    name = kind.name + "_GATE" * has_gate + "_SPLIT" * is_split + "_LOCKSTEP" * is_lockstep
    changes = {
        "steps": _steps_of(kind, is_split=is_split),
        "HAS_GATE": has_gate,
        "IS_SPLIT": is_split,
        "IS_LOCKSTEP": is_lockstep,
    }
    run: Callable[..., int] = _compiled_again(cluster_run, name, changes).run
    return run


@cache
def _steps_of(kind: Kind, *, is_split: bool = False) -> ModuleType:
    """The rules of this kind; vLLM's with a handover to another pool or without."""
    name = kind.name + "_SPLIT" * is_split
    if kind == Kind.POOLED:
        return _pooled_steps(name)
    changes: dict[str, object] = {"KIND": int(kind)}
    if kind == Kind.VLLM:
        changes["vllm"] = _compiled_again(vllm, name, {"IS_SPLIT": is_split})
    return _compiled_again(steps, name, {"policy": _compiled_again(policy, name, changes)})


def _pooled_steps(name: str) -> ModuleType:
    """Rules of vLLM for a divided KV cache: all functions that use blocks, compiled again."""
    changes: dict[str, object] = {"IS_POOLED": True, "KIND": int(Kind.VLLM)}
    for module in (pool, blocks, preemption, vllm, policy, price):
        again = _compiled_again(module, name, changes)
        changes[module.__name__.rpartition(".")[2]] = again
    return _compiled_again(steps, name, changes)


def _compiled_again(module: ModuleType, suffix: str, changes: Mapping[str, object]) -> ModuleType:
    """A second copy of the module with its functions compiled together.

    The suffix tells them apart in the cache.
    """
    again_module = ModuleType(f"{module.__name__}_{suffix}")
    scope = vars(again_module)
    scope.update(vars(module) | dict(changes))
    for name, value in vars(module).items():
        plain = getattr(value, "py_func", None)
        if isinstance(plain, FunctionType) and plain.__module__ == module.__name__:
            again = FunctionType(plain.__code__, scope, name)
            again.__qualname__ = f"{name}_{suffix}"
            scope[name] = compiled_like(value, again)
    return again_module
