"""How long do a server's steps take, by its own counters or by a record of them?

Between two scrapes a busy server spends the time on its steps: ``t = a · steps + b · rows + c ·
answers' tokens + d · tokens held x steps``, all of them counted. Rows are prompt tokens that were
computed and tokens that were generated. A batch of constant size does not tell ``a`` from ``c``: a
prior has what engines on GPUs and CPUs have in common, or what the named model on the named device
would do. No prompt is done sooner than its own steps take: the histogram of prefills' times is a
bound for them. Draws minimise residuals of resampled intervals beside a prior of a drawn place
(randomised maximum a posteriori; Bardsley et al., SIAM J. Sci. Comput. 36, 2014). Letters of
shapes: T scrapes.

Of steps that are recorded one by one: ``t = (floor^k + (row · rows)^k)^(1/k) + sequence · requests
+ held · context + pair · pairs``, fitted to the logarithms of the times with a loss that outliers
do not govern (soft L1), beside the same priors. Each draw fits steps that are drawn again, beside a
prior of a drawn place. Letters of shapes: S steps.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import scipy

from inferometer.decide.diagnosis.window import ServerWindow
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
    fitted: F64 = scipy.optimize.least_squares(
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


_FEWEST_INTERVALS: Final = 8
_N_LONG: Final = 12
"""Intervals, where a request's tokens are counted at its end: most of them lie in that of their steps."""
_NOISE_RATIO: Final = 0.05
"""Noise of an interval between scrapes that no step time explains. An assumption."""
_CUT_RATIO: Final = 0.41
"""Standard deviation of steps cut by a window's ends, in steps (1 / sqrt(6))."""
_PREFILL_NOISE_RATIO: Final = 0.1
"""Noise of a prefill's mean time relative to its steps. An assumption."""
_FLOOR_SHARE: Final = 0.7
"""Share of weights and launches in a step of few rows."""
_ROWS_OF_FLOOR: Final = 1 / 150
"""Time of a row in that of the floor: a device multiplies some hundred rows while it reads the
weights (16-bit peaks over bandwidth: 150 on A100, 300 on H100, fewer on CPUs)."""
_SEQUENCES_OF_FLOOR: Final = 1 / 300
_HELD_OF_FLOOR: Final = 1e-5
"""Of a token of context: 128 kB beside 16 GB of weights, as of a model of 8 billion parameters."""
_SPREADS: Final = (0.5, 1.0, 1.0, 1.0)
"""Spreads of the logarithms of floor, row, sequence and held token."""
_MOST_BLEND: Final = 16.0
"""Exponent with which reading weights and multiplying rows make up a step: 1, they add up; at 16 a
step takes the longer of both, as datasheets have it. GEMM sweeps on GPUs give 2, launches that hide
behind the device more. An assumption."""
_HIDDEN_ROW_SD: Final = 0.5
"""Of the logarithm of a row's time beside the floor's, where reading weights hides it: devices'
16-bit peaks over bandwidth lie between 90 and 340 FLOP per byte."""


class Prefill(NamedTuple):
    """Mean prefill: its least work (counts as in ``paces_s``), and its measured time."""

    counted: F64
    took_s: float


def step_paces(
    window: ServerWindow, budgets: Sequence[int], seed: int
) -> tuple[StepTimeArrays, ...]:
    """Step times fitted to all intervals, then plausible draws; one for each step budget.

    Where each step was recorded, by these.

    Raises
    ------
    ModelError
        The server hardly decoded in the window.
    """
    log, summary = window.step_log, window.summary
    if log is not None:
        kv_tokens = (summary.n_kv_blocks or 0) * (summary.kv_block_tokens or 0)
        return measured_paces(log, len(budgets), seed, kv_tokens or None)
    counted, busy_s, noise_s = _intervals(window)
    if len(busy_s) < _FEWEST_INTERVALS:
        raise ModelError(
            f"the server generated tokens in {len(busy_s)} of {len(window.at_s) - 1} intervals"
            " between scrapes",
            where="the window",
            allowed=f"{_FEWEST_INTERVALS} or more",
            try_="a longer window (--for; of a Prometheus --last), or more traffic",
        )
    mean, sd = prior_of_log_paces(counted, busy_s)
    rng = np.random.default_rng(seed)
    n, n_draws = len(busy_s), len(budgets) - 1
    samples = [(np.arange(n), mean)]
    samples += [(rng.integers(0, n, n), rng.normal(mean, sd)) for _ in range(n_draws)]
    blends = [1.0, *(_MOST_BLEND ** rng.random(n_draws)).tolist()]
    hidden = [0.0, *rng.normal(0.0, _HIDDEN_ROW_SD, n_draws).tolist()]
    return tuple(
        _steps(
            paces_s(
                counted[rows],
                busy_s[rows],
                noise_s[rows],
                place,
                sd,
                _prefill(window, counted, budget),
            ),
            _step_sizes(window, counted, budget),
            blend,
            off,
        )
        for (rows, place), budget, blend, off in zip(samples, budgets, blends, hidden, strict=True)
    )


def _prefill(window: ServerWindow, counted: F64, budget: int) -> Prefill | None:
    """Steps of the mean prompt with concurrent decodes; None without a histogram."""
    found = window.summary.time("prefill")
    if found is None or found.mean_s <= 0 or window.are_stages_of_early_requests:
        return None
    beside, held = (float(counted[:, i].sum() / counted[:, 0].sum()) for i in (2, 3))
    n_steps, tokens = _prompt_steps(window, beside, budget)
    each = window.prompt_lengths.seen.counts
    steps, computed = (float(one @ each / each.sum()) for one in (n_steps, n_steps * tokens))
    counts = np.array([steps, computed + steps * beside, steps * beside, steps * held])
    return Prefill(counts, found.mean_s)


def _prompt_steps(window: ServerWindow, beside: float, budget: int) -> tuple[F64, F64]:
    """Into how many steps each length of prompts is cut, and the tokens of one of them."""
    computed = window.prompt_lengths.means * (1 - window.hit_fraction)
    n_steps = np.maximum(np.ceil(computed / max(budget - beside, 1.0)), 1.0)
    return n_steps, computed / n_steps


def _step_sizes(window: ServerWindow, counted: F64, budget: int) -> tuple[F64, F64]:
    """Tokens of a step, and the share of steps of each size.

    By the server's histogram; without one, steps with a prompt each, and the others between them.
    vLLM counts a prompt when it is done, whole, whichever number of steps it took.
    """
    sizes = window.step_sizes
    if sizes is not None and sizes.seen.counts.sum():
        used = sizes.seen.counts > 0
        rows = np.maximum(sizes.means[used], 1.0)
        weights = sizes.seen.counts[used] * np.maximum(rows / budget, 1.0)
    else:
        total = float(counted[:, 0].sum())
        beside = float(counted[:, 2].sum()) / total
        each, tokens = _prompt_steps(window, beside, budget)
        weights = window.prompt_lengths.seen.counts * each
        together = max(float(weights.sum()) / total, 1.0)
        rows = np.append(beside, beside + tokens * together)
        weights = np.append(max(total - float(weights.sum()), 0.0), weights / together)
        rows, weights = rows[weights > 0], weights[weights > 0]
    return np.clip(rows, 1.0, budget), weights / weights.sum()


def _intervals(window: ServerWindow) -> tuple[F64, F64, F64]:
    """For each interval with tokens: four counts, seconds of its steps, and their accuracy."""
    at = _bounds(window)
    output = np.diff(window.output_tokens[at])
    computed = np.diff(window.step_prompt_tokens[at]) * (1 - window.hit_fraction)
    running = (window.running[at][1:] + window.running[at][:-1]) / 2
    counted_steps = None if window.n_steps is None else np.diff(window.n_steps[at])
    steps = output / np.maximum(running, 1.0) if counted_steps is None else counted_steps
    held_tokens = _held_tokens(window)[at]
    held = (held_tokens[1:] + held_tokens[:-1]) / 2 * steps
    took_s = np.diff(window.at_s[at])
    busy_s = took_s if window.busy_s is None else np.diff(window.busy_s[at])
    is_known = (output > 0) & (steps > 0)
    if window.gaps is not None:
        n_gaps = np.diff(window.gaps.n[at])
        gap_s = np.diff(window.gaps.total[at]) / np.maximum(n_gaps, 1)
        # A server with pauses between its requests is not busy all the time: its steps take as
        # long as the gaps between tokens.
        busy_s = np.minimum(took_s, gap_s * steps)
        is_known &= n_gaps > 0
    noise_s = np.hypot(_NOISE_RATIO * took_s, _CUT_RATIO * busy_s / np.maximum(steps, 1.0))
    if window.is_answer_counted_late:
        # Tokens of requests that run at an end of an interval are counted in another one.
        n_apart = np.sqrt(2 * np.maximum(running, 1.0))
        request_s = window.duration_s / max(float(window.finished[-1]), 1.0)
        noise_s = np.hypot(noise_s, n_apart * request_s)
    counted = np.stack([steps, computed + output, output, held], axis=1)
    return counted[is_known], busy_s[is_known], noise_s[is_known]


def _held_tokens(window: ServerWindow) -> F64:
    """(T) Tokens in the KV cache, as its usage or the clients tell; 0 where neither does."""
    summary = window.summary
    if window.kv_usage is not None and summary.n_kv_blocks and summary.kv_block_tokens:
        held: F64 = window.kv_usage * summary.n_kv_blocks * summary.kv_block_tokens
        return held
    return np.zeros_like(window.at_s) if window.held_tokens is None else window.held_tokens


def _bounds(window: ServerWindow) -> I64:
    """Scrapes at the ends of the intervals.

    A full server that shows no new token has not done its step, or has not shown it yet: that time
    belongs to the tokens that come next. Where tokens are counted when a request ends, few long ones.
    """
    if window.is_answer_counted_late:
        return np.unique(np.linspace(0, len(window.at_s) - 1, _N_LONG + 1).round().astype(np.int64))
    is_silent = np.diff(window.output_tokens) <= 0
    is_at_work = np.minimum(window.running[1:], window.running[:-1]) > 0
    return np.flatnonzero(np.concatenate([[True], ~(is_silent & is_at_work)]))


def paces_s(
    counted: F64, busy_s: F64, noise_s: F64, place: F64, sd: F64, prefill: Prefill | None = None
) -> F64:
    """Most likely seconds of a step, a row, a sequence and a held token, by these intervals.

    ``place`` and ``sd`` are the prior's, of their logarithms.
    """
    bound = np.zeros((0, 4)) if prefill is None else prefill.counted[None] / prefill.took_s

    def over(x: F64) -> F64:
        exceeded: F64 = np.maximum(bound @ np.exp(x), 1.0)
        return exceeded

    def residuals(x: F64) -> F64:
        missed = (counted @ np.exp(x) - busy_s) / noise_s
        late = np.log(over(x)) / _PREFILL_NOISE_RATIO
        seen: F64 = np.concatenate([missed, (x - place) / sd, late])
        return seen

    def slopes(x: F64) -> F64:
        late = bound * np.exp(x) / over(x)[:, None] / _PREFILL_NOISE_RATIO
        late *= over(x)[:, None] > 1
        rows: F64 = np.concatenate([counted * np.exp(x) / noise_s[:, None], np.diag(1 / sd), late])
        return rows

    # scipy's jac takes a callable, which its signature denies.
    found = scipy.optimize.least_squares(residuals, place, cast("str", slopes), max_nfev=60).x
    seconds: F64 = np.exp(found)
    # Where steps of the same size took now long, now short (a host that others use, too), the
    # squares follow the short ones; together the steps took as long as the server was busy.
    seconds *= busy_s.sum() / (counted @ seconds).sum()
    return np.maximum(seconds, _LEAST_S)


def prior_of_log_paces(counted: F64, busy_s: F64) -> tuple[F64, F64]:
    """Prior mean and spread of the logarithms of ``paces_s``, from engines in general."""
    ratios = np.array([1.0, _ROWS_OF_FLOOR, _SEQUENCES_OF_FLOOR, _HELD_OF_FLOOR])
    # Of a step of thousands of rows, as of an overloaded server, the floor is a small part.
    of_all = float(counted[:, 0].sum() / (counted @ ratios).sum())
    floor_s = min(_FLOOR_SHARE, of_all) * float(busy_s.sum() / counted[:, 0].sum())
    return np.log(floor_s * ratios), np.array(_SPREADS)


def overlapped_anew(steps: StepTimeArrays, rows: F64, rng: np.random.Generator) -> StepTimeArrays:
    """Other steps that take as long where they have as many rows as these had (``rows``: of each).

    What they would take with more is drawn again: how far reading weights hides the rows.
    """
    sizes, counts = np.unique(np.maximum(rows, 1.0), return_counts=True)
    floor_s, row_s, blend = float(steps.read_s[0]), steps.matmul_row_s, steps.blend_ratio
    taken_s = (floor_s**blend + (row_s * sizes) ** blend) ** (1 / blend)
    weights = counts * taken_s / (counts * taken_s).sum()
    blend = _MOST_BLEND ** float(rng.random())
    off = float(rng.normal(0.0, _HIDDEN_ROW_SD))
    floor_s, row_s = _blended(floor_s, taken_s, (sizes, weights), blend, off).tolist()
    return steps._replace(read_s=np.array([floor_s]), matmul_row_s=row_s, blend_ratio=blend)


def _blended(floor_s: float, taken_s: F64, sizes: tuple[F64, F64], blend: float, off: float) -> F64:
    """Floor and row (seconds) that take as long (``taken_s``) in steps of these sizes.

    What hides behind reading the weights is not seen: in steps that are all small a row may take
    as long as a device's usual balance allows, ``off`` its logarithm. Larger steps tell.
    """
    rows, weights = sizes
    usual = np.log(floor_s * _ROWS_OF_FLOOR) + off

    def residuals(x: F64) -> F64:
        floor, row = np.exp(x)
        together_s = (floor**blend + (row * rows) ** blend) ** (1 / blend)
        misfit = np.sqrt(weights) * np.log(together_s / taken_s) / _NOISE_RATIO
        found: F64 = np.concatenate([misfit, [(x[1] - usual) / _HIDDEN_ROW_SD]])
        return found

    start = np.log(np.maximum([floor_s, floor_s * _ROWS_OF_FLOOR], _LEAST_S))
    fitted: F64 = np.exp(scipy.optimize.least_squares(residuals, start, max_nfev=60).x)
    return fitted


def _steps(paces: F64, sizes: tuple[F64, F64], blend: float, off: float) -> StepTimeArrays:
    """Step times of these paces; reading weights and multiplying rows overlap by ``blend``."""
    floor_s, row_s, sequence_s, held_s = paces.tolist()
    if blend > 1:
        taken_s = floor_s + row_s * sizes[0]
        floor_s, row_s = _blended(floor_s, taken_s, sizes, blend, off).tolist()
    # In the order of ``STEP_NAMES``; weights and rows add up (a blend of 1).
    numbers = (_LEAST_S, floor_s, row_s, held_s, _LEAST_S, sequence_s, 1.0)
    steps = steps_at(plainest(), np.array([math.log(number) for number in numbers]))
    return steps._replace(blend_ratio=blend)
