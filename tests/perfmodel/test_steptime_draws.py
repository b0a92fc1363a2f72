"""Are draws of step times spread as the fit's uncertainty says, each phase by its own?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import (
    N_DRAWS,
    datasheet_step_time,
    drawn_steps,
    fitted_levels,
    launched_singly,
    through_stages,
)
from inferometer.perfmodel.steptime_limits import PhaseUncertainty
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.stats.estimate import Z_90

H100 = find_hardware("h100_sxm")
DECODE = decode_shape(batch_size=32, context_tokens=1024)
PREFILL = prefill_shape(batch_size=1, prompt_tokens=2048)


def fit(*, decode, prefill):
    sheet = datasheet_step_time(
        find_model("llama-3.1-8b"), EngineSpec(dtype="bfloat16", device="cuda"), H100
    )
    uncertainties = (
        PhaseUncertainty(phase="decode", spread_ratio=decode),
        PhaseUncertainty(phase="prefill", spread_ratio=prefill),
    )
    trained_on = replace(sheet.trained_on, n_observations=2)
    return replace(sheet, uncertainties=uncertainties, trained_on=trained_on)


def ends(draws, shape):
    """From the likely duration to the shortest and the longest of the draws, as logarithms."""
    times = np.log([shape_duration_s(draw.steps, shape) for draw in draws])
    return times - np.log(
        shape_duration_s(fitted_levels(fit(decode=0.1, prefill=0.1)).likely, shape)
    )


@pytest.mark.parametrize(("decode", "prefill"), [(0.02, 0.4), (0.3, 0.05)])
def test_each_phase_has_its_own_spread(decode, prefill):
    draws = drawn_steps(fit(decode=decode, prefill=prefill))
    assert len(draws) == N_DRAWS
    for shape, spread in ((DECODE, decode), (PREFILL, prefill)):
        times = ends(draws, shape)
        assert np.std(times) == pytest.approx(spread, rel=0.2, abs=0.02)
        assert times.min() == pytest.approx(-spread * Z_90, rel=0.15, abs=0.02)
        assert times.max() == pytest.approx(spread * Z_90, rel=0.15, abs=0.02)


def test_fast_and_slow_are_the_ends_of_the_interval_of_all_steps():
    levels = fitted_levels(fit(decode=0.2, prefill=0.02))
    likely, fast, slow = (
        shape_duration_s(steps, DECODE) for steps in (levels.likely, levels.fast, levels.slow)
    )
    assert np.log(slow / likely) == pytest.approx(0.2 * Z_90, rel=0.15)
    assert np.log(fast / likely) == pytest.approx(-0.2 * Z_90, rel=0.15)


def test_a_fit_without_uncertainty_has_draws_that_are_alike():
    draws = drawn_steps(fit(decode=0.0, prefill=0.0))
    assert np.ptp(ends(draws, DECODE)) == pytest.approx(0.0, abs=1e-9)
    again = [drawn_steps(fit(decode=0.1, prefill=0.1))[3].steps.kv_token_s for _ in range(2)]
    assert again[0] == again[1]


def test_stages_of_a_pipeline_slow_draws_as_they_slow_the_likely_steps():
    levels = fitted_levels(fit(decode=0.2, prefill=0.2))
    piped = through_stages(levels, find_model("llama-3.1-8b"), H100, 2)
    before, after = (
        shape_duration_s(one.draws[4].steps, DECODE) / shape_duration_s(one.likely, DECODE)
        for one in (levels, piped)
    )
    assert after == pytest.approx(before, rel=0.05)


def test_first_tokens_are_later_for_a_wait_in_no_step_and_sooner_for_shorter_prefills():
    plain = fit(decode=0.05, prefill=0.1)
    draws = drawn_steps(replace(plain, first_token_spread_ratio=0.5))
    waits = np.log([draw.steps.first_token_ratio for draw in draws])
    assert np.std(waits) == pytest.approx(0.5, rel=0.35)
    assert {draw.steps.first_token_ratio for draw in drawn_steps(plain)} == {1.0}
    prefills = np.log([shape_duration_s(draw.steps, PREFILL) for draw in draws])
    sooner, expected = waits < 0, np.mean(prefills[waits > 0])
    assert np.std(prefills[~sooner]) == pytest.approx(0.1, rel=0.4)
    assert np.mean(prefills[sooner]) - expected == pytest.approx(np.mean(waits[sooner]), abs=0.1)
    without = drawn_steps(plain)
    assert np.std(ends(draws, DECODE)) == pytest.approx(np.std(ends(without, DECODE)), rel=0.2)


def test_hosts_that_launch_kernels_singly_are_spread_over_the_draws_whatever_their_steps():
    levels = fitted_levels(fit(decode=0.2, prefill=0.2))
    model = find_model("llama-3.1-8b")
    layers_ms = [
        1e3 * draw.steps.singly_s / model.n_layers for draw in launched_singly(levels, model).draws
    ]
    assert 0.26 < min(layers_ms) < 0.29
    assert 1.1 < max(layers_ms) < 1.2
    assert np.exp(np.mean(np.log(layers_ms))) == pytest.approx(np.sqrt(0.26 * 1.2))
    assert abs(np.corrcoef(np.arange(N_DRAWS), layers_ms)[0, 1]) < 0.2
