"""What do replicas share that step together, and what does each do alone?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_arrays import arrays_of, group_step_duration_s, step_duration_s
from inferometer.perfmodel.steptime_levels import datasheet_step_time, lockstep_arrays
from inferometer.perfmodel.weights import linears
from inferometer.spec.catalog import find_hardware, find_model
from inferometer.spec.types import EngineSpec

ENGINE = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")


def model_of(name):
    return datasheet_step_time(find_model(name), ENGINE, find_hardware("h100_sxm"))


def test_one_replica_is_an_engine():
    model = model_of("llama-3.1-8b")
    assert str(lockstep_arrays(model, n_replicas=1)) == str(arrays_of(model))


def test_two_replicas_share_experts_and_nothing_else():
    model = model_of("qwen3-30b-a3b")
    alone, pair = arrays_of(model), lockstep_arrays(model, n_replicas=2)
    dense_bytes = sum(2 * part.n_weights for part in linears(model.model) if part.n_copies == 1)
    dense_s = dense_bytes / model.physical().weight_bytes_per_s
    assert pair.read_s[-1] - dense_s == pytest.approx((alone.read_s[-1] - dense_s) / 2, rel=1e-3)
    for own in ("kv_token_s", "attention_pair_s", "per_sequence_s", "head_row_s", "head_read_s"):
        assert getattr(pair, own) == getattr(alone, own)
    assert pair.matmul_row_s + 2 * pair.expert_row_s == pytest.approx(alone.matmul_row_s)
    assert (alone.expert_row_s, 0) < (pair.expert_row_s, pair.matmul_row_s)
    assert pair.link_row_s * model.physical().link_bytes_per_s == 2 * 48 * 2048 * 2 / 2


def test_a_large_batch_takes_little_more_than_half():
    model = model_of("qwen3-30b-a3b")
    free_link = replace(model, parameters=tuple(_without_link(entry) for entry in model.parameters))
    alone_s = step_duration_s(arrays_of(free_link), 0, 256, 0, 0, 256 * 2000, 256)
    half_s = group_step_duration_s(
        lockstep_arrays(free_link, n_replicas=2), 0, 128, 0, 0, 128 * 2000, 128, 256
    )
    assert 0.5 < half_s / alone_s < 0.6


def test_a_replica_waits_for_the_experts_of_all():
    """The same requests of its own take the longer the more rows the others bring, and less than if those were its own."""
    pair = lockstep_arrays(model_of("qwen3-30b-a3b"), n_replicas=2)
    shared_s = [
        group_step_duration_s(pair, 0, 16, 0, 0, 16 * 2000, 16, 16 + others)
        for others in (0, 16, 2048)
    ]
    assert shared_s[0] == step_duration_s(pair, 0, 16, 0, 0, 16 * 2000, 16)
    assert shared_s[0] < shared_s[1] < shared_s[2]
    assert shared_s[1] < step_duration_s(pair, 0, 32, 0, 0, 32 * 2000, 32)


def _without_link(entry):
    value = {"link_bytes_per_s": 1e18, "message_s": 1e-12}.get(entry.name, entry.estimate.value)
    return replace(entry, estimate=replace(entry.estimate, value=value, low=None, high=None))


def test_what_need_not_wait():
    split = model_of("qwen3-30b-a3b")
    with pytest.raises(SpecError, match="mixture of experts"):
        lockstep_arrays(model_of("llama-3.1-8b"), n_replicas=2)
    with pytest.raises(SpecError, match="each replica on one device"):
        lockstep_arrays(
            replace(split, engine=replace(ENGINE, tensor_parallel_size=2)), n_replicas=2
        )
    assert np.isfinite(lockstep_arrays(model_of("qwen3-30b-a3b"), n_replicas=4).read_s).all()
