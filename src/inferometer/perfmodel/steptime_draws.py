"""Step times drawn from a fit's uncertainty: parameters, and what each phase leaves besides them.

A draw is one possible machine. Decode and prefill miss by factors of their own, so a machine that
decodes slowly need not prefill slowly. Of many draws those are kept that part a typical request's
time into twentieths: the fastest and the slowest are the ends of a 90 % interval, without the
noise of so few draws. Letters of shapes: D draws, K free parameters.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from inferometer.perfmodel.steptime import StepTimeModel, arrays_of
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, slowed
from inferometer.perfmodel.steptime_limits import PhaseName
from inferometer.perfmodel.steptime_terms import PARAMETERS, Staircase, parameters_of, term_columns
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90, Estimate

N_DRAWS: Final = 19
_N_TRIED: Final = 400
_SEED: Final = 20261123
_BATCH: Final = 32
_PROMPT_TOKENS: Final = 1024
_OUTPUT_TOKENS: Final = 256
_OF_PROMPTS: Final = ("matmul_row_s", "expert_row_s", "attention_pair_s", "prefill_launch_s")
"""What a prefill's time consists of and a decode step's hardly does."""
_MOST_SPREADS: Final = 3.0


class StepDraw(NamedTuple):
    """One possible machine: its step times, and the time of a request outside of the engine."""

    steps: StepTimeArrays
    front_end_s: float


class _Draws(NamedTuple):
    """Of D machines."""

    vector: F64
    """(D, parameters)"""
    log_ratio: F64
    """(D, knots) Of the staircase."""
    decode_ratio: F64
    prefill_ratio: F64
    front_end_s: F64


def drawn_steps(
    fit: StepTimeModel, arrays: Callable[[StepTimeModel], StepTimeArrays] = arrays_of
) -> tuple[StepDraw, ...]:
    """``N_DRAWS`` machines, the fastest first; ``arrays`` makes a simulator's numbers of each."""
    tried = _tried(fit)
    order = np.argsort(_request_s(fit, tried))
    ranks = np.round(np.arange(1, N_DRAWS + 1) / (N_DRAWS + 1) * (_N_TRIED - 1)).astype(int)
    return tuple(_draw(fit, tried, int(index), arrays) for index in order[ranks])


def _tried(fit: StepTimeModel) -> _Draws:
    posterior = fit.posterior()
    # numbers from a fixed seed, as in every simulation: the same question has the same answer
    rng = np.random.default_rng(_SEED)
    normal = np.clip(
        rng.standard_normal((_N_TRIED, len(fit.free) + 3)), -_MOST_SPREADS, _MOST_SPREADS
    )
    values, axes = np.linalg.eigh(posterior.covariance)
    moves = normal[:, : len(fit.free)] * np.sqrt(np.maximum(values, 0.0)) @ axes.T
    places = [PARAMETERS.index(name) for name in fit.free if name in PARAMETERS]
    vector = np.tile(posterior.vector, (_N_TRIED, 1))
    vector[:, places] += moves[:, : len(places)]
    spreads = _spreads(fit)
    front_end = fit.front_end_s
    return _Draws(
        vector=vector,
        log_ratio=posterior.staircase.log_ratio + moves[:, len(places) :],
        decode_ratio=np.exp(normal[:, -3] * spreads["decode"]),
        prefill_ratio=np.exp(normal[:, -2] * spreads["prefill"]),
        front_end_s=(
            np.zeros(_N_TRIED)
            if front_end is None
            else front_end.value * np.exp(normal[:, -1] * _log_sd(front_end))
        ),
    )


def _spreads(fit: StepTimeModel) -> dict[PhaseName, float]:
    """Standard deviation of log time around the model in each phase."""
    known = {one.phase: one.spread_ratio * one.interval_ratio / Z_90 for one in fit.doubts}
    widest = max(known.values(), default=0.0)
    return {"decode": known.get("decode", widest), "prefill": known.get("prefill", widest)}


def _log_sd(estimate: Estimate) -> float:
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return 0.0
    return float(np.log(estimate.high / estimate.low)) / (2 * Z_90)


def _request_s(fit: StepTimeModel, tried: _Draws) -> F64:
    """(D) Device time of a typical request among others: its prefill, and its share of decoding."""
    work = fit.work(
        [
            decode_shape(batch_size=_BATCH, context_tokens=_PROMPT_TOKENS + _OUTPUT_TOKENS // 2),
            prefill_shape(batch_size=1, prompt_tokens=_PROMPT_TOKENS),
        ]
    )
    staircase = Staircase(fit.posterior().staircase.log_rows, tried.log_ratio)
    step_s = term_columns(tried.vector.T[:, :, None], staircase, work).total_s
    decode_s = step_s[:, 0] * tried.decode_ratio * _OUTPUT_TOKENS / _BATCH
    return np.asarray(decode_s + step_s[:, 1] * tried.prefill_ratio, dtype=np.float64)


def _draw(
    fit: StepTimeModel, tried: _Draws, index: int, arrays: Callable[[StepTimeModel], StepTimeArrays]
) -> StepDraw:
    physical = parameters_of(tried.vector[index])
    moved = replace(
        fit,
        parameters=tuple(
            replace(one, estimate=replace(one.estimate, value=value, low=value, high=value))
            for one in fit.parameters
            for value in [float(getattr(physical, one.name))]
        ),
        staircase_log_ratio=tuple(tried.log_ratio[index].tolist()),
    )
    decode_ratio = float(tried.decode_ratio[index])
    steps = slowed(arrays(moved), decode_ratio)
    prompts_ratio = float(tried.prefill_ratio[index]) / decode_ratio
    steps = steps._replace(**{name: getattr(steps, name) * prompts_ratio for name in _OF_PROMPTS})
    return StepDraw(steps, float(tried.front_end_s[index]))
