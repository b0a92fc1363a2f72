"""Do the plain and the compiled closed form agree to the nanosecond, and does the linear cost say what its terms say?"""

import numpy as np
from examples import examples
from from_python import from_python
from hypothesis import given, strategies as st

from inferometer.simulate.kernel import price
from inferometer.simulate.kernel.state import KnownTimes
from inferometer.simulate.pointers import blank, pointed
from inferometer.simulate.step_cost import duration_ns, linear_cost

MIXTURE = linear_cost(
    launch_s=1e-3,
    per_row_s=3e-6,
    per_request_s=2e-6,
    per_context_token_s=7e-9,
    per_prefill_pair_s=3e-10,
)._replace(
    launch_s=2e-3,
    prefill_launch_s=4e-3,
    overlap_ratio=3.3,
    blend_ratio=2.1,
    sag_ratio=-0.07,
    head_read_s=4e-4,
    head_row_s=1e-6,
    read_log_rows=np.log([1.0, 10.0, 100.0, 1000.0]),
    read_s=np.array([1e-3, 4e-3, 8e-3, 9e-3]),
    window_tokens=512.0,
    full_share_ratio=0.2,
    full_pair_share_ratio=0.2,
    message_s=1e-5,
    link_row_s=1e-8,
    link_logit_s=1e-7,
    staircase_log_rows=np.log([1.0, 8.0, 64.0]),
    staircase_log_ratio=np.array([0.1, -0.2, 0.3]),
    mixed_kv_ratio=1.6,
)


@examples(400)
@given(
    st.integers(0, 64),
    st.integers(0, 512),
    st.integers(0, 2000),
    st.integers(0, 10**6),
    st.integers(0, 4000),
)
def test_plain_and_compiled_agree(n_prefill, n_decode, more_tokens, cached_pairs, context):
    if n_prefill + n_decode == 0:
        return
    prefill_tokens = n_prefill + more_tokens if n_prefill else 0
    pairs = prefill_tokens * (prefill_tokens + 1) // 2 + cached_pairs if n_prefill else 0
    known, cost = blank(1, KnownTimes)[0], pointed(MIXTURE)
    for tokens in (context, context + 7):  # the second step finds the products of the first
        for n_rows in (prefill_tokens + n_decode, prefill_tokens + n_decode + 3):
            statistics = (n_prefill, n_decode, prefill_tokens, pairs, n_decode * (1 + tokens), 0)
            assert from_python(price.step_duration_ns)(
                known, cost, *statistics, n_rows
            ) == duration_ns(MIXTURE, *statistics, n_rows)


@given(st.integers(0, 8), st.integers(0, 64), st.integers(0, 2000), st.integers(0, 10**5))
def test_the_linear_cost_is_the_sum_of_its_terms(n_prefill, n_decode, more_tokens, context):
    cost = linear_cost(
        launch_s=1e-3,
        per_row_s=1e-6,
        per_request_s=1e-5,
        per_context_token_s=1e-8,
        per_prefill_pair_s=1e-9,
    )
    prefill_tokens = n_prefill + more_tokens if n_prefill else 0
    context = context if n_decode else 0
    pairs = prefill_tokens**2
    expected_ns = (
        1e6
        + 1e3 * max(prefill_tokens + n_decode, 1)
        + 1e4 * (n_prefill + n_decode)
        + 10 * context
        + pairs
    )
    assert (
        abs(duration_ns(cost, n_prefill, n_decode, prefill_tokens, pairs, context) - expected_ns)
        <= 1
    )


def test_a_step_takes_time():
    assert duration_ns(linear_cost(launch_s=1e-15), 0, 1, 0, 0, 1) == 1
