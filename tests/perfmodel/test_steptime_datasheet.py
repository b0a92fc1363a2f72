"""Are simulated step times from a datasheet those that ``predict`` gives?"""

import pytest

from inferometer.errors import SpecError
from inferometer.perfmodel.scenario import BEST, LIKELY, WORST, Scenario, phases_at
from inferometer.perfmodel.steptime_arrays import arrays_of, slowed, step_duration_s
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.spec.catalog import find_hardware, find_model
from inferometer.spec.types import EngineSpec


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
