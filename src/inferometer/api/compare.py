"""Is one configuration faster than another, or is the difference noise?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from inferometer import suggestions
from inferometer.api.answer import Answer
from inferometer.api.foreign_runs import read_file
from inferometer.api.question import Option, option
from inferometer.errors import EXIT_OF_SLO, RecordError, SpecError
from inferometer.records import reading, run_comparison, run_folder
from inferometer.records.curves import WITHOUT_INTERVAL, capital
from inferometer.records.types import Run
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.predicted import Effect, effects_chart
from inferometer.report.page import Chip, Number, Page, Section, lines_of
from inferometer.report.request_tables import duration_cell, rate_text
from inferometer.report.tables import ABSENT_TEXT, N_TOO_SMALL, TextTable
from inferometer.report.views import Statement
from inferometer.stats.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSlo:
    """The number of a side's runs that met its SLO."""

    side: str
    objective: str
    n_met: int
    n_missed: int
    n_undecided: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer(Answer):
    """B against A."""

    old: tuple[str, ...]
    """The runs of A."""
    new: tuple[str, ...]
    comparison: run_comparison.RunComparison
    slos: tuple[SideSlo, ...] = ()
    """SLO attainment of A and B, where an SLO was given."""

    @property
    def exit_code(self) -> int:
        """0 decided, 11 undecided."""
        return EXIT_OF_SLO["undecided" if self.comparison.answer.verdict == "undecided" else None]


def compare_page(answer: CompareAnswer) -> Page:
    """A page with the answer first, then all compared metrics, then other differences."""
    comparison = answer.comparison
    ratio = comparison.answer.ratio
    pairs = ", in pairs" if comparison.is_paired else ""
    counts = f"{comparison.n_old} against {comparison.n_new} {comparison.replicate}s{pairs}"
    confidence = "" if ratio is None else f"the answer at {ratio.confidence_fraction:.0%}; "
    trust = (
        f"{counts}; {confidence}all others together risk one false alarm as the answer alone does"
        f" ({comparison.others_confidence_fraction:.2%} each)"
    )
    if comparison.n_old * comparison.n_new > 1 and not comparison.is_paired:
        trust += "; a ratio is the median of all pairs' ratios, not that of the medians"
    absent = [
        f"no ratio of {one.metric}: {one.why}" for one in comparison.others if one.ratio is None
    ]
    return Page(
        title=_title(comparison),
        subtitle=f"A: {', '.join(answer.old)} · B: {', '.join(answer.new)}",
        chips=(Chip(verdict=comparison.answer.verdict, text=_WORDS[comparison.answer.verdict]),),
        findings=_token_sentences(comparison),
        numbers=_numbers(comparison),
        chart=_chart(comparison),
        table=_table(comparison),
        lines=lines_of(
            ("WHY", "\n".join((comparison.answer.why, *map(_slo_line, answer.slos)))),
            ("TRUST", trust),
        ),
        cautions=comparison.cautions,
        sections=(
            Section(
                id="compared",
                title="What was compared?",
                nav="Compared",
                tables=(_table(comparison),),
            ),
            Section(
                id="differ",
                title="What else is different?",
                nav="Differences",
                statements=tuple(Statement(sentence=one, support="undecided") for one in absent),
                tables=_differences(comparison),
            ),
        ),
    )


def _title(comparison: run_comparison.RunComparison) -> str:
    answer = comparison.answer
    verdict = capital(_WORDS[answer.verdict])
    what = metric_in_words(answer.metric)
    if answer.ratio is None:
        return f"{verdict}: no ratio of {what}"
    open_ = f" ({N_TOO_SMALL})" if answer.ratio.low is None else ""
    return f"{verdict}: {what} of B is {answer.ratio.text()} times A's{open_}"


_UNITS_IN_WORDS: Final = (("_tokens_per_s", " tok/s"), ("_requests_per_s", " req/s"), ("_s", ""))


def metric_in_words(metric: str) -> str:
    """A metric as the pages name it.

    Example
    -------
    >>> metric_in_words("ttft_p95_s"), metric_in_words("output_tokens_per_s")
    ('TTFT p95', 'output tok/s')
    >>> metric_in_words("prefill_s of all token counts")
    'prefill of all token counts'
    """
    name, blank, rest = metric.partition(" ")
    unit, words = next(
        ((unit, words) for unit, words in _UNITS_IN_WORDS if name.endswith(unit)), ("", "")
    )
    name = f"{name.removesuffix(unit)}{words}".replace("_", " ")
    for latency in ("ttft", "tpot", "e2e"):
        name = name.replace(latency, latency.upper())
    return f"{name}{blank}{rest}"


def _chart(comparison: run_comparison.RunComparison) -> Chart | None:
    """By how much B is above or below A in each metric, where several have a ratio."""
    effects = [
        Effect(
            metric_in_words(one.metric),
            _changed(one.ratio),
            one.ratio.text(bare=f" [{N_TOO_SMALL}]"),  # what is in brackets has no room beside it
            one.verdict != "undecided",
        )
        for one in (comparison.answer, *comparison.others)
        if one.ratio is not None
    ]
    n_decided = sum(effect.is_chosen for effect in effects)
    return (
        effects_chart(
            effects,
            chart_id="ratios",
            title="B beside A in each metric",
            finding=f"{n_decided} of {len(effects)} metrics are decided",
            axis="B above A, %",
            legend="filled: decided · lines: intervals · words: B / A",
            row="metric",
        )
        if len(effects) > 1
        else None
    )


def _changed(ratio: Estimate) -> Estimate:
    """The change in percent."""
    return replace(
        ratio,
        value=100 * (ratio.value - 1),
        low=None if ratio.low is None else 100 * (ratio.low - 1),
        high=None if ratio.high is None else 100 * (ratio.high - 1),
    )


def _token_sentences(comparison: run_comparison.RunComparison) -> tuple[str, ...]:
    """Sentences that compare both sides at equal token counts: at the fewest and at the most."""
    pairs, named = comparison.equal_tokens, {one.metric: one for one in comparison.others}
    named[comparison.answer.metric] = comparison.answer
    sentences = list[str]()
    for pair in dict.fromkeys((*pairs[:1], *pairs[-1:])):
        prefill, rate = (
            named.get(f"{metric} at {pair.text}")
            for metric in ("prefill_s", run_comparison.DECODE_RATE)
        )
        known = [one.ratio for one in (prefill, rate) if one is not None and one.ratio is not None]
        if len(known) < 2:
            continue
        takes, gives = (one.text(unit="x") for one in known)
        is_single = all(one.low is None for one in known)
        sentences.append(
            f"The same {pair.n_prompt_tokens:,} prompt tokens, different outcomes: B"
            f" ({pair.new.text}) takes {takes} the prefill of A ({pair.old.text}) and gives"
            f" {gives} its output tok/s{f' ({WITHOUT_INTERVAL})' if is_single else ''}."
        )
    return tuple(sentences)


_WORDS: Final = {
    "better": "B is better",
    "worse": "B is worse",
    "equivalent": "A and B are equivalent",
    "undecided": "undecided",
}


def _slo_line(one: SideSlo) -> str:
    return (
        f"{one.side}: {one.objective} met in {one.n_met} runs, missed in {one.n_missed},"
        f" undecided in {one.n_undecided}"
    )


def _numbers(comparison: run_comparison.RunComparison) -> tuple[Number, ...]:
    """B / A of the answer and of the first others, against 1."""
    return tuple(
        Number(
            name=f"{metric_in_words(one.metric)}, B / A",
            value=one.ratio.value,
            low=one.ratio.low,
            high=one.ratio.high,
            limit=1.0,
            limit_name="even at",
        )
        for one in (comparison.answer, *comparison.others)[:4]
        if one.ratio is not None
    )


def _table(comparison: run_comparison.RunComparison) -> TextTable:
    rows = tuple(
        (
            one.metric,
            _value(one.old, one.unit),
            _value(one.new, one.unit),
            _ratio(one.ratio),
            one.verdict,
        )
        for one in (comparison.answer, *comparison.others)
    )
    header = ("metric", "A", "B", "B / A", "verdict")
    return TextTable(caption="What was compared", header=header, rows=rows)


def _differences(comparison: run_comparison.RunComparison) -> tuple[TextTable, ...]:
    rows = tuple((one.what, str(one.old), str(one.new)) for one in comparison.differences)
    return (TextTable(caption="Settings", header=("what", "A", "B"), rows=rows),) if rows else ()


def _value(estimate: Estimate | None, unit: str) -> str:
    return duration_cell(estimate) if unit == "s" else rate_text(estimate, unit)


def _ratio(estimate: Estimate | None) -> str:
    return ABSENT_TEXT if estimate is None else estimate.text(bare=f" ({N_TOO_SMALL})")


_OF_LATENCY: Final = re.compile(r"([a-z0-9]+)[:_ ](p\d+)(?:_s)?", re.IGNORECASE)


def _metric(text: str, where: str) -> str:
    """The metric's name; a latency also as an SLO names it.

    Example
    -------
    >>> _metric("TTFT:p95", "--metric"), _metric("output_tokens_per_s", "--metric")
    ('ttft_p95_s', 'output_tokens_per_s')
    """
    del where  # the comparison refuses what is none
    latency = _OF_LATENCY.fullmatch(text.strip())
    return text if latency is None else f"{latency[1]}_{latency[2]}_s".lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Metric, margin and confidence of the comparison."""

    metric: str | None = option(
        None,
        "Metric that is compared. [e2e_p50_s of requests, the decode step of all points of sweeps]",
        "Limits",
        is_common=True,
        parse=_metric,
    )
    margin: float = option(
        0.02,
        "Differences up to this do not matter.",
        "Limits",
        is_common=True,
        least=0,
        most=1,
        is_open=True,
    )
    confidence: float = option(
        0.95, "Confidence level of the interval.", "Limits", is_common=True, least=0.5, most=0.999
    )
    force: bool = option(False, "Compare INVALID load tests too.", "Limits", is_common=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Two configurations, each a run or a folder of runs."""

    old: Annotated[Path, Option("", heading="Runs", is_argument=True, metavar="A")]
    new: Annotated[Path, Option("", heading="Runs", is_argument=True, metavar="B")]
    rule: Rule = field(default_factory=Rule)
    paired: bool = option(
        False,
        "The i-th run of A was made next to the i-th of B (in order of their names).",
        "Runs",
        is_common=True,
    )
    equal_tokens: bool = option(
        False,
        "Compare points of two sweeps with equal numbers of prompt tokens in other shapes (length"
        " against concurrency).",
        "Runs",
        is_common=True,
    )
    given: frozenset[str] = frozenset()


def rule_of(options: Rule) -> run_comparison.ComparisonRule:
    """The rule of these options, without pairs."""
    return run_comparison.ComparisonRule(
        metric=options.metric,
        margin_ratio=options.margin,
        confidence_fraction=options.confidence,
        takes_invalid=options.force,
    )


def compare(question: Compare) -> CompareAnswer:
    """Is B better than A, worse, equivalent, or undecided?

    The run is the unit of replication: 4 of each side, made in turns, carry a 95 % interval. Of
    two single sweeps the repetitions are compared.

    Raises
    ------
    RecordError
        There is no run.
    MeasureError
        A load test is INVALID.
    """
    olds, news = folders_of(question.old), folders_of(question.new)
    rule = replace(
        rule_of(question.rule), is_paired=question.paired, has_equal_tokens=question.equal_tokens
    )
    old, new = _read(olds), _read(news)
    if not question.equal_tokens:
        _refuse_same(old, new)
    comparison = run_comparison.compare_runs(old, new, rule)
    return CompareAnswer(
        old=tuple(map(str, olds)), new=tuple(map(str, news)), comparison=comparison
    )


def _refuse_same(old: Sequence[Run], new: Sequence[Run]) -> None:
    both = {run.manifest.run_id for run in old} & {run.manifest.run_id for run in new}
    if both:
        raise SpecError(
            f"the run {min(both)} is on both sides: its difference from itself is 0",
            where="the runs",
            allowed="other runs on each side; one sweep against itself with --equal-tokens",
            try_="the same measurement again, into a new folder",
        )


def folders_of(path: Path) -> tuple[Path, ...]:
    """The run at this path, or all runs of this folder, in order of their names.

    Raises
    ------
    RecordError
        There is no run.
    """
    if path.is_file() or (path / run_folder.MANIFEST_NAME).is_file():
        return (path,)
    found = tuple(
        sorted(manifest.parent for manifest in path.glob(f"*/{run_folder.MANIFEST_NAME}"))
    )
    if not found:
        to_predict = suggestions.command("predict", "MODEL,MODEL", "--hardware", "ID,ID")
        raise RecordError(
            "there is no run",
            where=str(path),
            allowed="the folder of a run, or a folder of such folders",
            try_="the folder given with --out to quick, sweep, load or simulate; models and devices"
            f" are compared by {to_predict}",
        )
    return found


def _read(folders: tuple[Path, ...]) -> tuple[Run, ...]:
    return tuple(
        read_file(folder) if folder.is_file() else reading.read_run(folder) for folder in folders
    )
