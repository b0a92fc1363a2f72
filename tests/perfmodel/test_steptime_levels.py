"""Are simulated step times from a datasheet those that ``predict`` gives?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.scenario import BEST, LIKELY, WORST, Scenario, phases_at
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.steptime_levels import (
    datasheet_levels,
    datasheet_step_time,
    launched_singly,
    lockstep_arrays,
    through_stages,
)
from inferometer.perfmodel.steptime_terms import (
    group_step_duration_s,
    shape_duration_s,
    slowed,
    step_duration_s,
)
from inferometer.perfmodel.types import decode_shape


@pytest.mark.parametrize("efficiency", [BEST, LIKELY, WORST], ids=["best", "likely", "worst"])
@pytest.mark.parametrize(
    ("model", "hardware", "tp", "tolerance"),
    [
        ("llama-3.1-8b", "h100_sxm", 1, 0.15),
        ("llama-2-70b", "a100_80gb_sxm", 4, 0.15),
        ("mixtral-8x7b", "h100_sxm", 2, 0.25),
    ],
)
def test_steps_are_those_of_the_datasheet(efficiency, model, hardware, tp, tolerance):
    """Up to what predict sums differently: it overlaps the caches' reading and the head with the layers' arithmetic."""
    engine = EngineSpec(dtype="bfloat16", device="cuda", tensor_parallel_size=tp)
    device, spec = find_hardware(hardware), find_model(model)
    scenario = Scenario(
        model=spec,
        engine=engine,
        hardware=device,
        batch_size=8,
        prompt_tokens=512,
        output_tokens=128,
    )
    phases = phases_at(scenario, efficiency)
    arrays = arrays_of(datasheet_step_time(spec, engine, device, efficiency))
    prefill_s = step_duration_s(arrays, 8, 0, 8 * 512, 8 * 512 * 513 / 2, 0, 8)
    decode_s = step_duration_s(arrays, 0, 8, 0, 0, 8 * scenario.mean_context_tokens, 8)
    assert prefill_s == pytest.approx(phases.ttft_s, rel=tolerance)
    assert decode_s == pytest.approx(phases.tpot_s, rel=tolerance)


def test_better_efficiency_is_faster():
    engine, spec, device = (
        EngineSpec(dtype="bfloat16", device="cuda"),
        find_model("llama-3.1-8b"),
        find_hardware("h100_sxm"),
    )
    times = [
        step_duration_s(
            arrays_of(datasheet_step_time(spec, engine, device, efficiency)),
            1,
            7,
            512,
            512 * 513 / 2,
            7 * 600,
            8,
        )
        for efficiency in (BEST, LIKELY, WORST)
    ]
    assert times == sorted(times)
    assert times[0] > 0


def test_a_device_that_lacks_the_format_is_refused():
    with pytest.raises(SpecError, match="no known rate"):
        datasheet_step_time(
            find_model("llama-3.1-8b"),
            EngineSpec(dtype="float8", device="cuda"),
            find_hardware("a100_80gb_sxm"),
        )


def test_slowed_arrays_slow_every_step_alike():
    engine, spec, device = (
        EngineSpec(dtype="bfloat16", device="cuda", tensor_parallel_size=2),
        find_model("mixtral-8x7b"),
        find_hardware("h100_sxm"),
    )
    arrays = arrays_of(datasheet_step_time(spec, engine, device))
    for step in (
        (1, 7, 512, 512 * 513 / 2, 7 * 600, 8),
        (0, 1, 0, 0, 9, 1),
        (3, 0, 900, 9e4, 0, 3),
    ):
        assert step_duration_s(slowed(arrays, 1.7), *step) == pytest.approx(
            1.7 * step_duration_s(arrays, *step), rel=1e-12
        )


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
    sent_bytes = pair.link_row_s * model.physical().link_bytes_per_s
    assert sent_bytes == pytest.approx(2 * 48 * 2048 * 2 / 2)


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


def test_replicas_of_two_devices_have_a_quarter_of_the_experts_on_each():
    model = model_of("qwen3-30b-a3b")
    split = replace(model, engine=replace(ENGINE, tensor_parallel_size=2))
    alone, pair = lockstep_arrays(model, n_replicas=2), lockstep_arrays(split, n_replicas=2)
    assert pair.expert_row_s == pytest.approx(alone.expert_row_s / 2)
    assert pair.matmul_row_s == pytest.approx(alone.matmul_row_s / 2, rel=0.02)  # routers are whole
    assert pair.read_s == pytest.approx(alone.read_s / 2, rel=0.01)
    for own in ("kv_token_s", "attention_pair_s", "head_row_s", "head_read_s"):
        assert getattr(pair, own) == getattr(arrays_of(split), own)
    exchanges = 2 * 48 * model.physical().message_s
    assert pair.message_s == pytest.approx(arrays_of(split).message_s + exchanges)
    sent_bytes = (pair.link_row_s - arrays_of(split).link_row_s / 2) * (
        split.physical().link_bytes_per_s
    )
    assert sent_bytes == pytest.approx(2 * 48 * 2048 * 2 / 2 / 2)


def test_what_need_not_wait():
    with pytest.raises(SpecError, match="mixture of experts"):
        lockstep_arrays(model_of("llama-3.1-8b"), n_replicas=2)
    assert np.isfinite(lockstep_arrays(model_of("qwen3-30b-a3b"), n_replicas=4).read_s).all()


MODEL, DEVICE = find_model("llama-3.1-405b"), find_hardware("h100_sxm")
TIMES = datasheet_levels(MODEL, EngineSpec(dtype="bfloat16", tensor_parallel_size=8), DEVICE)
TOKEN = decode_shape(batch_size=16, context_tokens=1000)


def test_all_stages_together_take_as_long_as_one_and_the_hand_over():
    """126 layers on two stages: 63 each.

    One hop of 16 rows of 16,384 numbers of 2 bytes, and a message.
    """
    piped = through_stages(TIMES, MODEL, DEVICE, 2)
    hop_s = 16 * 16384 * 2 / (DEVICE.pcie_bytes_per_s.value * 0.65) + 20e-6
    assert shape_duration_s(piped.likely, TOKEN) == pytest.approx(
        shape_duration_s(TIMES.likely, TOKEN) + hop_s, rel=1e-3
    )
    assert piped.n_stages == 2
    assert through_stages(piped, MODEL, DEVICE, 2) is piped


def test_the_stage_with_the_most_layers_counts():
    """126 layers on four: 32 is the most, so all are reckoned as 128."""
    assert ParallelPlan(n_pipeline=4).stage_fraction(126) == 32 / 126
    ratio = shape_duration_s(through_stages(TIMES, MODEL, None, 4).fast, TOKEN) / shape_duration_s(
        TIMES.fast, TOKEN
    )
    assert ratio == pytest.approx(128 / 126)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(SpecError, match="126 layers"):
        through_stages(TIMES, MODEL, DEVICE, 127)


def test_without_graphs_a_small_step_takes_the_hosts_time_and_a_large_one_the_devices():
    spec, device = find_model("llama-3.1-8b"), find_hardware("h100_sxm")
    captured = datasheet_levels(spec, EngineSpec(dtype="bfloat16", device="cuda"), device)
    eager = launched_singly(captured, spec)
    alone = decode_shape(batch_size=1, context_tokens=512)
    for level, efficiency in (("fast", BEST), ("likely", LIKELY), ("slow", WORST)):
        before, after = getattr(captured, level), getattr(eager, level)
        host_s = spec.n_layers * efficiency.eager_layer_s
        device_s = shape_duration_s(before, alone)
        head_s = shape_duration_s(after, alone) - max(host_s, device_s)
        assert host_s > device_s
        assert 0 < head_s < 0.25 * host_s
        assert step_duration_s(after, 1, 0, 8192, 8192 * 8193 / 2, 0, 1) == pytest.approx(
            step_duration_s(before, 1, 0, 8192, 8192 * 8193 / 2, 0, 1)
        )
    assert "one by one, in 0.26 to 1.2 ms a layer" in eager.origin
