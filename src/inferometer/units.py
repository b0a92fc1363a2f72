"""Units, and conversion of text into them and back.

The only conversions in the code live here. Inside, durations are seconds (float) or nanoseconds
(int64), sizes are exact bytes, shares are fractions from 0 to 1. Milliseconds, GiB and percent
exist only in text.
"""

import math
import re
from typing import Final

from inferometer.errors import SpecError

SUFFIXES: Final = (
    "_usd_per_million_tokens",
    "_joule_per_token",
    "_usd_per_hour",
    "_usd_per_kwh",
    "_flop_per_byte",
    "_bytes_per_token",
    "_tokens_per_s",
    "_bytes_per_s",
    "_flop_per_s",
    "_per_s",
    "_fraction",
    "_tokens",
    "_ticks",
    "_joule",
    "_bytes",
    "_ratio",
    "_watt",
    "_flop",
    "_load",
    "_bits",
    "_utc",
    "_ns",
    "_hz",
    "_usd",
    "_s",
)
"""Endings that a public float's name may have, longest first. A load is requests per second or
users: what it is stands beside it."""

NS_PER_S: Final = 1_000_000_000
MOST_S: Final = 1e9
"""Longest duration from outside, about 31 years: its nanoseconds fit into int64."""
MOST_COUNT: Final = 2**31 - 1
"""Largest count from outside: fits into int32 columns."""
_MOST_BY_NAME: Final[dict[str, float]] = {
    "seed": 2**63 - 1,
    "_flop_per_s": 1e24,
    "_bytes_per_s": 1e18,
    "_per_s": 1e12,
    "_bytes": 2.0**60,
    "_ns": MOST_S * 1e9,
    "_s": MOST_S,
}
"""Endings of names, the first that fits."""
_MOST_LETTERS: Final = 64
"""Longest quantity text: matching time grows with its square."""
_MOST_OTHERWISE: Final = 1e15

_DURATION_S: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
}
_BYTES: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_ALL_AT_ONCE: Final = "--concurrency 256 --requests 256, all at once"
_BITS: Final = {"Mbit": 1.25e5, "Gbit": 1.25e8, "Tbit": 1.25e11}
_ALSO: Final = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "msecs", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("usec", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **{unit.lower(): unit for unit in ("kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")},
    **{unit: f"{unit}B" for unit in ("K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti")},
}
"""Other spellings of units; Kubernetes' `G` and `Gi` are GB and GiB."""
_MOST_OF_KIND: Final = {"duration": MOST_S, "size": 2.0**60, "speed": 1e18}
_UNIT_OF_KIND: Final = {"duration": "s", "size": "B", "speed": "B/s"}
_GROUPED: Final = re.compile(r"\s*[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?\s*")
_SEVERAL: Final = re.compile(r"(?:\s*[0-9.]+\s*[A-Za-zµ]+){2,4}\s*")
_QUANTITY: Final = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def ungrouped(text: str) -> str:
    """A number without the commas between its thousands, as tools and spreadsheets write them.

    ``0,123`` has a decimal comma: no thousands begin with 0.

    Example
    -------
    >>> ungrouped("1,234.5"), ungrouped("0,123"), ungrouped("12,34")
    ('1234.5', '0,123', '12,34')
    """
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def check_number(value: float, name: str, *, where: str | None) -> None:
    """Nothing, if a number from outside is finite and no larger than anything of that name can be.

    Raises
    ------
    SpecError
        The number is out of range.

    Example
    -------
    >>> check_number(8, "num_blocks", where="--set")
    """
    otherwise = MOST_COUNT if isinstance(value, int) else _MOST_OTHERWISE
    most = next(
        (
            most
            for ending, most in _MOST_BY_NAME.items()
            if name.rstrip("[0123456789]").endswith(ending)
        ),
        otherwise,
    )
    if not -most <= value <= most:
        shown = (
            f"{value:.6g}"
            if isinstance(value, float)
            else str(value)
            if abs(value) < 10**40
            else "a number of more than 40 digits"
        )
        raise SpecError(
            f"{name} = {shown}",
            where=where,
            allowed=f"a finite number up to {format_limit(most)}",
            try_=_ALL_AT_ONCE if name == "rate" and value > 0 else None,
        )


def format_limit(most: float) -> str:
    """A limit in the form in which it can be typed.

    Example
    -------
    >>> format_limit(2147483647), format_limit(1e18)
    ('2147483647', '1e+18')
    """
    return f"{most:.0f}" if most < 1e12 else f"{most:g}"


def s_from_ns(duration_ns: int) -> float:
    """How many seconds is this many nanoseconds?"""
    return duration_ns / NS_PER_S


def ns_from_s(duration_s: float) -> int:
    """How many whole nanoseconds is this many seconds (nearest)?

    Raises
    ------
    SpecError
        The nanoseconds do not fit into int64.
    """
    if not abs(duration_s) < 2**62 / NS_PER_S:
        raise SpecError(
            f"{duration_s:g} s", allowed=f"a finite time up to {2**62 / NS_PER_S:.2g} s"
        )
    return round(duration_s * NS_PER_S)


def parse_duration_s(text: str, *, where: str | None = None) -> float:
    """Seconds of text such as ``500ms`` or ``2min``.

    A bare number is refused: its unit is a guess.

    Raises
    ------
    SpecError
        No number, or a unit that is missing or unknown.

    Example
    -------
    >>> parse_duration_s("500ms"), parse_duration_s("1h30m"), parse_duration_s("2 minutes")
    (0.5, 5400.0, 120.0)
    """
    if len(text) <= _MOST_LETTERS and _SEVERAL.fullmatch(text):
        parts = re.findall(r"[0-9.]+\s*[A-Za-zµ]+", text)
        return sum(parse_duration_s(part, where=where) for part in parts)
    return _parse_quantity(text, _DURATION_S, kind="duration", example="500ms", where=where)


def parse_bytes(text: str, *, where: str | None = None) -> int:
    """Bytes of text such as ``80GiB`` (2^30) or ``80GB`` (10^9).

    Raises
    ------
    SpecError
        No number, or a unit that is missing or unknown.

    Example
    -------
    >>> parse_bytes("80GiB")
    85899345920
    """
    return round(_parse_quantity(text, _BYTES, kind="size", example="80GiB", where=where))


def parse_bytes_per_s(text: str, *, where: str | None = None) -> float:
    """Bytes per second of text such as ``50GB/s``, ``400Gbit/s`` or ``400Gbps``.

    Raises
    ------
    SpecError
        No number, or a unit that is missing or unknown.

    Example
    -------
    >>> parse_bytes_per_s("400Gbit/s")
    50000000000.0
    """
    plain = re.sub(r"b(?:/s(?:ec)?|ps)$", "bit/s", re.sub(r"Bps$|B/sec$", "B/s", text.strip()))
    amount, per, unit = plain.rpartition("/")
    if not per or unit != "s":
        raise SpecError(
            f"{text!r} is not a speed",
            where=where,
            allowed="a size per second, such as GB/s or Gbit/s",
            try_="50GB/s",
        )
    return _parse_quantity(amount, {**_BYTES, **_BITS}, kind="speed", example="50GB/s", where=where)


def format_duration(duration_s: float) -> str:
    """How does a person read this duration: ns, µs, ms below 10 s, then s, min, h; nothing in ms.

    Example
    -------
    >>> format_duration(0.0314), format_duration(12.5), format_duration(164), format_duration(3700)
    ('31.4 ms', '12.5 s', '2.73 min', '1 h 2 min')
    """
    if duration_s == 0:
        return "0 ms"
    if duration_s < 0:
        return "-" + format_duration(-duration_s)
    if not math.isfinite(duration_s):
        return f"{duration_s} s"
    for limit_s, factor_ratio, unit in (
        (1e-6, 1e9, "ns"),
        (1e-3, 1e6, "µs"),
        (10.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
    ):
        if duration_s < limit_s:
            return f"{format_number(duration_s * factor_ratio)} {unit}"
    minutes = round(duration_s / 60)
    if minutes < 60:
        return f"{format_number(duration_s / 60)} min"
    return f"{minutes // 60} h {minutes % 60} min"


def format_bytes(size_bytes: float) -> str:
    """How does a person read this size, in powers of 1024?

    Example
    -------
    >>> format_bytes(36864), format_bytes(3.375 * 2**30)
    ('36 KiB', '3.38 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{format_number(size_bytes)} {unit}"
        size_bytes /= 1024
    return f"{format_number(size_bytes)} TiB"


def format_rate(value_per_s: float, unit: str) -> str:
    """How does a person read this rate, in powers of 1000: ``format_rate(2e12, "B/s")`` is ``2 TB/s``.

    Example
    -------
    >>> format_rate(20.5e9, "B/s")
    '20.5 GB/s'
    """
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value_per_s) < 1000:
            return f"{format_number(value_per_s)} {prefix}{unit}"
        value_per_s /= 1000
    return f"{format_number(value_per_s)} P{unit}"


def format_count(count: float) -> str:
    """How does a person read this many parameters or tokens: 3.09 B, 135 M, 2,048.

    Example
    -------
    >>> format_count(3_085_938_688), format_count(2048)
    ('3.09 B', '2,048')
    """
    for limit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if abs(count) >= limit * 0.9995:
            return f"{format_number(count / limit)} {letter}"
    return f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """The number with its noun.

    Example
    -------
    >>> counted(1, "replica"), counted(2_000, "replica")
    ('1 replica', '2,000 replicas')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_fraction(value_fraction: float) -> str:
    """How does a person read this fraction: in percent, three significant digits.

    Example
    -------
    >>> format_fraction(0.82)
    '82 %'
    """
    return f"{format_number(value_fraction * 100)} %"


def format_number(value: float) -> str:
    """How is a bare number written: three significant digits, no exponent between 0.001 and 10^6, no trailing zeros.

    Example
    -------
    >>> format_number(31.40), format_number(1234.5), format_number(0.01234)
    ('31.4', '1234', '0.0123')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1_000_000 or abs(value) < 0.001:
        return f"{value:.3g}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def format_request_rate(requests_per_s: float) -> str:
    """How is a rate of requests written?

    Example
    -------
    >>> format_request_rate(1.0), format_request_rate(2.5)
    ('1 request/s', '2.5 requests/s')
    """
    number = format_number(requests_per_s)
    return f"{number} request/s" if number == "1" else f"{number} requests/s"


def _parse_quantity(
    text: str,
    factors: dict[str, float] | dict[str, int],
    *,
    kind: str,
    example: str,
    where: str | None,
) -> float:
    match = _QUANTITY.fullmatch(text) if len(text) <= _MOST_LETTERS else None
    if match is None:
        raise SpecError(
            f"{text[:_MOST_LETTERS]!r} is not a {kind}",
            where=where,
            allowed=f"a number and a unit of {', '.join(factors)}",
            try_=example,
        )
    number, unit = match.groups()
    meant = _ALSO.get(unit, unit)
    unit = unit if unit in factors or kind == "speed" or meant not in factors else meant
    if unit not in factors:
        problem = f"unit {unit!r} of {text!r} is unknown" if unit else f"{text!r} has no unit"
        likely = f"{number}{'s' if 's' in factors else example.lstrip('0123456789.')}"
        raise SpecError(
            problem,
            where=where,
            allowed=f"one of {', '.join(factors)}",
            try_=example if unit else likely,
        )
    value = float(number) * factors[unit]
    most = _MOST_OF_KIND[kind]
    if not value <= most:
        raise SpecError(
            f"{text!r} is too large",
            where=where,
            allowed=f"up to {format_limit(most)} {_UNIT_OF_KIND[kind]}",
            try_=example,
        )
    return value
