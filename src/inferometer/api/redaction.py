"""How is a command line stored: without the values of headers, bodies and proxies?"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from inferometer.measure.load import target
from inferometer.spec.load_plan import body_value_without_secrets


def redacted(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line as it may be stored: without the values of headers and the credentials of proxies."""
    before = ("", *arguments)
    return tuple(
        _redacted(flag, argument) for flag, argument in zip(before, arguments, strict=False)
    )


def _redacted(before: str, argument: str) -> str:
    """An argument without its secret, if it has one; ``before`` stands in front of it."""
    flag, is_joined, value = argument.partition("=")
    if is_joined and flag in _SECRET:
        return f"{flag}={_SECRET[flag](value)}"
    return _SECRET[before](argument) if before in _SECRET else argument


def _valueless(header: str) -> str:
    name, _, value = header.partition(":")
    return header if value.strip().startswith("$") else f"{name}: …"


def _textless(key: str) -> str:
    """``--body`` without texts; of what is no JSON only the name."""
    name, _, value = key.partition("=")
    try:
        return f"{name}={body_value_without_secrets(value)}"
    except msgspec.DecodeError:
        return f"{name}=…"


_SECRET: Final[dict[str, Callable[[str], str]]] = {
    **dict.fromkeys(("--header", "--b-header"), _valueless),
    **dict.fromkeys(("--body", "--b-body"), _textless),
    **dict.fromkeys(("--proxy", "--metrics-url"), target.shown_url),
}
