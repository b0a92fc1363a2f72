"""What do slots of a batch look like as one file that opens anywhere?"""

from dataclasses import dataclass

from inferometer.records.slot_timeline import SlotTimeline
from inferometer.report.charts.slots import timeline_chart
from inferometer.report.figure import figure_of
from inferometer.report.sections import Page, Section
from inferometer.report.tables import TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """One timeline, or several of the same load with the name of each."""

    title: str
    subtitle: str
    answers: tuple[tuple[str, str], ...]
    timelines: tuple[tuple[str, SlotTimeline], ...]
    tables: tuple[TextTable, ...] = ()
    definitions: tuple[tuple[str, str], ...] = ()
    tool_version: str = ""


def timeline_page_of(view: TimelineView) -> Page:
    """The sections of a page on slots: the numbers, who sat where, what the words mean."""
    charts = [
        timeline_chart(one, chart_id=f"slot-timeline-{rank}", who=name)
        for rank, (name, one) in enumerate(view.timelines)
    ]
    figures = tuple(figure_of(chart) for chart in charts if chart is not None)
    sections = (
        Section(id="numbers", title="What came of it", nav="Numbers", tables=view.tables),
        Section(id="slots", title="Who sits where", nav="Slots", figures=figures),
        Section(
            id="method", title="Method and definitions", nav="Method", definitions=view.definitions
        ),
    )
    return Page(
        title=view.title,
        subtitle=view.subtitle,
        tool_version=view.tool_version,
        answers=view.answers,
        sections=sections,
    )
