"""Hypothesis strategies: clusters of every engine behind every router, and what may be asked of them."""

import numpy as np
from hypothesis import strategies as st
from simulator_strategies import BATCH_SCALE, batch_configs, configs, costs, demands

from inferometer.simulate.fleet import ROUTERS, ClusterConfig
from inferometer.simulate.sglang_config import QUEUE_ORDERS, SglangConfig
from inferometer.simulate.trtllm_config import CAPACITY_POLICIES, CHUNKING_POLICIES, TrtllmConfig

ENGINES = ("vllm", "sglang", "trtllm", "batches")


@st.composite
def sglang_configs(draw):
    page_size = draw(st.sampled_from([1, 4, 16]))
    context_length = draw(st.integers(12, 70))
    n_pages = -(-context_length // page_size) + draw(st.sampled_from([0, 1, 3, 10, 100]))
    n_slots, schedule_policy = draw(st.integers(1, 6)), draw(st.sampled_from(QUEUE_ORDERS))
    n_chunk = draw(st.sampled_from([1, 4, 16])) * page_size if draw(st.booleans()) else -1
    return SglangConfig(
        max_total_num_tokens=n_pages * page_size,
        context_length=context_length,
        max_running_requests=n_slots,
        page_size=page_size,
        chunked_prefill_size=n_chunk,
        schedule_policy=schedule_policy,
        radix_eviction_policy=draw(st.sampled_from(["lru", "fifo"])),
        enable_mixed_chunk=n_chunk >= n_slots and draw(st.booleans()),
        enable_priority_scheduling=schedule_policy == "fcfs" and draw(st.booleans()),
        priority_scheduling_preemption_threshold=draw(st.sampled_from([0, 10])),
        disable_radix_cache=draw(st.sampled_from([False, False, True])),
        disable_overlap_schedule=draw(st.booleans()),
    )


@st.composite
def trtllm_configs(draw):
    max_seq_len = draw(st.integers(2, 60))
    return TrtllmConfig(
        num_blocks=-(-max_seq_len // 4) + draw(st.sampled_from([0, 1, 3, 10, 100])),
        max_seq_len=max_seq_len,
        max_batch_size=draw(st.integers(1, 6)),
        max_num_tokens=max(draw(st.sampled_from([16, 64])), max_seq_len),
        tokens_per_block=4,
        capacity_scheduler_policy=draw(st.sampled_from(CAPACITY_POLICIES)),
        enable_chunked_prefill=draw(st.booleans()),
        enable_block_reuse=draw(st.booleans()),
        context_chunking_policy=draw(st.sampled_from(CHUNKING_POLICIES)),
        disable_overlap_scheduler=draw(st.booleans()),
    )


@st.composite
def engines(draw, kind):
    """This kind of engine, and the scale of its times."""
    strategy = {
        "vllm": configs(),
        "sglang": sglang_configs(),
        "trtllm": trtllm_configs(),
        "batches": batch_configs(),
    }[kind]
    return draw(strategy), BATCH_SCALE if kind == "batches" else 1


@st.composite
def clusters(draw, kind, *, n_replicas=None):
    """A cluster and the scale of its times."""
    engine, scale = draw(engines(kind))
    n_replicas = draw(st.integers(1, 5)) if n_replicas is None else n_replicas
    routers = [
        router for router in ROUTERS if router != "prefix-affine" or engine.enable_prefix_caching
    ]
    classes = st.tuples(*[st.sets(st.integers(0, n_replicas - 1), min_size=1).map(tuple)] * 3)
    cluster = ClusterConfig(
        engine=engine,
        n_replicas=n_replicas,
        router=draw(st.sampled_from(routers)),
        seed=draw(st.integers(0, 5)),
        class_replicas=draw(classes | st.just(())),
        cache_threshold_fraction=draw(st.sampled_from([0.0, 0.3, 0.9])),
        balance_abs_threshold=draw(st.sampled_from([0, 2, 64])),
        balance_rel_threshold_ratio=draw(st.sampled_from([1.0, 1.5])),
        report_interval_s=draw(st.sampled_from([0.0, 1e-7, 1e-6])),
    )
    return cluster, scale


@st.composite
def settings_of_clusters(draw, kind, *, n_replicas=None, **kinds):
    cluster, scale = draw(clusters(kind, n_replicas=n_replicas))
    requests = draw(demands(cluster.engine, scale=scale, **kinds))
    classes = draw(
        st.lists(st.integers(0, 2), min_size=requests.n_requests, max_size=requests.n_requests)
    )
    return (
        cluster,
        requests._replace(class_index=np.array(classes, np.int32)),
        draw(costs(scale=scale)),
    )
