"""The document that every answer is: drawn by the terminal, by HTML and in notebooks.

A title that is a sentence, a verdict, the few numbers that people quote, then why, what else, how
far to trust it and what to do next; all else in sections.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer import __version__
from inferometer.errors import COMMAND
from inferometer.inputs.types import Caution
from inferometer.records.request_summaries import LatencyMean, Percentile
from inferometer.report.charts.plot import Chart
from inferometer.report.tables import TextTable
from inferometer.report.views import FactGroup, Statement
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import format_duration, format_number

Tone: TypeAlias = Literal["good", "bad", "open", "plain"]
Label: TypeAlias = Literal[
    "ANSWER",
    "LIMIT",
    "MBU",
    "DRAFTS",
    "SLO",
    "ALSO",
    "WHY",
    "OR",
    "COST",
    "TRUST",
    "ASSUME",
    "CHECK",
    "NEXT",
    "REPORT",
    "DATA",
]

TONES: Final[dict[str, Tone]] = {
    "met": "good",
    "VALID": "good",
    "held": "good",
    "better": "good",
    "fits": "good",
    "equivalent": "plain",
    "missed": "bad",
    "INVALID": "bad",
    "wrong": "bad",
    "worse": "bad",
    "undecided": "open",
    "SUSPECT": "open",
    "open": "open",
}
_FAR_RATIO: Final = 3.0
ICONS: Final[dict[Tone, str]] = {"good": "✔", "bad": "✘", "open": "?", "plain": "="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The verdict in a few words, with its colour and icon."""

    verdict: str
    """One of ``TONES``."""
    text: str

    @property
    def tone(self) -> Tone:
        """Good, bad, open or plain."""
        return TONES.get(self.verdict, "plain")

    @property
    def icon(self) -> str:
        """Symbol with the meaning of the colour."""
        return ICONS[self.tone]


_SECONDS_PER_UNIT: Final = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
_MANY_DIGITS: Final = 1e5


def slo_words(verdict: Verdict) -> str:
    """The verdict on an SLO, for a chip."""
    words = {"met": "meets the SLO", "missed": "misses the SLO"}
    return words.get(verdict, "undecided whether it meets the SLO")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that people quote, with its interval and its limit, all in ``unit``."""

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    """Infinite where some of the slowest requests never ended."""
    limit: float | None = None
    limit_name: str = "limit"
    note: str = ""
    is_at_least: bool = False
    """The value is a lower bound."""

    @property
    def text(self) -> str:
        """``≥ 576``"""
        return f"{'≥ ' if self.is_at_least else ''}{format_number(self.value)}"

    def value_in(self, unit: str) -> float | None:
        """The value in this unit; None where the two do not measure the same."""
        if unit == self.unit:
            return self.value
        if not {unit, self.unit} <= _SECONDS_PER_UNIT.keys():
            return None
        return self.value * _SECONDS_PER_UNIT[self.unit] / _SECONDS_PER_UNIT[unit]

    @property
    def interval(self) -> str:
        """``[470, 720]``; '' without one."""
        if self.low is None or self.high is None:
            return ""
        return f"[{self._end(self.low)}, {self._end(self.high)}]"

    def _end(self, value: float) -> str:
        """An end of the interval; minutes beside a value in ms are written as minutes."""
        if math.isinf(value):
            return "…"
        is_far = value >= _MANY_DIGITS and self.unit in _SECONDS_PER_UNIT
        return (
            format_duration(value * _SECONDS_PER_UNIT[self.unit])
            if is_far
            else format_number(value)
        )

    @property
    def places(self) -> dict[str, float] | None:
        """Positions (0 to 1) of value, interval and limit on a bar; None without the latter two."""
        if self.low is None and self.limit is None:
            return None
        ends = [one for one in (self.value, self.high, self.limit) if one is not None]
        farthest = max(one for one in ends if math.isfinite(one))
        # An interval that ends far beyond value and limit runs off the bar.
        nearby = _FAR_RATIO * max(self.value, self.limit or 0.0)
        most = min(farthest, nearby) * (1.2 if self.limit else 1.35)
        if most <= 0:
            return None
        named = {"low": self.low, "high": self.high, "value": self.value, "limit": self.limit}
        return {name: min(one / most, 1.0) for name, one in named.items() if one is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A sentence under one of the labels that all verbs share."""

    label: Label
    text: str
    command: str = ""
    """To be pasted; never wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section after the first screen, titled with a question; drawn in field order."""

    id: str
    """Anchor, different from every chart's."""
    title: str
    nav: str
    """Name in the list of sections."""
    statements: tuple[Statement, ...] = ()
    cautions: tuple[Caution, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[TextTable, ...] = ()
    definitions: tuple[tuple[str, str], ...] = ()
    groups: tuple[FactGroup, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    command: str = ""

    @property
    def is_empty(self) -> bool:
        """Is there nothing to draw?"""
        parts = (
            self.statements,
            self.cautions,
            self.charts,
            self.tables,
            self.definitions,
            self.groups,
            self.files,
            self.command,
        )
        return not any(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer, ready to be drawn."""

    title: str
    """A sentence: model, traffic, answer."""
    subtitle: str = ""
    """The deployment in the engine's words, and where the numbers come from."""
    findings: tuple[str, ...] = ()
    """Sentences that answer beside the title, where there are several."""
    chips: tuple[Chip, ...] = ()
    numbers: tuple[Number, ...] = ()
    """Four to six."""
    has_numbers_in_table: bool = False
    """A terminal, which shows the table, leaves the numbers out."""
    table: TextTable | None = None
    """The table that carries the answer; a section has it too, if it is not here alone."""
    chart: Chart | None = None
    """The one chart of the first screen."""
    lines: tuple[Line, ...] = ()
    lead_cautions: tuple[Caution, ...] = ()
    """Cautions that put the answer itself in question; they come first."""
    cautions: tuple[Caution, ...] = ()
    sections: tuple[Section, ...] = ()
    tool_version: str = __version__


def joined(pages: tuple[Page, ...]) -> Page:
    """One page of several: the first, and a section for each other one."""
    first, *others = pages
    return replace(
        first,
        sections=(
            *first.sections,
            *(_as_section(rank, one) for rank, one in enumerate(others, 2)),
        ),
    )


def _as_section(rank: int, page: Page) -> Section:
    return Section(
        id=f"page-{rank}",
        title=page.title,
        nav=f"Answer {rank}",
        tables=() if page.table is None else (page.table,),
        definitions=(
            ("load", page.subtitle),
            *(("state", chip.text) for chip in page.chips),
            *((line.label, f"{line.text} {line.command}".strip()) for line in page.lines),
        ),
    )


def method_section(definitions: tuple[tuple[str, str], ...]) -> Section:
    """Definitions of the words on a page."""
    return Section(
        id="method", title="What do the words mean?", nav="Method", definitions=definitions
    )


def closing_sections(
    definitions: tuple[tuple[str, str], ...],
    groups: tuple[FactGroup, ...],
    files: tuple[tuple[str, str], ...],
    command: str,
) -> tuple[Section, Section, Section]:
    """Sections on definitions, provenance, and how to reproduce the numbers."""
    return (
        method_section(definitions),
        Section(id="provenance", title="Where is it from?", nav="Provenance", groups=groups),
        Section(id="data", title="How is it repeated?", nav="Data", files=files, command=command),
    )


def lines_of(*named: tuple[Label, str]) -> tuple[Line, ...]:
    """The non-empty sentences; the last may end in a command."""
    return tuple(
        _next(text) if label == "NEXT" else Line(label=label, text=text)
        for label, text in named
        if text
    )


def _next(text: str) -> Line:
    words, name, rest = text.partition(COMMAND)
    words = words.strip().removesuffix("try:").strip()
    return Line(label="NEXT", text=words, command=f"{name}{rest}")


def duration_number(
    name: str,
    measured: Percentile | LatencyMean | Estimate | None,
    *,
    limit_s: float | None = None,
    note: str = "",
) -> tuple[Number, ...]:
    """A latency in ms below 10 s, in s above; empty where it is unknown."""
    if measured is None:
        return ()
    seconds = measured if isinstance(measured, Estimate) else measured.seconds
    size_s = max(seconds.value, limit_s or 0.0)
    unit, factor = ("µs", 1e6) if size_s < 1e-3 else ("ms", 1e3) if size_s < 10 else ("s", 1.0)
    return (
        _number(
            name,
            seconds,
            unit,
            factor,
            limit=None if limit_s is None else limit_s * factor,
            note=note,
            is_at_least=not isinstance(measured, Estimate) and measured.is_lower_bound,
        ),
    )


def spanned(number: Number, others: Sequence[float]) -> Number:
    """The number with an interval that holds these values, too: those at other step times."""
    ends = [one for one in (number.value, number.low, number.high, *others) if one is not None]
    if not others or min(ends) == max(ends):
        return number
    return replace(number, low=min(ends), high=max(ends))


def rate_number(
    name: str, rate: Estimate | None, unit: str, *, note: str = ""
) -> tuple[Number, ...]:
    """A rate with its interval; empty where it is unknown."""
    return () if rate is None else (number_of(name, rate, unit, note=note),)


def number_of(name: str, estimate: Estimate, unit: str, *, note: str = "") -> Number:
    """An estimate that is in this unit."""
    return _number(name, estimate, unit, 1.0, note=note)


def _number(
    name: str,
    estimate: Estimate,
    unit: str,
    factor: float,
    *,
    limit: float | None = None,
    note: str = "",
    is_at_least: bool = False,
) -> Number:
    return Number(
        name=name,
        value=estimate.value * factor,
        unit=unit,
        low=None if estimate.low is None else estimate.low * factor,
        high=None if estimate.high is None else estimate.high * factor,
        limit=limit,
        note=note,
        is_at_least=is_at_least,
    )
