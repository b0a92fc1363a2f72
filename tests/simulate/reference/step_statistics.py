"""What does the length of a step depend on? A batch in five numbers."""

from typing import NamedTuple

from inferometer.records.types import PartKind
from reference.batch import Batch


class StepStatistics(NamedTuple):
    """The sufficient statistics of a step, in the order in which ``step_cost.duration_ns`` takes them."""

    n_prefill_requests: int
    n_decode_requests: int
    prefill_tokens: int
    """Computed for prompts, padding included, and to verify drafts: all rows but one of each
    that generates."""
    prefill_pairs_tokens2: int
    """(query, key) pairs of the prompts."""
    context_tokens: int
    """What those that generate look back at."""


def step_statistics(batch: Batch) -> StepStatistics:
    """The statistics of this batch."""
    prefills = [part for part in batch.scheduled if part.kind is PartKind.CONTEXT]
    decodes = [part for part in batch.scheduled if part.kind is not PartKind.CONTEXT]
    return StepStatistics(
        n_prefill_requests=len(prefills),
        n_decode_requests=len(decodes),
        prefill_tokens=sum(part.num_tokens for part in prefills)
        + batch.num_padding_tokens
        + sum(part.num_tokens - 1 for part in decodes),
        prefill_pairs_tokens2=sum(
            part.num_tokens * part.num_computed_tokens
            + part.num_tokens * (part.num_tokens + 1) // 2
            for part in prefills
        ),
        context_tokens=sum(part.num_computed_tokens + part.num_tokens for part in decodes),
    )
