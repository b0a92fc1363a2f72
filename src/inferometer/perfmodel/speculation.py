"""What does speculative decoding gain: how many tokens does a step yield, and what does it compute for them?"""

from dataclasses import dataclass

from inferometer.errors import SpecError
from inferometer.perfmodel.types import BatchShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft proposes ``n_draft_tokens``, the model verifies them in one step.

    ``acceptance_fraction`` is the chance that a proposed token is accepted if those before it were.
    ``draft_cost_ratio`` is the time of a draft's step against a plain decode step of the model (0
    for n-gram look-up).
    """

    n_draft_tokens: int
    acceptance_fraction: float
    draft_cost_ratio: float

    def __post_init__(self) -> None:
        if (
            self.n_draft_tokens < 1
            or not 0 <= self.acceptance_fraction <= 1
            or self.draft_cost_ratio < 0
        ):
            raise SpecError(
                f"speculation of {self.n_draft_tokens} tokens, acceptance"
                f" {self.acceptance_fraction}, draft cost {self.draft_cost_ratio}",
                where="--speculative",
                allowed="1 token or more, acceptance from 0 to 1, cost 0 or more",
            )


def expected_tokens(speculation: Speculation) -> float:
    """How many tokens does a step yield on average: (1 - a^(k + 1)) / (1 - a), the model's own token included?

    Source
    ------ Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding
    (arXiv 2211.17192), equation 1.

    Example
    -------
    >>> round(expected_tokens(Speculation(n_draft_tokens=4, acceptance_fraction=0.8, draft_cost_ratio=0.05)), 4)
    3.3616
    """
    accepted, n_draft_tokens = speculation.acceptance_fraction, speculation.n_draft_tokens
    if accepted == 1:
        return float(n_draft_tokens + 1)
    return (1 - accepted ** (n_draft_tokens + 1)) / (1 - accepted)


def walltime_ratio(speculation: Speculation) -> float:
    """How many times faster is decoding if verifying k + 1 tokens takes no longer than one.

    Expected tokens / (k·c + 1)?

    Source
    ------ arXiv 2211.17192, theorem 3.8. It holds while the step is bound by memory;
    ``verification_shape`` tells what is computed.
    """
    return expected_tokens(speculation) / (
        speculation.n_draft_tokens * speculation.draft_cost_ratio + 1
    )


def verification_shape(
    speculation: Speculation, *, batch_size: int, context_tokens: int
) -> BatchShape:
    """The step that verifies: k + 1 new tokens for each sequence, with logits for each of them.

    ``context_tokens`` is what a plain decode step would attend to, its new token included.
    """
    new_tokens, cached_tokens = speculation.n_draft_tokens + 1, context_tokens - 1
    return BatchShape(
        n_prefill_requests=batch_size,
        n_decode_requests=0,
        prefill_tokens=batch_size * new_tokens,
        prefill_context_product_tokens2=batch_size
        * (new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2),
        decode_context_tokens=0,
        n_logit_positions=batch_size * new_tokens,
    )
