"""Which points does a sweep have, and in which order are they measured?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from inferometer.inputs.types import SweepPlan, SweepPoint, SweepVisit

Axes: TypeAlias = Literal["grid", "separate"]


def sweep_points(
    *,
    prompts: Sequence[int],
    batches: Sequence[int],
    gen_tokens: int,
    axes: Axes,
    batch_prompt_tokens: int | None = None,
) -> tuple[SweepPoint, ...]:
    """The points of the full grid, or of two separate axes.

    All prompts at the smallest batch, all batches at one prompt length.

    That length is ``batch_prompt_tokens``, by default the smallest of ``prompts``.

    Example
    -------
    >>> len(sweep_points(prompts=(128, 256, 512), batches=(1, 2, 4), gen_tokens=32, axes="separate"))
    5
    """
    pairs = {(prompt, batch) for prompt in prompts for batch in batches}
    if axes == "separate":
        batch_axis_prompt = min(prompts) if batch_prompt_tokens is None else batch_prompt_tokens
        pairs = {(prompt, min(batches)) for prompt in prompts} | {
            (batch_axis_prompt, batch) for batch in batches
        }
    return tuple(
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=gen_tokens)
        for prompt, batch in sorted(pairs)
    )


def words_of_points(points: Sequence[SweepPoint]) -> tuple[str, ...]:
    """The options of `sweep` with which it measures these points: the inverse of `sweep_points`.

    Points that are neither a grid nor two axes give the grid that holds them.

    Example
    -------
    >>> words_of_points(sweep_points(prompts=(64, 128), batches=(1, 2), gen_tokens=8, axes="grid"))
    ('--seq', '64,128', '--batch-sizes', '1,2', '--gen-tokens', '8')
    """
    prompts = sorted({point.prompt_tokens for point in points})
    batches = sorted({point.batch_size for point in points})
    at_most = max(points, key=lambda point: (point.batch_size, -point.prompt_tokens))
    n_generated = max(point.gen_tokens for point in points)
    pairs = {(point.prompt_tokens, point.batch_size) for point in points}
    axis_prompt = at_most.prompt_tokens
    separate = {(one, batches[0]) for one in prompts} | {(axis_prompt, one) for one in batches}
    is_grid = len(pairs) == len(prompts) * len(batches)
    return (
        *("--seq", ",".join(map(str, prompts)), "--batch-sizes", ",".join(map(str, batches))),
        *("--gen-tokens", str(n_generated)),
        *(("--batch-prompt-len", str(axis_prompt)) if pairs == separate and not is_grid else ()),
    )


def shuffled(plan: SweepPlan) -> SweepPlan:
    """The same sweep with its points in an order that ``seed`` decides.

    The same question gives the same order, so it can be resumed.
    """
    order = np.random.default_rng(plan.seed).permutation(len(plan.points))
    return replace(plan, points=tuple(plan.points[index] for index in order))


def visits_of(plan: SweepPlan) -> tuple[SweepVisit, ...]:
    """Each point's turns, in the order in which they come.

    Every other round runs backwards, so that a steady drift of the machine weighs on all points
    alike. Points that were seen before need no more than one warm-up.
    """
    shares = [len(part) for part in np.array_split(np.arange(plan.n_reps), plan.n_rounds)]
    visits, n_before = list[SweepVisit](), 0
    for i_round, n_reps in enumerate(shares):
        n_warmup = plan.n_warmup if i_round == 0 else min(plan.n_warmup, 1)
        indices = range(len(plan.points))
        visits += [
            SweepVisit(
                number=i_round * len(plan.points) + index,
                point_index=index,
                first_repetition=n_before,
                n_warmup=n_warmup,
                n_reps=n_reps,
            )
            for index in (reversed(indices) if i_round % 2 else indices)
        ]
        n_before += n_warmup + n_reps
    return tuple(visits)
