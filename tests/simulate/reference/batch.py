"""What is a step made of, and in which slot of the batch does each request sit?

In plain Python, for every engine's rules.
"""

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from inferometer.records.types import PartKind
from inferometer.simulate.outcome import FAR_NS
from reference.holes import Holes
from reference.request import Request

NO_SLOT: Final = -1


class Scheduled(NamedTuple):
    """One request's part of a step."""

    request: Request
    num_tokens: int
    num_computed_tokens: int
    """Tokens in the cache before the step."""
    kind: PartKind
    yields_token: bool
    slot: int
    num_spec_tokens: int = 0
    """Drafts among its tokens."""
    has_padded_drafts: bool = False
    """Can none of them be accepted?"""


class Batch(NamedTuple):
    """A step: what is computed, in order, and who was thrown out to make room."""

    scheduled: tuple[Scheduled, ...]
    preempted: tuple[Request, ...] = ()
    rejected: tuple[Request, ...] = ()
    """Who waited too long."""
    num_padding_tokens: int = 0
    """Computed for nobody, beside the prompts."""
    wake_ns: int = FAR_NS
    """When to ask again though nobody comes or goes."""
    holes: Holes | None = None
    """Of a contiguous KV cache, after the admissions."""
    num_swapped_blocks: int = 0
    """Copied to the host or back before the step."""
    num_read_tokens: int | None = None
    """Contexts of decodes by the bytes of their pools; None where all have one format."""
    num_drafted_read_tokens: int = 0
    """The same of those that get a token."""
    instance: int = 0
    """On which device, of those that run batches side by side."""


class Delivery(NamedTuple):
    """What a request got by a step."""

    request: Request
    num_tokens: int


class Slots:
    """The batch's slots: whoever runs keeps one; the lowest free one is taken."""

    def __init__(self, n_slots: int) -> None:
        self._free = list(range(n_slots))
        heapify(self._free)

    def take(self, request: Request) -> None:
        """Give a request the lowest free slot."""
        request.slot = heappop(self._free)

    def release(self, request: Request) -> None:
        """Free a request's slot, if it has one."""
        if request.slot != NO_SLOT:
            heappush(self._free, request.slot)
        request.slot = NO_SLOT


def launch(
    request: Request, num_tokens: int, *, is_async: bool, num_speculative_tokens: int = 0
) -> Scheduled:
    """Count a request's tokens as computed, though they are only about to be; drafts are verified with them."""
    num_before = request.num_computed_tokens
    num_spec = num_tokens + num_before - request.num_tokens - request.num_output_placeholders
    num_spec = max(min(request.num_spec_tokens, num_spec), 0)
    is_padded = request.has_padded_drafts
    request.num_spec_tokens, request.has_padded_drafts = 0, False
    kind = PartKind.CONTEXT if request.is_prefill_chunk else PartKind.GENERATION
    request.num_computed_tokens += num_tokens
    request.num_in_flight_tokens += num_tokens
    request.is_prefill_chunk = (
        request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
    )
    if is_async and not request.is_prefill_chunk:
        request.num_output_placeholders += 1 + num_spec
        request.num_spec_tokens = num_speculative_tokens
    yields = not request.is_prefill_chunk
    return Scheduled(
        request,
        num_tokens,
        num_before,
        kind,
        yields,
        request.slot,
        num_spec_tokens=num_spec,
        has_padded_drafts=is_padded,
    )
