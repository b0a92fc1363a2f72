"""How is an experiment shown, and how the ledger, in a terminal and in a README?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer import __version__
from inferometer.report.tables import ClaimRow, PromiseRow, TextTable, VerifyView
from inferometer.report.terminal import table_text
from inferometer.report.views import FactGroup
from inferometer.units import format_fraction
from inferometer.verify.ledger import ClaimState, Experiment, MetricScore, PromiseState, Score
from inferometer.verify.seals import Metric, Seal


class MetricName(NamedTuple):
    """Name and format of a metric."""

    series: str
    name: str
    unit: str
    factor_ratio: float


METRICS: Final[Mapping[Metric, MetricName]] = {
    "ttft_p50_s": MetricName("TTFT", "TTFT p50", "ms", 1e3),
    "ttft_p95_s": MetricName("TTFT", "TTFT p95", "ms", 1e3),
    "tpot_p50_s": MetricName("TPOT", "TPOT p50", "ms", 1e3),
    "tpot_p95_s": MetricName("TPOT", "TPOT p95", "ms", 1e3),
    "e2e_p50_s": MetricName("E2E", "E2E p50", "ms", 1e3),
    "e2e_p95_s": MetricName("E2E", "E2E p95", "ms", 1e3),
    "workflow_p50_s": MetricName("workflow", "workflow p50", "ms", 1e3),
    "workflow_p95_s": MetricName("workflow", "workflow p95", "ms", 1e3),
    "ttft_mean_s": MetricName("TTFT", "TTFT mean", "ms", 1e3),
    "tpot_mean_s": MetricName("TPOT", "TPOT mean", "ms", 1e3),
    "output_tokens_per_s": MetricName("output", "output throughput", "tok/s", 1.0),
    "completed_requests_per_s": MetricName("completed", "request throughput", "requests/s", 1.0),
    "prefill_s": MetricName("prefill", "prefill", "ms", 1e3),
    "decode_step_s": MetricName("decode step", "decode step", "ms", 1e3),
}


def view_of(experiment: Experiment, next_command: str) -> VerifyView:
    """Data to show of an experiment."""
    seal = experiment.seal
    return VerifyView(
        title=seal.experiment,
        subtitle=(f"{seal.belief.subject} · predictions of a {seal.kind}, sealed before measuring"),
        answer=_answer(experiment),
        verdict=experiment.verdict,
        why=_why(experiment),
        trust=f"{seal.belief.basis}: {seal.belief.rests_on}",
        seal=(
            f"{experiment.sealed_utc}, sha256 {experiment.seal_sha256[:16]}, by inferometer"
            f" {_code(seal)}"
        ),
        measured="; ".join(
            _run(experiment, at) for at in dict.fromkeys(one.at for one in experiment.measured)
        ),
        next=next_command,
        claims=tuple(_claim_row(state) for state in experiment.claims),
        promises=tuple(_promise_row(state) for state in experiment.promises),
        facts=_facts(experiment),
        tool_version=__version__,
    )


def _answer(experiment: Experiment) -> str:
    verdicts = experiment.verdicts
    counts = {
        "wrong": verdicts.count("wrong"),
        "held": verdicts.count("held"),
        "undecided": verdicts.count("undecided"),
        "open": experiment.n_open,
    }
    counted = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    lead = {
        "held": "every prediction held",
        "wrong": "not all was right",
        "undecided": "nothing was wrong, not all is decided",
        "open": "sealed, not all of it measured",
        "INVALID": "a measurement is INVALID and proves nothing",
    }[experiment.verdict]
    n_all = experiment.n_predictions
    return f"{experiment.seal.experiment}: {lead}; of {n_all} predictions {counted}"


def _why(experiment: Experiment) -> str:
    """The largest error, else what prevents a verdict."""
    invalid = [
        one
        for one in experiment.measured
        if one.validity == "INVALID" and one.at in experiment.open_questions
    ]
    if invalid:
        return f"{invalid[-1].at}: {invalid[-1].why}"
    measured = [
        (state.claim, state.outcome) for state in experiment.claims if state.outcome is not None
    ]
    if not measured:
        return (
            f"{len(experiment.open_questions)} of {len(experiment.seal.questions)} questions were"
            " never measured"
        )
    known = [one.is_inside for _, one in measured if one.is_inside is not None]
    n_open, share = len(measured) - len(known), format_fraction(sum(known) / max(len(known), 1))
    counted = f"{sum(known)} of {len(known)} numbers ({share}) inside their 90 % interval"
    parts = [counted] if known else []
    parts += [f"of {n_open} the server's buckets do not tell"] if n_open else []
    error, claim, outcome = max(
        ((abs(one.error_fraction or 0.0), claim, one) for claim, one in measured),
        key=lambda triple: triple[0],
    )
    if error:
        parts.append(
            f"furthest off: {METRICS[claim.metric].name} at {claim.at},"
            f" {outcome.error_fraction:+.1%} ({outcome.verdict})"
        )
    return "; ".join(parts)


def _claim_row(state: ClaimState) -> ClaimRow:
    claim, outcome = state.claim, state.outcome
    shown = METRICS[claim.metric]
    return ClaimRow(
        at=claim.at,
        series=shown.series,
        metric=shown.name,
        unit=shown.unit,
        predicted=claim.predicted.scaled(shown.factor_ratio),
        measured=None if outcome is None else outcome.measured.scaled(shown.factor_ratio),
        error_fraction=None if outcome is None else outcome.error_fraction,
        verdict="open" if outcome is None else outcome.verdict,
    )


def _promise_row(state: PromiseState) -> PromiseRow:
    claim, outcome = state.claim, state.outcome
    return PromiseRow(
        at=claim.at,
        objective=claim.objective,
        predicted=claim.predicted,
        measured="–" if outcome is None else outcome.measured,
        verdict="open" if outcome is None else outcome.verdict,
    )


def _run(experiment: Experiment, at: str) -> str:
    """Every run of this question, INVALID ones too."""
    return ", then ".join(
        f"{one.at}: run {one.run_id}{f' ({one.validity})' if one.validity else ''}"
        for one in experiment.runs_of(at)
    )


def _facts(experiment: Experiment) -> tuple[FactGroup, ...]:
    seal = experiment.seal
    sealed = (
        ("sealed", experiment.sealed_utc),
        ("sha256 of the seal", experiment.seal_sha256),
        ("sha256 of the plan", seal.plan_sha256),
        ("rests on", f"{seal.belief.basis}: {seal.belief.rests_on}"),
        ("sha256 of that", seal.belief.sha256),
        ("inferometer", _code(seal)),
        *(
            (question.at, f"{question.asks}; sha256 {question.sha256}")
            for question in seal.questions
        ),
    )
    runs = tuple(
        (
            one.at,
            (
                f"run {one.run_id}, {one.measured_utc},"
                f" {one.asked_as}{f'; {one.validity}' if one.validity else ''}"
            ),
        )
        for one in experiment.measured
    )
    return (
        FactGroup(title="Sealed", facts=sealed),
        *((FactGroup(title="Measured", facts=runs),) if runs else ()),
    )


def _code(seal: Seal) -> str:
    return (
        seal.code.version
        if seal.code.git_commit is None
        else f"{seal.code.version} at {seal.code.git_commit}"
    )


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
    """The ledger's score as Markdown."""
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
    """How often predictions were right, by kind of step times; and what is open."""
    lines = [
        f"{total.n_inside} of {total.n_known} {total.basis} predictions"
        f" ({_inside(total)}) lay inside their 90 % interval, median error"
        f" {_percent(total.median_error_fraction)}, 90th percentile"
        f" {_percent(total.p90_error_fraction)}"
        for total in score.totals
        if total.n_known
    ]
    lines += [
        f"of {total.n_measured - total.n_known} {total.basis} predictions the server's buckets do"
        " not tell whether they lay inside"
        for total in score.totals
        if total.n_measured > total.n_known
    ]
    if score.n_open:
        lines.append(
            f"{score.n_open} of {score.n_claims} sealed predictions are open: not measured, or by"
            " INVALID runs only"
        )
    return tuple(lines)


def _inside(one: MetricScore) -> str:
    """``78.4 % [65 %, 90 %]``."""
    if one.inside_fraction is None:
        return "–"
    share = format_fraction(one.inside_fraction)
    if one.inside_low_fraction is None or one.inside_high_fraction is None:
        return share
    low, high = (
        f"{100 * end:.0f} %" for end in (one.inside_low_fraction, one.inside_high_fraction)
    )
    return f"{share} [{low}, {high}]"


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
        _inside(one),
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
        abs(state.outcome.error_fraction)
        for state in one.claims
        if state.outcome is not None and state.outcome.error_fraction is not None
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
        str(one.n_open),
        _percent(median(errors)) if errors else "–",
        one.verdict + (f" ({', '.join(notes)})" if notes else ""),
    )


def _markdown(table: TextTable) -> Sequence[str]:
    rule = ["---", *("--:" for _ in table.header[1:])]
    rows = [table.header, rule, *table.rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def _percent(value_fraction: float | None) -> str:
    return "–" if value_fraction is None else f"{value_fraction * 100:.1f} %"
