"""How much of what the machine can do does a step use, and what does a token cost?

MBU and MFU as in requirements: bytes (FLOP) of the step / its time / the peak. The peak is a
datasheet's, or what was measured on the machine right around the step; the two are never mixed.
"""

from math import sqrt
from typing import Final

from inferometer.perfmodel.types import StepWork
from inferometer.stats.estimate import Estimate

_S_PER_HOUR: Final = 3600.0


def mbu_fraction(step_s: Estimate, work: StepWork, ceiling_bytes_per_s: Estimate) -> Estimate:
    """Which share of the memory bandwidth does a step use: (weight bytes + KV bytes read) / time / bandwidth?

    Source
    ------ Model bandwidth utilisation as defined by Databricks, "LLM Inference Performance
    Engineering: Best Practices" (2023): a 7B model in 16 bit at 14 ms per token moves 1 TB/s, 50 %
    of 2 TB/s.
    """
    return _utilisation(step_s, work.weight_bytes + work.kv_read_bytes, ceiling_bytes_per_s)


def mfu_fraction(step_s: Estimate, work: StepWork, ceiling_flop_per_s: Estimate) -> Estimate:
    """Which share of the peak FLOP/s (dense, of the number format computed in) does a step use?

    Source
    ------ Chowdhery et al., "PaLM" (arXiv 2204.02311), appendix B, applied to inference: FLOP of
    the step / time / peak.
    """
    return _utilisation(step_s, work.total_flop, ceiling_flop_per_s)


def exact(value: float, *, method: str = "datasheet") -> Estimate:
    """A constant as an estimate: no interval, because nobody measured it here."""
    return Estimate(
        value=value, low=None, high=None, confidence_fraction=0.95, n_samples=1, method=method
    )


def usd_per_million_tokens(tokens_per_s: Estimate, *, usd_per_hour: float) -> Estimate:
    """What do a million tokens cost: ($/h / 3600) · 10^6 / (tok/s)?

    Example
    -------
    >>> round(usd_per_million_tokens(exact(1000.0), usd_per_hour=3.6).value, 6)
    1.0
    """
    return tokens_per_s.inverted(usd_per_hour / _S_PER_HOUR * 1e6)


def joule_per_million_tokens(tokens_per_s: Estimate, *, power_watt: float) -> Estimate:
    """What energy do a million tokens take: watts · 10^6 / (tok/s)?"""
    return tokens_per_s.inverted(power_watt * 1e6)


def _utilisation(step_s: Estimate, amount: float, ceiling_per_s: Estimate) -> Estimate:
    """Amount / time / ceiling; relative half-widths of time and ceiling add in quadrature (they are measured apart)."""
    value = amount / step_s.value / ceiling_per_s.value
    widths = [_relative_half_width(step_s), _relative_half_width(ceiling_per_s) or 0.0]
    relative = (
        None
        if widths[0] is None
        else sqrt(sum(width * width for width in widths if width is not None))
    )
    return Estimate(
        value=value,
        low=None if relative is None else value / (1 + relative),
        high=None if relative is None else value * (1 + relative),
        confidence_fraction=step_s.confidence_fraction,
        n_samples=step_s.n_samples,
        method=f"{step_s.method}; ceiling: {ceiling_per_s.method}",
    )


def _relative_half_width(estimate: Estimate) -> float | None:
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value
