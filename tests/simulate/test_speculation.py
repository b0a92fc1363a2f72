"""Do drafts cost and yield what they should?

Both simulators, by hand, against the closed form, and equal to the nanosecond.
"""

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from from_python import from_python
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, settings_of_a_speculating_run

from inferometer.errors import SpecError
from inferometer.perfmodel.scenario import Speculation, expected_tokens
from inferometer.records.types import PartKind, RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.kernel.vllm import compiled_n_accepted
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import N_DRAWS, SchedulerConfig, n_accepted
from inferometer.simulate.step_cost import linear_cost

BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])
COST = linear_cost(launch_s=1e-6, per_row_s=1e-8)  # 1,000 ns a step and 10 ns a row
PLAIN = SchedulerConfig(
    num_blocks=1000, max_model_len=8192, enable_prefix_caching=False, async_scheduling=False
)
ALL = replace(PLAIN, num_speculative_tokens=3, acceptance_fraction=1.0)


@examples(300)
@given(settings_of_a_speculating_run(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@examples(150)
@given(settings_of_a_speculating_run(can_abort=False))
def test_every_token_is_delivered_once(run):
    config, requests, cost = run
    simulation = simulate(requests, config, cost, record_parts=True)
    table, steps, parts = simulation.requests, simulation.steps, simulation.parts
    done = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    wanted = np.minimum(requests.output_tokens, config.max_model_len - requests.prompt_tokens)[
        table.request_index
    ]
    assert np.array_equal(table.output_tokens[done], wanted[done])
    if simulation.outcome is Outcome.FINISHED:
        assert parts.n_delivered_tokens.sum() == table.output_tokens.sum()
        computed = np.bincount(
            parts.step_index, parts.n_computed_tokens, minlength=len(steps.start_ns)
        )
        assert np.array_equal(computed, steps.prefill_tokens + steps.n_decode_requests)
    assert np.all(
        parts.n_delivered_tokens
        <= np.where(parts.kind == PartKind.GENERATION, parts.n_computed_tokens, 1)
    )
    assert np.all(steps.kv_blocks_used < config.num_blocks)


@BOTH
def test_a_step_by_hand(run):
    """A prompt of 8 yields 1 token.

    Each later step computes 1 + 3 rows and yields 4 tokens, of which the last wants one.
    """
    simulation = run(demand([0], [8], [10]), ALL, COST, record_parts=True)
    assert simulation.steps.duration_ns.tolist() == [1080, 1040, 1040, 1040]
    assert simulation.steps.prefill_tokens.tolist() == [8, 3, 3, 3]
    assert simulation.steps.decode_context_tokens.tolist() == [0, 12, 16, 20]
    assert simulation.parts.n_computed_tokens.tolist() == [8, 4, 4, 4]
    assert simulation.parts.n_delivered_tokens.tolist() == [1, 4, 4, 1]


@BOTH
def test_what_the_draft_costs_by_hand(run):
    """A tenth of the step that it follows, and of one row for each further draft.

    Of 1080 + 2 x 1010, then of 1040 + 2 x 1010.
    """
    config = replace(ALL, draft_method="draft_model", draft_cost_ratio=0.1)
    steps = run(demand([0], [8], [5]), config, COST).steps
    assert steps.duration_ns.tolist() == [1080 + 310, 1040 + 306]


@BOTH
def test_without_acceptance_each_step_yields_one_token_and_computes_its_drafts(run):
    config = replace(ALL, acceptance_fraction=(0.0, 1.0, 1.0))
    parts = run(demand([0], [8], [4]), config, COST, record_parts=True).parts
    assert parts.n_delivered_tokens.tolist() == [1, 1, 1, 1]
    assert parts.n_computed_tokens.tolist() == [8, 4, 4, 4]


@BOTH
def test_drafts_hold_memory_that_others_wait_for(run):
    """Blocks of one token.

    A decode at 9 tokens holds 9 + 3 for its drafts, and 3 more where the draft has a cache of its
    own.
    """
    config = replace(ALL, block_size=1, num_blocks=100, max_model_len=64, max_num_seqs=1)
    assert run(demand([0], [8], [9]), config, COST).steps.kv_blocks_used.tolist() == [8, 12, 16]
    ahead = replace(config, draft_method="eagle", draft_cost_ratio=0.1)
    assert run(demand([0], [8], [9]), ahead, COST).steps.kv_blocks_used.tolist() == [11, 15, 19]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("n_drafts", "fraction"), [(1, 0.5), (3, 0.7), (4, 0.9), (5, 0.2)])
def test_tokens_per_step_are_those_of_the_closed_form(n_drafts, fraction, is_async):
    """(1 - p^(k+1)) / (1 - p), within 4 standard errors of steps whose draws are independent.

    A false alarm once in 10,000.
    """
    config = replace(
        PLAIN,
        num_speculative_tokens=n_drafts,
        acceptance_fraction=fraction,
        async_scheduling=is_async,
    )
    n_requests = 100
    parts = simulate(
        demand(np.arange(n_requests) * 10**9, [8] * n_requests, [400] * n_requests),
        config,
        COST,
        record_parts=True,
    ).parts
    is_whole = (parts.kind == PartKind.GENERATION) & (parts.n_delivered_tokens > 0)
    last = np.append(parts.request_index[1:] != parts.request_index[:-1], [True])
    tokens = parts.n_delivered_tokens[is_whole & ~last & ~np.roll(last, -1)]
    expected = expected_tokens(
        Speculation(n_draft_tokens=n_drafts, acceptance_fraction=fraction, draft_cost_ratio=0)
    )
    assert abs(tokens.mean() - expected) < 4 * tokens.std() / np.sqrt(len(tokens))


def test_the_gain_is_that_of_the_closed_form_where_rows_cost_nothing():
    """arXiv 2211.17192, theorem 3.8, whose draft costs a share of a decode step each."""
    cost, n_tokens = linear_cost(launch_s=1e-3), 8001
    config = replace(
        PLAIN,
        max_model_len=8192,
        num_speculative_tokens=4,
        acceptance_fraction=0.8,
        draft_method="eagle",
        draft_cost_ratio=0.05,
    )
    plain_ns, ns = (
        simulate(demand([0], [8], [n_tokens]), one, cost).end_ns for one in (PLAIN, config)
    )
    draft = Speculation(n_draft_tokens=4, acceptance_fraction=0.8, draft_cost_ratio=0.05)
    gain = expected_tokens(draft) / (draft.n_draft_tokens * draft.draft_cost_ratio + 1)
    assert plain_ns / ns == pytest.approx(gain, rel=0.03)


def test_what_ifs_share_their_luck():
    """A draft that is accepted at p is accepted at any larger p.

    More acceptance never takes more steps for a request alone.
    """
    n_steps = [
        len(
            simulate(
                demand([0], [8], [500]), replace(ALL, acceptance_fraction=fraction), COST
            ).steps.start_ns
        )
        for fraction in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    assert n_steps == sorted(n_steps, reverse=True)
    assert n_steps[0] == 500
    assert n_steps[-1] == 1 + 125


@examples(200)
@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 10),
    st.lists(st.integers(0, N_DRAWS), min_size=1, max_size=6),
)
def test_plain_and_compiled_draws_agree(index, n_outputs, acceptance):
    plain = n_accepted(acceptance, index, n_outputs, len(acceptance))
    assert (
        from_python(compiled_n_accepted)(
            np.array(acceptance, np.int64), index, n_outputs, len(acceptance)
        )
        == plain
    )


def test_draws_are_even_and_do_not_follow_one_another():
    """Of 40,000 draws within 4 standard errors.

    The mean, and the share of pairs of neighbours, in the answer and of requests.
    """
    half = [N_DRAWS // 2]
    draws = np.array(
        [[n_accepted(half, index, place, 1) for place in range(200)] for index in range(200)]
    )
    for sample, expected in (
        (draws, 0.5),
        (draws[:, 1:] == draws[:, :-1], 0.5),
        (draws[1:] == draws[:-1], 0.5),
    ):
        assert abs(sample.mean() - expected) < 4 * 0.5 / np.sqrt(sample.size)


@pytest.mark.parametrize(
    "knobs",
    [
        {"num_speculative_tokens": -1},
        {"num_speculative_tokens": 3},
        {"num_speculative_tokens": 3, "acceptance_fraction": 1.2},
        {"num_speculative_tokens": 3, "acceptance_fraction": (0.5, 0.5)},
        {"num_speculative_tokens": 3, "acceptance_fraction": 0.5, "draft_method": "eagle"},
        {"num_speculative_tokens": 3, "acceptance_fraction": 0.5, "draft_cost_ratio": -1.0},
        {
            "num_speculative_tokens": 3,
            "acceptance_fraction": 0.5,
            "long_prefill_token_threshold": 3,
        },
    ],
)
def test_what_cannot_be_is_refused(knobs):
    with pytest.raises(SpecError, match="the scheduler's configuration"):
        replace(PLAIN, **knobs)
