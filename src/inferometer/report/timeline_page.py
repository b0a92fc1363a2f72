"""What is there to read of the slots of a batch?"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.records.slot_timeline import Cells, CellState, SlotTimeline, state_shares
from inferometer.report.charts.online import timeline_chart
from inferometer.report.page import Line, Page, Section, method_section
from inferometer.report.request_tables import STATE_LETTERS, STATE_NAMES, slot_time_text
from inferometer.report.tables import TextTable
from inferometer.units import format_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """One timeline, or several of the same load with their names."""

    title: str
    subtitle: str
    lines: tuple[Line, ...]
    timelines: tuple[tuple[str, SlotTimeline], ...]
    tables: tuple[TextTable, ...] = ()
    definitions: tuple[tuple[str, str], ...] = ()
    tool_version: str = ""


def timeline_page_of(view: TimelineView) -> Page:
    """Sections of a page on slots: numbers, timeline, definitions."""
    charts = [
        timeline_chart(one, chart_id=f"slot-timeline-{rank}", who=name)
        for rank, (name, one) in enumerate(view.timelines)
    ]
    shown = tuple(chart for chart in charts if chart is not None)
    sections = (
        Section(id="numbers", title="What came of it?", nav="Numbers", tables=view.tables),
        Section(
            id="slots", title="What does each slot of the batch do?", nav="Slots", charts=shown
        ),
        method_section(view.definitions),
    )
    return Page(
        title=view.title,
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        lines=view.lines,
        chart=shown[0] if shown else None,
        sections=sections,
    )


# What did each slot do in each step, in letters: readable without colour, as wide as the
# terminal.
# Nothing here prints.


DEFAULT_WIDTH: Final = 80
MAX_SLOTS: Final = 32
_STYLES: Final = {
    CellState.CONTEXT: "black on yellow",
    CellState.GENERATION: "white on blue",
    CellState.END: "reverse",
    CellState.IDLE: "dim",
}
_STRENGTH: Final = {
    CellState.IDLE: 0,
    CellState.GENERATION: 1,
    CellState.CONTEXT: 2,
    CellState.END: 3,
}
"""Order by which a column of several steps shows the rarest state."""


def slot_timeline_text(
    timeline: SlotTimeline, *, width: int = DEFAULT_WIDTH, max_slots: int = MAX_SLOTS
) -> RenderableType:
    """Slots in rows, steps in columns, a letter for each state.

    Where the steps do not fit, a column is several of them.
    """
    n_slots, n_steps = timeline.states.shape
    margin = len(str(max(n_slots - 1, 0))) + 1
    n_columns = max(1, min(n_steps, width - margin))
    per_column = -(-n_steps // n_columns)
    columns = _columns(timeline.states[:max_slots], per_column)
    text = Text(no_wrap=True, overflow="crop")
    for slot, row in enumerate(columns.tolist()):
        text.append(f"{slot:>{margin - 1}} ", style="dim")
        for state in map(CellState, row):
            text.append(STATE_LETTERS[state], style=_STYLES[state])
        text.append("\n")
    if n_slots > max_slots:
        text.append(f"… {n_slots - max_slots} more slots\n")
    return Group(_headline(timeline, per_column), text, _legend(timeline))


def _headline(timeline: SlotTimeline, per_column: int) -> Text:
    n_slots, n_steps = timeline.states.shape
    took = (
        ""
        if not n_steps
        else slot_time_text(
            timeline, int(timeline.start_ns[-1] + timeline.duration_ns[-1] - timeline.start_ns[0])
        )
    )
    steps = (
        f"steps {timeline.first_step} to {timeline.first_step + n_steps - 1} of"
        f" {timeline.n_steps_of_run} ({took})"
    )
    column = "one step a column" if per_column == 1 else f"{per_column} steps a column"
    return Text(f"{n_slots} slots, {steps}, {column}")


def _legend(timeline: SlotTimeline) -> Text:
    shares = state_shares(timeline)
    legend = Text()
    for rank, state in enumerate(
        (CellState.CONTEXT, CellState.GENERATION, CellState.END, CellState.IDLE)
    ):
        legend.append(", " if rank else "")
        legend.append(STATE_LETTERS[state], style=_STYLES[state])
        legend.append(f" {STATE_NAMES[state]} {format_fraction(shares[state])}")
    return legend


def _columns(states: Cells, per_column: int) -> Cells:
    """The strongest state of each column's steps."""
    order = np.array([_STRENGTH[state] for state in CellState], np.int8)
    back = np.empty_like(order)
    back[order] = np.arange(len(order), dtype=np.int8)
    n_slots, n_steps = states.shape
    padded = np.zeros((n_slots, -(-n_steps // per_column) * per_column), np.int8)
    padded[:, :n_steps] = order[states]
    shown: Cells = back[padded.reshape(n_slots, -1, per_column).max(axis=2)]
    return shown
