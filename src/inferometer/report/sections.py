"""Of which sections is a page made?

Whatever a page is about, the same template draws them; empty ones are left out.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

import vl_convert
from markupsafe import Markup

from inferometer.records.types import Caution
from inferometer.report.charts.frame import ChartSpec
from inferometer.report.tables import TextTable
from inferometer.report.views import FactGroup, FiveLines, Statement

# How does a chart stand in a page: a picture for print and for readers without scripts, and the
# data of the live one?


COORDINATES: Final = re.compile(r' (?:d|transform)="[^"<>]*"')
GRADIENT: Final = re.compile(r"\bgradient_\d+\b")
LONG_NUMBER: Final = re.compile(r"(\d+\.\d\d)\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, ready for the template; ``svg`` and ``json`` are safe to stand in a page as they are."""

    id: str
    title: str
    finding: str
    svg: Markup
    json: Markup
    table: TextTable


def figure_of(chart: ChartSpec) -> Figure:
    """Draw the chart once as a picture, and compile it for the script that draws it live."""
    spec = dict(chart.spec)
    svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    live = vl_convert.vegalite_to_vega(spec)
    live.pop("$schema", None)
    return Figure(
        id=chart.chart_id,
        title=chart.title,
        finding=chart.finding,
        # The picture is Vega's own output, in which Vega escapes all text.
        svg=Markup(_shortened(_own_gradients(svg, chart.chart_id))),  # noqa: S704
        json=Markup(json_for_script(live)),  # noqa: S704
        table=TextTable(caption=chart.title, header=chart.header, rows=chart.rows),
    )


def json_for_script(value: object) -> str:
    """JSON that can stand in a script element: no text in it can end the element or open a comment.

    Example
    -------
    >>> len(json_for_script("</script>")) - len("</script>")
    12
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _own_gradients(svg: str, chart_id: str) -> str:
    """Vega counts its gradients through the whole process.

    Names of the chart's own keep pages equal byte for byte, and ids apart.
    """
    names = {
        name: f"{chart_id}-{place}"
        for place, name in enumerate(dict.fromkeys(GRADIENT.findall(svg)))
    }
    return GRADIENT.sub(lambda found: names[found.group()], svg)


def _shortened(svg: str) -> str:
    """Coordinates to a hundredth of a pixel: a third of a picture is digits that nobody sees."""
    return COORDINATES.sub(lambda found: LONG_NUMBER.sub(r"\1", found.group()), svg)


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
