"""What is there to read of a comparison of quality: the verdict of each change beside its gain?"""

from collections.abc import Sequence

from inferometer.api.quality import QualityAnswer, QualityRow
from inferometer.inputs.types import Caution
from inferometer.records.quality import DepthQuality, QualityDifference
from inferometer.report.charts.curves import CurvePoint, NamedCurve, curve_chart
from inferometer.report.charts.plot import Axis, Chart
from inferometer.report.page import Chip, Number, Page, Section, lines_of
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number

_TONES = {"not worse": "equivalent"}
"""Verdicts with another name among a page's tones."""


def quality_page(answer: QualityAnswer) -> Page:
    """The verdict of each change with its gain, the noise, and cautions."""
    trust = (
        f"{answer.n_tokens:,} tokens of {answer.text} in windows of {answer.window_tokens}; 95 %"
        f" intervals over tokens; the same model in other batches: {_noise_in_words(answer.noise)}"
    )
    return Page(
        title=(
            f"{answer.model_id} against {len(answer.changes)} changed"
            f" {'model' if len(answer.changes) == 1 else 'models'}: perplexity"
            f" {format_number(answer.perplexity)}, which may rise by"
            f" {answer.margin_fraction:.1%}"
        ),
        findings=tuple(
            f"{row.name}: {row.verdict}, perplexity {_change(row.difference.perplexity_ratio)}"
            for row in answer.changes
        ),
        chips=(Chip(verdict=_TONES.get(answer.verdict, answer.verdict), text=answer.verdict),),
        numbers=tuple(_numbers(answer)),
        has_numbers_in_table=True,
        table=_table(answer),
        chart=_chart(answer),
        lines=lines_of(("TRUST", trust)),
        cautions=tuple(
            Caution(code="QUALITY", text=text, remedy=remedy) for text, remedy in answer.cautions
        ),
        sections=(
            Section(
                id="depth",
                title="Does it get worse deep in the text?",
                nav="Depth",
                tables=(_perplexity_by_depth(answer),),
            ),
            Section(
                id="changes",
                title="What does each change cost, and gain?",
                nav="Changes",
                tables=(_table(answer),),
            ),
        ),
    )


_MOST_NUMBERS = 6


def _numbers(answer: QualityAnswer) -> list[Number]:
    """The perplexity of the reference and of each change, beside what the margin allows."""
    most = answer.perplexity * (1 + answer.margin_fraction)
    numbers = [Number(name="perplexity, reference", value=answer.perplexity)]
    for row in answer.changes:
        ratio = row.difference.perplexity_ratio
        numbers.append(
            Number(
                name=row.name,
                value=row.difference.perplexity,
                low=None if ratio.low is None else ratio.low * answer.perplexity,
                high=None if ratio.high is None else ratio.high * answer.perplexity,
                limit=most,
                limit_name="at most",
                note=f"{row.verdict}, top-1 {_share(row.difference.top1_agreement)}",
            )
        )
    return numbers[:_MOST_NUMBERS]


def _chart(answer: QualityAnswer) -> Chart | None:
    """Perplexity over the depth in a window, a line for each change."""
    depths = answer.noise.by_depth
    if len(depths) < 2:
        return None
    lines = [NamedCurve("reference", _points(depths, [one.reference_perplexity for one in depths]))]
    for row in answer.changes:
        values = [one.perplexity for one in row.difference.by_depth]
        lines.append(NamedCurve(row.name, _points(depths, values)))
    ys = [point.y for line in lines for point in line.points]
    worst = max(answer.changes, key=lambda row: row.difference.perplexity_ratio.value)
    return curve_chart(
        "perplexity-by-depth",
        "Perplexity over the depth in a window",
        f"{worst.name} cost most: perplexity {_change(worst.difference.perplexity_ratio)}",
        lines,
        x=Axis(title="tokens before, at most", scale="log2"),
        y=Axis(title="perplexity", scale="log" if max(ys) > _LOG_FROM * min(ys) else "linear"),
    )


_LOG_FROM = 5


def _points(depths: Sequence[DepthQuality], values: Sequence[float]) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(
            float(one.last_token),
            value,
            None,
            None,
            f"tokens {one.first_token} to {one.last_token}",
        )
        for one, value in zip(depths, values, strict=True)
    )


def _change(ratio: Estimate) -> str:
    return ratio.text(lambda one: f"{one - 1:+.2%}")


def _share(share: Estimate | None) -> str:
    return "–" if share is None else share.text("{:.1%}".format)


def _noise_in_words(noise: QualityDifference) -> str:
    """Difference of the unchanged model from itself in other batches."""
    return (
        f"perplexity {noise.perplexity_ratio.value - 1:+.4%}, top-1 agreement"
        f" {_share(noise.top1_agreement)}, {noise.n_greedy_same} of {noise.n_greedy} continuations"
        " the same"
    )


def _table(answer: QualityAnswer) -> TextTable:
    header = (
        "change", "verdict", "perplexity", "against the reference", "top-1 agreement",
        "greedy the same", "repeats", "TPOT gain", "weights saved",
    )  # fmt: skip
    return TextTable(
        caption="Cost and gain of each change", header=header,
        rows=tuple(_cells(row) for row in answer.changes),
    )  # fmt: skip


def _cells(row: QualityRow) -> tuple[str, ...]:
    found, gain = row.difference, row.tpot_gain_ratio
    greedy = f"{found.n_greedy_same} of {found.n_greedy}"
    if found.first_difference_tokens is not None:
        greedy += f", others to token {found.first_difference_tokens:.0f}"
    saved = row.weight_bytes_saved_fraction
    return (
        row.name,
        row.verdict,
        format_number(found.perplexity),
        _change(found.perplexity_ratio),
        _share(found.top1_agreement),
        greedy,
        f"{found.repeated_fraction:.0%} (reference {found.reference_repeated_fraction:.0%})",
        "–" if gain is None else f"{gain.value:.2f}x",
        "–" if saved is None else f"{saved:.0%}",
    )


def _perplexity_by_depth(answer: QualityAnswer) -> TextTable:
    """Perplexity of each change, by the tokens' places in their window."""
    rows = tuple(
        (
            f"{depth.first_token} to {depth.last_token}",
            format_number(depth.reference_perplexity),
            *(
                f"{format_number(row.difference.by_depth[i].perplexity)}"
                f" ({row.difference.by_depth[i].ratio - 1:+.1%})"
                for row in answer.changes
            ),
        )
        for i, depth in enumerate(answer.noise.by_depth)
    )
    header = ("tokens of a window", "reference", *(row.name for row in answer.changes))
    return TextTable(caption="Perplexity by depth", header=header, rows=rows)
