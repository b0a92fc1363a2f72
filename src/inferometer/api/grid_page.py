"""What is there to read of a grid: findings first, then a row for each point?"""

from collections.abc import Callable
from typing import Final

from inferometer import __version__
from inferometer.api.grid import GridAnswer, GridPoint
from inferometer.report.page import Page
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate
from inferometer.units import format_bytes, format_duration, format_fraction, format_number

_SUFFIXES: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("_tokens_per_s", " tok/s", format_number),
    ("requests_per_s", " req/s", format_number),
    ("_per_million_tokens", "/1M tok", format_number),
    ("_bytes", "", format_bytes),
    ("_fraction", "", format_fraction),
    ("_users", " users", format_number),
    ("_s", "", format_duration),
)
_WITH_INTERVAL: Final = (
    "tpot_s",
    "ttft_s",
    "capacity",
    "ttft_p95_s",
    "tpot_p95_s",
    "requests_per_s",
)
_NAMES: Final = {"usd_per_million_tokens": "$/1M tok", "mbu_fraction": "MBU", "mfu_fraction": "MFU"}


def grid_page(answer: GridAnswer) -> Page:
    """What the points say, and the points."""
    n_answered = sum(point.refused is None for point in answer.points)
    n_points = len(answer.points)
    refused = "" if n_answered == n_points else f"; {n_answered} of {n_points} points answered"
    return Page(
        title=f"{answer.title}{refused}",
        table=_table(answer),
        findings=tuple(finding.sentence for finding in answer.findings),
        tool_version=__version__,
    )


def _table(answer: GridAnswer) -> TextTable:
    numbers = _names_of([point.numbers for point in answer.points])
    words = _names_of([point.words for point in answer.points])
    has_refused = any(point.refused for point in answer.points)
    header = (
        *(name.replace("_", " ") for name in answer.axes),
        *(_heading(name) for name in numbers),
        *(name.replace("_", " ") for name in words),
        *(("no answer because",) if has_refused else ()),
    )
    rows = (_row(point, numbers, words, has_refused=has_refused) for point in answer.points)
    return TextTable(caption="Point by point", header=header, rows=tuple(map(tuple, rows)))


def _names_of(rows: list[dict[str, Estimate | None]] | list[dict[str, str | None]]) -> list[str]:
    """Names that at least one point has a value of."""
    return list(dict.fromkeys(name for row in rows for name, one in row.items() if one is not None))


def _heading(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    suffix, unit, _ = next(one for one in _SUFFIXES if name.endswith(one[0]))
    words = name.removesuffix(suffix).replace("_", " ").strip()
    for short in ("ttft", "tpot", "e2e"):
        words = words.replace(short, short.upper())
    return f"{words}{unit}".strip()


def _row(point: GridPoint, numbers: list[str], words: list[str], *, has_refused: bool) -> list[str]:
    cells = ["-" if value is None else str(value) for value in point.values.values()]
    cells += [_number(name, point.numbers.get(name)) for name in numbers]
    cells += [point.words.get(name) or "–" for name in words]
    return [*cells, *([point.refused or ""] if has_refused else [])]


def _number(name: str, estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    form = next(form for suffix, _, form in _SUFFIXES if name.endswith(suffix))
    if estimate.low is None or estimate.high is None or not name.startswith(_WITH_INTERVAL):
        return form(estimate.value)
    return f"{form(estimate.value)} [{form(estimate.low)}, {form(estimate.high)}]"
