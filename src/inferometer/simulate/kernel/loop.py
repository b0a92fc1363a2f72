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
    price,
    steps,
    vllm,
)
from inferometer.simulate.kernel.config import Kind


@cache
def loop_of(kind: Kind) -> Callable[..., int]:
    """``kernel.one_replica.run``, compiled for this kind of engine only."""
    run: Callable[..., int] = _compiled_again(
        one_replica, kind.name, {"steps": _steps_of(kind)}
    ).run
    return run


def loop_of_fleet(kind: Kind, fleet: Fleet) -> Callable[..., int]:
    """The loop of several replicas, with the code that this fleet needs."""
    return _cluster_loop_of(
        kind,
        plans=is_planning(kind, fleet),
        has_gate=fleet.gate is not None,
        is_split=fleet.prefill is not None,
        is_lockstep=fleet.replicas.in_lockstep,
    )


def is_planning(kind: Kind, fleet: Fleet) -> bool:
    """Does this fleet's loop plan runs of decode steps? A gate looks into replicas between events."""
    has_rules = kind in {Kind.VLLM, Kind.TRTLLM}
    return has_rules and fleet.gate is None and not fleet.replicas.in_lockstep


@cache
def _cluster_loop_of(
    kind: Kind, *, plans: bool, has_gate: bool, is_split: bool, is_lockstep: bool
) -> Callable[..., int]:
    """``kernel.cluster_run.run``, compiled for this kind of engine only.

    The code for a gate, a KV link and steps in lockstep is left out if they are not used.
    """
    name = kind.name + "_GATE" * has_gate + "_SPLIT" * is_split + "_LOCKSTEP" * is_lockstep
    changes = {
        "steps": _steps_of(kind, is_split=is_split),
        "HAS_GATE": has_gate,
        "IS_SPLIT": is_split,
        "IS_LOCKSTEP": is_lockstep,
        "IS_PLANNING": plans,
        "IS_TOGETHER": kind in {Kind.SGLANG, Kind.TRTLLM},
    }
    run: Callable[..., int] = _compiled_again(cluster_run, name, changes).run
    return run


@cache
def _steps_of(kind: Kind, *, is_split: bool = False) -> ModuleType:
    """``kernel.steps``, compiled for this kind of engine only.

    ``is_split``: with the handover between prefill and decode replicas (vLLM).
    """
    name = kind.name + "_SPLIT" * is_split
    if kind == Kind.POOLED:
        return _pooled_steps(name)
    changes: dict[str, object] = {"KIND": int(kind)}
    if kind == Kind.VLLM:
        changes["vllm"] = _compiled_again(vllm, name, {"IS_SPLIT": is_split})
    return _compiled_again(steps, name, {"policy": _compiled_again(policy, name, changes)})


def _pooled_steps(name: str) -> ModuleType:
    """``kernel.steps`` for vLLM with a divided KV cache: all modules that use blocks are copied."""
    changes: dict[str, object] = {"IS_POOLED": True, "KIND": int(Kind.VLLM)}
    for module in (pool, blocks, vllm, policy, price):
        again = _compiled_again(module, name, changes)
        changes[module.__name__.rpartition(".")[2]] = again
    return _compiled_again(steps, name, changes)


def _compiled_again(module: ModuleType, suffix: str, changes: Mapping[str, object]) -> ModuleType:
    """A copy of a kernel module, with its functions compiled again and some globals changed.

    ``changes``: the globals that differ, by name: constants and other copied modules. ``suffix``
    is appended to the functions' names, which distinguishes the copies in numba's cache.
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
