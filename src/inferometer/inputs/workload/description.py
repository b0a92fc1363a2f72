"""Description of a plan of requests: rate, burstiness, lengths and shared prefixes."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.units import NS_PER_S

CONFIDENCE_FRACTION: Final = 0.95
_DEVIATIONS: Final = 1.959963984540054  # of the two-sided 95 % of a normal distribution
_MIN_GAPS: Final = 20
_BLOCK_TOKENS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Statistics of lengths."""

    mean_tokens: float
    p50_tokens: float
    p90_tokens: float
    p99_tokens: float
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """A plan in a few numbers; None for unknown ones.

    ``rate_per_s`` is the rate of independent arrivals (not of followers), over the time from the
    start to the last of them; ``gap_cv_ratio``, the standard deviation of their gaps over the mean,
    has a 95 % interval (delta method, independent gaps). ``shared_prefix_fraction``: share of
    prompt tokens that an earlier request has already (hits of an unlimited prefix cache).
    """

    n_requests: int
    n_followers: int
    n_sessions: int
    n_classes: int
    n_tenants: int
    span_s: float
    rate_per_s: float | None
    gap_cv_ratio: float | None
    gap_cv_low_ratio: float | None
    gap_cv_high_ratio: float | None
    prompt: LengthSummary
    output: LengthSummary
    shared_prefix_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptQuarter:
    """A quarter of the requests by prompt length, with its output lengths."""

    from_tokens: int
    to_tokens: int
    output_p50_tokens: float
    output_p90_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLengths:
    """Relation between prompt and output lengths.

    ``rank_correlation_ratio`` is Spearman's, from -1 to 1; None if one of them is constant.
    """

    rank_correlation_ratio: float | None
    quarters: tuple[PromptQuarter, ...]
    """By prompt length, short to long; equal prompts may be in two of them."""


def joint_lengths(plan: RequestPlan) -> JointLengths:
    """Relation between prompt and output lengths of a plan.

    Example
    -------
    >>> from inferometer.inputs.workload.plan import request_plan
    >>> tokens = {"prompt_tokens": [1, 2, 3, 4], "output_tokens": [5, 6, 9, 8]}
    >>> joint_lengths(request_plan("here", arrival_ns=[0] * 4, **tokens)).rank_correlation_ratio
    0.8
    """
    prompt, output = plan.prompt_tokens, plan.output_tokens
    order = np.argsort(prompt, kind="stable")
    parts = [part for part in np.array_split(order, 4) if len(part)]
    return JointLengths(
        rank_correlation_ratio=_rank_correlation(prompt, output),
        quarters=tuple(
            PromptQuarter(
                from_tokens=int(prompt[part].min()),
                to_tokens=int(prompt[part].max()),
                output_p50_tokens=float(np.quantile(output[part], 0.5)),
                output_p90_tokens=float(np.quantile(output[part], 0.9)),
            )
            for part in parts
        ),
    )


def _rank_correlation(one: NDArray[np.int32], other: NDArray[np.int32]) -> float | None:
    ranks = [_mean_ranks(values) for values in (one, other)]
    x, y = (rank - rank.mean() for rank in ranks)
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return round(float((x * y).sum()) / scale, 9) if scale else None


def _mean_ranks(values: NDArray[np.int32]) -> NDArray[np.float64]:
    """Ranks from 0; equal values have the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(((ends - counts) + (ends - 1))[group] / 2, dtype=np.float64)


def cacheable_fraction(plan: RequestPlan) -> float:
    """Share of prompt tokens that an unlimited prefix cache (blocks of 16) would hit.

    At least one token of each prompt is computed, as in vLLM.
    """
    most = np.minimum(plan.prefix_tokens, plan.prompt_tokens - 1).clip(min=0)
    hits = most // _BLOCK_TOKENS * _BLOCK_TOKENS
    return float(hits.sum(dtype=np.int64) / plan.prompt_tokens.sum(dtype=np.int64))


def describe(plan: RequestPlan, *, is_closed: bool = False) -> PlanDescription:
    """The plan in a few numbers; closed loops have no rate.

    Example
    -------
    >>> from inferometer.inputs.workload.plan import request_plan
    >>> arrival_ns = [0, 10**9, 2 * 10**9]
    >>> tokens = {"prompt_tokens": [1, 2, 3], "output_tokens": [5, 5, 5]}
    >>> describe(request_plan("here", arrival_ns=arrival_ns, **tokens)).rate_per_s
    1.5
    """
    arrival_ns = plan.arrival_ns[plan.follows == NONE]
    span_s = float(arrival_ns[-1]) / NS_PER_S
    cv = _variation(np.diff(arrival_ns) / NS_PER_S)
    in_session = plan.session_index[plan.session_index != NONE]
    return PlanDescription(
        n_requests=plan.n_requests,
        n_followers=plan.n_requests - len(arrival_ns),
        n_sessions=len(np.unique(in_session)),
        n_classes=len(np.unique(plan.class_index)),
        n_tenants=len(np.unique(plan.tenant_index)),
        span_s=span_s,
        rate_per_s=len(arrival_ns) / span_s if span_s > 0 and not is_closed else None,
        gap_cv_ratio=None if cv is None else cv[0],
        gap_cv_low_ratio=None if cv is None else max(cv[0] - cv[1], 0.0),
        gap_cv_high_ratio=None if cv is None else cv[0] + cv[1],
        prompt=_lengths(plan.prompt_tokens),
        output=_lengths(plan.output_tokens),
        shared_prefix_fraction=float(
            plan.prefix_tokens.sum(dtype=np.int64) / plan.prompt_tokens.sum(dtype=np.int64)
        ),
    )


def _variation(gaps_s: NDArray[np.float64]) -> tuple[float, float] | None:
    """The coefficient of variation, and half the width of its interval."""
    if len(gaps_s) < _MIN_GAPS or not gaps_s.any():
        return None
    mean, sd = float(gaps_s.mean()), float(gaps_s.std())
    cv = sd / mean
    if cv < 1e-6:  # evenly spaced, except for the rounding to nanoseconds
        return cv, 0.0
    scores = (gaps_s - mean) / sd
    skewness, kurtosis = float((scores**3).mean()), float((scores**4).mean())
    variance = max((kurtosis - 1) / 4 + cv * cv - skewness * cv, 0.0) / len(gaps_s)
    return cv, _DEVIATIONS * cv * float(np.sqrt(variance))


def _lengths(tokens: NDArray[np.int32]) -> LengthSummary:
    p50, p90, p99 = np.quantile(tokens, (0.5, 0.9, 0.99)).tolist()
    return LengthSummary(
        mean_tokens=float(tokens.mean()),
        p50_tokens=p50,
        p90_tokens=p90,
        p99_tokens=p99,
        max_tokens=int(tokens.max()),
    )
