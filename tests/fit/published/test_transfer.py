"""Are step times carried over to another device as far as devices resemble one another, and is that as sure as it claims?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import OutOfRangeError
from inferometer.fit.published.loads import published_loads
from inferometer.fit.published.posterior import simulated
from inferometer.fit.published.priors import UNKNOWNS, device_prior
from inferometer.fit.published.step_time import PHASES, published_step_time, typical_step
from inferometer.fit.published.transfer import Changed, transferred
from inferometer.inputs.catalog import find_hardware, find_model, load_hardware
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.perfmodel.steptime_limits import PhaseUncertainty
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.imports.inferencex import read_inferencex

DATA = Path(__file__).parents[4] / "shared" / "data" / "inferencemax-official-2025-11"
ENGINE = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")
H100, H200, A100, MI300X = (
    find_hardware(name) for name in ("h100_sxm", "h200_sxm", "a100_80gb_sxm", "mi300x")
)
SHAPES = (
    decode_shape(batch_size=16, context_tokens=1024),
    prefill_shape(batch_size=1, prompt_tokens=1024),
)


def measured(off_ratio=1.0):
    """A fit of Llama 3.1 8B on an H100 whose rates are ``off_ratio`` times what is believed of it, and well known."""
    model, believed = (
        find_model("llama-3.1-8b"),
        device_prior(find_model("llama-3.1-8b"), ENGINE, H100),
    )
    fit = datasheet_step_time(model, ENGINE, H100)
    parameters = []
    for parameter in fit.parameters:
        centre = believed.mean[UNKNOWNS.index(parameter.name)]
        is_rate = parameter.name.endswith("_per_s")
        value = (
            centre
            if parameter.name == "sag_ratio"
            else float(np.exp(centre)) * (off_ratio if is_rate else 1.0)
        )
        parameters.append(
            replace(
                parameter,
                estimate=replace(parameter.estimate, value=value, low=None, high=None),
                informed_by="data",
            )
        )
    free = tuple(PARAMETERS)
    covariance = tuple(tuple(row) for row in (0.01**2 * np.eye(len(free))).tolist())
    uncertainties = tuple(
        PhaseUncertainty(phase=phase, spread_ratio=0.01) for phase in ("prefill", "decode")
    )
    known = {
        "parameters": tuple(parameters),
        "free": free,
        "covariance": covariance,
        "uncertainties": uncertainties,
    }
    return replace(fit, **known, trained_on=replace(fit.trained_on, n_observations=20))


def value(model, name):
    return next(one.estimate.value for one in model.parameters if one.name == name)


def half_width(model, shape):
    return float(model.log_half_widths([shape], model.work([shape]))[0])


def test_on_the_same_device_nothing_changes_but_what_devices_say_to_one_another():
    fit = measured(0.7)
    same = transferred(fit, H100, H100, n_tensor=1)
    assert [one.duration_s.value for one in same.predict_all(SHAPES)] == pytest.approx(
        [one.duration_s.value for one in fit.predict_all(SHAPES)], rel=1e-9
    )
    two = transferred(fit, H100, H100, n_tensor=2)
    assert two.engine.tensor_parallel_size == 2
    assert (
        half_width(fit, SHAPES[0])
        < half_width(two, SHAPES[0])
        < half_width(transferred(fit, H100, H200, n_tensor=2), SHAPES[0])
    )


def test_what_a_device_lacks_of_the_belief_others_of_its_vendor_lack_nearly_as_much():
    fit = measured(0.5)
    believed = {
        name: float(np.exp(device_prior(fit.model, ENGINE, H200).mean[UNKNOWNS.index(name)]))
        for name in PARAMETERS
    }
    near, far = (transferred(fit, H100, device, n_tensor=1) for device in (H200, MI300X))
    assert value(near, "matmul_flop_per_s") == pytest.approx(
        believed["matmul_flop_per_s"] * 0.5, rel=1e-6
    ), "of the same chip"
    for device, likeness in ((A100, 0.96), (MI300X, 0.48)):
        place = device_prior(fit.model, ENGINE, device).mean[UNKNOWNS.index("matmul_flop_per_s")]
        other = transferred(fit, H100, device, n_tensor=1)
        assert value(other, "matmul_flop_per_s") == pytest.approx(
            float(np.exp(place)) * 0.5**likeness, rel=1e-6
        )
    assert half_width(near, SHAPES[1]) < half_width(far, SHAPES[1])


def with_stairs(fit):
    """The same with a staircase whose steps are as well known as the rates."""
    rows = (1, 64, 65, 1024)
    names = tuple(f"rows {n}" for n in rows)
    n_free = len(fit.free) + len(rows)
    return replace(
        fit,
        staircase_rows=rows,
        staircase_log_ratio=(0.0, -0.2, 0.3, -0.1),
        free=(*fit.free, *names),
        covariance=tuple(tuple(row) for row in (0.01**2 * np.eye(n_free)).tolist()),
    )


def told_by(fit, how):
    """The same, all of it told in this way, and no rate above the peak."""
    peaks = dict(
        zip(UNKNOWNS, np.exp(device_prior(fit.model, fit.engine, H100).upper), strict=True)
    )
    parameters = tuple(
        replace(
            one,
            estimate=replace(one.estimate, value=min(one.estimate.value, float(peaks[one.name]))),
            informed_by=how,
        )
        for one in fit.parameters
    )
    return replace(fit, parameters=parameters)


@pytest.mark.parametrize("how", ["data", "prior", "bound"])
@pytest.mark.parametrize("off_ratio", [0.4, 0.8, 1.1, 3.0])
def test_more_bandwidth_on_the_same_chip_is_never_slower(how, off_ratio):
    """Whether rates were measured, believed, or stopped at the peak; with the kernels' own steps."""
    shapes = [
        shape
        for n in (1, 16, 64, 65, 256)
        for shape in (
            decode_shape(batch_size=n, context_tokens=2048),
            prefill_shape(batch_size=1, prompt_tokens=16 * n),
        )
    ]
    fit = with_stairs(told_by(measured(off_ratio), how))
    own_s = fit.terms(fit.work(shapes)).total_s
    near = transferred(fit, H100, H200, n_tensor=1)
    assert (near.terms(near.work(shapes)).total_s <= own_s * (1 + 1e-9)).all()
    for n_tensor, changed in ((2, Changed()), (1, OTHER["model"]), (1, OTHER["weights"])):
        slow, fast = (
            transferred(fit, H100, device, n_tensor=n_tensor, changed=changed)
            for device in (H100, H200)
        )
        slow_s, fast_s = (one.terms(one.work(shapes)).total_s for one in (slow, fast))
        assert (fast_s <= slow_s * (1 + 1e-9)).all(), (n_tensor, changed)


def test_a_chips_staircase_goes_with_it_to_another_memory_and_nowhere_else():
    fit = with_stairs(measured())
    near, far, two = (
        transferred(fit, H100, device, n_tensor=n)
        for device, n in ((H200, 1), (A100, 1), (H200, 2))
    )
    assert near.staircase_log_ratio == fit.staircase_log_ratio
    assert len(near.covariance) == len(near.free)
    assert near.posterior().log_time_variance(near.work(SHAPES)).min() > 0
    assert far.staircase_rows == two.staircase_rows == ()
    assert half_width(far, SHAPES[1]) > half_width(
        transferred(measured(), H100, A100, n_tensor=1), SHAPES[1]
    )


def test_a_change_of_format_leaves_what_the_format_does_not_change():
    fit = measured(0.5)
    carried = transferred(fit, H100, H100, n_tensor=1, changed=Changed(quantization="float8"))
    for name, shared in (("kv_bytes_per_s", 0.995), ("floor_s", 0.95), ("launch_s", 0.995)):
        place = UNKNOWNS.index(name)
        believed, was = (
            device_prior(one.model, one.engine, H100).mean[place] for one in (carried, fit)
        )
        distance = np.log(value(fit, name)) - was
        assert np.log(value(carried, name)) - believed == pytest.approx(shared * distance, abs=1e-6)


OTHER = {
    "model": Changed(model=find_model("qwen3-8b")),
    "format": Changed(dtype="float8"),
    "weights": Changed(quantization="int4"),
    "engine": Changed(framework="sglang"),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_model_format_or_engine_is_told_by_its_own_prior_and_known_less(name):
    fit, changed = measured(0.5), OTHER[name]
    same = transferred(fit, H100, H100, n_tensor=1)
    carried = transferred(fit, H100, H100, n_tensor=1, changed=changed)
    believed = device_prior(carried.model, carried.engine, H100)
    place = UNKNOWNS.index("matmul_flop_per_s")
    distance = np.log(value(carried, "matmul_flop_per_s")) - believed.mean[place]
    assert np.log(0.5) < distance < 0.75 * np.log(0.5)
    for shape in SHAPES:
        assert half_width(carried, shape) > 1.05 * half_width(same, shape)


def test_a_larger_model_takes_as_much_longer_as_it_has_more_to_read():
    fit = measured()
    large = transferred(
        fit, H100, H100, n_tensor=1, changed=Changed(model=find_model("llama-3.1-70b"))
    )
    small_s, large_s = (one.predict(SHAPES[0]).duration_s.value for one in (fit, large))
    assert 6 < large_s / small_s < 10
    assert large.engine == fit.engine


def test_a_processor_is_no_gpu():
    cpu = next(device for device in load_hardware() if device.kind == "cpu")
    with pytest.raises(OutOfRangeError, match="cannot be carried from"):
        transferred(measured(), H100, cpu, n_tensor=1)


@pytest.mark.slow
def test_published_loads_of_other_devices_lie_within_what_a_transfer_claims():
    """gpt-oss-120b on vLLM: from the H200's loads to those of five other devices, as clients saw them."""
    table = DATA / "agg_gptoss_1k1k.json"
    if not table.exists():
        pytest.skip("the published tables are not on this machine")
    rows = [
        one
        for one in published_loads(read_inferencex(table)).loads
        if one.framework == "vllm" and one.precision == "fp4"
    ]
    own = [one for one in rows if one.hardware == H200]
    fit = published_step_time(own, H200, n_tensor=1)
    misses, halves = [], []
    for one in map(simulated, [one for one in rows if one.hardware != H200]):
        carried = transferred(
            fit, H200, one.published.hardware, n_tensor=one.published.engine.tensor_parallel_size
        )
        step_s = carried.terms(carried.work(one.schedule.shapes)).total_s[None]
        seen = one.schedule.seen(
            step_s, np.array([carried.front_end_s.value]), one.published.statistic
        )
        misses.append(
            np.log([seen.tpot_s[0] / one.published.tpot_s, seen.ttft_s[0] / one.published.ttft_s])
        )
        shapes = [typical_step(one, phase) for phase in PHASES]
        halves.append(carried.log_half_widths(shapes, carried.work(shapes)))
    off, claimed = np.abs(misses), np.array(halves)
    assert len(off) > 60
    assert (np.median(np.expm1(off), axis=0) < [0.2, 0.35]).all()
    assert (np.mean(off <= claimed, axis=0) > 0.85).all()
