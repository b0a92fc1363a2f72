"""Are beliefs before the fit those of the ceilings, the datasheet and the mechanism?"""

from dataclasses import replace

import pytest

from inferometer.fit.sweeps.observations import kv_traffic_ratio
from inferometer.fit.sweeps.priors import captured_tokens, ceilings_of
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec


@pytest.mark.parametrize(
    ("engine", "attention", "ratio"),
    [
        (EngineSpec(mode="eager"), "eager", 2 + 1 + 2 * 8),
        (EngineSpec(mode="eager"), "sdpa", 3),
        (EngineSpec(mode="static"), "eager", 1 + 2 * 8),
        (EngineSpec(mode="static"), "sdpa", 1),
        (EngineSpec(engine="vllm"), "paged", 1),
    ],
)
def test_traffic_of_attention(engine, attention, ratio):
    """Qwen2.5-3B has 8 query heads for each KV head."""
    assert kv_traffic_ratio(find_model("qwen2.5-3b"), engine, attention) == ratio


def test_probed_ceilings_win_over_the_datasheet(made_run, laptop_gpu):
    run = made_run(n_reps=1)
    engine = run.manifest.plan.engine
    assert ceilings_of([run], engine, laptop_gpu).bytes_per_s == pytest.approx(22e9)
    assert ceilings_of([run], replace(engine, dtype="bfloat16"), laptop_gpu).flop_per_s is None
    unprobed = replace(run, ceilings=None)
    assert (
        ceilings_of([unprobed], engine, laptop_gpu).bytes_per_s
        == laptop_gpu.memory_bytes_per_s.value
    )
    assert ceilings_of([unprobed], engine, None).bytes_per_s is None


@pytest.mark.parametrize(
    ("hardware_id", "n_tokens"),
    [("h100_sxm", 512), ("b200_sxm", 1024), ("gb300", 1024), ("rtx_pro_6000_ws", 512), (None, 512)],
)
def test_vllm_captures_twice_as_many_tokens_on_compute_capability_10(hardware_id, n_tokens):
    hardware = None if hardware_id is None else find_hardware(hardware_id)
    engine = EngineSpec(engine="vllm", mode="compiled", device="cuda", dtype="bfloat16")
    assert captured_tokens(engine, hardware) == n_tokens
    assert captured_tokens(replace(engine, mode="eager"), hardware) == 0
