"""What happens on the stages of a pipeline, reckoned by hand, and do both simulators say the same?"""

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, settings_of_a_run

from inferometer.errors import SpecError
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

STEP_NS = 1_000_000


def piped(n_stages, **changes):
    return SchedulerConfig(
        **(
            {"num_blocks": 1000, "max_model_len": 4096, "pipeline_parallel_size": n_stages}
            | changes
        )
    )


def constant(n_requests, n_tokens, config):
    """Every step takes a millisecond from the first stage to the last, whatever is in it."""
    requests = demand(np.zeros(n_requests, np.int64), [1] * n_requests, [n_tokens] * n_requests)
    return simulate(requests, config, linear_cost(launch_s=1e-3))


@examples(200)
@given(settings_of_a_run(), st.sampled_from([2, 3, 4]))
def test_kernel_equals_reference(run, n_stages):
    config, requests, cost = run
    config = replace(config, pipeline_parallel_size=n_stages)
    fast, plain = (
        one(requests, config, cost, record_parts=True) for one in (simulate, simulate_plainly)
    )
    assert_equal(fast, plain)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("n_stages", [1, 2, 4])
def test_alone_a_request_gains_nothing(n_stages, is_async):
    """Its next token goes in at the first stage when the last has come out at the last."""
    table = constant(1, 20, piped(n_stages, async_scheduling=is_async)).requests
    assert table.finished_ns.tolist() == [20 * STEP_NS]


def test_as_many_batches_as_stages_are_worked_off_at_once():
    """Four requests, one to a step: four stages deliver four tokens in the time in which one delivers one."""
    alone = constant(1, 50, piped(4)).end_ns
    assert constant(4, 50, piped(4, max_num_batched_tokens=1, max_num_seqs=1)).end_ns > 3 * alone
    spread = piped(4, max_num_batched_tokens=4, max_num_seqs=4, long_prefill_token_threshold=0)
    staggered = demand(np.arange(4) * STEP_NS // 4, [1] * 4, [50] * 4)
    assert simulate(staggered, spread, linear_cost(launch_s=1e-3)).end_ns <= alone + 2 * STEP_NS


def test_the_chunks_of_a_prompt_follow_one_another_through_the_stages():
    """Eight chunks on four stages: the first is out after a step, each of the others a quarter of a step later."""
    requests = demand([0], [8 * 100], [1])
    table = simulate(
        requests, piped(4, max_num_batched_tokens=100, max_num_seqs=4), linear_cost(launch_s=1e-3)
    ).requests
    assert table.first_token_ns.tolist() == [STEP_NS + 7 * STEP_NS // 4]


def test_a_pipeline_is_as_busy_as_its_mean_stage():
    run = constant(1, 20, piped(4))
    assert run.busy_ns.tolist() == [run.end_ns // 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline_parallel_size": 0},
        {"rules": "sarathi"},
        {"num_speculative_tokens": 2, "acceptance_fraction": 0.5},
    ],
)
def test_what_is_not_simulated_is_refused(changes):
    with pytest.raises(SpecError, match="pipeline_parallel_size"):
        SchedulerConfig(
            **({"num_blocks": 1000, "max_model_len": 4096, "pipeline_parallel_size": 2} | changes)
        )
