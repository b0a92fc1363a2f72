"""How does a run look in a terminal: the answer in five lines, then the table that carries it?

Nothing here prints: renderables are returned, and the command line prints them. Readable at 80
columns and without colour.
"""

from collections.abc import Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from inferometer.errors import COMMAND
from inferometer.report.views import Explained, FiveLines, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_number

ABSENT_TEXT: Final = "–"
_LEAST_COLUMNS: Final = 20

_SHORT_NAMES: Final = {
    "attention": "attn",
    "per_sequence": "seqs",
    "communication": "comm",
    "unexplained": "rest",
    "kv": "KV",
}


def report_text(view: SweepReportView) -> RenderableType:
    """The whole run: headline, five lines, table of batches, findings that the data carry, cautions."""
    parts: list[RenderableType] = [
        Text(f"{view.title} · {view.subtitle}", style="bold"),
        five_lines_text(view.five_lines),
        points_table(view.points),
    ]
    parts += [
        Text(f"  {statement.sentence}")
        for statement in view.statements
        if statement.support != "undecided"
    ]
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in view.cautions]
    return Group(*parts)


def five_lines_text(lines: FiveLines) -> RenderableType:
    """ANSWER, LIMIT, NEXT, TRUST, REPORT, each hanging under its word."""
    named = (
        ("ANSWER", lines.answer),
        ("LIMIT", lines.limit),
        ("NEXT", lines.next),
        ("TRUST", lines.trust),
        ("REPORT", lines.report),
    )
    width = max(len(word) for word, _ in named) + 1
    return Group(*(Prose(word.ljust(width), text) for word, text in named), Text())


class Prose:
    """A paragraph after a bold word, under whose end its lines hang.

    A line that holds a command stays a single line, which the terminal itself wraps: a newline
    inside would break what is pasted.
    """

    def __init__(self, word: str, text: str) -> None:
        self._word = word
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; rich calls this."""
        text = Text(self._text)
        width = max(options.max_width - len(self._word), _LEAST_COLUMNS)
        parts = (
            [part] if COMMAND in part.plain else part.wrap(console, width, overflow="fold")
            for part in text.split("\n")
        )
        lines = [line for part in parts for line in part]
        for index, line in enumerate(lines):
            word = self._word if index == 0 else " " * len(self._word)
            yield Text.assemble((word, "bold"), line, no_wrap=True, overflow="ignore")


def points_table(points: Sequence[PointRow]) -> RenderableType:
    """Batch × (TPOT, throughput, median step, prediction, limit), a block per prompt and run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    has_runs = len({row.run_label for row in points}) > 1
    step = (
        "step → predicted" if any(row.predicted_decode_step_s for row in points) else "median step"
    )
    for header in (["run"] if has_runs else []) + [
        "prompt",
        "batch",
        "TTFT",
        "TPOT ms",
        "tok/s",
        step,
        "limited by",
        "",
    ]:
        table.add_column(
            header,
            justify="left" if header in {"run", "limited by", ""} else "right",
            no_wrap=header != "limited by",
        )
    for row in points:
        cells = [
            str(row.prompt_tokens),
            str(row.batch_size),
            duration_text(row.ttft_s),
            _with_margin(row.tpot_s, 1e3),
            _with_margin(row.decode_tokens_per_s, 1.0),
            _predicted_text(row),
            row.decode_limited_by or ABSENT_TEXT,
            " ".join(row.flags),
        ]
        table.add_row(*([row.run_label] if has_runs else []), *cells)
    return table


def explained_table(explained: Sequence[Explained]) -> RenderableType:
    """Where the time of each point goes: a column for each part, as a share of what was measured."""
    names = [
        name
        for name in dict.fromkeys(part.name for row in explained for part in row.parts)
        if any_time(explained, name)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("phase", no_wrap=True)
    for header in ["in×batch", "measured", *(_SHORT_NAMES.get(name, name) for name in names)]:
        table.add_column(header, justify="right", no_wrap=True)
    for row in explained:
        seconds = {part.name: part.duration_s for part in row.parts}
        shares = [_share_text(seconds.get(name), row.measured_s.value) for name in names]
        table.add_row(
            row.phase,
            f"{row.prompt_tokens}×{row.batch_size}",
            duration_text(row.measured_s),
            *shares,
        )
    return table


def any_time(explained: Sequence[Explained], name: str) -> bool:
    """Does this part take any time anywhere (communication takes none on one device)?"""
    return any(
        abs(part.duration_s) > 0 for row in explained for part in row.parts if part.name == name
    )


def duration_text(estimate: Estimate | None) -> str:
    """A duration with its interval, or the sign of absence."""
    if estimate is None:
        return ABSENT_TEXT
    return format_duration(estimate.value)


def _with_margin(estimate: Estimate | None, factor_ratio: float) -> str:
    """``31.8 ±0.5``: half of the interval's width; no margin where the repetitions carry none."""
    if estimate is None:
        return ABSENT_TEXT
    value = format_number(estimate.value * factor_ratio)
    if estimate.low is None or estimate.high is None:
        return f"{value} (n={estimate.n_samples})"
    return f"{value} ±{format_number((estimate.high - estimate.low) / 2 * factor_ratio)}"


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


def _share_text(part_s: float | None, measured_s: float) -> str:
    return ABSENT_TEXT if part_s is None else f"{part_s / measured_s:.0%}"
