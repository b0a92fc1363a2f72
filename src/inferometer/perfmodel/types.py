"""A step: what it contains (shape), its work, and its bounds."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.inputs.types import DType, Source
from inferometer.stats.estimate import Estimate

Limit: TypeAlias = Literal[
    "weight bandwidth",
    "KV bandwidth",
    "compute",
    "attention",
    "launch overhead",
    "communication",
    "undecided",
]
"""What can limit a step, in the words of the reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The counts of a step on which its predicted time depends (sufficient statistics).

    One prefilling request with q new tokens after c cached ones contributes q to ``prefill_tokens``
    and q·(c + (q + 1)/2) to ``prefill_context_product_tokens2``; one decoding request with context
    L (its new token included) adds L to ``decode_context_tokens``.
    """

    n_prefill_requests: int
    n_decode_requests: int
    prefill_tokens: int
    prefill_context_product_tokens2: int
    decode_context_tokens: int
    n_logit_positions: int
    """Positions for which logits are computed: the number of requests, unless an engine computes
    all of a prompt."""

    @property
    def n_rows(self) -> int:
        """Rows of every matrix product of the layers: the step's new tokens."""
        return self.prefill_tokens + self.n_decode_requests


def prefill_shape(*, batch_size: int, prompt_tokens: int, cached_tokens: int = 0) -> BatchShape:
    """A step that prefills ``batch_size`` equal prompts, ``cached_tokens`` of each cached."""
    new_tokens = prompt_tokens - cached_tokens
    product_tokens2 = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    return BatchShape(
        n_prefill_requests=batch_size,
        n_decode_requests=0,
        prefill_tokens=batch_size * new_tokens,
        prefill_context_product_tokens2=batch_size * product_tokens2,
        decode_context_tokens=0,
        n_logit_positions=batch_size,
    )


def decode_shape(*, batch_size: int, context_tokens: int) -> BatchShape:
    """A step that decodes ``batch_size`` equal sequences; contexts include the new token."""
    return BatchShape(
        n_prefill_requests=0,
        n_decode_requests=batch_size,
        prefill_tokens=0,
        prefill_context_product_tokens2=0,
        decode_context_tokens=batch_size * context_tokens,
        n_logit_positions=batch_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """FLOP and bytes of a step on one device."""

    matmul_flop: float
    attention_flop: float
    logits_flop: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    link_bytes: float
    """Bytes that one device sends for tensor, pipeline and expert parallelism."""
    n_link_messages: int

    @property
    def total_flop(self) -> float:
        """All floating-point operations of the step."""
        return self.matmul_flop + self.attention_flop + self.logits_flop

    @property
    def memory_bytes(self) -> float:
        """All bytes that are read from or written to device memory."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """Times of compute, memory and link traffic, which bound a step's time."""

    compute_s: float
    memory_s: float
    link_s: float
    bound_by: Literal["compute", "memory", "link"]

    @property
    def lower_s(self) -> float:
        """Lower bound: the longest of the three times, everything else overlapping."""
        return max(self.compute_s, self.memory_s, self.link_s)

    @property
    def upper_s(self) -> float:
        """Upper bound: the sum of the three times, without overlap."""
        return self.compute_s + self.memory_s + self.link_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of a step's time."""

    name: str
    """launch, weights, kv, matmul, attention, logits, per_sequence, communication, unexplained."""
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """Duration of a step, its parts, its limit, and whether it is inside the fit's valid box."""

    duration_s: Estimate
    terms: tuple[Term, ...]
    """Parts that sum to ``duration_s.value``."""
    limited_by: Limit
    is_inside_box: bool
    outside_why: str | None
    """Which quantities are outside their ranges, if ``is_inside_box`` is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat:
    """How a quantised matrix is stored.

    Each weight has ``value_bits``; each group of weights has a scale and a zero point.
    """

    value_bits: int
    group_size: int
    scale_bits: int
    zero_bits: int
    source: Source

    @property
    def weight_bits(self) -> float:
        """Bits per weight, scales and zero points included."""
        return self.value_bits + (self.scale_bits + self.zero_bits) / self.group_size


STORED_FORMATS: Final[dict[DType, StoredFormat]] = {
    "int4": StoredFormat(
        value_bits=4,
        group_size=128,
        scale_bits=16,
        zero_bits=4,
        source=Source(
            kind="page",
            where="arXiv 2306.00978 (AWQ): groups of 128, 16-bit scale, 4-bit zero point",
        ),
    ),
    "float4": StoredFormat(
        value_bits=4,
        group_size=32,
        scale_bits=8,
        zero_bits=0,
        source=Source(
            kind="page",
            where="OCP Microscaling Formats v1.0: MXFP4, blocks of 32 with an 8-bit scale",
        ),
    ),
    "int8": StoredFormat(
        value_bits=8,
        group_size=128,
        scale_bits=16,
        zero_bits=0,
        source=Source(
            kind="derived",
            where=(
                "a 16-bit scale for each 128 weights: an upper figure, per-channel scales cost less"
            ),
        ),
    ),
    "float8": StoredFormat(
        value_bits=8,
        group_size=128 * 128,
        scale_bits=32,
        zero_bits=0,
        source=Source(
            kind="page",
            where=(
                "arXiv 2412.19437 section 3.3 (DeepSeek-V3): blocks of 128 x 128 with a 32-bit"
                " scale"
            ),
        ),
    ),
}
