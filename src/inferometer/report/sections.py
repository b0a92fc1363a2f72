"""Of which sections is a page made?

Whatever a page is about, the same template draws them; empty ones are left out.
"""

from dataclasses import dataclass

from inferometer.records.types import Caution
from inferometer.report.figure import Figure
from inferometer.report.tables import TextTable
from inferometer.report.views import FactGroup, FiveLines, Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a page, drawn in the order of its fields."""

    id: str
    """Its anchor, which is no chart's."""
    title: str
    nav: str
    """Its name in the list of sections."""
    statements: tuple[Statement, ...] = ()
    cautions: tuple[Caution, ...] = ()
    figures: tuple[Figure, ...] = ()
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
            self.figures,
            self.tables,
            self.definitions,
            self.groups,
            self.files,
            self.command,
        )
        return not any(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: what it is called, its answer, its sections."""

    title: str
    subtitle: str
    tool_version: str
    answers: tuple[tuple[str, str], ...]
    lead_cautions: tuple[Caution, ...] = ()
    """What makes the answer itself doubtful stands before it."""
    sections: tuple[Section, ...]


def answers_of(lines: FiveLines) -> tuple[tuple[str, str], ...]:
    """The five lines with the word before each."""
    return (
        ("Answer", lines.answer),
        ("Limit", lines.limit),
        ("Next", lines.next),
        ("Trust", lines.trust),
        ("Files", lines.report),
    )
