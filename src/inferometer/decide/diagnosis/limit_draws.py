"""Which limits may a rebuilt server have?

Known ones as they are; a batch that stays full while others wait has shown its limit. Of the others
any value is drawn that the server could have had, so that what a changed server would then run into
widens its predictions.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.fit.loads.server import Limit
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.simulate.scheduler_config import SchedulerConfig

BUDGETS: Final = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
"""Between two of them the second round looks, too."""
_USUAL_BUDGETS: Final = (2048, 4096, 8192, 16_384)
"""Default step budgets of vLLM and SGLang by device, three times as likely as others."""
_SHOWN_CHANCE: Final = 0.5
"""Probability of the budget that steps showed while requests waited, where they did."""
_FEWEST_FULL: Final = 5
"""Intervals between scrapes with a queue at both ends, at least, to know how large full steps are."""
_USUAL_MAX_NUM_SEQS: Final = (256, 512, 1024, 2048, 4096)
"""Defaults of vLLM (256, 1024), TensorRT-LLM (2048) and SGLang (2048 to 4096, by its KV cache)."""
_BLOCK_TOKENS: Final = 16
_FULL_FRACTION: Final = 0.97
"""Share of the most that ever ran, from which the batch counts as full."""
_SELDOM_FRACTION: Final = 0.2
"""Share of the scrapes with a queue in which the batch is as full as ever, below which that is a peak
and no limit: beside a limit it is full in nearly all."""
_BUDGET_SPREAD: Final = 0.2
_ANEW_CHANCE: Final = 0.5
"""Probability that a neighbour has another step budget, so that draws stay diverse."""
_LEAST_SHARED_FRACTION: Final = 0.02


class Limits(NamedTuple):
    """What a step and the batch hold at most."""

    max_num_batched_tokens: int
    max_num_seqs: int


def budgets_drawn(
    window: ServerWindow, known: Mapping[Limit, int], n_draws: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """The step budget that is known, or any, of each draw: at least a token of each request."""
    least = known.get("max_num_seqs") or max(_most_running(window), _most_rows(window))
    least = min(least, BUDGETS[-1])
    stated = known.get("max_num_batched_tokens")
    shown = _full_steps_rows(window)
    return tuple(stated or _any_budget(rng, least, shown) for _ in range(n_draws))


def config_drawn(
    window: ServerWindow,
    known: Mapping[Limit, int],
    plan: RequestPlan,
    budget: int,
    rng: np.random.Generator,
) -> SchedulerConfig:
    """A configuration with this step budget that could show the window's metrics."""
    most_at_once = known.get("max_num_seqs") or min(_most_at_once(window, rng), budget)
    summary = window.summary
    block_tokens = summary.kv_block_tokens or _BLOCK_TOKENS
    longest = longest_tokens(plan)
    blocks = known.get("n_kv_blocks") or summary.n_kv_blocks
    if not blocks:
        blocks = -(-longest // block_tokens) * (plan.n_requests + 2)
    return SchedulerConfig(
        num_blocks=max(blocks, -(-longest // block_tokens) + 2),
        max_model_len=longest,
        max_num_seqs=min(most_at_once, budget),
        max_num_batched_tokens=budget,
        block_size=block_tokens,
        enable_prefix_caching=window.hit_fraction >= _LEAST_SHARED_FRACTION,
    )


def limits_around(
    config: SchedulerConfig,
    window: ServerWindow,
    known: Mapping[Limit, int],
    rng: np.random.Generator,
) -> Limits:
    """The limits of a neighbour of a server with this configuration.

    A ``max_num_seqs`` that was never reached holds no step budget up.
    """
    budget, at_once = config.max_num_batched_tokens, config.max_num_seqs
    least = max(at_once, _most_rows(window))
    if "max_num_seqs" not in known and at_once > _most_running(window):
        at_once = _never_reached(window, rng)
        least = max(_most_running(window), _most_rows(window))
    is_budget_known = "max_num_batched_tokens" in known
    if not is_budget_known and rng.random() < _ANEW_CHANCE:
        budget = _any_budget(rng, min(least, BUDGETS[-1]), _full_steps_rows(window))
    elif not is_budget_known:
        budget = min(round(budget * math.exp(rng.normal(0.0, _BUDGET_SPREAD))), BUDGETS[-1])
    budget = max(budget, least)
    return Limits(budget, min(at_once, budget))


def longest_tokens(plan: RequestPlan) -> int:
    """A model length that holds each of these requests."""
    return int((plan.prompt_tokens + plan.max_tokens).max()) + 1


def _most_running(window: ServerWindow) -> int:
    log = window.step_log
    recorded = 0.0 if log is None else float(log.sequences.max())
    return max(round(max(float(window.running.max()), recorded)), 1)


def _most_rows(window: ServerWindow) -> int:
    """Tokens of the largest recorded step, a lower bound of the step budget."""
    log = window.step_log
    return 0 if log is None else min(int(log.rows.max()), BUDGETS[-1])


def _any_budget(rng: np.random.Generator, least: int, shown: int | None) -> int:
    if shown is not None and least <= shown <= BUDGETS[-1] and rng.random() < _SHOWN_CHANCE:
        return shown
    several = (*BUDGETS, *_USUAL_BUDGETS, *_USUAL_BUDGETS)
    return int(rng.choice([one for one in several if one >= least]))


def _full_steps_rows(window: ServerWindow) -> int | None:
    """Rows of a step while requests wait: the budget, where that is what they wait for.

    A server near its limit has such a queue with hardly another budget: few draws would find it.
    """
    if window.n_steps is None:
        return None
    computed = window.step_prompt_tokens * (1 - window.hit_fraction) + window.output_tokens
    if window.first_tokens is not None:  # that of a prompt's last row
        computed = computed - window.first_tokens
    n_steps = np.diff(window.n_steps)
    is_full = (np.minimum(window.waiting[1:], window.waiting[:-1]) >= 1) & (n_steps > 0)
    if is_full.sum() < _FEWEST_FULL:
        return None
    rows = np.diff(computed)[is_full] / n_steps[is_full]
    return max(round(float(np.median(rows))), 1)


def _most_at_once(window: ServerWindow, rng: np.random.Generator) -> int:
    """``max_num_seqs``: that of a batch that stays full while others wait, or more than ever ran."""
    most_running, beyond = _most_running(window), _never_reached(window, rng)
    held_back = window.waiting >= 1
    if not held_back.any():
        return beyond
    is_full = window.running[held_back] >= _FULL_FRACTION * most_running
    chance = float(is_full.mean())
    return most_running if chance > _SELDOM_FRACTION and rng.random() < chance else beyond


def _never_reached(window: ServerWindow, rng: np.random.Generator) -> int:
    """A default of an engine that is more than ever ran."""
    most_running = _most_running(window)
    usual = [one for one in _USUAL_MAX_NUM_SEQS if one > most_running]
    return int(rng.choice(usual or [2 * most_running]))
