"""What do pools of KV blocks do to requests? Both simulators, by hand and equal to the nanosecond."""

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given, strategies as st
from reference.cluster_run import simulate_cluster_plainly
from reference.simulator import simulate_plainly
from simulator_strategies import (
    VLLMS,
    assert_equal,
    configs,
    costs,
    demands,
    settings_of_a_pooled_run,
)
from whole_fleets import simulate_cluster

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import request_plan
from inferometer.simulate.demand import demand
from inferometer.simulate.engine_config import asked_pools, for_classes, with_pools
from inferometer.simulate.fleet import (
    ClusterConfig,
    DisaggregatedConfig,
    KvLink,
    Placement,
    ReplicaGroup,
    lone_replica,
)
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import contents_in_pools, run as run_fleet, simulate
from inferometer.simulate.scheduler_config import KvPool, SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(launch_s=1e-6)
BOTH = pytest.mark.parametrize("run", [simulate, simulate_plainly])


@examples(400)
@given(settings_of_a_pooled_run(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@pytest.mark.slow  # a loop of its own, which takes 7 CPU s to compile
@examples(100)
@given(settings_of_a_pooled_run(), st.sampled_from(["least-loaded", "round-robin", "vllm"]))
def test_kernel_equals_reference_on_replicas(run, router):
    config, requests, cost = run
    cluster = ClusterConfig(engine=config, n_replicas=2, router=router)
    fast = simulate_cluster(requests, cluster, cost, record_parts=True)
    assert_equal(fast, simulate_cluster_plainly(requests, cluster, cost, record_parts=True))


@st.composite
def one_pool(draw):
    config = draw(configs(policies=VLLMS))
    config = replace(config, num_blocks=config.num_blocks + 1)
    pool = KvPool(n_blocks=config.n_kv_blocks, block_size=config.block_size)
    return config, replace(config, kv_pools=(pool,)), draw(demands(config)), draw(costs())


@examples(200)
@given(one_pool())
def test_one_pool_of_everything_is_no_pool(run):
    config, pooled, requests, cost = run
    whole, divided = (simulate(requests, one, cost, record_parts=True) for one in (config, pooled))
    assert divided.kv_pools is not None
    assert_equal(whole, divided._replace(kv_pools=None))


@examples(100)
@given(settings_of_a_pooled_run())
def test_nobody_waits_for_ever_and_nothing_leaks(run):
    config, requests, cost = run
    found = simulate(requests, config, cost)
    assume(found.outcome is Outcome.FINISHED)
    capacity = np.array([pool.n_blocks for pool in config.kv_pools])
    use = found.kv_pools
    assert np.all(use.peak_blocks <= capacity)
    assert np.all(use.block_ns <= use.peak_blocks * use.step_ns)
    assert np.all(use.tail_token_ns >= 0)
    assert np.all(found.steps.kv_blocks_used <= config.n_kv_blocks)


def config_of(pools, **changes):
    values = {
        "num_blocks": 100,
        "max_model_len": 8,
        "max_num_seqs": 8,
        "async_scheduling": False,
        "enable_prefix_caching": False,
    } | changes
    return SchedulerConfig(**values, kv_pools=pools)


def short_and_long(**of_short):
    short = KvPool(
        n_blocks=8, block_size=1, block_millionths=62_500, max_prompt_tokens=3, **of_short
    )
    return short, KvPool(n_blocks=2, block_size=4, block_millionths=250_000)


@BOTH
def test_a_full_pool_holds_up_its_own_alone(run):
    """Two blocks of 4 tokens for long prompts: one of 5 takes both, and the next waits for it.

    Behind it a short one goes in at once. At the steps' ends 5, 6 and 5 tokens lie in the 8 of the
    long pool: room for 3, 2 and 3 is wasted; 2 short blocks of 1/16 and 2 of 1/4 are 0.625 of the
    server's own, noted as 1.
    """
    requests = demand([0, 0, 0], [5, 5, 2], [2, 1, 1])
    found = run(requests, config_of(short_and_long()), COST)
    assert found.requests.admitted_ns.tolist() == [0, 2000, 0]
    assert found.requests.finished_ns.tolist() == [2000, 3000, 1000]
    assert found.steps.kv_blocks_used.tolist() == [1, 1, 1]
    use = found.kv_pools
    assert use.peak_blocks.tolist() == [[2, 2]]
    assert use.block_ns.tolist() == [[2 * 1000, 3 * 2 * 1000]]
    assert use.tail_token_ns.tolist() == [[0, (3 + 2 + 3) * 1000]]
    assert use.step_ns.tolist() == [[3000, 3000]]
    whole = replace(config_of(()), num_blocks=3, block_size=4)
    assert run(requests, whole, COST).requests.admitted_ns.tolist() == [0, 2000, 3000]


@BOTH
def test_who_has_to_go_is_of_the_same_pool(run):
    """In the third step the first request lacks a block, and the second, of its pool, goes.

    The third, admitted last, has blocks that would not help, and goes on. The second computes its
    prompt and 2 tokens again as soon as the first is done.
    """
    twos = KvPool(n_blocks=6, block_size=1, max_prompt_tokens=2)
    rest = KvPool(n_blocks=8, block_size=1)
    requests = demand([0, 0, 0], [2, 2, 3], [3, 3, 3])
    found = run(requests, config_of((twos, rest), max_model_len=6), COST)
    assert found.requests.n_preemptions.tolist() == [0, 1, 0]
    assert found.requests.finished_ns.tolist() == [3000, 4000, 3000]


@BOTH
@pytest.mark.parametrize(("millionths", "step_ns"), [(1_000_000, 1400), (500_000, 1200)])
def test_a_decode_reads_by_the_bytes_of_its_pool(run, millionths, step_ns):
    """100 ns for each of 4 tokens that the second step looks back at, or for half of their bytes.

    The step's record says how many tokens they are.
    """
    cost = linear_cost(launch_s=1e-6, per_context_token_s=1e-7)
    config = config_of(short_and_long(token_millionths=millionths))
    found = run(demand([0], [3], [2]), config, cost)
    assert found.steps.duration_ns.tolist() == [1000, step_ns]
    assert found.steps.decode_context_tokens.tolist() == [0, 4]


def test_a_class_has_its_blocks_and_no_prefix_of_another():
    """The same 8 tokens, in blocks of 4 for chat and of 2 for the rest: nobody finds those of another pool.

    Of each pair the later one finds its own pool's, but for the last block: 4 tokens, and 6.
    """
    plan = request_plan(
        "here",
        arrival_ns=[0, 0, 9000, 9000],
        prompt_tokens=[8] * 4,
        output_tokens=[1] * 4,
        class_index=[0, 1, 0, 1],
        prefix_request=[-1, 0, 0, 0],
        prefix_tokens=[0, 8, 8, 8],
    )
    chat = KvPool(n_blocks=9, block_size=4, classes=("chat",))
    config = config_of(
        (chat, KvPool(n_blocks=9, block_size=2)), max_model_len=16, enable_prefix_caching=True
    )
    named = for_classes(config, ("chat", "batch"))
    contents = contents_in_pools(plan, named.kv_pools)
    assert contents.start.tolist() == [0, 2, 6, 8, 12]
    assert contents.ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    found = run_fleet(lone_replica(named, COST), plan)
    assert found.requests.cached_tokens.tolist() == [0, 0, 4, 6]
    with pytest.raises(SpecError, match="classes have no names"):
        run_fleet(lone_replica(config, COST), plan)
    with pytest.raises(SpecError, match="classes chat"):
        for_classes(config, ("talk",))


def test_pools_of_a_text():
    """Of 99 blocks of 16 tokens: 40 % of their bytes in half as large a format, the rest in blocks of 64.

    99·16·2 = 3168 bytes: 1267 are 79 blocks of 16; 1900 are 14 of 128.
    """
    text = "share=40% class=chat+code kv_dtype=float8; share=0.6 block_size=64"
    config = SchedulerConfig(num_blocks=100, max_model_len=1584)
    bytes_of = {"bfloat16": 2, "float8": 1}.__getitem__
    found = with_pools(config, text, "bfloat16", bytes_of, is_longest=True)
    assert found.max_model_len == 14 * 64
    assert found.n_kv_tokens == 79 * 16 + 14 * 64
    first, last = found.kv_pools
    assert (first.n_blocks, first.kv_dtype, first.rule_text) == (79, "float8", "class chat or code")
    assert (first.block_millionths, first.token_millionths) == (500_000, 500_000)
    assert (last.n_blocks, last.block_millionths, last.rule_text) == (14, 4_000_000, "what is left")
    with pytest.raises(SpecError, match="kv_pools: 1,264 tokens for class chat or code"):
        with_pools(config, text, "bfloat16", bytes_of, is_longest=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("share=40%; share=50%", "shares of 0.9 in all"),
        ("share=40%; class=chat", "a pool of the words 'class=chat'"),
        ("share=1 share=1", "a pool of the words"),
        ("share=1 tenant=a", "a pool of the words"),
        ("", "a pool of the words ''"),
        ("share=none", "share = none"),
        ("share=1 block_size=0", "block_size = 0"),
        ("share=1 max_prompt_tokens=2k", "max_prompt_tokens = 2k"),
        ("share=1 kv_dtype=fp7", "kv_dtype = fp7"),
    ],
)
def test_a_text_that_says_no_pools(text, message):
    with pytest.raises(SpecError, match=message):
        asked_pools(text)


POOL = KvPool(n_blocks=9, block_size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "srpt"}, "policy = srpt"),
        ({"kv_allocation": "contiguous"}, "kv_allocation = contiguous"),
        ({"rules": "sarathi"}, "rules = sarathi"),
        ({"preemption_mode": "swap", "swap_bytes_per_s": 1, "kv_block_bytes": 1}, "swap"),
        ({"sliding_window": 4, "num_sliding_groups": 1}, "sliding_window = 4"),
        ({"max_model_len": 10}, "kv_pools: 9 tokens for what is left"),
    ],
)
def test_what_does_not_go_together(changes, message):
    with pytest.raises(SpecError, match=message):
        config_of((POOL,), **changes)


def test_a_fleet_that_knows_no_pools():
    config = config_of((POOL,), enable_prefix_caching=True)
    with pytest.raises(SpecError, match="prefix-affine"):
        ClusterConfig(engine=config, router="prefix-affine")
    with pytest.raises(SpecError, match="KV pools"):
        DisaggregatedConfig(
            prefill=ClusterConfig(engine=config),
            decode=ClusterConfig(engine=config),
            link=KvLink(block_bytes=1),
        )
    with pytest.raises(SpecError, match="kv_pools"):
        Placement(groups=(ReplicaGroup(engine=config, step_times=COST),))


def test_a_request_that_no_pool_takes():
    config = config_of((replace(POOL, max_prompt_tokens=3),))
    with pytest.raises(SpecError, match=r"no pool takes request 1 \(class 0, 4 prompt tokens\)"):
        simulate(demand([0, 0], [3, 4], [1, 1]), config, COST)
