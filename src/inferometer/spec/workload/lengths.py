"""Which workload do bare lengths describe, as every benchmark's users write them.

`1024x256`, `8k1k`, `prompt=1024,output=64..256`?
"""

import re
from typing import Any, Final

from inferometer.errors import SpecError

_MOST_TOKENS: Final = 2**31 - 1
_KIBI: Final = 1024
_NUMBER: Final = r"\d+(?:\.\d+)?k?"
_SIDE: Final = rf"{_NUMBER}(?:\.\.{_NUMBER})?"
_PAIR: Final = re.compile(rf"({_SIDE})(?:x|×|/|:|,)({_SIDE})|(\d+k)(\d+k)", re.IGNORECASE)
_KEYS: Final = {
    "prompt_tokens": ("prompt", "prompt_tokens", "input", "input_tokens", "input_len", "isl", "in"),
    "output_tokens": ("output", "output_tokens", "output_len", "osl", "out", "gen_tokens"),
}
_KEY_OF: Final = {word: key for key, words in _KEYS.items() for word in words}
SPELLINGS: Final = "lengths such as 1024x256, 8k1k or prompt=512..2048,output=256"


def lengths_table(text: str) -> dict[str, Any] | None:
    """The workload table of these lengths: one class, ranges drawn evenly; None where the text is not lengths.

    ``k`` is 1,024, as in the names of InferenceX's scenarios (8k1k).

    Raises
    ------
    SpecError
        A length of 0 or above 2^31 - 1, a range that ends before it begins, or a side that is
        missing.

    Example
    -------
    >>> lengths_table("1024x64..256")["classes"][0]["output_tokens"]
    {'kind': 'uniform', 'low': 64, 'high': 256}
    """
    sides = _named(text) if "=" in text else _paired(text)
    if sides is None:
        return None
    tables = {key: _distribution(side, text) for key, side in sides.items()}
    return {"name": text, "arrivals": {"kind": "open"}, "classes": [{"name": "all", **tables}]}


def _paired(text: str) -> dict[str, str] | None:
    found = _PAIR.fullmatch(text.strip())
    if found is None:
        return None
    prompt, output = [side for side in found.groups() if side is not None]
    return {"prompt_tokens": prompt, "output_tokens": output}


def _named(text: str) -> dict[str, str] | None:
    pairs = [part.partition("=") for part in text.split(",")]
    sides = {
        _KEY_OF.get(name.strip().lower().replace("-", "_"), name): side.strip()
        for name, _, side in pairs
    }
    if not set(sides) <= set(_KEYS):
        return None
    if set(sides) != set(_KEYS) or not all(
        re.fullmatch(_SIDE, side, re.IGNORECASE) for side in sides.values()
    ):
        raise SpecError(
            f"{text!r} is not a pair of lengths",
            where="--workload",
            allowed=SPELLINGS,
            try_="--workload prompt=1024,output=256",
        )
    return sides


def _distribution(side: str, text: str) -> dict[str, Any]:
    low, is_range, high = side.partition("..")
    first, last = _tokens(low, text), _tokens(high if is_range else low, text)
    if last < first:
        raise SpecError(f"{side!r} ends before it begins", where="--workload", allowed=SPELLINGS)
    return (
        {"kind": "uniform", "low": first, "high": last}
        if is_range
        else {"kind": "constant", "value": first}
    )


def _tokens(number: str, text: str) -> int:
    is_kibi = number.lower().endswith("k")
    # Capped before it becomes a float: 400 digits are an infinity.
    tokens = round(float(number.rstrip("kK")[:20]) * (_KIBI if is_kibi else 1))
    if not 1 <= tokens <= _MOST_TOKENS:
        raise SpecError(
            f"{number!r} tokens in {text!r}",
            where="--workload",
            allowed=f"1 to {_MOST_TOKENS:,}",
            try_="--workload 1024x256",
        )
    return tokens
