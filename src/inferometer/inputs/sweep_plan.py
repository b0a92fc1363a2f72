"""Which points does a sweep have, in which order are they measured, and how are they written?

Several values of one option are written ``1,2,4``, ``1..256`` or ``100..1000:100``.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.types import SweepPlan, SweepPoint, SweepVisit

_MOST: Final = 10_000
"""Values of one range: what is more is a mistyped step."""
Axes: TypeAlias = Literal["grid", "separate"]


def is_listed(text: str) -> bool:
    """Does the text hold more than one value?"""
    is_path = "/" in text or text.startswith("..")
    return "," in text or (".." in text and not is_path)


def listed(text: str, *, where: str) -> tuple[str, ...]:
    """The values of a list, each once, in the order in which they stand.

    ``A..B`` doubles from A, and ends with B; ``A..B:STEP`` goes in steps.

    Raises
    ------
    SpecError
        An item is empty, or a range is not one of positive numbers that grows.

    Example
    -------
    >>> listed("1..6,32", where="--batch")
    ('1', '2', '4', '6', '32')
    >>> listed("100..300:100", where="--prompt")
    ('100', '200', '300')
    """
    values = dict[str, None]()
    for item in text.split(","):
        word = item.strip()
        if not word:
            raise SpecError(
                f"{text!r} has an empty item",
                where=where,
                allowed="values with commas between, or a range",
                try_="1,2,4 or 1..256",
            )
        values |= dict.fromkeys(_of_range(word, where) if is_listed(word) else (word,))
    return tuple(values)


def _of_range(word: str, where: str) -> tuple[str, ...]:
    first, _, rest = word.partition("..")
    last, colon, step = rest.partition(":")
    try:
        low, high = float(first), float(last)
        by = float(step) if colon else None
    except ValueError:
        raise _no_range(word, where) from None
    is_sound = 0 < low <= high < math.inf and (by is None or 0 < by < math.inf)
    if not is_sound or (by is not None and (high - low) / by >= _MOST):
        raise _no_range(word, where)
    if by is not None:
        # a little more than the last: 0.1 + 0.1 + 0.1 is above 0.3
        numbers = [low + i * by for i in range(int((high - low) / by * (1 + 1e-9)) + 1)]
    else:
        numbers = [low * 2**i for i in range(int(math.log2(high / low)) + 1)]
        numbers += [high] if numbers[-1] < high else []
    return tuple(f"{number:.12g}" for number in numbers)


def _no_range(word: str, where: str) -> SpecError:
    return SpecError(
        f"{word!r} is no range",
        where=where,
        allowed="FIRST..LAST, which doubles, or FIRST..LAST:STEP, of numbers above 0",
        try_="1..256 or 100..1000:100",
    )


def parse_counts(text: str, *, where: str) -> tuple[int, ...]:
    """The whole numbers of a list such as ``128,256,512`` or ``1..64``, each 1 or more, in order.

    Raises
    ------
    SpecError
        Not such a list; the message names the item.

    Example
    -------
    >>> parse_counts("4,1,2", where="--batch-sizes")
    (1, 2, 4)
    >>> parse_counts("1..8", where="--batch-sizes")
    (1, 2, 4, 8)
    """
    counts: set[int] = set()
    for item in listed(text, where=where):
        try:
            count = int(item.replace("_", ""))
        except ValueError:
            raise SpecError(
                f"{item!r} is no whole number",
                where=where,
                allowed="numbers with commas between, or a range",
                try_="1,2,4 or 1..64",
            ) from None
        if count < 1:
            raise SpecError(f"{count} is too small", where=where, allowed="1 or more", try_="1,2,4")
        counts.add(count)
    return tuple(sorted(counts))


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
