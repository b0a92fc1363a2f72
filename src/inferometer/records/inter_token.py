"""How long did tokens follow one another: gap by gap between chunks, and token by token?

Per chunk is what a reader sees: one gap for each chunk. Per token each of a chunk's k tokens took a
k-th of its gap, so that servers which send several tokens at once compare with those that do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.request_summaries import Percentile
from inferometer.records.tokens import deliveries, delivery_gaps
from inferometer.records.types import Run
from inferometer.stats.autocorrelated import run_quantile_estimate
from inferometer.units import NS_PER_S

ITL_PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSummary:
    """Gaps of one view."""

    n_samples: int
    mean_s: float | None
    """None without samples."""
    percentiles: tuple[Percentile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenSummary:
    """Inter-token latency of a run, in both views."""

    per_chunk: GapSummary
    per_token: GapSummary
    n_chunks: int
    n_chunks_of_several: int
    n_chunks_assumed: int
    """Nobody could tell how many tokens they hold: their answer's are taken to be spread evenly."""
    tokens_per_chunk_ratio: float | None


def inter_token_summary(
    run: Run, *, percentiles: Sequence[float] = ITL_PERCENTILES
) -> InterTokenSummary:
    """Inter-token latency of all answers.

    Raises
    ------
    RecordError
        The run does not say who got what when.
    """
    given = deliveries(run)
    gaps = delivery_gaps(given)
    n_chunks = len(given.n_tokens)
    return InterTokenSummary(
        per_chunk=_summary(gaps.gap_ns / NS_PER_S, percentiles),
        per_token=_summary(gaps.per_token_s(), percentiles),
        n_chunks=n_chunks,
        n_chunks_of_several=int((given.n_tokens > 1).sum()),
        n_chunks_assumed=int(given.is_assumed.sum()),
        tokens_per_chunk_ratio=int(given.n_tokens.sum()) / n_chunks if n_chunks else None,
    )


def _summary(samples_s: F64, percentiles: Sequence[float]) -> GapSummary:
    estimates = [(fraction, run_quantile_estimate(samples_s, fraction)) for fraction in percentiles]
    return GapSummary(
        n_samples=len(samples_s),
        mean_s=float(np.mean(samples_s)) if len(samples_s) else None,
        percentiles=tuple(
            Percentile(percentile_fraction=fraction, seconds=estimate, is_lower_bound=False)
            for fraction, estimate in estimates
            if estimate is not None
        ),
    )
