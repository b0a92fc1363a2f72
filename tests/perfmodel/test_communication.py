"""Are the bytes that a device sends those of the algorithms?"""

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.perfmodel.roofline import (
    ParallelPlan,
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    step_traffic,
)


def test_ring_all_reduce_on_two_devices_sends_the_data_once():
    assert all_reduce(1000, 2) == Traffic(sent_bytes=1000, n_messages=1)


@given(st.integers(2, 64), st.floats(1, 1e9))
def test_all_reduce_is_a_reduce_scatter_and_an_all_gather(n_devices, size_bytes):
    assert all_reduce(size_bytes, n_devices).sent_bytes == pytest.approx(
        2 * all_gather(size_bytes, n_devices).sent_bytes
    )
    assert all_reduce(size_bytes, n_devices).sent_bytes < 2 * size_bytes


def test_one_device_sends_nothing():
    assert (
        all_reduce(10, 1)
        == all_gather(10, 1)
        == all_to_all(10, 1)
        == Traffic(sent_bytes=0, n_messages=0)
    )


def test_tensor_parallel_decode_of_llama_70b_by_hand():
    model = find_model("llama-2-70b")
    traffic = step_traffic(
        model, "bfloat16", ParallelPlan(n_tensor=8), n_rows=16, n_logit_positions=16
    )
    per_reduction = 2 * 7 / 8 * 16 * 8192 * 2
    assert traffic.sent_bytes == pytest.approx(161 * per_reduction + 7 / 8 * 16 * 32000 * 2)
    assert traffic.n_messages == 162
    duration_s = traffic.duration_s(link_bytes_per_s=450e9, message_latency_s=5e-6)
    assert duration_s == pytest.approx(traffic.sent_bytes / 450e9 + 162 * 5e-6)


def test_sequence_parallelism_moves_the_same_bytes_in_more_messages():
    model = find_model("llama-2-70b")
    plain = step_traffic(
        model, "bfloat16", ParallelPlan(n_tensor=4), n_rows=512, n_logit_positions=1
    )
    split = step_traffic(
        model,
        "bfloat16",
        ParallelPlan(n_tensor=4, has_sequence_parallelism=True),
        n_rows=512,
        n_logit_positions=1,
    )
    assert split.sent_bytes == plain.sent_bytes
    assert split.n_messages == 2 * (plain.n_messages - 1) + 1


def test_expert_parallelism_swaps_a_reduction_for_two_exchanges():
    model = find_model("mixtral-8x7b")
    plain = step_traffic(
        model, "bfloat16", ParallelPlan(n_tensor=4), n_rows=64, n_logit_positions=64
    )
    experts = step_traffic(
        model,
        "bfloat16",
        ParallelPlan(n_tensor=4, has_expert_parallelism=True),
        n_rows=64,
        n_logit_positions=64,
    )
    hidden_bytes = 64 * 4096 * 2
    swapped = 32 * (2 * 3 / 4 * (hidden_bytes * 2 / 4) - 2 * 3 / 4 * hidden_bytes)
    assert experts.sent_bytes - plain.sent_bytes == pytest.approx(swapped)
    assert experts.n_messages - plain.n_messages == 32


def test_a_pipeline_hands_over_between_stages():
    model = find_model("llama-2-70b")
    traffic = step_traffic(
        model, "bfloat16", ParallelPlan(n_pipeline=4), n_rows=16, n_logit_positions=16
    )
    assert traffic == Traffic(sent_bytes=3 * 16 * 8192 * 2, n_messages=3)


def test_an_impossible_plan_is_refused():
    with pytest.raises(SpecError, match="pipeline parallel 0"):
        ParallelPlan(n_pipeline=0)
