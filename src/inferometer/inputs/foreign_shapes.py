"""Is a foreign text harmless to decode: its depth, number of values, size of numbers?"""

import re
from typing import Final, cast

import numpy as np

from inferometer.errors import SpecError
from inferometer.units import check_number

MOST_DEPTH: Final = 64
MOST_VALUES: Final = 30_000_000
"""Of a JSON document: a few gigabytes in memory at worst."""
MOST_KEY_PARTS: Final = 32
MOST_KEYS: Final = 100_000

_SHOWN: Final = 160
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_TOML_TOKEN: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[^\s"\'#.,=\[\]{}]+|[.,=\[\]{}]',
    re.DOTALL,
)


def shortened(value: object) -> str:
    """A foreign value shortened for a message: numbers and texts may be thousands long.

    Example
    -------
    >>> shortened(10**5000), shortened("a")
    ('a whole number of more than 16,000 bits', "'a'")
    """
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a whole number of more than {value.bit_length() // 1000 * 1000:,} bits"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def check_json(content: bytes | str) -> None:
    """Nothing, if this JSON is not nested too deeply and does not hold too many values.

    Raises
    ------
    SpecError
        It is, or does.
    """
    if len(content) < 2 * MOST_DEPTH:
        return
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    n_opened = data.count(b"[") + data.count(b"{")
    n_values = data.count(b",") + n_opened + 1
    if n_values > MOST_VALUES:
        raise SpecError(f"about {n_values:,} values", allowed=f"{MOST_VALUES:,} values")
    if n_opened > MOST_DEPTH and _json_depth(data) > MOST_DEPTH:
        raise too_deep()


def check_toml(text: str, most_characters: int) -> None:
    """The same of TOML, whose decoder is in Python and quadratic in the parts of a key.

    Raises
    ------
    SpecError
        It is too long, nested too deeply, or has too many keys or a key of too many parts.
    """
    check_length(text, most_characters)
    depth = n_parts = n_keys = 0
    last = ""
    for match in _TOML_TOKEN.finditer(text):
        part = match.group()
        if part in "[{":
            depth += 1
        elif part in "]}":
            depth -= 1
        elif part == "=":
            n_keys += 1
        elif part not in ".," and part[0] != "#":
            n_parts = n_parts + 1 if last == "." else 1
        if depth > MOST_DEPTH:
            raise too_deep()
        if n_parts > MOST_KEY_PARTS:
            raise SpecError(
                f"a key of more than {MOST_KEY_PARTS} parts",
                allowed=f"{MOST_KEY_PARTS} parts with points between",
            )
        last = part
    if n_keys > MOST_KEYS:
        raise SpecError(f"{n_keys:,} keys", allowed=f"{MOST_KEYS:,} keys")


def check_values(value: object) -> None:
    """Nothing, if each number in these tables is finite and not larger than its name allows.

    Raises
    ------
    SpecError
        One is not: the message names its key.
    """
    level: list[tuple[str, object]] = [("", value)]
    while level:
        inner: list[tuple[str, object]] = []
        for path, one in level:
            if isinstance(one, dict):
                inner += [
                    (f"{path}.{key}" if path else str(key), item)
                    for key, item in cast("dict[object, object]", one).items()
                ]
            elif isinstance(one, list):
                inner += [
                    (f"{path}[{index}]", item)
                    for index, item in enumerate(cast("list[object]", one))
                ]
            elif isinstance(one, int | float):
                check_number(one, path, where=None)
        level = inner


def _json_depth(data: bytes) -> int:
    """The deepest nesting of a JSON text, of its brackets outside strings."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_BRACKETS)
    brackets = np.frombuffer(b"".join(bare.split(b'"')[::2]), np.uint8)
    is_open = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(is_open, 1, -1)).max(initial=0))


def check_length(text: str, most_characters: int) -> None:
    """Nothing, if a text is no longer than this; else a ``SpecError``."""
    if len(text) > most_characters:
        raise SpecError(f"{len(text):,} characters", allowed=f"{most_characters:,} characters")


def too_deep() -> SpecError:
    """The refusal of what is nested more than ``MOST_DEPTH`` deep."""
    return SpecError(f"nested more than {MOST_DEPTH} deep", allowed=f"{MOST_DEPTH} levels")
