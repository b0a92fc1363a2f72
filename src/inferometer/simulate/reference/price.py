"""How long does a step take, with what is done around it? In plain Python.

A draft model works like the model, ``draft_cost_ratio`` as long: first on the rows of the step itself, whose cache it needs too, then
once for each further draft on one row of each request that got a token. What it drafts is verified in the next step.
"""

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate import step_cost
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.reference.batch import Batch
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_statistics import StepStatistics


def duration_ns(batch: Batch, step: StepStatistics, config: EngineConfig, cost: StepTimeArrays) -> int:
    """The nanoseconds of a batch, those of the drafts for the next step included; before it begins blocks are copied to and fro."""
    if not isinstance(config, SchedulerConfig):
        return _computing_ns(batch, step, cost, draft=None)
    swap_ns = (batch.num_swapped_blocks * config.swap_block_ps + 500) // 1000
    return swap_ns + _computing_ns(batch, step, cost, draft=config)


def _computing_ns(batch: Batch, step: StepStatistics, cost: StepTimeArrays, *, draft: SchedulerConfig | None) -> int:
    if not batch.scheduled:
        return 0
    num_spec_tokens = sum(part.num_spec_tokens for part in batch.scheduled)
    step_ns = step_cost.duration_ns(cost, *step, num_spec_tokens)
    if draft is None:
        return step_ns
    drafting_ns = step_ns
    yielding = [part for part in batch.scheduled if part.yields_token]
    if yielding:
        context_tokens = sum(part.num_computed_tokens + part.num_tokens for part in yielding)
        drafting_ns += (draft.num_speculative_tokens - 1) * step_cost.duration_ns(cost, 0, len(yielding), 0, 0, context_tokens)
    return step_ns + (drafting_ns * draft.draft_cost_millionths + 500_000) // 1_000_000


__all__ = ["duration_ns"]
