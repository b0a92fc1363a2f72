"""Which step times alone give what a fit of published loads foretells of some devices, and what is left to be doubted of them?

What a fit foretells rests on parameters and on what the model misses nearby (``discrepancy``); a
file of step times has parameters only. So they are settled once more for the devices that are asked
about, until they alone give what the fit foretells there, and what they still miss is doubted of
every step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from inferometer.fit.discrepancy import TPOT, TTFT
from inferometer.fit.from_published import PublishedFit, SimulatedLoad, fit_published
from inferometer.fit.published_told import PHASES
from inferometer.perfmodel import steptime, steptime_limits, steptime_terms
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.spec.types import HardwareSpec
from inferometer.stats.estimate import Z_90

_MOST_PLACES: Final = 32
_SETTLED: Final = (
    TPOT._replace(amplitude_ratio=0.05, noise_ratio=0.02),
    TTFT._replace(amplitude_ratio=0.1, noise_ratio=0.05),
)
"""Misses that are left to what is no parameter when the parameters are settled."""
_LEAST_SPREAD: Final = 0.01


def places_asked(
    seen: Sequence[SimulatedLoad], hardware: HardwareSpec, n_tensor: int
) -> list[SimulatedLoad]:
    """The seen lengths and numbers of users on the devices that are asked about; who shares a step is as it was seen."""
    own = sorted(
        seen,
        key=lambda one: (
            one.published.engine.tensor_parallel_size != n_tensor,
            one.published.hardware != hardware,
        ),
    )
    distinct = list({one.published.load: one for one in reversed(own)}.values())
    chosen = [
        distinct[k]
        for k in np.unique(np.linspace(0, len(distinct) - 1, _MOST_PLACES).round().astype(int))
    ]
    engine = replace(seen[0].published.engine, tensor_parallel_size=n_tensor)
    return [
        replace(
            one,
            published=replace(one.published, hardware=hardware, engine=engine),
            work=steptime_terms.work_columns(
                one.published.model, engine, one.schedule.shapes, kv_traffic_ratio=1.0
            ),
        )
        for one in chosen
    ]


def settled_fit(places: Sequence[SimulatedLoad], fit: PublishedFit) -> PublishedFit:
    """The parameters that give what ``fit`` foretells of these places, which it was asked about."""
    return fit_published(
        [_as_foretold(one, fit, k) for k, one in enumerate(places)], places, _SETTLED
    )


def doubts_of(
    model: steptime.StepTimeModel,
    places: Sequence[SimulatedLoad],
    fit: PublishedFit,
    settled: PublishedFit,
) -> tuple[steptime_limits.PhaseDoubt, ...]:
    """So much that the interval of a usual step is as wide as the fit's own, with what the settled parameters miss on top.

    Of loads that were seen the fit claims to know much: what it claims of each when the others
    foretell it is meant then.
    """
    told = fit.foretold
    misses = settled.level - np.stack([told.log_tpot, told.log_ttft], axis=1)
    claimed = np.stack([told.half_tpot, told.half_ttft], axis=1) / Z_90
    known = np.stack(
        [
            model.log_variance(model.work([usual_step(one, phase) for one in places]))
            for phase in PHASES
        ],
        axis=1,
    )
    claimed_of_one = np.maximum(
        np.mean(claimed**2, axis=0), np.mean((fit.misses.half_width / Z_90) ** 2, axis=0)
    )
    left = np.maximum(np.mean(misses**2, axis=0) + claimed_of_one - np.mean(known, axis=0), 0.0)
    return tuple(
        steptime_limits.PhaseDoubt(phase=phase, spread_ratio=max(math.sqrt(left[k]), _LEAST_SPREAD))
        for k, phase in enumerate(PHASES)
    )


def usual_step(one: SimulatedLoad, phase: str) -> BatchShape:
    """A step of the load whose time its TPOT (decode) or TTFT (prefill) is most like."""
    load = one.published.load
    if phase == "prefill":
        return prefill_shape(batch_size=1, prompt_tokens=load.prompt_tokens)
    return decode_shape(
        batch_size=load.concurrency, context_tokens=load.prompt_tokens + load.output_tokens // 2
    )


def _as_foretold(one: SimulatedLoad, fit: PublishedFit, index: int) -> SimulatedLoad:
    told = fit.foretold
    seen = replace(
        one.published, tpot_s=math.exp(told.log_tpot[index]), ttft_s=math.exp(told.log_ttft[index])
    )
    return replace(one, published=seen)
