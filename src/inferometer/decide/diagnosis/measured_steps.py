"""How long do a server's steps take, and which limits do they show, by a record of each step?

``t = (floor^k + (row · rows)^k)^(1/k) + sequence · requests + held · context + pair · pairs``, fitted
to the logarithms of the recorded times with a loss that outliers do not govern (soft L1), beside
the priors of ``step_pace``. Each draw fits steps that are drawn again, beside a prior of a drawn
place. Letters of shapes: S steps.
"""

import math
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from inferometer.errors import ModelError
from inferometer.fit.loads.server import Limit, plainest, steps_at
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import F64, I64
from inferometer.records.step_logs import StepLog

FEWEST_STEPS: Final = 50
_MOST_STEPS: Final = 1500
"""Most steps of a draw: more do not narrow the model's own error."""
_LEAST_S: Final = 1e-12
_OF_FLOOR: Final = (1.0, 1 / 150, 1 / 300, 1e-5, 1e-6)
"""Row, sequence, held token and attention pair in the floor, as ``step_pace`` has them; of a pair
as in ``fit.loads.server``: 1.5e-4 of a row."""
_SD: Final = (0.7, 1.0, 1.0, 1.0, 1.5)
_BLEND: Final = (math.log(2.0), 0.4)
_MOST_LOG_BLEND: Final = math.log(8.0)
_LEAST_NOISE: Final = 0.005
_OFTEN: Final = 3
_MAD_OF_SD: Final = 1.4826


class Parts(NamedTuple):
    """(S) Parts of each step's time, in seconds."""

    floor: F64
    prompts: F64
    """Rows of prompts, beyond the floor, and their attention."""
    answers: F64
    """Rows of answers, beyond the floor, and what each request takes."""
    context: F64
    """Reading the KV cache."""


class Counted(NamedTuple):
    """(S each) Numbers on which a step's time depends."""

    rows: F64
    sequences: F64
    held: F64
    pairs: F64
    prompt_fraction: F64
    """Share of prompt tokens among the rows."""

    def at(self, rows: I64) -> "Counted":
        """Some of the steps."""
        return Counted(*(one[rows] for one in self))


def counted_of(log: StepLog, kv_tokens: int | None = None) -> Counted:
    """Tokens and sequences of each step; ``kv_tokens``: capacity of the logged KV cache.

    Where nothing tells the context, it counts as none, and its time is the floor's.
    """
    held = log.held_tokens
    if np.isnan(held).all() and kv_tokens is not None:
        held = log.kv_usage_fraction * kv_tokens
    each = log.prefill_tokens / np.maximum(log.prefill_requests, 1)
    behind = np.nan_to_num(log.cached_tokens) / np.maximum(log.prefill_requests, 1)
    return Counted(
        rows=np.maximum(log.rows, 1.0),
        sequences=log.sequences,
        held=np.where(log.decode_requests > 0, np.nan_to_num(held), 0.0),
        pairs=log.prefill_tokens * (behind + (each + 1) / 2),
        prompt_fraction=log.prefill_tokens / np.maximum(log.rows, 1.0),
    )


def measured_paces(
    log: StepLog, n_draws: int, seed: int, kv_tokens: int | None = None
) -> tuple[StepTimeArrays, ...]:
    """Step times fitted to all steps, then ``n_draws - 1`` plausible draws."""
    return tuple(_arrays(x) for x in fitted_numbers(log, n_draws, seed, kv_tokens))


def fitted_numbers(
    log: StepLog, n_draws: int, seed: int, kv_tokens: int | None = None
) -> tuple[F64, ...]:
    """Logarithms of floor, row, sequence, held token, pair and exponent, of each draw.

    Raises
    ------
    ModelError
        The log has too few steps.
    """
    n = len(log.duration_s)
    if n < FEWEST_STEPS:
        raise ModelError(
            f"{n} steps",
            where=log.source,
            allowed=f"{FEWEST_STEPS} or more",
            try_="a longer time, or more traffic",
        )
    counted, rng = counted_of(log, kv_tokens), np.random.default_rng(seed)
    floor_s = float(np.quantile(log.duration_s, 0.1))
    mean = np.append(np.log(floor_s * np.array(_OF_FLOOR)), _BLEND[0])
    sd = np.array([*_SD, _BLEND[1]])
    some = rng.choice(n, min(n, _MOST_STEPS), replace=False)
    first = _fitted(counted.at(some), log.duration_s[some], 0.1, mean, mean, sd)
    off = np.log(log.duration_s[some] / _seconds(first, counted.at(some)))
    noise = max(_MAD_OF_SD * float(np.median(np.abs(off - np.median(off)))), _LEAST_NOISE)
    draws: list[F64] = []
    for draw in range(n_draws):
        rows = some if draw == 0 else rng.choice(n, len(some))
        place = mean if draw == 0 else rng.normal(mean, sd)
        x = _fitted(counted.at(rows), log.duration_s[rows], noise, first, place, sd)
        # Together the steps take as long as they took, the slow ones among them, too.
        x[:5] += math.log(log.duration_s[rows].sum() / _seconds(x, counted.at(rows)).sum())
        draws.append(x)
    return tuple(draws)


def parts_of(x: F64, counted: Counted) -> Parts:
    """Parts of each step's time under these parameters."""
    floor_s, _, sequence_s, held_s, pair_s = np.exp(x[:5])
    layers_s = _layers_s(x, counted.rows)
    rows_s = layers_s - floor_s
    return Parts(
        floor=np.full_like(layers_s, floor_s),
        prompts=rows_s * counted.prompt_fraction + pair_s * counted.pairs,
        answers=rows_s * (1 - counted.prompt_fraction) + sequence_s * counted.sequences,
        context=held_s * counted.held,
    )


def limits_shown(log: StepLog) -> dict[Limit, int]:
    """The step budget, where steps of several batches ended at the same most rows.

    Prompts are cut so that a step has just as many rows as it may: answers and prompts share them.
    """
    if not len(log.rows):
        return {}
    most = float(log.rows.max())
    full = (log.rows == most) & (log.prefill_requests > 0)
    batches = set(log.decode_requests[full].tolist())
    is_shown = int(full.sum()) >= _OFTEN and len(batches) > 1
    return {"max_num_batched_tokens": int(most)} if is_shown else {}


def _fitted(counted: Counted, took_s: F64, noise: float, start: F64, place: F64, sd: F64) -> F64:
    logs, weight = np.log(took_s), 1 / noise

    def residuals(x: F64) -> F64:
        misfit = (np.log(_seconds(x, counted)) - logs) * weight
        found: F64 = np.concatenate([misfit, (x - place) / sd])
        return found

    upper = np.array([math.inf] * 5 + [_MOST_LOG_BLEND])
    lower = np.array([-math.inf] * 5 + [0.0])
    fitted: F64 = least_squares(
        residuals, start, bounds=(lower, upper), loss="soft_l1", max_nfev=40
    ).x
    return fitted


def _layers_s(x: F64, rows: F64) -> F64:
    floor_s, row_s, exponent = np.exp(x[0]), np.exp(x[1]), np.exp(x[5])
    layers_s: F64 = (floor_s**exponent + (row_s * rows) ** exponent) ** (1 / exponent)
    return layers_s


def _seconds(x: F64, counted: Counted) -> F64:
    _, _, sequence_s, held_s, pair_s = np.exp(x[:5])
    found: F64 = (
        _layers_s(x, counted.rows)
        + sequence_s * counted.sequences
        + held_s * counted.held
        + pair_s * counted.pairs
    )
    return found


def _arrays(x: F64) -> StepTimeArrays:
    """Step-time arrays of parameters in the order of ``STEP_NAMES``."""
    floor, row, sequence, held, pair, exponent = x.tolist()
    least = math.log(_LEAST_S)
    return steps_at(plainest(), np.array([least, floor, row, held, pair, sequence, exponent]))
