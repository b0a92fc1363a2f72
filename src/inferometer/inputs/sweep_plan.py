"""Points of a sweep, and the order of their measurement."""

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


def shuffled(plan: SweepPlan) -> SweepPlan:
    """The same sweep with its points in an order that ``seed`` decides.

    Equal plans have the same order, so a run can be resumed.
    """
    order = np.random.default_rng(plan.seed).permutation(len(plan.points))
    return replace(plan, points=tuple(plan.points[index] for index in order))


def visits_of(plan: SweepPlan) -> tuple[SweepVisit, ...]:
    """Visits to the points, in order.

    Every other round runs backwards, so that a steady drift of the machine affects all points
    alike. After a point's first visit one warm-up suffices.
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
