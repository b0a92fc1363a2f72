"""How does a comparison of quality look in the terminal?"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.api.quality import QualityAnswer, QualityRow
from inferometer.records.quality import QualityDifference
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number


def quality_text(answer: QualityAnswer) -> RenderableType:
    """The verdict of each change beside its gain, the noise, and what to beware of."""
    parts: list[RenderableType] = [
        Text(_headline(answer), style="bold"),
        Text(
            f"TRUST  {answer.n_tokens:,} tokens of {answer.text} in windows of"
            f" {answer.window_tokens}; 95 % intervals over tokens"
        ),
        Text(f"NOISE  the same model in other batches: {_noise(answer.noise)}"),
        Text(""),
        _table(answer),
        Text(""),
        _depths(answer),
    ]
    parts += [Text(f"CAUTION {caution}") for caution in answer.cautions]
    return Group(*parts)


def _headline(answer: QualityAnswer) -> str:
    told = "; ".join(
        f"{row.name}: {row.verdict} (perplexity {_change(row.difference.perplexity_ratio)})"
        for row in answer.changes
    )
    return (
        f"ANSWER {answer.model_id}, perplexity {format_number(answer.perplexity)}, margin"
        f" {answer.margin_fraction:+.1%}: {told}"
    )


def _change(ratio: Estimate) -> str:
    text = f"{ratio.value - 1:+.2%}"
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"


def _share(share: Estimate | None) -> str:
    if share is None:
        return "–"
    if share.low is None or share.high is None:
        return f"{share.value:.1%}"
    return f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"


def _noise(noise: QualityDifference) -> str:
    return (
        f"perplexity {noise.perplexity_ratio.value - 1:+.4%}, top-1 agreement"
        f" {_share(noise.top1_agreement)}, {noise.n_greedy_same} of {noise.n_greedy} continuations"
        " the same"
    )


def _table(answer: QualityAnswer) -> RenderableType:
    table = Table(
        "change", "verdict", "perplexity", "of the reference", "top-1 agreement", "greedy the same",
        "repeats", "TPOT gain", "weights saved", box=None, pad_edge=False,
    )  # fmt: skip
    for row in answer.changes:
        table.add_row(*_cells(row))
    return table


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


def _depths(answer: QualityAnswer) -> RenderableType:
    table = Table("perplexity by depth", "reference", box=None, pad_edge=False)
    for row in answer.changes:
        table.add_column(row.name)
    for i, depth in enumerate(answer.noise.by_depth):
        table.add_row(
            f"tokens {depth.first_token} to {depth.last_token}",
            format_number(depth.reference_perplexity),
            *(
                f"{format_number(row.difference.by_depth[i].perplexity)}"
                f" ({row.difference.by_depth[i].ratio - 1:+.1%})"
                for row in answer.changes
            ),
        )
    return table
