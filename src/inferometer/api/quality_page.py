"""What is there to read of a comparison of quality: the verdict of each change beside its gain?"""

from inferometer.api.quality import QualityAnswer, QualityRow
from inferometer.inputs.types import Caution
from inferometer.records.quality import QualityDifference
from inferometer.report.page import Chip, Page, Section, lines_of
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
        table=_table(answer),
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
        ),
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
