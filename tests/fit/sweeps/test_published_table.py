"""Is a row of a published sweep predicted by any three of the others within 8 %, and inside the interval claimed for it?"""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from inferometer.api.analysis import analyse
from inferometer.api.explain import logits_check
from inferometer.fit.sweeps.observations import computes_all_logits
from inferometer.fit.sweeps.regression import unidentified
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.perfmodel.types import decode_shape, prefill_shape


def predictions_of(model, row):
    prefill = prefill_shape(batch_size=row.batch_size, prompt_tokens=row.prompt_tokens)
    decode = decode_shape(batch_size=row.batch_size, context_tokens=row.prompt_tokens + 16)
    return model.predict(prefill), model.predict(decode)


@pytest.mark.parametrize("left_out", range(4))
@pytest.mark.parametrize("axis", ["prompt", "batch"])
def test_row_left_out(axis, left_out, axes, published_run, laptop_gpu):
    row = axes[axis][left_out]
    model = fit_step_time(
        [published_run([other for other in axes[axis] if other is not row])], hardware=laptop_gpu
    )
    for prediction, measured_ms in zip(
        predictions_of(model, row), (row.prefill_ms, row.step_ms), strict=True
    ):
        assert prediction.duration_s.value * 1e3 == pytest.approx(measured_ms, rel=0.08)
        assert prediction.duration_s.low * 1e3 <= measured_ms <= prediction.duration_s.high * 1e3
        assert prediction.is_inside_box == (left_out in {1, 2})


def test_limits_of_the_batch_axis(axes, published_run, laptop_gpu):
    """One sequence waits for the host; 64 sequences wait for the copies that eager attention makes of the cache."""
    model = fit_step_time([published_run(axes["batch"])], hardware=laptop_gpu)
    assert predictions_of(model, axes["batch"][0])[1].limited_by == "launch overhead"
    assert predictions_of(model, axes["batch"][3])[1].limited_by == "KV bandwidth"
    assert predictions_of(model, axes["batch"][3])[0].limited_by == "compute"


def test_limits_of_the_prompt_axis(axes, published_run, laptop_gpu):
    model = fit_step_time([published_run(axes["prompt"])], hardware=laptop_gpu)
    assert predictions_of(model, axes["prompt"][3])[0].limited_by == "attention"
    assert predictions_of(model, axes["prompt"][0])[1].limited_by == "launch overhead"


def test_beyond_the_largest_prompt_it_does_not_claim_to_know(axes, published_run, laptop_gpu):
    """There memory spilled in a second run of the same sweep: 5,066 ms in place of 1,757."""
    model = fit_step_time([published_run(axes["prompt"][:3])], hardware=laptop_gpu)
    prediction = predictions_of(model, axes["prompt"][3])[0]
    assert not prediction.is_inside_box
    assert "prompt tokens per request = 4096 outside 128 to 2048" in str(prediction.outside_why)
    assert prediction.duration_s.high / prediction.duration_s.low > 1.5


def test_logits_of_all_positions_show_in_memory(axes, published_run):
    for axis in axes.values():
        for rows in combinations(axis, 3):
            run = published_run(rows)
            assert computes_all_logits(run.sweep, run.manifest.model, run.manifest.plan.engine)


def test_what_the_logits_trap_costs(axes, published_run, laptop_gpu):
    """Logits of the last position only would save a tenth of the large prefills: 622 of 6,171 MFLOP a token."""
    model = fit_step_time([published_run(axes["batch"])], hardware=laptop_gpu)
    assert model.computes_all_logits
    shape = prefill_shape(batch_size=64, prompt_tokens=128)
    trapped, cured = (
        variant.predict(shape).duration_s.value
        for variant in (model, replace(model, computes_all_logits=False))
    )
    assert 0.85 < cured / trapped < 0.93


def test_the_logits_trap_is_a_pitfall_that_explain_finds(axes, published_run, laptop_gpu):
    run = published_run(axes["batch"])
    trapped = analyse(run, Path("batch"), label="batch", hardware=laptop_gpu)
    found = logits_check([trapped])
    assert (found.finding, round(found.measured_ratio, 1)) == ("found", 0.1)
    cured = replace(trapped, model=replace(trapped.model, computes_all_logits=False))
    assert logits_check([cured]).finding == "not reported"
    assert logits_check([]).finding == "not reported"


def test_last_position_only_shows_in_memory(axes, published_run):
    # The same growth without what the logits of 151,936 words in 16 bit take.
    rows = [
        replace(
            row,
            reserved_mib=row.reserved_mib
            - row.prompt_tokens * row.batch_size * 151_936 * 2 // 2**20,
        )
        for row in axes["batch"]
    ]
    run = published_run(rows)
    assert not computes_all_logits(run.sweep, run.manifest.model, run.manifest.plan.engine)


def test_what_one_axis_cannot_tell(axes, published_run, laptop_gpu):
    """With one prompt length attention is no more than assumed; with one weight format so is its bandwidth."""
    model = fit_step_time([published_run(axes["batch"])], hardware=laptop_gpu)
    found = {name for entry in unidentified(model) for name in entry.parameters}
    assert {"attention_flop_per_s", "weight_bytes_per_s"} <= found
    assert not {"launch_s", "matmul_flop_per_s"} & found


@pytest.mark.slow
def test_device_of_a_table_follows_the_datasheet(axes, published_run, laptop_gpu):
    """A table does not say on what it was measured: the engine's settings are those of the machine that reads it."""
    run = published_run(axes["batch"])
    plan = replace(run.manifest.plan, engine=replace(run.manifest.plan.engine, device="cpu"))
    elsewhere = replace(run, manifest=replace(run.manifest, plan=plan))
    assert fit_step_time([elsewhere], hardware=laptop_gpu) == fit_step_time(
        [run], hardware=laptop_gpu
    )
