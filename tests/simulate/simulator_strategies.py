"""Hypothesis strategies: what may be asked of a simulator, over the scheduler's whole configuration grid."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from inferometer.records.types import ABSENT
from inferometer.simulate.batch_config import DynamicBatching, NoBatching, StaticBatching
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.engine_config import block_sizes_of, pool_of_requests
from inferometer.simulate.scheduler_config import KvPool, SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

BATCH_SCALE = 25
VLLMS = ("fcfs", "priority")


@st.composite
def configs(draw, policies=("fcfs", "priority", "srpt"), **fixed):
    policies = VLLMS if {"kv_allocation", "rules"} & set(fixed) else policies
    block_size = fixed.get("block_size") or draw(st.sampled_from([1, 2, 4, 16]))
    max_model_len = fixed.get("max_model_len") or draw(st.integers(2, 60))
    max_num_seqs = draw(st.integers(1, 12))
    is_chunked = draw(st.booleans())
    n_least = max(
        max_num_seqs, fixed.get("num_speculative_tokens", 0) + 1, 0 if is_chunked else max_model_len
    )
    batched = max(draw(st.sampled_from([4, 16, 64, 256])), n_least)
    n_smallest = max(2, -(-max_model_len // block_size))
    values = {
        "num_blocks": n_smallest + draw(st.sampled_from([0, 1, 3, 10, 100])),
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": batched,
        "max_num_active_seqs": draw(st.none() | st.integers(1, max_num_seqs)),
        "block_size": block_size,
        "enable_prefix_caching": draw(st.booleans()),
        "enable_chunked_prefill": is_chunked,
        "long_prefill_token_threshold": min(draw(st.sampled_from([0, 0, 1, 5])), max_model_len),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "policy": draw(st.sampled_from(policies)),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark_fraction": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "async_scheduling": draw(st.booleans()),
        "one_prefill_at_a_time": draw(st.sampled_from([False, False, True])),
    }
    return SchedulerConfig(**(values | fixed))


@st.composite
def windowed_configs(draw, **fixed):
    """Of a model some of whose layers attend to a window, with as much memory as it needs, or more."""
    config = draw(configs(**fixed))
    n_sliding, n_full = draw(st.sampled_from([(1, 0), (1, 1), (3, 1), (1, 2)]))
    config = replace(
        config,
        num_blocks=1000,
        sliding_window=draw(st.integers(2, max(config.max_model_len // 2, 2))),
        num_sliding_groups=n_sliding,
        num_full_groups=n_full,
    )
    n_spare = draw(st.sampled_from([1, 4, 20, 100]))
    return replace(config, num_blocks=config.n_blocks_at_most_len + n_spare)


@st.composite
def stateful_configs(draw, **fixed):
    """Of a model with recurrent layers, whose states are in blocks, with as much memory as it needs."""
    config = draw(configs(policies=VLLMS, **fixed))
    n_states = draw(st.integers(1, 4))
    n_least = max(-(-config.max_model_len // config.block_size) + n_states, config.max_num_seqs)
    n_blocks = n_least + draw(st.sampled_from([1, 4, 20, 100]))
    return replace(config, num_blocks=n_blocks, num_state_blocks=n_states)


@st.composite
def speculating_configs(draw, **fixed):
    """With drafts, and a threshold that vLLM bears with so many."""
    n_drafts = draw(st.integers(1, 4))
    fraction = st.sampled_from([0.0, 0.4, 0.8, 1.0])
    return draw(
        configs(
            num_speculative_tokens=n_drafts,
            draft_method=draw(st.sampled_from(["ngram", "draft_model", "eagle"])),
            acceptance_fraction=draw(fraction | st.tuples(*[fraction] * n_drafts)),
            draft_cost_ratio=draw(st.sampled_from([0.0, 0.07, 1.0])),
            long_prefill_token_threshold=0,
            **fixed,
        )
    )


@st.composite
def pooled_configs(draw, **fixed):
    """With a KV cache that is divided by prompts' lengths and classes, sometimes into one pool alone."""
    config = draw(configs(policies=VLLMS, **fixed) | speculating_configs(policies=VLLMS, **fixed))
    rules = [{"max_prompt_tokens": config.max_model_len // 3}, {"classes": ("a",)}]
    n_ruled = draw(st.integers(0, 2))
    pools = []
    for rule in [*draw(st.permutations(rules))[:n_ruled], {}]:
        size = draw(st.sampled_from([1, 2, 4, 16]))
        format_millionths = draw(st.sampled_from([1_000_000, 500_000, 333_333]))
        pools.append(
            KvPool(
                n_blocks=-(-config.max_model_len // size) + draw(st.sampled_from([0, 1, 3, 10])),
                block_size=size,
                block_millionths=size * format_millionths // config.block_size,
                token_millionths=format_millionths,
                class_indices=(0, 2) if "classes" in rule else (),
                **rule,
            )
        )
    n_held = sum(pool.n_blocks * pool.block_millionths for pool in pools)
    return replace(config, kv_pools=tuple(pools), num_blocks=-(-n_held // 1_000_000) + 1000)


@st.composite
def settings_of_a_pooled_run(draw, **kinds):
    config = draw(pooled_configs())
    requests = draw(demands(config, **kinds))
    classes = draw(st.lists(st.integers(0, 3), min_size=len(requests.priority), max_size=20))
    requests = requests._replace(
        class_index=np.array(classes[: requests.n_requests], np.int32),
        contents=np.empty(0, np.int32),
    )
    sizes = block_sizes_of(config, requests)
    families = np.array(draw(st.lists(st.integers(0, 2), min_size=14, max_size=14)))
    n_full = (requests.prompt_tokens.astype(np.int64) + requests.output_tokens) // sizes
    n_shared = np.minimum(n_full, draw(st.integers(0, 8)))
    numbers = pool_of_requests(config.kv_pools, requests)
    ids = [
        pool * 10_000 + family * 1000 + i
        for pool, family, n in zip(numbers, families, n_shared, strict=False)
        for i in range(n)
    ]
    start = np.concatenate([[0], np.cumsum(n_shared)])
    shared = SharedBlocks(start=start, ids=np.array(ids, dtype=np.int64))
    return config, with_contents(requests, sizes, shared), draw(costs())


@st.composite
def batch_configs(draw):
    """Time-outs and delays in whole microseconds: for requests and costs on a scale of ``BATCH_SCALE``."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    max_model_len = draw(st.integers(2, 60))
    size = draw(st.integers(1, 6))
    memory = {
        "num_blocks": (
            -(-max_model_len // block_size) * draw(st.sampled_from([1, 2, 10]))
            + draw(st.integers(0, 3))
        ),
        "max_model_len": max_model_len,
        "block_size": block_size,
    }
    wait_ns = draw(st.sampled_from([0, 0, 500, 5000]))
    static = StaticBatching(
        **memory, max_batch_size=size, max_wait_ns=wait_ns, is_streaming=draw(st.booleans())
    )
    dynamic = DynamicBatching(
        **memory,
        max_batch_size=size,
        preferred_batch_size=tuple(draw(st.sets(st.integers(1, size), max_size=2))),
        max_queue_delay_microseconds=draw(st.sampled_from([0, 1, 4, 10])),
        default_timeout_microseconds=draw(st.sampled_from([0, 0, 1, 5])),
        max_queue_size=draw(st.sampled_from([0, 0, 1, 3])),
        timeout_action=draw(st.sampled_from(["REJECT", "DELAY"])),
        has_priority_levels=draw(st.booleans()),
        instance_count=draw(st.sampled_from([1, 1, 2, 3])),
        preserve_ordering=draw(st.booleans()),
    )
    return draw(st.sampled_from([static, dynamic, NoBatching(**memory)]))


@st.composite
def demands(draw, config, *, can_abort=True, can_stop=True, can_follow=True, scale=1):
    """Requests that sometimes share prefixes, in groups that arrive together or apart, or follow others; some are too long.

    Of those that follow, some do so together, some wait for several, and some accompany one of these.
    """
    n_requests = draw(st.integers(1, 14))
    integers = st.lists(st.integers(0, 400), min_size=n_requests, max_size=n_requests)
    arrival = np.sort(draw(integers)) * scale
    prompt = 1 + np.array(draw(integers)) % (config.max_model_len + 2)
    most = 1 + np.array(draw(integers)) % 20
    output = np.minimum(most, 1 + np.array(draw(integers)) % 20) if can_stop else most
    patience = np.array(draw(integers))
    follows = np.full(n_requests, -1)
    can_fan_out = can_follow and draw(st.booleans())
    for i, choice in enumerate(draw(integers)):
        if can_follow and i and choice % 2 and (can_fan_out or choice % i not in follows):
            follows[i] = choice % i
    think, joins, accompanies = np.array(draw(integers)) // 4 * scale, *np.full((2, n_requests), -1)
    for i, choice in enumerate(draw(integers) if can_fan_out else []):
        those = np.flatnonzero((follows[:i] >= 0) & (accompanies[:i] < 0))
        if choice % 3 == 0 and len(those):
            accompanies[i] = lead = those[choice % len(those)]
            follows[i] = follows[lead]
    for i, choice in enumerate(draw(integers) if can_fan_out else []):
        those = i + 1 + np.flatnonzero((follows[i + 1 :] >= 0) & (accompanies[i + 1 :] < 0))
        if choice % 2 and len(those):
            joins[i] = those[choice % len(those)]
    requests = demand(
        arrival,
        prompt,
        output,
        max_tokens=most,
        priority=np.array(draw(integers)) % 3,
        follows=follows,
        joins=joins,
        accompanies=accompanies,
        think_ns=think,
        abort_ns=np.where(
            can_abort & (patience < 80),
            np.where(follows < 0, arrival, 0) + patience * scale,
            ABSENT,
        ),
    )
    families = np.array(draw(integers)) % 3
    n_full = (prompt + output) // config.block_size
    n_shared = np.minimum(np.array(draw(integers)) % 8, n_full)
    ids = [
        family * 1000 + i for family, n in zip(families, n_shared, strict=True) for i in range(n)
    ]
    start = np.concatenate([[0], np.cumsum(n_shared)])
    return with_contents(
        requests, config.block_size, SharedBlocks(start=start, ids=np.array(ids, dtype=np.int64))
    )


@st.composite
def costs(draw, scale=1):
    tenths = st.integers(0, 30).map(lambda n: n * 1e-10 * scale)
    cost = linear_cost(
        launch_s=1e-9 + draw(tenths),
        per_row_s=draw(tenths),
        per_request_s=draw(tenths),
        per_context_token_s=draw(tenths),
        per_prefill_pair_s=draw(tenths),
    )
    return cost._replace(
        launch_s=draw(tenths),
        prefill_launch_s=draw(tenths),
        overlap_ratio=draw(st.sampled_from([1.0, 1.7, 4.0])),
        blend_ratio=draw(st.sampled_from([1.0, 2.2])),
        sag_ratio=draw(st.sampled_from([0.0, 0.1])),
        staircase_log_rows=np.log([1.0, 8.0, 64.0]),
        staircase_log_ratio=np.array([0.1, -0.2, 0.3]) * draw(st.sampled_from([0, 1])),
        window_tokens=draw(st.sampled_from([float("inf"), 12.0])),
        full_share_ratio=draw(st.sampled_from([1.0, 0.25])),
        full_pair_share_ratio=draw(st.sampled_from([1.0, 0.25])),
        kv_sequence_s=draw(st.sampled_from([0.0, 3e-4])),
    )


@st.composite
def settings_of_a_run(draw, fixed=None, **kinds):
    config = draw(configs(**(fixed or {})))
    return config, draw(demands(config, **kinds)), draw(costs())


@st.composite
def settings_of_a_stateful_run(draw, **kinds):
    config = draw(stateful_configs())
    return config, draw(demands(config, **kinds)), draw(costs())


@st.composite
def settings_of_a_speculating_run(draw, **kinds):
    config = draw(speculating_configs())
    return config, draw(demands(config, **kinds)), draw(costs())


@st.composite
def settings_of_a_swapping_run(draw, **kinds):
    """Little memory, so that somebody goes; sometimes with drafts."""
    config = draw(configs() | speculating_configs())
    config = replace(
        config,
        preemption_mode="swap",
        num_blocks=min(config.num_blocks, max(30, -(-config.max_model_len // config.block_size))),
        kv_block_bytes=10,
        swap_space_bytes=draw(st.sampled_from([0, 25, 100, 10_000])),
        swap_bytes_per_s=draw(st.sampled_from([3e9, 7e10])),
    )
    return config, draw(demands(config, **kinds)), draw(costs())


@st.composite
def settings_of_old_rules(draw, **kinds):
    """Those of Sarathi-Serve, Orca and vLLM v0, some with as little memory as they bear, some swapping."""
    rules = draw(st.sampled_from(["sarathi", "orca", "vllm-v0"]))
    fixed = {"enable_prefix_caching": False} if rules == "orca" else {}
    fixed |= {} if rules == "sarathi" else {"long_prefill_token_threshold": 0}
    swap = {
        "preemption_mode": "swap",
        "kv_block_bytes": 10,
        "swap_space_bytes": 200,
        "swap_bytes_per_s": 1e10,
    }
    config = draw(
        configs(
            rules=rules,
            enable_chunked_prefill=rules == "sarathi",
            **fixed,
            **(swap if draw(st.booleans()) else {}),
        )
    )
    return config, draw(demands(config, **kinds)), draw(costs())


@st.composite
def settings_of_batches(draw, **kinds):
    config = draw(batch_configs())
    return config, draw(demands(config, scale=BATCH_SCALE, **kinds)), draw(costs(scale=BATCH_SCALE))


def assert_equal(one, other):
    """Two simulations say the same, cell by cell and type by type."""
    assert (one.outcome, one.end_ns, one.n_never_sent) == (
        other.outcome,
        other.end_ns,
        other.n_never_sent,
    )
    assert np.array_equal(one.busy_ns, other.busy_ns)
    assert np.array_equal(one.evicted_blocks, other.evicted_blocks)
    assert (one.kv_pools is None) == (other.kv_pools is None)
    for column, right in zip(one.kv_pools or (), other.kv_pools or (), strict=True):
        assert np.array_equal(column, right)
    for table, expected in zip(_tables(one), _tables(other), strict=True):
        assert (table is None) == (expected is None)
        for name, column, right in (
            zip(table._fields, table, expected, strict=True) if table is not None else ()
        ):
            assert np.array_equal(column, right), name
            assert column.dtype == right.dtype, name


def _tables(simulation):
    return (*simulation[2:5], simulation.holes, simulation.visits, simulation.transfers)
