"""Duration of a step, with draft tokens and swapping of KV blocks. Compiled.

The same as ``reference/price.py``, on arrays. A row is a token that the step computes.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Final

from inferometer.perfmodel import steptime_terms
from inferometer.perfmodel.steptime_terms import CLOSED_FORM_PARTS, StepTimeArrays
from inferometer.simulate.compiling import compiled, inlined
from inferometer.simulate.kernel.state import KnownTimes, State


def _compiled_closed_form() -> dict[str, Callable[..., float]]:
    """The functions of the step-time model that the kernel calls, compiled, by name."""
    scope = dict[str, object](vars(steptime_terms))
    parts = dict[str, Callable[..., float]]()
    for name in CLOSED_FORM_PARTS:
        plain: FunctionType = getattr(steptime_terms, name)
        scope[name] = parts[name] = compiled(FunctionType(plain.__code__, scope, name))
    return parts


IS_POOLED: Final = False
"""Is the KV cache divided into pools, so that KV reads depend on their formats?"""
_CLOSED_FORM = _compiled_closed_form()
_layers_duration_s = _CLOSED_FORM["layers_duration_s"]
_head_duration_s = _CLOSED_FORM["head_duration_s"]
_whole_duration_s = _CLOSED_FORM["whole_duration_s"]


@inlined
def duration_ns(state: State, cost: StepTimeArrays, i_batch: int) -> int:
    """Duration of a batch in nanoseconds.

    Includes swapping of blocks to and from the host before it, and drafting for the next step.
    """
    batch = state.batches[i_batch]
    return group_duration_ns(state, cost, i_batch, n_rows(state, i_batch), batch.n_yielding)


@inlined
def n_rows(state: State, i_batch: int) -> int:
    """Rows (tokens) that a batch computes."""
    n_computed: int = (
        state.batches[i_batch].prefill_tokens + state.batches[i_batch].n_decode_requests
    )
    return n_computed


@inlined
def group_duration_ns(
    state: State, cost: StepTimeArrays, i_batch: int, n_group_rows: int, n_group_yielding: int
) -> int:
    """Duration of a batch in nanoseconds, with expert parallelism over several replicas.

    The experts compute the rows of all replicas of the group: ``n_group_rows`` in this step, and
    ``n_group_yielding`` in each step of the draft model after it.
    """
    config, batch = state.config[0], state.batches[i_batch]
    swap_ns: int = (batch.num_swapped_blocks * config.swap_block_ps + 500) // 1000
    return (
        swap_ns + _computing_ns(state, cost, i_batch, n_group_rows, n_group_yielding)
        if batch.n_parts + batch.n_steady > 0
        else swap_ns
    )


@inlined
def _computing_ns(
    state: State, cost: StepTimeArrays, i_batch: int, n_group_rows: int, n_group_yielding: int
) -> int:
    """Duration of a batch without swapping: the step, and drafting for the next one."""
    config, batch = state.config[0], state.batches[i_batch]
    is_pooled, context_tokens = IS_POOLED, batch.decode_context_tokens
    if is_pooled:
        context_tokens = batch.read_context_tokens
    step_ns: int = step_duration_ns(
        state.known[0],
        cost,
        batch.n_prefill_requests,
        batch.n_decode_requests,
        batch.prefill_tokens,
        batch.prefill_pairs_tokens2,
        context_tokens,
        batch.num_spec_tokens,
        n_group_rows,
    )
    if config.draft_cost_millionths == 0:
        return step_ns
    drafting_ns = step_ns
    if batch.n_yielding > 0:
        drafting_ns += (config.num_spec_tokens - 1) * step_duration_ns(
            state.known[0],
            cost,
            0,
            batch.n_yielding,
            0,
            0,
            batch.yielding_context_tokens,
            0,
            n_group_yielding,
        )
    step_ns += (drafting_ns * config.draft_cost_millionths + 500_000) // 1_000_000
    return step_ns


@inlined
def step_duration_ns(  # noqa: PLR0913, PLR0917 -- compiled code takes plain numbers
    known: KnownTimes,
    cost: StepTimeArrays,
    n_prefill: int,
    n_decode: int,
    prefill_tokens: int,
    pairs_tokens2: int,
    context_tokens: int,
    n_drafts: int,
    n_group_rows: int,
) -> int:
    """Duration of one step in nanoseconds, the same as ``step_cost.duration_ns``.

    The times of matrix products are reused from the last step if the number of rows is the same.
    """
    n_rows, n_group_rows = max(prefill_tokens + n_decode, 1), max(n_group_rows, 1)
    n_logits = n_rows if cost.computes_all_logits else n_prefill + n_decode + n_drafts
    if known.n_rows != n_rows or known.n_group_rows != n_group_rows:
        known.n_rows, known.n_group_rows = n_rows, n_group_rows
        known.layers_s = _layers_duration_s(cost, n_rows, n_group_rows)
    if known.n_logits != n_logits:
        known.n_logits = n_logits
        known.head_s = _head_duration_s(cost, n_logits)
    seconds = _whole_duration_s(
        cost,
        known.layers_s,
        known.head_s,
        n_prefill,
        n_decode,
        prefill_tokens,
        pairs_tokens2,
        context_tokens,
        n_logits,
        n_group_rows,
    )
    return max(int(seconds * 1e9 + 0.5), 1)
