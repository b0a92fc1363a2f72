"""How are several values of one option written: ``1,2,4``, ``1..256`` or ``100..1000:100``?"""

import math
from typing import Final

from inferometer.errors import SpecError

_MOST: Final = 10_000
"""Values of one range: what is more is a mistyped step."""


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
