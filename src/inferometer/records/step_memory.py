"""How well was KV cache memory used: blocks in use, holes between pieces, swapped blocks?"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.records.run_series import ValueSeries, value_series
from inferometer.records.types import ABSENT, Run


class HoleSeries(NamedTuple):
    """Free memory, its largest piece, and what had to move for the largest waiting request."""

    free: ValueSeries
    largest: ValueSeries
    debt: ValueSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemorySummary:
    """Memory over a run's steps, as means over their time; of one run, so no interval."""

    mean_used_blocks: int
    peak_used_blocks: int
    mean_fragmented_fraction: float | None
    """Of what was free, outside the largest hole; with the next two, None where the cache is
    paged."""
    peak_compaction_debt_blocks: int | None
    waits_for_compaction_fraction: float | None
    """Of the time: somebody waited for whom enough was free, but not in one piece."""
    swapped_blocks: int | None
    """To the host and back; None where nothing is swapped."""


def summarise_memory(run: Run) -> StepMemorySummary | None:
    """How well was the memory used?

    None where the run has no steps, or does not say how many blocks they used.
    """
    steps, memory = run.steps, run.step_memory
    if steps is None or not len(steps.start_ns) or bool(np.all(steps.kv_blocks_used == ABSENT)):
        return None
    weights = np.maximum(steps.duration_ns, 1).astype(np.float64)
    has_holes = memory is not None and bool(np.any(memory.free_blocks != ABSENT))
    has_swaps = memory is not None and bool(np.any(memory.swapped_blocks != ABSENT))
    return StepMemorySummary(
        mean_used_blocks=round(_mean(steps.kv_blocks_used.astype(np.float64), weights)),
        peak_used_blocks=int(steps.kv_blocks_used.max()),
        mean_fragmented_fraction=(
            _fragmented_fraction(memory.free_blocks, memory.largest_hole_blocks, weights)
            if memory is not None and has_holes
            else None
        ),
        peak_compaction_debt_blocks=(
            int(memory.compaction_debt_blocks.max()) if memory is not None and has_holes else None
        ),
        waits_for_compaction_fraction=(
            _mean((memory.compaction_debt_blocks > 0).astype(np.float64), weights)
            if memory is not None and has_holes
            else None
        ),
        swapped_blocks=(
            int(np.maximum(memory.swapped_blocks, 0).sum())
            if memory is not None and has_swaps
            else None
        ),
    )


def hole_series(run: Run) -> HoleSeries | None:
    """How did the holes change over the run? None where the cache is paged."""
    steps, memory = run.steps, run.step_memory
    if steps is None or memory is None or bool(np.all(memory.free_blocks == ABSENT)):
        return None
    debt = np.maximum(memory.compaction_debt_blocks, 0)
    return HoleSeries(
        value_series(steps, memory.free_blocks),
        value_series(steps, memory.largest_hole_blocks),
        value_series(steps, debt),
    )


def swap_series(run: Run) -> ValueSeries | None:
    """How many blocks were swapped before a step, over the run? None where nothing is swapped."""
    steps, memory = run.steps, run.step_memory
    if steps is None or memory is None or bool(np.all(memory.swapped_blocks == ABSENT)):
        return None
    return value_series(steps, memory.swapped_blocks)


def _fragmented_fraction(free: I64, largest: I64, weights: F64) -> float | None:
    has_free = free > 0
    return (
        _mean(1 - largest[has_free] / free[has_free], weights[has_free]) if has_free.any() else None
    )


def _mean(values: F64, weights: F64) -> float:
    return float((values * weights).sum() / weights.sum())
