"""The scheduling functions of the simulated engine: a dispatch to vLLM's, SGLang's, ... rules.

Compiled code calls the engines' rules only through this module; the docstring of
``simulate/engine_config.py`` describes how to add an engine. ``kernel/loop.py`` compiles this
module once for each kind of engine, without the branches of the others.
"""

from typing import Final

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel import (
    batches,
    decode_run,
    requests,
    sglang,
    steady,
    trtllm,
    trtllm_run,
    vllm,
)
from inferometer.simulate.kernel.config import Kind
from inferometer.simulate.kernel.state import State
from inferometer.simulate.outcome import Status, StepLog

_VLLM, _TRTLLM, _BATCHES, _SGLANG = (
    int(Kind.VLLM),
    int(Kind.TRTLLM),
    int(Kind.BATCHES),
    int(Kind.SGLANG),
)
_WAITING = int(Status.WAITING)
KIND: Final = int(Kind.VLLM)
IS_POOLED: Final = False
"""Is the KV cache divided into pools, so that steps are simulated one by one?"""


@compiled
def add(state: State, index: int) -> None:
    """Add an arriving request to the waiting queue, or reject it."""
    kind = KIND
    if kind == _BATCHES:
        batches.add(state, index)
    elif kind == _SGLANG:
        sglang.add(state, index)
    elif kind == _VLLM:
        vllm.add(state, index)
    else:
        state.requests[index].status = _WAITING
        requests.add(state, index)


@inlined
def has_instances() -> bool:
    """Can the engine run several batches at the same time, each on a device of its own?"""
    return KIND == _BATCHES


@inlined
def next_batch(state: State) -> int:
    """Index of the batch record for the next step; a record must be free."""
    kind, counters = KIND, state.counters[0]
    i_batch: int = (counters.first_batch + counters.n_in_flight) % state.config[0].depth
    if kind == _BATCHES:
        i_batch = batches.idle_instance(state)
    return i_batch


@inlined
def first_batch(state: State) -> int:
    """Index of the batch in flight that ends first."""
    kind = KIND
    i_batch: int = state.counters[0].first_batch
    if kind == _BATCHES:
        i_batch = batches.first_done(state)
    return i_batch


@inlined
def schedule(state: State, i_batch: int) -> None:
    """Form the next step as batch ``i_batch``.

    Sets ``wake_ns`` if the engine delays a batch until that time.
    """
    kind = KIND
    if kind == _VLLM:
        vllm.schedule(state, i_batch)
    elif kind == _TRTLLM:
        trtllm.schedule(state, i_batch)
    elif kind == _SGLANG:
        sglang.schedule(state, i_batch)
    elif kind == _BATCHES:
        batches.schedule(state, i_batch)


@inlined
def update(state: State, i_batch: int) -> int:
    """Process the results of batch ``i_batch`` now; returns the number of delivered tokens."""
    kind = KIND
    n_delivered = 0
    if kind == _VLLM:
        n_delivered = vllm.update(state, i_batch)
    elif kind == _TRTLLM:
        n_delivered = trtllm.update(state, i_batch)
    elif kind == _SGLANG:
        n_delivered = sglang.update(state, i_batch)
    elif kind == _BATCHES:
        n_delivered = batches.update(state, i_batch)
    return n_delivered


@compiled
def take_decodes(state: State, cost: StepTimeArrays, log: StepLog, until_ns: int) -> None:
    """Run the decode steps before the next event at once, where the engine's rules let them.

    Those are vLLM's with an undivided KV cache, TensorRT-LLM's, and those of static batches.
    """
    kind, is_pooled = KIND, IS_POOLED
    if kind == _VLLM and not is_pooled:
        decode_run.take(state, cost, log, until_ns)
    elif kind == _TRTLLM:
        trtllm_run.take(state, cost, log, until_ns)
    elif kind == _BATCHES:
        batches.take_decodes(state, cost, log, until_ns)


@compiled
def plan_decodes(state: State, cost: StepTimeArrays, n_most: int) -> bool:
    """Plan the coming decode steps, where the engine's rules let them."""
    kind, is_pooled, is_planned = KIND, IS_POOLED, False
    if kind == _VLLM and not is_pooled:
        is_planned = decode_run.plan(state, cost, n_most)
    elif kind == _TRTLLM:
        is_planned = trtllm_run.plan(state, cost, n_most)
    return is_planned


@compiled
def take_planned(state: State, log: StepLog, n_steps: int) -> None:
    """Take this number of the planned steps."""
    kind, is_pooled = KIND, IS_POOLED
    if kind == _VLLM and not is_pooled:
        decode_run.take_planned(state, log, n_steps)
    elif kind == _TRTLLM:
        trtllm_run.take_planned(state, log, n_steps)


@compiled
def settle(state: State) -> None:
    """Update the requests to where they are now."""
    steady.end_from(state, 0, state.counters[0].current_step)


@compiled
def abort(state: State, index: int) -> None:
    """Abort a request whose client disconnected at ``Arrivals.abort_ns``."""
    kind = KIND
    if kind == _VLLM:
        vllm.abort(state, index)
    elif kind == _TRTLLM:
        trtllm.abort(state, index)
    elif kind == _SGLANG:
        sglang.abort(state, index)
    elif kind == _BATCHES:
        batches.abort(state, index)
