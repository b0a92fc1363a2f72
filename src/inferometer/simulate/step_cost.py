"""How many nanoseconds does a step take?

The step-time model's closed form, rounded to whole nanoseconds; ``kernel/price.py`` compiles it.

Powers and logarithms come from the C library in both, so both round alike. Another machine's
library may differ in the last bit of a float, which whole nanoseconds hide all but once in a
million steps; a cost made by ``linear_cost`` has no such uncertainty.
"""

from typing import Final

import numpy as np

from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_terms import StepTimeArrays, group_step_duration_s

_TINY_S: Final = 1e-30
"""Stands for no time where the closed form divides by the larger of two times."""


def linear_cost(
    *,
    launch_s: float,
    per_row_s: float = 0.0,
    per_request_s: float = 0.0,
    per_context_token_s: float = 0.0,
    per_prefill_pair_s: float = 0.0,
) -> StepTimeArrays:
    """The cost that is a sum of terms, one for each statistic of the step: for teaching, for theory and for tests."""
    coefficients = (launch_s, per_row_s, per_request_s, per_context_token_s, per_prefill_pair_s)
    if min(coefficients) < 0 or launch_s + per_row_s <= 0:
        raise SpecError(
            f"coefficients {coefficients}",
            where="the cost of a step",
            allowed="none below 0; launch_s or per_row_s above",
        )
    return StepTimeArrays(
        launch_s=0.0,
        prefill_launch_s=0.0,
        overlap_ratio=1.0,
        blend_ratio=1.0,
        sag_ratio=0.0,
        per_sequence_s=per_request_s,
        read_log_rows=np.zeros(1),
        read_s=np.full(
            1, float(launch_s)
        ),  # with a whole number's type all loops would be compiled again
        matmul_row_s=per_row_s,
        head_read_s=_TINY_S,
        head_row_s=0.0,
        kv_token_s=per_context_token_s,
        attention_pair_s=per_prefill_pair_s,
        message_s=0.0,
        link_row_s=0.0,
        link_logit_s=0.0,
        window_tokens=float("inf"),
        full_share_ratio=1.0,
        staircase_log_rows=np.zeros(1),
        staircase_log_ratio=np.zeros(1),
        computes_all_logits=False,
    )


def duration_ns(  # noqa: PLR0913, PLR0917 -- as compiled code, which takes plain numbers
    cost: StepTimeArrays,
    n_prefill: int,
    n_decode: int,
    prefill_tokens: int,
    pairs_tokens2: int,
    context_tokens: int,
    n_drafts: int = 0,
    n_group_rows: int | None = None,
) -> int:
    """The whole nanoseconds of a step with these statistics, at least 1.

    ``n_group_rows``: rows of all replicas that share experts with this one; None: it has its own.

    vLLM computes logits for one position of each request, and for each draft that it verifies;
    ``prefill_tokens`` has these too.
    """
    seconds = group_step_duration_s(
        cost,
        n_prefill,
        n_decode,
        prefill_tokens,
        pairs_tokens2,
        context_tokens,
        n_prefill + n_decode + n_drafts,
        prefill_tokens + n_decode if n_group_rows is None else n_group_rows,
    )
    return max(int(seconds * 1e9 + 0.5), 1)
