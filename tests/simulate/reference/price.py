"""How long does a step take, with what is done around it? In plain Python.

A draft model works like the model, ``draft_cost_ratio`` as long: first on the rows of the step
itself, whose cache it needs too, then once for each further draft on one row of each request that
got a token. What it drafts is verified in the next step.
"""

from typing import NamedTuple

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate import step_cost
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.batch import Batch
from reference.step_statistics import StepStatistics


class SharedRows(NamedTuple):
    """How many rows of a step go through experts that several replicas share, and how many of its drafts?"""

    n_rows: int
    n_yielding: int


def rows_of(batch: Batch, step: StepStatistics) -> SharedRows:
    """Those of one batch."""
    return SharedRows(
        step.prefill_tokens + step.n_decode_requests,
        sum(part.yields_token for part in batch.scheduled),
    )


def duration_ns(
    batch: Batch,
    step: StepStatistics,
    config: EngineConfig,
    cost: StepTimeArrays,
    shared: SharedRows | None = None,
) -> int:
    """The nanoseconds of a batch, those of the drafts for the next step included.

    Before it begins blocks are copied to and fro.

    ``shared`` are the rows of all replicas where they share experts.
    """
    shared = rows_of(batch, step) if shared is None else shared
    if not isinstance(config, SchedulerConfig):
        return _computing_ns(batch, step, cost, shared, draft=None)
    swap_ns = (batch.num_swapped_blocks * config.swap_block_ps + 500) // 1000
    return swap_ns + _computing_ns(batch, step, cost, shared, draft=config)


def _computing_ns(
    batch: Batch,
    step: StepStatistics,
    cost: StepTimeArrays,
    shared: SharedRows,
    *,
    draft: SchedulerConfig | None,
) -> int:
    if not batch.scheduled:
        return 0
    num_spec_tokens = sum(part.num_spec_tokens for part in batch.scheduled)
    if batch.num_read_tokens is not None:
        step = step._replace(context_tokens=batch.num_read_tokens)
    step_ns = step_cost.duration_ns(cost, *step, num_spec_tokens, shared.n_rows)
    if draft is None:
        return step_ns
    drafting_ns = step_ns
    yielding = [part for part in batch.scheduled if part.yields_token]
    if yielding:
        context_tokens = sum(part.num_computed_tokens + part.num_tokens for part in yielding)
        if batch.num_read_tokens is not None:
            context_tokens = batch.num_drafted_read_tokens
        drafting_ns += (draft.num_speculative_tokens - 1) * step_cost.duration_ns(
            cost, 0, len(yielding), 0, 0, context_tokens, 0, shared.n_yielding
        )
    return step_ns + (drafting_ns * draft.draft_cost_millionths + 500_000) // 1_000_000
