"""Does the key of the compile cache cover every source that compiled code is made of, and is a wait announced?"""

import ast
import time
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from inferometer.api import compute
from inferometer.simulate import compiling, hooks

ROOM = Path(compiling.__file__).parent


def imported_by(file):
    """The modules of this room that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {name.removeprefix("inferometer.simulate.") for name in names}
    return {name for name in found if (ROOM / f"{name}.py").exists()}


def test_the_key_covers_all_that_the_kernel_imports():
    reached, waiting = set(), list((ROOM / "kernel").glob("*.py"))
    while waiting:
        new = imported_by(waiting.pop()) - reached
        reached |= new
        waiting += [ROOM / f"{name}.py" for name in new]
    assert reached == set(compiling.REACHED)


def loop(signatures, index):
    """What is asked of numba's dispatcher."""

    def run_VLLM():  # noqa: N802
        pass

    file = SimpleNamespace(_load_index=lambda: index)
    run_VLLM.__qualname__ = "run_VLLM"
    return SimpleNamespace(
        signatures=signatures, py_func=run_VLLM, _cache=SimpleNamespace(_cache_file=file)
    )


def test_who_listens_is_told_of_a_wait_and_of_nothing_else(monkeypatch):
    heard = []
    monkeypatch.setattr(hooks, "_listeners", [heard.append])
    hooks.tell_of_compiling(loop(["loaded"], {}))
    hooks.tell_of_compiling(loop([], {"cached": 1}))
    assert not heard
    hooks.tell_of_compiling(loop([], {}))
    hooks.tell_of_compiling(loop([], {}))  # another function of the same command
    assert len(heard) == 1
    assert "compiling the parts of the simulator that are needed, once" in heard[0]


@compiling.compiled
def callee(number):
    return number + 1


@compiling.inlined
def caller(number):
    return callee(number) * 2


@compiling.entry
def start(number):
    return caller(number) + callee(np.int32(number))


start._cache.disable()


def test_what_an_inlined_function_calls_is_not_inlined_too_and_is_compiled_once():
    assert start(3) == 12
    (found,) = callee.overloads.values()
    assert "alwaysinline" not in str(found.library._final_module)
    (found,) = caller.overloads.values()
    assert "alwaysinline" in str(found.library._final_module)


def test_python_cannot_call_an_inner_function():
    assert start(3) == 12
    with pytest.raises(TypeError, match="only compiled code"):
        callee(3)


def test_the_clock_of_a_search_stands_still_while_the_simulator_compiles():
    @numba.njit  # not cached: it compiles each time
    def squares(n: int) -> int:
        total = 0
        for i in range(n):
            total += i * i
        return total

    computed_s, all_s = compute.computing_s(), time.process_time()
    assert squares(4) == 14
    took_s = time.process_time() - all_s
    assert took_s > 0.02, "it compiled"
    assert compute.computing_s() - computed_s < 0.5 * took_s
