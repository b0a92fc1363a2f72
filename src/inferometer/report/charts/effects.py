"""What does each of several changes bring, one row each with its interval?"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inferometer.report.charts.bars import box_of, rows_plot
from inferometer.report.charts.plot import Axis, Chart, Dots, Line, Mark, Rule, Text, bar_of, tip
from inferometer.stats.estimate import Estimate

_MAX_ROWS: Final = 10
"""The rest stands in the table."""
_NOTE_FRACTION: Final = 0.3
"""Room at the right for the numbers in words."""
_MAX_LETTERS: Final = 44
"""Of a row's label, so that a phone shows it; the tip and the table have all of it."""


class Effect(NamedTuple):
    """One change and what it brings."""

    name: str
    gain: Estimate
    """In the unit of the axis."""
    words: str
    is_chosen: bool
    """Filled; the others are hollow."""


def effects_chart(
    effects: Sequence[Effect], *, chart_id: str, title: str, finding: str, axis: str, legend: str
) -> Chart | None:
    """The largest first, zero as a line; None where nothing was found."""
    if not effects:
        return None
    ranked = sorted(effects, key=lambda one: -one.gain.value)
    shown = ranked[:_MAX_ROWS]
    ends = [bar_of(one.gain) or (one.gain.value, one.gain.value) for one in shown]
    low = min(0.0, *(end[0] for end in ends))
    high = max(low + 1e-9, 0.0, *(end[1] for end in ends))
    middles = [sum(box_of(rank, 0, 0)[2:]) / 2 for rank in range(len(shown))]
    marks: list[Mark] = [Rule(at=0.0, text="", is_vertical=True, tone="plain")]
    for (left, right), y in zip(ends, middles, strict=True):
        marks.append(Line(xs=(left, right), ys=(y, y), colour="c0"))
    marks.append(
        Dots(
            xs=[one.gain.value for one in shown],
            ys=middles,
            is_hollow=[not one.is_chosen for one in shown],
            tips=[tip((one.name, ""), (axis, one.words)) for one in shown],
        )
    )
    room = _NOTE_FRACTION * (high - low)
    marks += [
        Text(x=end[1] + room / 20, y=y, text=one.words.partition(" [")[0], anchor="start")
        for one, end, y in zip(shown, ends, middles, strict=True)
    ]
    plot = rows_plot(
        [_short(one.name) for one in shown],
        Axis(title=axis, low=low - room / 10, high=high + room),
        marks,
        legend,
        n_all=len(ranked),
        rows="rows: changes",
    )
    return Chart(
        chart_id=chart_id,
        title=title,
        finding=finding,
        plots=(plot,),
        header=("change", axis),
        rows=tuple((one.name, one.words) for one in ranked),
    )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 1]}…"
