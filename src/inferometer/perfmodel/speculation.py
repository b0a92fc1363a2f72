"""Speculative decoding by a named method: the best number of draft tokens, and up to which batch it helps.

A draft proposes tokens, and the model checks all of them in one step. Where a step waits for its
weights, checking k + 1 tokens takes little longer than one; once it waits for its products, every
rejected token costs as much as an accepted one. So speculation helps while the device has room.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from inferometer.errors import SpecError
from inferometer.inputs.types import DTYPE_BITS, ModelSpec, Source
from inferometer.perfmodel.roofline import peaks_of
from inferometer.perfmodel.scenario import (
    BEST,
    LIKELY,
    WORST,
    Efficiency,
    Scenario,
    Speculation,
    phases_at,
    scaled_peaks,
)

MethodName: TypeAlias = Literal["ngram", "draft_model", "eagle", "medusa", "redrafter", "mtp"]
METHODS: Final[tuple[MethodName, ...]] = get_args(MethodName)
_LEVELS: Final[tuple[Efficiency, ...]] = (LIKELY, BEST, WORST)
_MOST_TOKENS: Final = 8


class Acceptance(NamedTuple):
    """Probability that a proposed token is accepted if those before it were: a range of texts."""

    low_fraction: float
    likely_fraction: float
    high_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How drafts are made, how many tokens at most, and how many are accepted in publications."""

    name: MethodName
    needs: str
    most_tokens: int
    acceptance: Acceptance
    source: Source


_KNOWN: Final = {
    "ngram": Method(
        name="ngram",
        needs="nothing but text that repeats its prompt",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.1, 0.4, 0.8),
        source=Source(
            kind="derived",
            where="bigrams of plain text 0.2 (arXiv 2211.17192, 4.3); copying tasks far more",
        ),
    ),
    "draft_model": Method(
        name="draft_model",
        needs="a small model with the same tokenizer",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.5, 0.65, 0.8),
        source=Source(kind="derived", where="arXiv 2211.17192, table 3: 0.5 to 0.9 by model"),
    ),
    "eagle": Method(
        name="eagle",
        needs="a head trained for this model",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.6, 0.72, 0.8),
        source=Source(kind="derived", where="arXiv 2401.15077: chains of Vicuna and LLaMA2-Chat"),
    ),
    "medusa": Method(
        name="medusa",
        needs="heads trained for this model",
        most_tokens=5,
        acceptance=Acceptance(0.4, 0.55, 0.65),
        source=Source(kind="derived", where="arXiv 2401.10774: first candidate of each head"),
    ),
    "redrafter": Method(
        name="redrafter",
        needs="a recurrent head trained for this model",
        most_tokens=_MOST_TOKENS,
        acceptance=Acceptance(0.5, 0.65, 0.75),
        source=Source(kind="derived", where="arXiv 2403.09919: beams of Vicuna"),
    ),
    "mtp": Method(
        name="mtp",
        needs="a model with prediction layers, such as DeepSeek-V3",
        most_tokens=3,
        acceptance=Acceptance(0.7, 0.85, 0.9),
        source=Source(kind="page", where="arXiv 2412.19437, 5.4.3: second token 0.85 to 0.90"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLength:
    """What a number of draft tokens gains at the scenario's batch."""

    n_draft_tokens: int
    tpot_gain_ratio: float
    """Plain TPOT / TPOT with drafts, at likely efficiency and acceptance."""
    low_ratio: float
    high_ratio: float
    """Over efficiencies and published acceptances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSpeculation:
    """The best number of draft tokens of a method, and the batches at which it still gains."""

    method: MethodName
    draft_model: str | None
    needs: str
    acceptance: Acceptance
    acceptance_from: str
    lengths: tuple[DraftLength, ...]
    best: Speculation
    """At likely efficiency and acceptance; its gain is that of its row in ``lengths``."""
    break_even_batch: int
    """The largest batch at which some number of draft tokens gains; 0: none does."""
    break_even_low_batch: int
    break_even_high_batch: int
    """The same at the lowest and the highest acceptance."""
    largest_batch: int
    """That fits in memory; it is the break-even batch where all that fit gain."""

    @property
    def best_length(self) -> DraftLength:
        """The row of the best number of draft tokens."""
        return next(one for one in self.lengths if one.n_draft_tokens == self.best.n_draft_tokens)


class Draft(NamedTuple):
    """A named method, the draft model where it has one, and the acceptance where it was measured."""

    method: MethodName
    model: ModelSpec | None = None
    acceptance_fraction: float | None = None


def find_method(name: MethodName) -> Method:
    """What publications say of this method.

    Example
    -------
    >>> find_method("mtp").most_tokens
    3
    """
    return _KNOWN[name]


def best_speculation(plain: Scenario, draft: Draft, *, largest_batch: int) -> BestSpeculation:
    """The best number of draft tokens by this method in the scenario ``plain``.

    Batches up to ``largest_batch`` are tried, those that fit in memory.

    Raises
    ------
    SpecError
        The acceptance is none, or the device does not compute in the format.

    Source
    ------
    Leviathan, Kalman and Matias (arXiv 2211.17192), theorem 3.8, with the time that checking
    takes on this device instead of that of one token.
    """
    method = find_method(draft.method)
    stated = draft.acceptance_fraction
    acceptance = method.acceptance if stated is None else Acceptance(stated, stated, stated)
    plain = replace(plain, speculation=None)
    lengths = tuple(_length(plain, draft, acceptance, k) for k in range(1, method.most_tokens + 1))
    best = max(lengths, key=lambda one: one.tpot_gain_ratio)
    low, likely, high = (
        _break_even_batch(plain, draft, one, max(largest_batch, 1)) for one in acceptance
    )
    return BestSpeculation(
        method=draft.method,
        draft_model=None if draft.model is None else draft.model.model_id,
        needs=method.needs,
        acceptance=acceptance,
        acceptance_from=method.source.where if stated is None else "as stated",
        lengths=lengths,
        best=Speculation(
            n_draft_tokens=best.n_draft_tokens,
            acceptance_fraction=acceptance.likely_fraction,
            draft_cost_ratio=draft_cost_ratio(plain, draft, LIKELY),
        ),
        break_even_batch=likely,
        break_even_low_batch=low,
        break_even_high_batch=high,
        largest_batch=largest_batch,
    )


def draft_cost_ratio(plain: Scenario, draft: Draft, efficiency: Efficiency) -> float:
    """Time of one draft token over that of a plain step of the model, both without the engine's own.

    n-gram: a look-up on the host. EAGLE and MTP: one layer and the head. Medusa and ReDrafter:
    the head again for each token. A draft model: a step of its own.

    Raises
    ------
    SpecError
        The draft model does not run on these devices.
    """
    if draft.method == "ngram":
        return 0.0
    step_s = phases_at(plain, efficiency).tpot_s
    alone = replace(plain, mode="graphs", launch_overhead_s=None)
    if draft.method == "draft_model":
        if draft.model is None:
            raise SpecError(
                "a draft model that is not named",
                where="--speculative draft_model",
                allowed="the name of a model",
                try_="--speculative llama-3.2-1b",
            )
        return phases_at(replace(alone, model=draft.model), efficiency).tpot_s / step_s
    head_s = _head_s(plain, efficiency)
    if draft.method in {"medusa", "redrafter"}:
        return head_s / step_s
    layers_s = max(phases_at(alone, efficiency).tpot_s - head_s, 0.0)
    return (layers_s / plain.model.n_layers + head_s) / step_s


def _head_s(plain: Scenario, efficiency: Efficiency) -> float:
    """Time of the matrix of logits alone."""
    peaks = scaled_peaks(peaks_of(plain.hardware, plain.engine), efficiency)
    n_weights = plain.model.vocab_size * plain.model.hidden_size / plain.used_plan.n_tensor
    read_s = n_weights * DTYPE_BITS[plain.engine.dtype] / 8 / peaks.memory_bytes_per_s
    return max(read_s, 2 * n_weights * plain.step_batch_size / peaks.flop_per_s)


def _length(plain: Scenario, draft: Draft, acceptance: Acceptance, k: int) -> DraftLength:
    gains = [_gain_ratio(plain, draft, k, one, level) for level in _LEVELS for one in acceptance]
    return DraftLength(
        n_draft_tokens=k,
        tpot_gain_ratio=_gain_ratio(plain, draft, k, acceptance.likely_fraction, LIKELY),
        low_ratio=min(gains),
        high_ratio=max(gains),
    )


def _gain_ratio(
    plain: Scenario, draft: Draft, k: int, acceptance_fraction: float, efficiency: Efficiency
) -> float:
    speculation = Speculation(
        n_draft_tokens=k,
        acceptance_fraction=acceptance_fraction,
        draft_cost_ratio=draft_cost_ratio(plain, draft, efficiency),
    )
    after = phases_at(replace(plain, speculation=speculation), efficiency)
    return phases_at(plain, efficiency).tpot_s / after.tpot_s


def _break_even_batch(
    plain: Scenario, draft: Draft, acceptance_fraction: float, largest_batch: int
) -> int:
    """The largest batch at which some number of draft tokens gains, by doublings and halvings."""
    lengths = range(1, find_method(draft.method).most_tokens + 1)

    def gains(batch: int) -> bool:
        here = replace(plain, batch_size=batch)
        return any(_gain_ratio(here, draft, k, acceptance_fraction, LIKELY) > 1 for k in lengths)

    doublings = [1 << power for power in range(largest_batch.bit_length())]
    tried = sorted({*doublings, largest_batch})
    helped = [batch for batch in tried if gains(batch)]
    if not helped or helped[-1] == largest_batch:
        return helped[-1] if helped else 0
    low, high = helped[-1], next(batch for batch in tried if batch > helped[-1])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low
