"""What is there to read of sweeps: the first screen, then a section for each question?"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from inferometer.records.summaries import StepShares
from inferometer.report import tables
from inferometer.report.charts.catalogue import charts_of
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.time_parts import SHARE_NAMES
from inferometer.report.page import (
    Label,
    Number,
    Page,
    Section,
    closing_sections,
    duration_number,
    lines_of,
    rate_number,
)
from inferometer.report.tables import ABSENT_TEXT, TextTable, has_several_runs, known_cell
from inferometer.report.views import FiveLines, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number

Drawn: TypeAlias = Callable[..., tuple[Chart, ...]]
"""The charts of these names that the view has data for."""
_LEAD: Final = ("step-shares", "throughput-vs-batch", "ttft-vs-prompt", "step-vs-batch", "roofline")
"""The first of these that there is stands on the first screen."""


def page_of(view: SweepReportView) -> Page:
    """The page of sweeps, of one or several side by side."""
    charts = {chart.chart_id: chart for chart in charts_of(view)}
    lines = view.five_lines
    first, _, more = lines.answer.partition("\n")
    return Page(
        title=f"{view.title}, {first[0].lower()}{first[1:].rstrip('.')}",
        subtitle=view.subtitle,
        numbers=_numbers(view),
        table=brief_points_table(view),
        chart=next((charts[name] for name in _LEAD if name in charts), None),
        lines=lines_of(
            ("ANSWER", more),
            ("LIMIT", lines.limit),
            (
                "WHY",
                "\n".join(one.sentence for one in view.statements if one.support == "supported"),
            ),
            ("TRUST", lines.trust),
            ("NEXT", lines.next),
            *files_of(lines),
        ),
        cautions=view.cautions,
        sections=(*_results(view, drawn_of(charts)), *_evidence(view, drawn_of(charts))),
        tool_version=view.tool_version,
    )


NO_REPORT: Final = "none yet"


def drawn_of(charts: Mapping[str, Chart]) -> Drawn:
    """The charts of these names, as far as they are there."""
    return lambda *names: tuple(charts[name] for name in names if name in charts)


def files_of(lines: FiveLines) -> tuple[tuple[Label, str], ...]:
    """The page, and where the data are."""
    report, _, data = lines.report.partition("DATA")
    shown = "" if report.strip() == NO_REPORT else report.strip()
    return ("REPORT", shown), ("DATA", data.strip())


def _numbers(view: SweepReportView) -> tuple[Number, ...]:
    """Numbers of one user and of the best useful load, of the first run."""
    rows = [row for row in view.points if row.status == "ok"]
    rows = [row for row in rows if row.run_label == rows[0].run_label]
    if not rows:
        return ()
    least = min(row.batch_size for row in rows)
    single = max(
        (row for row in rows if row.batch_size == least), key=lambda row: row.prompt_tokens
    )
    most = max(
        rows, key=lambda row: row.decode_tokens_per_s.value if row.decode_tokens_per_s else 0.0
    )
    where = f"{single.prompt_tokens}-token prompt, batch {single.batch_size}"
    used = single.mbu_fraction
    shares = share_numbers(view.step_shares)
    return (
        *duration_number("TTFT", single.ttft_s, note=where),
        *duration_number("TPOT", single.tpot_s, note=where),
        *(
            ()
            if shares
            else rate_number("output, one batch", single.decode_tokens_per_s, "tok/s", note=where)
        ),
        *(
            rate_number(
                "output, most",
                most.decode_tokens_per_s,
                "tok/s",
                note=f"{most.prompt_tokens}-token prompts, batch {most.batch_size}",
            )
            if most is not single
            else ()
        ),
        *(
            shares
            or rate_number(
                "MBU of decode",
                None if used is None else used.scaled(100),
                "%",
                note="of the bandwidth measured around it",
            )
        ),
    )


def share_numbers(shares: StepShares | None) -> tuple[Number, ...]:
    """The parts of one sequence's step, in one scale."""
    if shares is None:
        return ()
    return tuple(
        replace(number, limit=100.0, limit_name="of")
        for part in shares.parts
        for number in rate_number(
            SHARE_NAMES[part.cause], part.fraction.scaled(100), "%", note="of one token's time"
        )
    )


def brief_points_table(view: SweepReportView) -> TextTable | None:
    """Batch by batch: latency, throughput, the step and its prediction, and what limits it."""
    if not view.points:
        return None
    has_runs = has_several_runs(row.run_label for row in view.points)
    has_model = any(row.predicted_decode_step_s for row in view.points)
    header = (
        *(("run",) if has_runs else ()),
        "prompt",
        "batch",
        "TTFT",
        "TPOT ms",
        "tok/s",
        "step → predicted" if has_model else "median step",
        "limited by",
        "",
    )
    rows = tuple(
        (
            *((row.run_label,) if has_runs else ()),
            str(row.prompt_tokens),
            str(row.batch_size),
            known_cell(row.ttft_s, lambda ttft_s: format_duration(ttft_s.value)),
            _with_interval(row.tpot_s, 1e3),
            _with_interval(row.decode_tokens_per_s, 1.0),
            _predicted_text(row),
            row.decode_limited_by or ABSENT_TEXT,
            " ".join(row.flags),
        )
        for row in view.points
    )
    columns = [i for i, name in enumerate(header) if name or any(row[i] for row in rows)]
    return TextTable(
        caption="Measured points",
        header=tuple(header[i] for i in columns),
        rows=tuple(tuple(row[i] for i in columns) for row in rows),
    )


def _with_interval(estimate: Estimate | None, factor_ratio: float) -> str:
    """``31.8 [31.2, 32.9]``; without interval where the repetitions give none."""
    if estimate is None:
        return ABSENT_TEXT
    return estimate.scaled(factor_ratio).text(bare=f" (n={estimate.n_samples})")


def _predicted_text(row: PointRow) -> str:
    """``31.5 → 30.9 (-2 %)``.

    The measured median step, what a model fitted without the point predicted for it, and its error.
    """
    measured, predicted = row.decode_step_s, row.predicted_decode_step_s
    if predicted is None:
        return ABSENT_TEXT if measured is None else format_number(measured.value * 1e3)
    if measured is None:
        return f"{ABSENT_TEXT} → {format_number(predicted.value * 1e3)}"
    error = f"({predicted.value / measured.value - 1:+.0%})"
    return f"{format_number(measured.value * 1e3)} → {format_number(predicted.value * 1e3)} {error}"


def _results(view: SweepReportView, drawn: Drawn) -> tuple[Section, ...]:
    """Sections of measured results."""
    points = tables.points_table(view)
    return (
        Section(
            id="limits",
            title="What limits it?",
            nav="Limits",
            statements=view.statements,
            charts=drawn("roofline", "utilisation"),
        ),
        Section(
            id="latency",
            title="How fast is it, as prompts and batches grow?",
            nav="Latency",
            charts=drawn(
                *(
                    f"{name}-vs-{axis}"
                    for name in ("ttft", "step", "throughput")
                    for axis in ("prompt", "batch")
                )
            ),
            tables=() if points is None else (points,),
        ),
        Section(
            id="time",
            title="Where does the time go?",
            nav="Time",
            charts=drawn("step-shares", "time-decode", "time-prefill"),
        ),
        Section(
            id="memory-section",
            title="How much memory does it take?",
            nav="Memory",
            charts=drawn("memory"),
        ),
    )


def _evidence(view: SweepReportView, drawn: Drawn) -> tuple[Section, ...]:
    """Sections on prediction error, noise and provenance."""
    predicted = tuple(
        table
        for table in (tables.held_out_table(view), tables.parameters_table(view))
        if table is not None
    )
    return (
        Section(
            id="predicted",
            title="Can it be predicted?",
            nav="Predicted",
            charts=drawn("predicted-vs-measured"),
            tables=predicted,
        ),
        Section(
            id="checks",
            title="Can the numbers be trusted?",
            nav="Validity",
            cautions=view.cautions,
            charts=drawn("ceilings"),
        ),
        *closing_sections(
            tables.definitions(view), view.fact_groups, view.files, view.rerun_command
        ),
    )
