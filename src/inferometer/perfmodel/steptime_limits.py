"""Limit of a step, and how the parameters' uncertainty reaches a prediction (delta method).

Letters of shapes: N steps, K free parameters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec, HardwareSpec
from inferometer.perfmodel.roofline import peaks_of
from inferometer.perfmodel.steptime_terms import (
    PARAMETERS,
    Staircase,
    StepParameters,
    WorkColumns,
    host_s,
    term_columns,
)
from inferometer.perfmodel.types import BatchShape, Limit
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90

# The valid box: the ranges of the steps to which a model was fitted.


Quantity: TypeAlias = Literal[
    "prefilling requests",
    "prefill tokens",
    "prompt tokens per request",
    "decoding requests",
    "context tokens per decoding request",
]

_SLACK_RATIO: Final = 1.02
"""Up to 2 % beyond the box counts as inside, since contexts grow while a sweep decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRange:
    """The range of one quantity in the steps to which a model was fitted."""

    quantity: Quantity
    low: int
    high: int


class Distance(NamedTuple):
    """Distance of a step from the valid box: sum of log ratios to its edges, and the reasons."""

    log_distance: float
    reasons: tuple[str, ...]


def box_of(shapes: Sequence[BatchShape]) -> tuple[BoxRange, ...]:
    """The smallest box that contains these steps, without quantities that no step has."""
    seen: dict[Quantity, list[float]] = {}
    for shape in shapes:
        for quantity, value in _quantities(shape).items():
            seen.setdefault(quantity, []).append(value)
    return tuple(
        BoxRange(quantity=name, low=math.floor(min(values)), high=math.ceil(max(values)))
        for name, values in seen.items()
    )


def outside(box: Sequence[BoxRange], shape: BatchShape) -> Distance:
    """Distance of a step from the box, and in which quantities it is outside.

    Steps that mix prefill and decode are outside, because no sweep measures them.
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
    """The value of this quantity inside the box that is nearest to ``value``."""
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


PhaseName: TypeAlias = Literal["prefill", "decode"]

Answer: TypeAlias = Callable[[F64, Staircase], F64]
"""A function of the parameters (vector, staircase) that returns one number for each step."""

_DEVICE_CAUSES: Final[tuple[Limit, ...]] = (
    "weight bandwidth",
    "KV bandwidth",
    "compute",
    "attention",
    "communication",
)
_STEP: Final = 1e-4
_TINY: Final = float(np.finfo(float).tiny)
_WIDENING_RATIO: Final = 0.15
"""Standard deviation of log time that is added per unit of log distance from the box. It is an
assumption: nothing was measured there."""

_Z_DECIDED: Final = 1.645  # one-sided 95 %


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUncertainty:
    """Uncertainty of the step times of one phase, besides that of the parameters."""

    phase: PhaseName
    spread_ratio: float
    """Standard deviation of log time around the model."""
    interval_ratio: float = Z_90
    """Half width of the 90 % interval in standard deviations, estimated from held-out errors if
    there are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPosterior:
    """The fitted (maximum a posteriori) parameters, and the covariance of the free ones."""

    vector: F64
    staircase: Staircase
    free: tuple[str, ...]
    """Names of the rows of ``covariance``: some of ``PARAMETERS``, then ``rows N`` for the
    staircase's knots."""
    covariance: F64

    def variance(self, answer: Answer) -> F64:
        """(N) Variance of each number that ``answer`` returns (delta method, first order)."""
        gradient = self._gradient(answer)
        return np.asarray(
            np.einsum("kn,kl,ln->n", gradient, self.covariance, gradient), dtype=np.float64
        )

    def log_time_variance(self, work: WorkColumns) -> F64:
        """Variance of the logarithm of each step's time."""
        return self.variance(
            lambda vector, staircase: np.log(term_columns(vector, staircase, work).total_s)
        )

    def _gradient(self, answer: Answer) -> F64:
        """(K, N) Derivatives of ``answer`` by the free parameters (central differences)."""
        ends = [answer(*self._moved(step)) for step in (_STEP, -_STEP)]
        return np.asarray((ends[0] - ends[1]) / (2 * _STEP), dtype=np.float64)

    def _moved(self, step: float) -> tuple[F64, Staircase]:
        """K sets of parameters, the k-th with the k-th free parameter changed by ``step``."""
        return moved(self.vector, self.staircase, self.free, step)


def posterior_of(
    physical: StepParameters,
    staircase_rows: Sequence[int],
    staircase_log_ratio: Sequence[float],
    free: tuple[str, ...],
    covariance: Sequence[Sequence[float]],
) -> ParameterPosterior:
    """A ``ParameterPosterior`` from the numbers that a fit's file stores."""
    staircase = Staircase(
        log_rows=np.log(np.array(staircase_rows, dtype=np.float64)),
        log_ratio=np.array(staircase_log_ratio),
    )
    square = np.array(covariance, dtype=np.float64).reshape(len(free), len(free))
    return ParameterPosterior(
        vector=physical.vector(), staircase=staircase, free=free, covariance=square
    )


def log_half_widths(
    uncertainties: Sequence[PhaseUncertainty],
    box: Sequence[BoxRange],
    shapes: Sequence[BatchShape],
    log_variance: F64,
    machine_ratio: float = 0.0,
) -> F64:
    """(N) Half width of the 90 % interval of the logarithm of each step's time.

    It combines the parameters' uncertainty, the model's own error, the distance from the box, and
    ``machine_ratio``: the standard deviation of the machine's log speed.
    """
    by_phase = {entry.phase: entry for entry in uncertainties}
    widest = max(uncertainties, key=lambda entry: entry.spread_ratio * entry.interval_ratio)
    mine = [
        by_phase.get("prefill" if shape.n_prefill_requests else "decode", widest)
        for shape in shapes
    ]
    extra = _WIDENING_RATIO * np.array([outside(box, shape).log_distance for shape in shapes])
    spread = np.array([entry.spread_ratio for entry in mine])
    width = np.array([entry.interval_ratio for entry in mine])
    own = width * np.sqrt(log_variance + spread**2 + extra**2)
    return np.asarray(np.hypot(own, Z_90 * machine_ratio), dtype=np.float64)


def interval_factors(
    uncertainties: Sequence[PhaseUncertainty],
    box: Sequence[BoxRange],
    shapes: Sequence[BatchShape],
    log_variance: F64,
    machine_ratio: float = 0.0,
) -> F64:
    """(N) Factor f of each step: the 90 % interval of its time t is t / f to t · f."""
    return np.asarray(
        np.exp(log_half_widths(uncertainties, box, shapes, log_variance, machine_ratio)),
        dtype=np.float64,
    )


def moved(
    vector: F64, staircase: Staircase, free: tuple[str, ...], step: float
) -> tuple[F64, Staircase]:
    """K copies of the parameters, the k-th with the k-th free parameter changed by ``step``."""
    moves = step * np.eye(len(free))
    indices = [PARAMETERS.index(name) for name in free if name in PARAMETERS]
    vectors = np.tile(vector[:, None], (1, len(free)))
    vectors[indices] += moves[: len(indices)]
    log_ratio = np.tile(staircase.log_ratio, (len(free), 1)) + moves[:, len(indices) :]
    return vectors[:, :, None], staircase._replace(log_ratio=log_ratio)


def limits(posterior: ParameterPosterior, work: WorkColumns) -> tuple[Limit, ...]:
    """The largest part of each step's time, if it exceeds the second one with 95 % confidence.

    Otherwise "undecided". If host and device overlap, the limit is "launch overhead" in steps in
    which the host takes longer than the device with all its parts.
    """
    is_overlapped = posterior.vector[PARAMETERS.index("overlap_ratio")] > 0
    names = _DEVICE_CAUSES if is_overlapped else (*_DEVICE_CAUSES, "launch overhead")
    order = np.argsort(_log_seconds(names, posterior.vector, posterior.staircase, work), axis=0)
    first, second, columns = order[-1], order[-2], np.arange(order.shape[1])

    def lead(vector: F64, staircase: Staircase) -> F64:
        seconds = _log_seconds(names, vector, staircase, work)
        return np.asarray(
            seconds[first, ..., columns].T - seconds[second, ..., columns].T, dtype=np.float64
        )

    def host_lead(vector: F64, staircase: Staircase) -> F64:
        terms = term_columns(vector, staircase, work)
        return np.asarray(
            np.log(host_s(vector, work)) - np.log(terms.total_s - terms.launch), dtype=np.float64
        )

    is_decided = _is_positive(posterior, lead) > 0
    named: list[Limit] = [
        names[index] if decided else "undecided"
        for index, decided in zip(first, is_decided, strict=True)
    ]
    if not is_overlapped:
        return tuple(named)
    balance = _is_positive(posterior, host_lead)
    return tuple(
        "launch overhead" if side > 0 else name if side < 0 else "undecided"
        for side, name in zip(balance, named, strict=True)
    )


def _is_positive(posterior: ParameterPosterior, answer: Answer) -> F64:
    """(N) 1 if the answer is positive with 95 % confidence, -1 if negative, 0 if neither."""
    value = answer(posterior.vector, posterior.staircase)
    return np.asarray(
        np.sign(value) * (np.abs(value) > _Z_DECIDED * np.sqrt(posterior.variance(answer))),
        dtype=np.float64,
    )


def _log_seconds(
    names: tuple[Limit, ...], vector: F64, staircase: Staircase, work: WorkColumns
) -> F64:
    """Logarithms of the seconds of these causes of step time, along the first axis."""
    terms = term_columns(vector, staircase, work)
    seconds: dict[Limit, F64] = {
        "weight bandwidth": terms.weights + terms.head_weights,
        "KV bandwidth": terms.kv,
        "compute": terms.matmul + terms.head_matmul,
        "attention": terms.attention,
        "communication": terms.communication,
        "launch overhead": terms.launch,
    }
    return np.asarray(
        np.log(np.maximum(np.stack([seconds[name] for name in names]), _TINY)), dtype=np.float64
    )


# What bounds the parameters: the peaks of a device.


NO_TIME_S: Final = 1e-12
_NO_BOUND: Final = 1e30
"""No time and no bound, where the closed form takes logarithms."""


def peak_rates(hardware: HardwareSpec, engine: EngineSpec) -> dict[str, float]:
    """Upper bounds of one device's rates, by parameter.

    Of products, the peak of the fastest format that takes part.
    """
    memory = hardware.memory_bytes_per_s.value
    found = {"weight_bytes_per_s": memory, "kv_bytes_per_s": memory}
    try:
        peaks = peaks_of(hardware, engine)
    except SpecError:  # the catalogue has no peak in this format, so nothing bounds its products
        return found
    of_weights = (
        None if engine.quantization is None else hardware.peak_flop_per_s(engine.quantization)
    )
    flop_per_s = max(peaks.flop_per_s, 0.0 if of_weights is None else of_weights.value)
    found |= {"matmul_flop_per_s": flop_per_s, "attention_flop_per_s": flop_per_s}
    return (
        found
        if peaks.link_bytes_per_s is None
        else found | {"link_bytes_per_s": peaks.link_bytes_per_s}
    )


def fastest_steps(hardware: HardwareSpec, engine: EngineSpec) -> StepParameters:
    """Step times at the peaks of ``peak_rates``, where nothing else takes time."""
    rates = peak_rates(hardware, engine)
    return StepParameters(
        launch_s=NO_TIME_S,
        weight_bytes_per_s=rates["weight_bytes_per_s"],
        kv_bytes_per_s=rates["kv_bytes_per_s"],
        matmul_flop_per_s=rates.get("matmul_flop_per_s", _NO_BOUND),
        attention_flop_per_s=rates.get("attention_flop_per_s", _NO_BOUND),
        per_sequence_s=NO_TIME_S,
        link_bytes_per_s=rates.get("link_bytes_per_s", _NO_BOUND),
        message_s=NO_TIME_S,
        floor_s=NO_TIME_S,
        prefill_ratio=1.0,
        overlap_ratio=64.0,
        blend_ratio=64.0,
        sag_ratio=0.0,
    )
