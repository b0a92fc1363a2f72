"""How does a ledger look in a terminal, and in a README: the answer, every metric, every experiment?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.api.verify_view import METRICS
from inferometer.report.tables import TextTable
from inferometer.report.terminal import table_text
from inferometer.units import format_fraction
from inferometer.verify.score import Experiment, MetricScore, Score

_NOTHING: Final = "No prediction was sealed yet."
_OF_METRICS: Final = (
    "prediction",
    "step times",
    "measured",
    "inside",
    "held",
    "wrong",
    "median error",
    "p90",
)
_OF_EXPERIMENTS: Final = (
    "experiment",
    "sealed (UTC)",
    "step times",
    "held",
    "wrong",
    "undecided",
    "open",
    "median error",
    "verdict",
)

_METRICS_IN_SHORT: Final = (
    "prefill_s",
    "decode_step_s",
    "ttft_p50_s",
    "tpot_p50_s",
    "e2e_p50_s",
    "output_tokens_per_s",
)


def ledger_text(score: Score, path: Path, *, expected: str | None = None) -> RenderableType:
    """The answer first, then how right each metric was, then every experiment."""
    if not score.experiments:
        return f"{_NOTHING} ({path})"
    parts: list[RenderableType] = [
        Text(f"ANSWER {line}", style="bold") for line in answer_lines(score)
    ]
    tables = [table_text(_metrics(score))] if score.metrics else []
    named = _experiments(score)
    numbers = tuple(str(index + 1) for index in range(len(named.rows)))
    numbered = replace(
        named,
        header=("", *named.header[1:]),
        rows=tuple((number, *row[1:]) for number, row in zip(numbers, named.rows, strict=True)),
    )
    names = [Text(f"  {number}  {row[0]}") for number, row in zip(numbers, named.rows, strict=True)]
    held = "" if expected is None else f", which still holds {expected}"
    return Group(
        *parts, Text(), *tables, table_text(numbered), *names, Text(), Text(f"LEDGER {path}{held}")
    )


def ledger_markdown(score: Score) -> str:
    """The same as it stands in a README."""
    if not score.experiments:
        return _NOTHING
    parts = [
        " ".join(f"{line}." for line in answer_lines(score)),
        "",
        *_markdown(_experiments(score)),
    ]
    if score.metrics:
        parts += ["", *_markdown(_metrics(score))]
    return "\n".join(parts)


def short_markdown(score: Score) -> str:
    """The answer and one small table, for a README: medians and the output throughput."""
    if not score.experiments:
        return _NOTHING
    few = replace(
        score, metrics=tuple(one for one in score.metrics if one.metric in _METRICS_IN_SHORT)
    )
    table = _markdown(_metrics(few))
    return "\n".join([" ".join(f"{line}." for line in answer_lines(score)), "", *table])


def answer_lines(score: Score) -> tuple[str, ...]:
    """How often right, for each kind of step times; and what is open."""
    lines = [
        f"{total.n_inside} of {total.n_measured} {total.basis} predictions"
        f" ({format_fraction(total.inside_fraction)}) lay inside their 90 % interval, median error"
        f" {_percent(total.median_error_fraction)}, 90th percentile"
        f" {_percent(total.p90_error_fraction)}"
        for total in score.totals
    ]
    if score.n_open:
        lines.append(
            f"{score.n_open} of {score.n_claims} sealed predictions are open: not measured, or by"
            " INVALID runs only"
        )
    return tuple(lines)


def _metrics(score: Score) -> TextTable:
    return TextTable(
        caption="By metric",
        header=_OF_METRICS,
        rows=tuple(_metric_row(one) for one in score.metrics),
    )


def _metric_row(one: MetricScore) -> tuple[str, ...]:
    return (
        "all" if one.metric is None else METRICS[one.metric].name,
        one.basis,
        str(one.n_measured),
        format_fraction(one.inside_fraction),
        str(one.n_held),
        str(one.n_wrong),
        _percent(one.median_error_fraction),
        _percent(one.p90_error_fraction),
    )


def _experiments(score: Score) -> TextTable:
    return TextTable(
        caption="Experiments",
        header=_OF_EXPERIMENTS,
        rows=tuple(_experiment_row(one) for one in score.experiments),
    )


def _experiment_row(one: Experiment) -> tuple[str, ...]:
    verdicts = one.verdicts
    errors = [
        abs(state.outcome.error_fraction) for state in one.claims if state.outcome is not None
    ]
    n_invalid = sum(run.validity == "INVALID" for run in one.measured)
    suspect = any(run.validity == "SUSPECT" for run in one.measured)
    notes = (
        [f"{n_invalid} INVALID run{'s' if n_invalid > 1 else ''}"]
        if n_invalid and one.verdict != "INVALID"
        else []
    )
    notes += ["SUSPECT"] if suspect else []
    notes += [f"{one.n_broken_off} broken off"] if one.n_broken_off else []
    return (
        one.seal.experiment,
        one.sealed_utc[:16].replace("T", " "),
        one.seal.belief.basis,
        *(str(verdicts.count(word)) for word in ("held", "wrong", "undecided")),
        str(len(one.claims) + len(one.promises) - len(verdicts)),
        _percent(median(errors)) if errors else "–",
        one.verdict + (f" ({', '.join(notes)})" if notes else ""),
    )


def _markdown(table: TextTable) -> Sequence[str]:
    rule = ["---", *("--:" for _ in table.header[1:])]
    rows = [table.header, rule, *table.rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def _percent(value_fraction: float) -> str:
    return f"{value_fraction * 100:.1f} %"
