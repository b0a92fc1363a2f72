"""How is a chart drawn: once, as SVG that fits any width and needs no script?

Marks stand in a box that stretches (strokes do not); words are placed by percent around it. So one
drawing serves a wide screen, a phone and paper, and colours come from the style of the page.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from inferometer.records.columns import F64
from inferometer.records.run_folder import make_folder, replace_file
from inferometer.report.charts.plot import (
    Band,
    Boxes,
    Chart,
    Dots,
    Line,
    Mark,
    Plot,
    Rule,
    Text,
    ends_of,
    place,
    places,
    ticks_of,
)

SIZE: Final = 10_000
"""Of the box that stretches: marks are placed to a hundredth of a percent."""
_ALONE: Final = SIZE // 100
"""Half the length of a line that has one point: a path of one point would not be seen."""
_LETTER: Final = 6.6
_ROW: Final = 15
_MAX_LABEL: Final = 22
_MAX_LABELLED: Final = 6
_FILE_WIDTH: Final = 760
SERIES_COLOURS: Final = [
    "#0068a3",
    "#c24a00",
    "#00795a",
    "#a8467f",
    "#8a6400",
    "#4b5563",
    "#6d4bc3",
    "#b3372b",
]
_HEAT: Final = [
    "#00204d",
    "#233e6c",
    "#4a5268",
    "#666970",
    "#878479",
    "#aa9f70",
    "#d0bd5e",
    "#ffea46",
]
_FILE_COLOURS: Final = {
    **{f"c{rank}": colour for rank, colour in enumerate(SERIES_COLOURS)},
    **{f"h{rank}": colour for rank, colour in enumerate(_HEAT)},
    "context": "#e69f00",
    "generation": "#0072b2",
    "end": "#16181d",
    "idle": "#e9eaed",
    "shade": "#f4ecd8",
}
"""Of files that stand alone; a page has its own in its style."""
_FILE_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#16181d}.title{font-size:15px;font-weight:600}"
    ".tick{fill:#565d68}.paper{fill:#fff}path{fill:none;vector-effect:non-scaling-stroke}"
    ".grid{stroke:#dfe1e5}.axis{stroke:#565d68}.rule{stroke:#b02e22;stroke-dasharray:4 3}"
    ".line{stroke-width:2}.faint{opacity:.5}.dashed{stroke-dasharray:6 4}"
    ".dotted{stroke-dasharray:1.5 4}.dot{stroke-width:8;stroke-linecap:round}"
    ".hole{stroke:#fff;stroke-width:4;stroke-linecap:round}"
    ".halo{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}"
    ".dust{stroke-width:3;stroke-linecap:round;opacity:.4}.on-dark{fill:#fff}"
)


def drawn(plot: Plot, *, width: int | None = None) -> str:
    """The plot as an SVG element: as wide as its box, or ``width`` pixels where it is a file."""
    return _Drawing(plot, width).text()


def legend_of(plots: Iterable[Plot]) -> list[tuple[str, str]]:
    """Name and colour of each series; a single one needs none."""
    named = {
        mark.name: mark.colour
        for plot in plots
        for mark in plot.marks
        if isinstance(mark, Line | Dots | Boxes | Band) and mark.name
    }
    return list(named.items()) if len(named) > 1 else []


def svg_file(chart: Chart) -> str:
    """A chart alone in a file, with its title and its paper."""
    parts, top = [f'<text class="title" x="12" y="24">{escape(chart.title)}</text>'], 40
    for place_, (name, colour) in enumerate(legend_of(chart.plots)):
        x, y = 12 + 180 * (place_ % 4), top + 18 * (place_ // 4) + 10
        parts.append(
            f'<g class="{colour}"><rect class="box" x="{x}" y="{y - 9}" width="10" height="10"/>'
            f'<text x="{x + 15}" y="{y}">{escape(name)}</text></g>'
        )
        top = max(top, y + 12)
    for plot in chart.plots:
        drawing = _Drawing(plot, _FILE_WIDTH)
        parts.append(f'<text class="tick" x="12" y="{top + 14}">{escape(plot.y.title)}</text>')
        parts.append(f'<svg x="0" y="{top + 20}">{drawing.text()}</svg>')
        top += 20 + drawing.height
        parts.append(
            f'<text class="tick" x="{_FILE_WIDTH / 2}" y="{top + 12}" text-anchor="middle">'
            f"{escape(plot.x.title)}</text>"
        )
        top += 22
    size = f'width="{_FILE_WIDTH}" height="{top + 8}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_file_style()}</style>'
        f'<rect class="paper" {size}/>{"".join(parts)}</svg>\n'
    )


def _file_style() -> str:
    """Style of a stand-alone file: plain colours, for programs without CSS variables."""
    rules = [_FILE_STYLE]
    for name, colour in _FILE_COLOURS.items():
        rules.append(f".line.{name},.dot.{name},.bar.{name},.dust.{name}{{stroke:{colour}}}")
        rules.append(f".box.{name},.name.{name},.{name} .box{{fill:{colour}}}")
        rules.append(f".band.{name}{{fill:{colour};opacity:.15}}")
    return "".join(rules)


class _Drawing:
    """One plot, with its axes and scales."""

    def __init__(self, plot: Plot, width: int | None) -> None:
        self.plot, self.width = plot, width
        self.x_ends = ends_of(plot.x, _values(plot.marks, is_x=True))
        self.y_ends = (
            (float(len(plot.rows)), 0.0)
            if plot.rows
            else ends_of(plot.y, _values(plot.marks, is_x=False))
        )
        self.y_ticks = [] if plot.rows else ticks_of(plot.y, self.y_ends)
        self.ends = _end_labels(plot)
        self.rules = [one for one in plot.marks if isinstance(one, Rule) and one.is_vertical]
        self.left = 8 + round(_LETTER * max((len(text) for _, text in self.y_ticks), default=0))
        self.right = 14 + round(_LETTER * max((len(one.name) for one in self.ends), default=0))
        self.top = 8 + _ROW * len(self.rules)
        self.height = self.top + plot.height + 22

    def text(self) -> str:
        """The element; the margins are the padding of the box around it, which a phone narrows."""
        body = f"{self._grid()}{self._stretched()}{self._words()}"
        if self.width is not None:
            inner = self.width - self.left - self.right
            return (
                f'<svg x="{self.left}" y="{self.top}" width="{inner}" height="{self.plot.height}"'
                f' overflow="visible">{body}</svg>'
            )
        x, y = self.plot.x, self.plot.y
        data = (
            f' data-x="{x.scale},{self.x_ends[0]:.6g},{self.x_ends[1]:.6g}"'
            f' data-y="{y.scale},{self.y_ends[0]:.6g},{self.y_ends[1]:.6g}"'
            f' data-x-title="{escape(x.title)}" data-y-title="{escape(y.title)}"'
        )
        brush = ' data-brush=""' if self.plot.has_brush else ""
        return (
            f'<div class="plot" style="padding:0 {self.right}px 0 {self.left}px">'
            f'<svg width="100%" height="{self.height}"{data}{brush} aria-hidden="true">'
            f'<svg class="in" y="{self.top}" height="{self.plot.height}">{body}</svg></svg></div>'
        )

    def _stretched(self) -> str:
        return (
            f'<svg class="marks" viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none"'
            f' width="100%" height="{self.plot.height}" overflow="visible">{self._marks()}</svg>'
        )

    def _x(self, value: float) -> float:
        return place(self.plot.x, self.x_ends, value)

    def _y(self, value: float) -> float:
        return 1 - place(self.plot.y, self.y_ends, value)

    def _grid(self) -> str:
        """Lines, and the numbers at both axes; every second number is left out on a phone."""
        height, parts = self.plot.height, list[str]()
        for value, text in self.y_ticks:
            y = self._y(value) * height
            parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="tick" x="-6" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
            )
        ticks = ticks_of(self.plot.x, self.x_ends)
        for rank, (value, text) in enumerate(ticks):
            x = self._x(value)
            is_left_out = len(ticks) > 4 and rank % 2 and rank != len(ticks) - 1
            is_left_out = is_left_out or (
                len(ticks) > 4 and not rank % 2 and rank == len(ticks) - 2
            )
            anchor = "start" if x < 0.02 else "end" if x > 0.98 else "middle"
            wide = " wide" if is_left_out else ""
            parts.append(
                f'<text class="tick xt{wide}" x="{100 * x:.2f}%" y="{height + 16}"'
                f' text-anchor="{anchor}">{escape(text)}</text>'
            )
        parts.append(f'<line class="axis" x1="0" x2="100%" y1="{height}" y2="{height}"/>')
        return "".join(parts)

    def _marks(self) -> str:
        order = (Boxes, Band, Rule, Line, Dots)
        marks: list[Mark] = [*self.plot.marks]
        return "".join(self._mark(one) for kind in order for one in marks if isinstance(one, kind))

    def _mark(self, mark: Mark) -> str:
        match mark:
            case Line():
                return self._line(mark)
            case Band():
                return self._band(mark)
            case Dots():
                return self._dots(mark)
            case Boxes():
                return self._boxes(mark)
            case Rule():
                at = self._x(mark.at) if mark.is_vertical else self._y(mark.at)
                path = f"M{_int(at)} 0V{SIZE}" if mark.is_vertical else f"M0 {_int(at)}H{SIZE}"
                return f'<path class="rule {mark.tone}" d="{path}"/>'
            case Text():
                return ""

    def _line(self, line: Line) -> str:
        path = list[str]()
        for stretch in _stretches(line):
            places = [(_int(self._x(x)), _int(self._y(y))) for x, y in stretch]
            if len(places) == 1:
                x, y = places[0]
                places = [(x - _ALONE, y), (x + _ALONE, y)]
            for rank, (x, y) in enumerate(places):
                if line.is_stepped and rank:
                    path.append(f"L{x} {places[rank - 1][1]}")
                path.append(f"{'L' if rank else 'M'}{x} {y}")
        looks = " ".join(one for one in (line.dash, "faint" if line.is_faint else "") if one)
        return f'<path class="line {line.colour} {looks}"{_named(line.name)} d="{"".join(path)}"/>'

    def _band(self, band: Band) -> str:
        xs, ys = np.array(band.outline, np.float64).reshape(-1, 2).T
        at_x = _ints(places(self.plot.x, self.x_ends, xs))
        at_y = _ints(1 - places(self.plot.y, self.y_ends, ys))
        path = "L".join(f"{x} {y}" for x, y in zip(at_x, at_y, strict=True))
        return f'<path class="band {band.colour}"{_named(band.name)} d="M{path}Z"/>'

    def _dots(self, dots: Dots) -> str:
        places = [
            (_int(self._x(x)), _int(self._y(y))) for x, y in zip(dots.xs, dots.ys, strict=True)
        ]
        named = _named(dots.name)
        if dots.is_small:
            path = "".join(f"M{x} {y}h0" for x, y in places)
            return f'<path class="dust {dots.colour}"{named} d="{path}"/>'
        parts = list[str]()
        for (x, _), bar in zip(places, dots.bars, strict=False):
            if bar is not None and (bar[0] > 0 or self.plot.y.scale == "linear"):
                low, high = (_int(self._y(one)) for one in bar)
                parts.append(f'<path class="bar {dots.colour}"{named} d="M{x} {low}V{high}"/>')
        for rank, (x, y) in enumerate(places):
            tip = f' data-t="{escape(dots.tips[rank])}"' if dots.tips else ""
            parts.append(f'<path class="dot {dots.colour}"{named}{tip} d="M{x} {y}h0"/>')
            if dots.is_hollow and dots.is_hollow[rank]:
                parts.append(f'<path class="hole"{named} d="M{x} {y}h0"/>')
        return "".join(parts)

    def _boxes(self, boxes: Boxes) -> str:
        named, parts, path = _named(boxes.name), list[str](), list[str]()
        for rank, (x0, x1, y0, y1) in enumerate(boxes.boxes):
            left, right = sorted((_int(self._x(x0)), _int(self._x(x1))))
            top, bottom = sorted((_int(self._y(y0)), _int(self._y(y1))))
            shape = f"M{left} {top}H{right}V{bottom}H{left}Z"
            if boxes.tips:
                tip = escape(boxes.tips[rank])
                parts.append(
                    f'<path class="box {boxes.colour}"{named} data-t="{tip}" d="{shape}"/>'
                )
            else:
                path.append(shape)
        if path:
            parts.append(f'<path class="box {boxes.colour}"{named} d="{"".join(path)}"/>')
        return "".join(parts)

    def _words(self) -> str:
        """Text of line ends, rules and rows."""
        height = self.plot.height
        parts = [
            f'<text class="row halo" x="0" y="{height * (rank + 0.34) / len(self.plot.rows):.1f}">'
            f"{escape(text)}</text>"
            for rank, text in enumerate(self.plot.rows)
        ]
        wanted = [self._y(one.ys[-1]) * height + 4 for one in self.ends]
        for one, y in zip(self.ends, _apart(wanted, height), strict=True):
            parts.append(
                f'<text class="name wide {one.colour}"{_named(one.name)} x="100%" dx="7"'
                f' y="{y:.1f}">{escape(one.name)}</text>'
            )
        for rank, rule in enumerate(self.rules):
            x = self._x(rule.at)
            anchor, dx = ("start", 5) if x < 0.5 else ("end", -5)
            y = rank * _ROW - self.top + 12
            parts.append(
                f'<line class="rule {rule.tone}" x1="{100 * x:.2f}%" x2="{100 * x:.2f}%"'
                f' y1="{y - 9}" y2="0"/><text class="{rule.tone}" x="{100 * x:.2f}%" dx="{dx}"'
                f' y="{y}" text-anchor="{anchor}">{escape(rule.text)}</text>'
            )
        across = [one for one in self.plot.marks if isinstance(one, Rule) and not one.is_vertical]
        heights = (self._y(one.at) * height for one in across)
        above = [y - 4 if y > _ROW else y + 13 for y in heights]
        for rule, y in zip(across, _apart(above, height), strict=True):
            parts.append(
                f'<text class="{rule.tone} halo" x="4" y="{y:.1f}">{escape(rule.text)}</text>'
            )
        for mark in self.plot.marks:
            if isinstance(mark, Text):
                wide = " wide" if mark.is_wide_only else ""
                wide += f" {mark.looks}" if mark.looks else ""
                parts.append(
                    f'<text class="words{wide}" x="{100 * self._x(mark.x):.2f}%"'
                    f' y="{self._y(mark.y) * height + 4:.1f}" text-anchor="{mark.anchor}">'
                    f"{escape(mark.text)}</text>"
                )
        return "".join(parts)


def _values(marks: Sequence[Mark], *, is_x: bool) -> Iterable[float]:
    """All values that an axis must include."""
    for mark in marks:
        match mark:
            case Line() | Dots():
                yield from mark.xs if is_x else mark.ys
                if isinstance(mark, Dots) and not is_x:
                    yield from (end for bar in mark.bars if bar is not None for end in bar)
            case Band():
                yield from (point[0 if is_x else 1] for point in mark.outline)
            case Boxes():
                yield from (one for box in mark.boxes for one in (box[:2] if is_x else box[2:]))
            case Rule() if mark.is_vertical == is_x:
                yield mark.at
            case _:
                pass


def _stretches(line: Line) -> list[list[tuple[float, float]]]:
    """Parts of a line between its gaps; a step lasts until its gap begins."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.xs, line.ys, strict=True):
        if math.isfinite(x) and math.isfinite(y):
            stretches[-1].append((x, y))
        elif stretches[-1]:
            if line.is_stepped and math.isfinite(x):
                stretches[-1].append((x, stretches[-1][-1][1]))
            stretches.append([])
    return [one for one in stretches if one]


def _end_labels(plot: Plot) -> list[Line]:
    """Lines that are named at their ends, if few with short names."""
    lines = [one for one in plot.marks if isinstance(one, Line) and one.name and len(one.ys)]
    is_few = len(lines) <= _MAX_LABELLED and all(len(one.name) <= _MAX_LABEL for one in lines)
    names = {one.name: one for one in lines if math.isfinite(one.ys[-1])}
    return list(names.values()) if is_few and len(names) > 1 and not plot.rows else []


def _apart(wanted: Sequence[float], height: float) -> list[float]:
    """Positions of labels, moved apart where they would overlap."""
    order = sorted(range(len(wanted)), key=lambda rank: wanted[rank])
    placed = dict[int, float]()
    last = -math.inf
    for rank in order:
        placed[rank] = last = max(wanted[rank], last + _ROW, 11.0)
    over = last - (height - 2)
    if over > 0 and order:
        at = placed[order[-1]] = placed[order[-1]] - over
        for rank, above in pairwise(reversed(order)):
            del rank
            at = placed[above] = min(placed[above], at - _ROW)
    return [placed[rank] for rank in range(len(wanted))]


def _named(name: str) -> str:
    return f' data-s="{escape(name)}"' if name else ""


def _int(share: float) -> int:
    return round(SIZE * min(max(share, -0.5), 1.5))


def _ints(shares: F64) -> list[int]:
    whole: list[int] = np.rint(SIZE * np.clip(shares, -0.5, 1.5)).astype(np.int64).tolist()
    return whole


def export_charts(charts: Sequence[Chart], folder: Path) -> tuple[Path, ...]:
    """Write each chart to ``folder`` as ``<chart>.svg`` and its table as ``<chart>.csv``; the files written."""
    make_folder(folder)
    written: list[Path] = []
    for chart in charts:
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([chart.header, *chart.rows])
        for ending, text in (("svg", svg_file(chart)), ("csv", table.getvalue())):
            written.append(folder / f"{chart.chart_id}.{ending}")
            replace_file(written[-1], text.encode())
    return tuple(written)
