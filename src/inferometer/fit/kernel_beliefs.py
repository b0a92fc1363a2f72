"""What is believed of a step's parameters when kernels were timed alone, and no step?"""

import math
from typing import Final

from inferometer.fit.priors import Belief
from inferometer.perfmodel.steptime import FittedParameter, ToldBy
from inferometer.perfmodel.steptime_terms import parameters_of
from inferometer.records.columns import F64
from inferometer.spec.types import ModelSpec
from inferometer.stats.estimate import Z_90, Estimate

_SMALL_KERNEL_S: Final = 2.8e-6
_N_SMALL: Final = 6
"""Kernels of a layer beside its matrix products and attention where torch.compile fused what it
could: two norms with their residual sums, norms of queries and keys with rotation, the write to
the cache, the activation, a copy."""
_N_SMALL_EXPERTS: Final = 12
"""Besides, in a layer of experts: router, softmax with top-k, sort, permutation, gather,
weighted sum and their copies."""
_IN_A_STEP: Final = (0.93, 0.06)
"""Speed of a kernel in a step relative to alone, and its doubt (log): steady clocks are lower,
caches are not warm."""


def step_beliefs(model: ModelSpec, vector: F64, *, has_link: bool) -> dict[str, Belief]:
    """What is believed of each parameter, once kernels alone gave ``vector``."""
    fitted = parameters_of(vector)
    ratio, doubt = _IN_A_STEP
    n_small = _N_SMALL + (_N_SMALL_EXPERTS if model.moe is not None else 0)
    small_s = n_small * _SMALL_KERNEL_S * model.n_layers
    alone = "kernels alone, slowed as in a step"
    table = {
        "launch_s": (
            5e-3,
            0.7,
            "what vLLM's host does between steps, mostly hidden behind the device",
        ),
        "weight_bytes_per_s": (ratio * fitted.weight_bytes_per_s, doubt, alone),
        "kv_bytes_per_s": (ratio * fitted.kv_bytes_per_s, 2 * doubt, alone),
        "matmul_flop_per_s": (ratio * fitted.matmul_flop_per_s, 2 * doubt, alone),
        "attention_flop_per_s": (ratio * fitted.attention_flop_per_s, 0.3, alone),
        "per_sequence_s": (5e-6, 1.0, "sampling and bookkeeping of a request"),
        "link_bytes_per_s": (
            fitted.link_bytes_per_s,
            0.5 if has_link else 0.0,
            "all-reduce alone; where the devices sit is not known",
        ),
        "message_s": (fitted.message_s, 0.7 if has_link else 0.0, "small all-reduces"),
        "floor_s": (
            fitted.floor_s + small_s,
            0.5,
            f"{n_small} small kernels a layer beside what the tables show",
        ),
        "prefill_ratio": (1.0, 0.0, "a prefill is launched like a decode step"),
        "overlap_ratio": (fitted.overlap_ratio, 0.0, "host runs ahead"),
        "blend_ratio": (fitted.blend_ratio, 0.1, "kernels"),
        "mixed_kv_ratio": (
            1.6,
            0.5,
            "one attention kernel for prompts and single tokens suits prompts",
        ),
    }
    beliefs = {
        name: Belief(centre_ratio=math.log(value), deviation_ratio=deviation, why=why)
        for name, (value, deviation, why) in table.items()
    }
    return beliefs | {
        "sag_ratio": Belief(centre_ratio=fitted.sag_ratio, deviation_ratio=0.05, why="kernels")
    }


def believed_parameter(name: str, belief: Belief) -> FittedParameter:
    """A parameter as it is believed, its interval, and who told it."""

    def value(place: float) -> float:
        return place if name == "sag_ratio" else math.exp(place)

    told_by: ToldBy = "prior" if belief.deviation_ratio > 0 else "fixed"
    half = Z_90 * belief.deviation_ratio
    is_known = told_by == "fixed"
    estimate = Estimate(
        value=value(belief.centre_ratio),
        low=None if is_known else value(belief.centre_ratio - half),
        high=None if is_known else value(belief.centre_ratio + half),
        confidence_fraction=0.9,
        n_samples=1,
        method=belief.why,
    )
    return FittedParameter(name=name, estimate=estimate, told_by=told_by)
