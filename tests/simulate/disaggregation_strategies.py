"""Hypothesis strategies.

Two pools of vLLM engines behind every router, every kind of link, and what may be asked of them.
"""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from simulator_strategies import VLLMS, configs, costs, demands, speculating_configs
from whole_fleets import PoolCosts

from inferometer.simulate.fleet import (
    BEGINNINGS,
    LINK_SHAPES,
    ROUTERS,
    ClusterConfig,
    DisaggregatedConfig,
    KvLink,
)


@st.composite
def pools(draw, engine):
    n_replicas = draw(st.integers(1, 3))
    routers = [
        router for router in ROUTERS if router != "prefix-affine" or engine.enable_prefix_caching
    ]
    return ClusterConfig(
        engine=engine,
        n_replicas=n_replicas,
        router=draw(st.sampled_from(routers)),
        seed=draw(st.integers(0, 5)),
    )


@st.composite
def links(draw):
    """From none at all to one that takes most of the time; costs are some nanoseconds a step."""
    return KvLink(
        block_bytes=draw(st.sampled_from([1, 100])),
        bytes_per_s=draw(st.sampled_from([float("inf"), 1e12, 1e10, 7e8])),
        latency_s=draw(st.sampled_from([0.0, 1e-9, 3e-8])),
        shape=draw(st.sampled_from(LINK_SHAPES)),
    )


@st.composite
def disaggregated_configs(draw):
    """Little memory on either side, so that somebody waits for room."""
    prefill = draw(configs(policies=VLLMS) | speculating_configs(policies=VLLMS))
    same = {
        "policies": VLLMS,
        "block_size": prefill.block_size,
        "max_model_len": prefill.max_model_len,
    }
    decode = draw(
        configs(**same) | speculating_configs(**same)
        if prefill.num_speculative_tokens == 0
        else configs(**same)
    )
    if draw(st.booleans()):
        swap = {"preemption_mode": "swap", "kv_block_bytes": 10, "swap_bytes_per_s": 1e10}
        decode = replace(decode, swap_space_bytes=draw(st.sampled_from([25, 1000])), **swap)
    return DisaggregatedConfig(
        prefill=draw(pools(prefill)),
        decode=draw(pools(decode)),
        link=draw(links()),
        answer_begins_at=draw(st.sampled_from(BEGINNINGS)),
    )


@st.composite
def settings_of_disaggregated_runs(draw, **kinds):
    config = draw(disaggregated_configs())
    requests = draw(demands(config.prefill.engine, **kinds))
    classes = draw(
        st.lists(st.integers(0, 2), min_size=requests.n_requests, max_size=requests.n_requests)
    )
    return (
        config,
        requests._replace(class_index=np.array(classes, np.int32)),
        PoolCosts(draw(costs()), draw(costs())),
    )
