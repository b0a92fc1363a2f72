"""How long does a step take, with what is done around it? Compiled.

The same as ``reference/price.py``, on arrays.
"""

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.compiling import inlined
from inferometer.simulate.kernel.state import State
from inferometer.simulate.step_cost import compiled_group_duration_ns


@inlined
def duration_ns(state: State, cost: StepTimeArrays, slot: int) -> int:
    """The nanoseconds of a batch, those of the drafts for the next step included.

    Before it begins blocks are copied to and fro.
    """
    batch = state.batches[slot]
    return group_duration_ns(state, cost, slot, n_rows(state, slot), batch.n_yielding)


@inlined
def n_rows(state: State, slot: int) -> int:
    """How many rows does a batch compute?"""
    n_computed: int = state.batches[slot].prefill_tokens + state.batches[slot].n_decode_requests
    return n_computed


@inlined
def group_duration_ns(
    state: State, cost: StepTimeArrays, slot: int, n_group_rows: int, n_group_yielding: int
) -> int:
    """The same where so many rows, and of drafts so many, go through experts that several replicas share."""
    config, batch = state.config[0], state.batches[slot]
    swap_ns: int = (batch.num_swapped_blocks * config.swap_block_ps + 500) // 1000
    return (
        swap_ns + _computing_ns(state, cost, slot, n_group_rows, n_group_yielding)
        if batch.n_parts > 0
        else swap_ns
    )


@inlined
def _computing_ns(
    state: State, cost: StepTimeArrays, slot: int, n_group_rows: int, n_group_yielding: int
) -> int:
    config, batch = state.config[0], state.batches[slot]
    step_ns: int = compiled_group_duration_ns(
        cost,
        batch.n_prefill_requests,
        batch.n_decode_requests,
        batch.prefill_tokens,
        batch.prefill_pairs_tokens2,
        batch.decode_context_tokens,
        batch.num_spec_tokens,
        n_group_rows,
    )
    if config.draft_cost_millionths == 0:
        return step_ns
    drafting_ns = step_ns
    if batch.n_yielding > 0:
        drafting_ns += (config.num_spec_tokens - 1) * compiled_group_duration_ns(
            cost, 0, batch.n_yielding, 0, 0, batch.yielding_context_tokens, 0, n_group_yielding
        )
    step_ns += (drafting_ns * config.draft_cost_millionths + 500_000) // 1_000_000
    return step_ns
