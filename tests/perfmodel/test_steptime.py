"""Does a step-time model answer what it carries.

Parts that sum, intervals, limits, its box, JSON, and the same in plain arrays?
"""

import math
from dataclasses import replace
from types import FunctionType

import msgspec
import numba
import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferometer.errors import ModelError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel import steptime_terms
from inferometer.perfmodel.steptime import (
    FittedParameter,
    StepTimeModel,
    TrainedOn,
    arrays_of,
    load_step_time_model,
)
from inferometer.perfmodel.steptime_levels import fitted_levels
from inferometer.perfmodel.steptime_limits import PhaseUncertainty, box_of, outside
from inferometer.perfmodel.steptime_terms import (
    CLOSED_FORM_PARTS,
    PARAMETERS,
    StepParameters,
    StepTimeArrays,
    step_duration_s,
)
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.stats.estimate import Estimate
from known_truths import CPU_TRUTH as CPU, GPU_TRUTH as GPU

SHAPES = [
    decode_shape(batch_size=batch, context_tokens=context)
    for batch in (1, 8, 64)
    for context in (64, 4096)
]
SHAPES += [
    prefill_shape(batch_size=batch, prompt_tokens=prompt)
    for batch in (1, 8)
    for prompt in (16, 512, 4096)
]


def model_of(
    physical: StepParameters = GPU,
    *,
    name: str = "qwen2.5-3b",
    engine: EngineSpec | None = None,
    deviation: float = 0.05,
    stairs: bool = True,
) -> StepTimeModel:
    rows = (1, 8, 64, 512) if stairs else ()
    free = (*PARAMETERS, *(f"rows {row}" for row in rows))
    parameters = tuple(
        FittedParameter(
            name=parameter,
            estimate=Estimate(
                value=getattr(physical, parameter),
                low=None,
                high=None,
                confidence_fraction=0.9,
                n_samples=9,
                method="chosen for a test",
            ),
            informed_by="data",
        )
        for parameter in PARAMETERS
    )
    return StepTimeModel(
        model=find_model(name),
        engine=engine or EngineSpec(dtype="bfloat16", device="cuda"),
        parameters=parameters,
        kv_traffic_ratio=3.0,
        staircase_rows=rows,
        staircase_log_ratio=(0.0, 0.2, -0.1, 0.05)[: len(rows)],
        free=free,
        covariance=tuple(
            tuple(deviation**2 if i == j else 0.0 for j in range(len(free)))
            for i in range(len(free))
        ),
        uncertainties=(
            PhaseUncertainty(phase="prefill", spread_ratio=0.02, interval_ratio=1.7),
            PhaseUncertainty(phase="decode", spread_ratio=0.01, interval_ratio=1.7),
        ),
        box=box_of(SHAPES),
        trained_on=TrainedOn(
            run_ids=("r",),
            hardware="gpu",
            attention_implementation="sdpa",
            n_observations=12,
            n_configurations=6,
            is_drift_removed=False,
        ),
        held_out=(),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("physical", [GPU, CPU], ids=["gpu", "cpu"])
def test_parts_sum_and_none_is_negative(physical, shape):
    prediction = model_of(physical).predict(shape)
    assert sum(term.duration_s for term in prediction.terms) == pytest.approx(
        prediction.duration_s.value, rel=1e-12
    )
    assert min(term.duration_s for term in prediction.terms) >= 0
    assert prediction.duration_s.low < prediction.duration_s.value < prediction.duration_s.high


def test_worked_number_on_a_cpu():
    """0.5 s of launches, 1 s of weights, and what one row multiplies: everything follows on everything."""
    physical = replace(CPU, launch_s=0.5, blend_ratio=1.0, sag_ratio=0.0, per_sequence_s=1e-12)
    model = model_of(physical, stairs=False)
    shape = decode_shape(batch_size=1, context_tokens=1000)
    work = model.work([shape])
    by_hand = (
        0.5
        + float(work.layer_bytes[0] + work.head_bytes[0]) / CPU.weight_bytes_per_s
        + float(work.matmul_flop[0] + work.logits_flop[0]) / CPU.matmul_flop_per_s
        + 3.0 * 1000 * 36_864 / CPU.kv_bytes_per_s
    )
    assert model.predict(shape).duration_s.value == pytest.approx(by_hand, rel=1e-9)


@given(batch=st.integers(1, 256), context=st.integers(1, 8192), factor=st.floats(1.0, 8.0))
def test_faster_hardware_is_never_slower(batch, context, factor):
    shape = decode_shape(batch_size=batch, context_tokens=context)
    slow = model_of().predict(shape).duration_s.value
    for name in ("weight_bytes_per_s", "kv_bytes_per_s", "matmul_flop_per_s"):
        faster = replace(GPU, **{name: getattr(GPU, name) * factor})
        assert model_of(faster).predict(shape).duration_s.value <= slow * (1 + 1e-12)


@given(batch=st.integers(1, 256), context=st.integers(1, 8192))
def test_longer_contexts_take_longer(batch, context):
    model = model_of()
    short, long = (
        model.predict(decode_shape(batch_size=batch, context_tokens=tokens))
        for tokens in (context, 2 * context)
    )
    assert short.duration_s.value < long.duration_s.value


def test_limits_by_the_largest_cause():
    model = model_of(deviation=0.01)
    assert (
        model.predict(decode_shape(batch_size=1, context_tokens=16)).limited_by == "launch overhead"
    )
    assert (
        model.predict(decode_shape(batch_size=64, context_tokens=4096)).limited_by == "KV bandwidth"
    )
    assert model.predict(prefill_shape(batch_size=8, prompt_tokens=512)).limited_by == "compute"
    assert (
        model.predict(prefill_shape(batch_size=1, prompt_tokens=32_768)).limited_by == "attention"
    )
    fast_host = model_of(replace(GPU, launch_s=1e-3, floor_s=1e-6), deviation=0.01)
    assert (
        fast_host.predict(decode_shape(batch_size=1, context_tokens=16)).limited_by
        == "weight bandwidth"
    )


def test_doubt_about_parameters_leaves_the_limit_undecided():
    model = model_of(deviation=1.0)
    assert model.predict(decode_shape(batch_size=1, context_tokens=512)).limited_by == "undecided"


def test_host_and_device_in_balance_are_undecided():
    # The host is given as long as the device's work takes.
    shape = decode_shape(batch_size=8, context_tokens=1024)
    terms = model_of().predict(shape).terms
    device_s = sum(term.duration_s for term in terms if term.name != "launch")
    assert model_of(replace(GPU, launch_s=device_s)).predict(shape).limited_by == "undecided"
    assert (
        model_of(replace(GPU, launch_s=1.5 * device_s)).predict(shape).limited_by
        == "launch overhead"
    )


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (
            decode_shape(batch_size=128, context_tokens=64),
            "decoding requests = 128 outside 1 to 64",
        ),
        (
            decode_shape(batch_size=1, context_tokens=9000),
            "context tokens per decoding request = 9000 outside 64 to 4096",
        ),
        (
            prefill_shape(batch_size=1, prompt_tokens=8),
            "prompt tokens per request = 8 outside 16 to 4096",
        ),
        (
            replace(
                prefill_shape(batch_size=1, prompt_tokens=64),
                n_decode_requests=4,
                decode_context_tokens=400,
            ),
            "mix prefill and decode",
        ),
    ],
)
def test_outside_the_box_it_says_where(shape, why):
    model = model_of()
    prediction = model.predict(shape)
    assert not prediction.is_inside_box
    assert why in str(prediction.outside_why)
    inside = model.predict(decode_shape(batch_size=8, context_tokens=512)).duration_s
    assert prediction.duration_s.high / prediction.duration_s.low > inside.high / inside.low


def test_intervals_widen_with_the_distance():
    model = model_of()
    ratios = [
        estimate.high / estimate.low
        for estimate in (
            model.predict(decode_shape(batch_size=batch, context_tokens=512)).duration_s
            for batch in (64, 128, 512, 2048)
        )
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 1.5 * ratios[0]


def test_phase_that_was_never_seen():
    box = box_of([decode_shape(batch_size=1, context_tokens=64)])
    assert (
        "no step with prefill tokens was measured"
        in outside(box, prefill_shape(batch_size=1, prompt_tokens=64)).reasons
    )


def test_json_gives_the_same_model_back(tmp_path):
    path = tmp_path / "model.json"
    model = model_of()
    model.save(path)
    assert load_step_time_model(path) == model


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema_version": 1}', b'{"parameters": []}'])
def test_what_is_no_model_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(
        ModelError, match=r"the step-time model (cannot be read|is damaged|is empty)"
    ):
        load_step_time_model(path)


def test_a_fit_of_the_first_version_is_read(tmp_path):
    path, model = tmp_path / "model.json", model_of()
    stored = msgspec.json.format(msgspec.json.encode(model), indent=1)
    for now, before in (
        (b'"schema_version": 2', b'"schema_version": 1'),
        (b'"informed_by"', b'"told_by"'),
        (b'"uncertainties"', b'"doubts"'),
    ):
        assert now in stored
        stored = stored.replace(now, before)
    path.write_bytes(stored)
    assert load_step_time_model(path) == model


def test_another_version_is_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(
        msgspec.json.encode(model_of()).replace(b'"schema_version":2', b'"schema_version":99')
    )
    with pytest.raises(ModelError, match="schema version 99"):
        load_step_time_model(path)


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        load_step_time_model(tmp_path / "none.json")


SUBJECTS = {
    "dense": model_of(),
    "cpu": model_of(CPU, engine=EngineSpec(dtype="float32")),
    "smooth": model_of(stairs=False),
    "experts": model_of(name="mixtral-8x7b-v0.1"),
    "sliding": model_of(name="gemma-3-1b"),
    "latent": model_of(name="deepseek-v3"),
    "top-k": model_of(name="glm-5"),
    "compressed": model_of(name="deepseek-v4-flash"),
    "linear": model_of(name="qwen3.5-27b"),
    "all logits": replace(model_of(), computes_all_logits=True),
    "parallel": model_of(
        engine=EngineSpec(dtype="bfloat16", device="cuda", tensor_parallel_size=2)
    ),
}
MIXED = BatchShape(
    n_prefill_requests=2,
    n_decode_requests=9,
    prefill_tokens=700,
    prefill_context_product_tokens2=700 * 900,
    decode_context_tokens=9 * 1500,
    n_logit_positions=11,
)


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("shape", [*SHAPES, MIXED])
def test_plain_arrays_say_the_same(subject, shape):
    model = SUBJECTS[subject]
    # Tables of what experts read are interpolated. A window beside a choice counts as full.
    tolerance = 2e-3 if subject in {"experts", "latent", "top-k"} else 1e-9
    tolerance = 4e-2 if subject == "compressed" else tolerance
    assert seconds_of(step_duration_s, arrays_of(model), shape) == pytest.approx(
        model.predict(shape).duration_s.value, rel=tolerance
    )


def compiled_closed_form():
    scope = dict(vars(steptime_terms))
    for name in CLOSED_FORM_PARTS:
        scope[name] = numba.njit(FunctionType(scope[name].__code__, scope))
    return scope["step_duration_s"]


@pytest.mark.slow
def test_numba_compiles_the_closed_form():
    plain, compiled = step_duration_s, compiled_closed_form()
    arrays = arrays_of(SUBJECTS["sliding"])
    for shape in (SHAPES[0], SHAPES[-1], MIXED):
        assert seconds_of(compiled, arrays, shape) == pytest.approx(
            seconds_of(plain, arrays, shape), rel=1e-12
        )


def seconds_of(closed_form, arrays: StepTimeArrays, shape: BatchShape) -> float:
    return closed_form(
        arrays,
        shape.n_prefill_requests,
        shape.n_decode_requests,
        shape.prefill_tokens,
        shape.prefill_context_product_tokens2,
        shape.decode_context_tokens,
        shape.n_logit_positions,
    )


def test_arrays_are_finite():
    for model in SUBJECTS.values():
        arrays = arrays_of(model)
        assert all(np.isfinite(value).all() or math.isinf(arrays.window_tokens) for value in arrays)


def test_levels_doubt_what_the_fit_was_checked_on():
    """Beyond its box a fit is less certain: that is for cautions, and does not widen what lies inside."""
    model = model_of()
    inside = [
        shape for shape in SHAPES if shape.n_decode_requests <= 8 and shape.prefill_tokens <= 4096
    ]
    small = replace(model, box=box_of(inside))
    shape = decode_shape(batch_size=64, context_tokens=512)
    near, beyond = (one.predict_all([shape])[0].duration_s for one in (model, small))
    assert beyond.high > near.high
    ends = [fitted_levels(one).slow.read_s[0] for one in (model, small)]
    assert ends[0] == ends[1]


def test_step_times_without_a_doubt_are_no_levels():
    with pytest.raises(ModelError, match="no uncertainty"):
        fitted_levels(replace(model_of(), uncertainties=()))
