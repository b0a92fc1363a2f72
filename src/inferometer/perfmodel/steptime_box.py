"""In which box of shapes was a step-time model checked, and how far outside is a step?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.perfmodel.types import BatchShape

Quantity: TypeAlias = Literal[
    "prefilling requests",
    "prefill tokens",
    "prompt tokens per request",
    "decoding requests",
    "context tokens per decoding request",
]

_SLACK_RATIO: Final = 1.02
"""Contexts grow while a sweep decodes: two percent beyond the box is inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRange:
    """The range of one quantity of the steps that a model was fitted to."""

    quantity: Quantity
    low: int
    high: int


class Distance(NamedTuple):
    """How far outside the box: the sum of log ratios to the nearest edges, and which quantity lies outside which range."""

    log_distance: float
    reasons: tuple[str, ...]


def box_of(shapes: Sequence[BatchShape]) -> tuple[BoxRange, ...]:
    """The smallest box that holds these steps; quantities that no step has are left out."""
    seen: dict[Quantity, list[float]] = {}
    for shape in shapes:
        for quantity, value in _quantities(shape).items():
            seen.setdefault(quantity, []).append(value)
    return tuple(
        BoxRange(quantity=name, low=math.floor(min(values)), high=math.ceil(max(values)))
        for name, values in seen.items()
    )


def outside(box: Sequence[BoxRange], shape: BatchShape) -> Distance:
    """How far outside the box is this step, and why?

    Steps that mix phases were never seen by a sweep: that is said too.
    """
    ranges = {entry.quantity: entry for entry in box}
    log_distance, reasons = 0.0, list[str]()
    for quantity, value in _quantities(shape).items():
        known = ranges.get(quantity)
        if known is None:
            reasons.append(f"no step with {quantity} was measured")
            log_distance += 1.0
        elif not known.low / _SLACK_RATIO <= value <= known.high * _SLACK_RATIO:
            reasons.append(f"{quantity} = {value:.0f} outside {known.low} to {known.high}")
            log_distance += math.log(max(known.low / max(value, 0.5), value / known.high))
    if shape.n_prefill_requests and shape.n_decode_requests:
        reasons.append("steps that mix prefill and decode were not measured")
        log_distance += 0.5
    return Distance(log_distance=log_distance, reasons=tuple(reasons))


def nearest(box: Sequence[BoxRange], quantity: Quantity, value: int) -> int:
    """The value, or what is nearest to it of what the fit was checked on."""
    return next(
        (min(max(value, known.low), known.high) for known in box if known.quantity == quantity),
        value,
    )


def _quantities(shape: BatchShape) -> dict[Quantity, float]:
    values: dict[Quantity, float] = {}
    if shape.n_prefill_requests:
        values["prefilling requests"] = shape.n_prefill_requests
        values["prefill tokens"] = shape.prefill_tokens
        values["prompt tokens per request"] = shape.prefill_tokens / shape.n_prefill_requests
    if shape.n_decode_requests:
        values["decoding requests"] = shape.n_decode_requests
        values["context tokens per decoding request"] = (
            shape.decode_context_tokens / shape.n_decode_requests
        )
    return values
