"""Quality loss of a changed model (e.g. quantised) against its original, on the same text."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.stats.autocorrelated import run_mean_estimate, run_share_estimate
from inferometer.stats.estimate import Estimate

QualityVerdict: TypeAlias = Literal["not worse", "worse", "undecided"]
_DEPTHS: Final = (0, 64, 256, 1024, 4096, 16384)
_NGRAM: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Log-probabilities of a text: rows are windows, columns the tokens after the first."""

    nll: F64
    """-log of the probability of the text's token (nats)."""
    top_ids: I64 | None
    """The most probable token at each place; None: not reported by the engine."""
    generated_ids: tuple[tuple[int, ...], ...]
    """Greedy continuations of the first windows' beginnings."""

    @property
    def perplexity(self) -> float:
        """The exponential of the mean -log probability."""
        return math.exp(float(self.nll.mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthQuality:
    """Perplexity over tokens at this depth of their window."""

    first_token: int
    last_token: int
    reference_perplexity: float
    perplexity: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityDifference:
    """A changed model against its reference, on the same tokens."""

    perplexity: float
    perplexity_ratio: Estimate
    """Changed / reference; above 1 is worse."""
    by_depth: tuple[DepthQuality, ...]
    top1_agreement: Estimate | None
    """Share of tokens at which both models have the same most probable token."""
    n_greedy: int
    n_greedy_same: int
    """Number of continuations that are identical to their last token."""
    first_difference_tokens: float | None
    """Median number of equal tokens before the first difference, of continuations that differ."""
    repeated_fraction: float
    """Mean share of a continuation's four-token sequences that are repeats: shows loops."""
    reference_repeated_fraction: float


def difference(changed: Reading, reference: Reading) -> QualityDifference:
    """Loss in quality of the changed model.

    The interval of the ratio of perplexities is that of the mean of the differences of -log
    probabilities, token by token, with the autocorrelation of neighbouring tokens.
    """
    differences = (changed.nll - reference.nll).ravel()
    mean = run_mean_estimate(
        differences, float(differences.mean()), name="difference of -log probabilities"
    )
    pairs = list(zip(changed.generated_ids, reference.generated_ids, strict=True))
    same = [_same_tokens(one, other) for one, other in pairs]
    differing = [n for n, (one, _) in zip(same, pairs, strict=True) if n < len(one)]
    return QualityDifference(
        perplexity=changed.perplexity,
        perplexity_ratio=replace(
            mean,
            value=math.exp(mean.value),
            low=None if mean.low is None else math.exp(mean.low),
            high=None if mean.high is None else math.exp(mean.high),
        ),
        by_depth=_by_depth(changed.nll, reference.nll),
        top1_agreement=_agreement(changed.top_ids, reference.top_ids),
        n_greedy=len(pairs),
        n_greedy_same=len(pairs) - len(differing),
        first_difference_tokens=float(np.median(differing)) if differing else None,
        repeated_fraction=_repeated(changed.generated_ids),
        reference_repeated_fraction=_repeated(reference.generated_ids),
    )


def _agreement(changed: I64 | None, reference: I64 | None) -> Estimate | None:
    if changed is None or reference is None:
        return None
    return run_share_estimate((changed == reference).ravel(), name="top-1 agreement")


def judge_quality(ratio: Estimate, margin_fraction: float) -> QualityVerdict:
    """Does the perplexity rise by more than the margin (non-inferiority test)?

    *not worse*: the whole interval lies below it; *worse*: above it.
    """
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if ratio.high <= 1 + margin_fraction:
        return "not worse"
    return "worse" if ratio.low > 1 + margin_fraction else "undecided"


def worst_verdict(verdicts: Iterable[QualityVerdict]) -> QualityVerdict:
    """Worst verdict of several changes."""
    order: tuple[QualityVerdict, ...] = ("worse", "undecided", "not worse")
    return min(verdicts, key=order.index)


def _same_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of equal tokens before the first difference."""
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return i
    return len(one)


def _by_depth(changed: F64, reference: F64) -> tuple[DepthQuality, ...]:
    n_tokens = changed.shape[1]
    starts = [depth for depth in _DEPTHS if depth < n_tokens]
    found = list[DepthQuality]()
    for first, last in zip(starts, [*starts[1:], n_tokens], strict=True):
        means = [float(nll[:, first:last].mean()) for nll in (changed, reference)]
        found.append(
            DepthQuality(
                first_token=first + 1,
                last_token=last,
                reference_perplexity=math.exp(means[1]),
                perplexity=math.exp(means[0]),
                ratio=math.exp(means[0] - means[1]),
            )
        )
    return tuple(found)


def _repeated(sequences: Sequence[Sequence[int]]) -> float:
    """Share of four-token sequences that repeat an earlier one of it; 0 without any."""
    shares = list[float]()
    for ids in sequences:
        grams = Counter(tuple(ids[i : i + _NGRAM]) for i in range(len(ids) - _NGRAM + 1))
        if grams:
            shares.append(1 - len(grams) / grams.total())
    return float(np.mean(shares)) if shares else 0.0
