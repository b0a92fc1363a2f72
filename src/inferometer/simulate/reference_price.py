"""How long does a step take, with what is done around it? In plain Python.

A draft model works like the model, ``draft_cost_ratio`` as long: first on the rows of the step itself, whose cache it needs too, then
once for each further draft on one row of each request that got a token. What it drafts is verified in the next step.
"""

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate import step_cost
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.reference_batch import Batch
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_statistics import StepStatistics


def duration_ns(batch: Batch, step: StepStatistics, config: EngineConfig, cost: StepTimeArrays) -> int:
    """The nanoseconds of a batch that computes something, those of the drafts for the next step included."""
    num_spec_tokens = sum(part.num_spec_tokens for part in batch.scheduled)
    step_ns = step_cost.duration_ns(cost, *step, num_spec_tokens)
    if not isinstance(config, SchedulerConfig):
        return step_ns
    drafting_ns = step_ns
    yielding = [part for part in batch.scheduled if part.yields_token]
    if yielding:
        context_tokens = sum(part.num_computed_tokens + part.num_tokens for part in yielding)
        drafting_ns += (config.num_speculative_tokens - 1) * step_cost.duration_ns(cost, 0, len(yielding), 0, 0, context_tokens)
    return step_ns + (drafting_ns * config.draft_cost_millionths + 500_000) // 1_000_000


__all__ = ["duration_ns"]
