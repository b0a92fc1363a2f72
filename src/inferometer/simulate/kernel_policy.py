"""Whose rules decide? The one place where compiled code asks; ``engine_config`` tells how an engine is added.

``kernel_loop`` compiles this module once for each kind, and the branches of the others are left out.
"""

from typing import Final

from inferometer.simulate import (
    kernel_batches,
    kernel_queue,
    kernel_schedule,
    kernel_sglang,
    kernel_sglang_update,
    kernel_trtllm,
    kernel_trtllm_update,
    kernel_update,
)
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel_config import Kind
from inferometer.simulate.kernel_state import State
from inferometer.simulate.reference_request import Status

_VLLM, _TRTLLM, _BATCHES, _SGLANG = int(Kind.VLLM), int(Kind.TRTLLM), int(Kind.BATCHES), int(Kind.SGLANG)
_WAITING = int(Status.WAITING)
KIND: Final = int(Kind.VLLM)


@compiled
def add(state: State, index: int) -> None:
    """A request arrives: it waits, or is refused."""
    kind = KIND
    if kind == _BATCHES:
        kernel_batches.add(state, index)
    else:
        state.requests[index].status = _WAITING
        kernel_queue.add(state, index)


@inlined
def schedule(state: State, slot: int) -> None:
    """Decide the next step and note it as batch ``slot``; ``wake_ns`` where somebody waits for a time."""
    kind = KIND
    if kind == _VLLM:
        kernel_schedule.schedule(state, slot)
    elif kind == _TRTLLM:
        kernel_trtllm.schedule(state, slot)
    elif kind == _SGLANG:
        kernel_sglang.schedule(state, slot)
    elif kind == _BATCHES:
        kernel_batches.schedule(state, slot)


@inlined
def update(state: State, slot: int) -> int:
    """Process what batch ``slot`` yielded, at the present time; returns how many tokens were delivered."""
    kind = KIND
    n_delivered = 0
    if kind == _VLLM:
        n_delivered = kernel_update.update(state, slot)
    elif kind == _TRTLLM:
        n_delivered = kernel_trtllm_update.update(state, slot)
    elif kind == _SGLANG:
        n_delivered = kernel_sglang_update.update(state, slot)
    elif kind == _BATCHES:
        n_delivered = kernel_batches.update(state, slot)
    return n_delivered


@compiled
def abort(state: State, index: int) -> None:
    """A client has gone, at ``abort_ns``."""
    kind = KIND
    if kind == _VLLM:
        kernel_update.abort(state, index)
    elif kind == _TRTLLM:
        kernel_trtllm_update.abort(state, index)
    elif kind == _SGLANG:
        kernel_sglang_update.abort(state, index)
    elif kind == _BATCHES:
        kernel_batches.abort(state, index)


__all__ = ["abort", "add", "schedule", "update"]
