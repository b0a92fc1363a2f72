"""Do Sarathi-Serve, Orca and vLLM v0 batch as their rules say?

Both simulators, by hand and equal to the nanosecond.
"""

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, costs, demands, settings_of_old_rules

from inferometer.errors import SpecError
from inferometer.records.types import RequestStatus
from inferometer.simulate.demand import demand
from inferometer.simulate.engine_config import engine_config
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])
COST = linear_cost(launch_s=1e-6)
SMALL = {"max_model_len": 32, "max_num_seqs": 8, "block_size": 4}


def config_of(policy, **knobs):
    shared = {"num_blocks": 101, **SMALL}
    return replace(engine_config(policy, shared, {}, where="the test"), **knobs)


@examples(300)
@given(settings_of_old_rules(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@examples(150)
@given(settings_of_old_rules(can_abort=False))
def test_every_request_ends_with_all_its_tokens(run):
    config, requests, cost = run
    simulation = simulate(requests, config, cost)
    table, steps = simulation.requests, simulation.steps
    done = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    wanted = np.minimum(requests.output_tokens, config.max_model_len - requests.prompt_tokens)[
        table.request_index
    ]
    assert np.array_equal(table.output_tokens[done], wanted[done])
    assert (simulation.outcome is Outcome.FINISHED) == (
        RequestStatus.UNFINISHED not in table.status
    )
    assert np.all(steps.prefill_tokens + steps.n_decode_requests <= config.step_budget_tokens)
    assert np.all(steps.kv_blocks_used <= config.n_kv_blocks)
    if (
        config.rules == "vllm-v0" and config.preemption_mode == "recompute"
    ):  # who comes back from the host rides with prompts
        assert not np.any((steps.n_prefill_requests > 0) & (steps.n_decode_requests > 0))


@examples(100)
@given(st.data())
def test_with_memory_for_all_sarathi_is_what_vllm_does_today(data):
    """Without a cap on a prompt's share of a step the only unfinished prompt is the last admitted.

    Decodes come before it anyway.
    """
    sarathi = config_of(
        "sarathi", max_num_batched_tokens=data.draw(st.sampled_from([8, 16, 40])), num_blocks=2000
    )
    requests, cost = data.draw(demands(sarathi)), data.draw(costs())
    run, today = (
        simulate(requests, sarathi, cost),
        simulate(requests, replace(sarathi, rules="vllm"), cost),
    )
    assert all(
        np.array_equal(one, other) for one, other in zip(run.requests, today.requests, strict=True)
    )


@BOTH
def test_sarathi_computes_decodes_first_and_reserves_the_whole_prompt(run):
    """4 tokens of request 0's 20 in a step while request 1 is there, which decodes from the second step on; then what is left."""
    config = config_of("sarathi", max_num_batched_tokens=8, long_prefill_token_threshold=4)
    simulation = run(demand([0, 0], [20, 4], [1, 3]), config, COST, record_parts=True)
    assert simulation.parts.request_index.tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert simulation.parts.n_computed_tokens.tolist() == [4, 4, 1, 4, 1, 4, 8]
    assert simulation.steps.kv_blocks_used.tolist() == [6, 7, 7, 5]
    today = run(
        demand([0, 0], [20, 4], [1, 3]), replace(config, rules="vllm"), COST, record_parts=True
    )
    assert today.parts.request_index.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert today.steps.kv_blocks_used.tolist() == [2, 4, 5, 5]


@BOTH
def test_sarathi_keeps_a_watermark_free_of_admissions(run):
    """Two prompts of 7 blocks and one that stays free join in 15 blocks, not in 14."""
    config = config_of("sarathi", watermark_fraction=0.1)
    requests = demand([0, 0], [27, 27], [1, 1])
    assert run(
        requests, replace(config, num_blocks=16), COST
    ).steps.n_prefill_requests.tolist() == [2]
    assert run(
        requests, replace(config, num_blocks=15), COST
    ).steps.n_prefill_requests.tolist() == [1, 1]


@BOTH
def test_orca_reserves_the_longest_sequence_and_mixes_whole_prompts_with_decodes(run):
    """16 blocks hold two sequences of 32 tokens: the third request waits, though three tokens each is all they want."""
    config = config_of("orca", num_blocks=17, max_num_batched_tokens=8)
    simulation = run(demand([0, 500, 600], [2, 20, 2], [3, 2, 1]), config, COST)
    assert simulation.steps.n_prefill_requests.tolist() == [1, 1, 0, 1]
    assert simulation.steps.n_decode_requests.tolist() == [0, 1, 2, 0]
    assert simulation.steps.prefill_tokens.tolist() == [2, 20, 0, 2]
    assert simulation.steps.kv_blocks_used.tolist() == [8, 16, 16, 8]


@BOTH
def test_vllm_v0_stalls_decodes_for_prompts(run):
    simulation = run(demand([0, 1500], [4, 20], [4, 1]), config_of("vllm-v0"), COST)
    assert simulation.steps.n_prefill_requests.tolist() == [1, 0, 1, 0, 0]
    assert simulation.steps.n_decode_requests.tolist() == [0, 1, 0, 1, 1]


@BOTH
def test_vllm_v0_pads_prompts_to_the_longest(run):
    """3 x 12 is more than 32 tokens, though 3 + 12 + 4 is not."""
    simulation = run(
        demand([0, 0, 0], [3, 12, 4], [1, 1, 1]),
        config_of("vllm-v0", max_num_batched_tokens=32),
        COST,
    )
    assert simulation.steps.n_prefill_requests.tolist() == [2, 1]


@BOTH
def test_vllm_v0_preempts_the_newest_by_recomputation_or_swap(run):
    config = config_of("vllm-v0", num_blocks=11)
    requests = demand([0, 0], [19, 18], [6, 6])
    again = run(requests, config, COST)
    assert again.requests.n_preemptions.tolist() == [0, 1]
    assert again.steps.n_prefill_requests.sum() == 3
    swapping = replace(config, preemption_mode="swap", kv_block_bytes=1000, swap_bytes_per_s=1e9)
    swapped = run(requests, swapping, COST)
    assert swapped.requests.n_preemptions.tolist() == [0, 1]
    assert swapped.steps.n_prefill_requests.sum() == 2


@pytest.mark.parametrize(
    ("policy", "engine"),
    [
        ("sarathi", "Sarathi-Serve"),
        ("orca", "Orca"),
        ("vllm-v0", "vLLM v0"),
        ("vllm", "vLLM 0.32.0"),
    ],
)
def test_each_confesses_whose_rules_it_follows(policy, engine):
    assert config_of(policy).engine == engine


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("orca", {"enable_chunked_prefill": True}),
        ("orca", {"enable_prefix_caching": True}),
        ("vllm-v0", {"enable_chunked_prefill": True}),
        ("vllm-v0", {"long_prefill_token_threshold": 4}),
        ("sarathi", {"num_speculative_tokens": 2, "acceptance_fraction": 0.5}),
    ],
)
def test_what_an_engine_never_did_is_refused(policy, knobs):
    with pytest.raises(SpecError, match="the scheduler's configuration"):
        config_of(policy, **knobs)


def test_the_presets_are_defaults_only():
    config = engine_config(
        "sarathi",
        {"num_blocks": 100, "max_num_batched_tokens": 256, **SMALL},
        {"watermark_fraction": "0.0"},
        where="x",
    )
    assert isinstance(config, SchedulerConfig)
    assert (config.max_num_batched_tokens, config.watermark_fraction, config.async_scheduling) == (
        256,
        0.0,
        False,
    )
