"""Which faults does an emulated server commit, how often, and on which requests?

Read from text such as ``reset:0.02(after=5)``.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from inferometer.errors import SpecError
from inferometer.units import NS_PER_S, parse_bytes, parse_duration_s

FaultKind: TypeAlias = Literal[
    "http-429",
    "http-500",
    "http-503",
    "redirect-loop",
    "gzip-bomb",
    "never-answers",
    "endless-headers",
    "slow-headers",
    "stall",
    "reset",
    "truncated-sse",
    "missing-done",
    "malformed-json",
    "invalid-utf8",
    "huge-chunk",
    "wrong-usage",
    "no-usage",
    "error-event",
    "comments",
    "split-writes",
    "tokens-per-chunk",
]
_WHERE: Final = "--fault"
_RULE: Final = re.compile(
    r"(?P<kind>[a-z0-9-]+)(?:=(?P<count>\d+))?(?::(?P<share>[0-9.eE+-]+))?(?:\((?P<options>[^()]*)\))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One kind of fault: on which share of the requests, and how."""

    kind: FaultKind
    share_fraction: float = 1.0
    after_tokens: int = 3
    """It strikes once so many tokens are out: resets, stalls, truncations and bad events."""
    hold_ns: int = 2 * NS_PER_S
    """How long a stall or slow headers last."""
    retry_after_ns: int = NS_PER_S
    size_bytes: int = 16 * 2**20
    """Of a huge chunk, of what a bomb unpacks to, and of endless headers before the server gives
    up."""
    count: int = 1
    """Tokens per chunk; or by how many tokens the usage is wrong."""

    def __post_init__(self) -> None:
        if not 0 <= self.share_fraction <= 1:
            raise SpecError(
                f"{self.kind}:{self.share_fraction}", where=_WHERE, allowed="a share from 0 to 1"
            )
        if self.count < 1:
            raise SpecError(f"{self.kind}={self.count}", where=_WHERE, allowed="1 or more")


class Faults(NamedTuple):
    """What befalls one request."""

    strike: FaultRule | None
    """At most one, the first rule that hits."""
    tokens_per_chunk: int = 1


def parse_faults(text: str) -> tuple[FaultRule, ...]:
    """The rules of a text such as ``http-429:0.05(retry_after=1s), stall:0.01(for=3s, after=5), tokens-per-chunk=4``.

    A share is between 0 and 1 (all requests where there is none); the options in brackets are
    ``after`` (tokens), ``for``, ``retry_after``, ``bytes`` and ``count``.

    Raises
    ------
    SpecError
        An unknown fault or option, or a value that cannot be.

    Example
    -------
    >>> [(rule.kind, rule.share_fraction, rule.after_tokens) for rule in parse_faults("reset:0.02(after=5), http-500")]
    [('reset', 0.02, 5), ('http-500', 1.0, 3)]
    """
    return tuple(_rule(part) for part in _split(text) if part)


def draw_faults(rules: tuple[FaultRule, ...], seed: int, number: int) -> Faults:
    """What befalls the request with this number? The same under the same seed."""
    if not rules:
        return Faults(None)
    chances = np.random.default_rng((seed, number, 1)).random(len(rules)).tolist()
    hits = [
        rule for rule, chance in zip(rules, chances, strict=True) if chance < rule.share_fraction
    ]
    strikes = [rule for rule in hits if rule.kind != "tokens-per-chunk"]
    chunks = [rule.count for rule in hits if rule.kind == "tokens-per-chunk"]
    return Faults(strikes[0] if strikes else None, chunks[0] if chunks else 1)


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text)]


def _rule(text: str) -> FaultRule:
    match = _RULE.fullmatch(text)
    kinds = get_args(FaultKind)
    kind = next((known for known in kinds if match is not None and known == match["kind"]), None)
    if match is None or kind is None:
        raise SpecError(
            f"{text!r} is no fault",
            where=_WHERE,
            allowed=", ".join(kinds),
            try_="reset:0.02(after=5)",
        )
    changes: dict[str, int | float] = {}
    if match["share"] is not None:
        changes["share_fraction"] = _number(match["share"], text)
    if match["count"] is not None:
        changes["count"] = int(match["count"])
    for option in filter(None, (part.strip() for part in (match["options"] or "").split(","))):
        name, _, value = option.partition("=")
        changes |= _option(name.strip(), value.strip(), text)
    return FaultRule(kind=kind, **changes)  # type: ignore[arg-type]


def _option(name: str, value: str, text: str) -> dict[str, int]:
    if name == "after":
        return {"after_tokens": _whole(value, text)}
    if name == "count":
        return {"count": _whole(value, text)}
    if name == "for":
        return {"hold_ns": round(parse_duration_s(value, where=f"{_WHERE} {text}") * NS_PER_S)}
    if name == "retry_after":
        return {
            "retry_after_ns": round(parse_duration_s(value, where=f"{_WHERE} {text}") * NS_PER_S)
        }
    if name == "bytes":
        return {"size_bytes": parse_bytes(value, where=f"{_WHERE} {text}")}
    raise SpecError(
        f"{name!r} of {text!r}",
        where=_WHERE,
        allowed="after, for, retry_after, bytes, count",
        try_="stall:0.01(for=3s)",
    )


def _whole(value: str, text: str) -> int:
    if not value.isdigit():
        raise SpecError(
            f"{value!r} in {text!r} is no whole number", where=_WHERE, allowed="0 or more"
        )
    return int(value)


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError as problem:
        raise SpecError(
            f"{value!r} in {text!r} is no share", where=_WHERE, allowed="0 to 1"
        ) from problem
