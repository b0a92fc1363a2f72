"""Does a fit find back what was put in, does it say how sure it is, and is it as good on recorded sweeps as it claims?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.errors import ModelError
from inferometer.fit.sweeps.step_time import (
    fit_and_validate,
    fit_step_time,
    held_out_errors,
)
from inferometer.perfmodel.types import decode_shape, prefill_shape


@pytest.fixture(scope="module")
def fitted(made_run):
    return fit_and_validate([made_run()])


def test_parameters_that_the_data_tell_come_back(fitted, truth):
    told = {
        entry.name: entry.estimate
        for entry in fitted.model.parameters
        if entry.informed_by == "data"
    }
    assert {"kv_bytes_per_s", "matmul_flop_per_s", "attention_flop_per_s"} <= set(told)
    for name, estimate in told.items():
        assert estimate.value == pytest.approx(
            getattr(truth, name), rel=0.25, abs=0.03 if name == "sag_ratio" else 0
        ), name


def test_held_out_error_is_that_of_the_noise(fitted):
    for error in fitted.model.held_out:
        assert error.median_fraction < 0.015
        assert error.p95_fraction < 0.04


@pytest.mark.slow
def test_intervals_cover_what_they_claim(made_run):
    """90 % intervals over the held-out points of several runs: within what 4 · 40 points let one tell."""
    points = [
        point
        for seed in range(4)
        for point in fit_and_validate([made_run(seed=seed, noise_ratio=0.03)], n_folds=5).held_out
    ]
    covered = np.average([error.coverage_fraction for error in held_out_errors(points)])
    assert 0.83 <= covered <= 0.96


def test_prediction_between_the_points(fitted, truth):
    from inferometer.perfmodel.steptime_terms import NO_STAIRCASE, term_columns

    model = fitted.model
    for shape in (
        decode_shape(batch_size=6, context_tokens=300),
        prefill_shape(batch_size=3, prompt_tokens=200),
    ):
        prediction = model.predict(shape)
        true_s = float(term_columns(truth.vector(), NO_STAIRCASE, model.work([shape])).total_s[0])
        assert prediction.is_inside_box
        assert prediction.duration_s.low <= true_s <= prediction.duration_s.high
        assert sum(term.duration_s for term in prediction.terms) == pytest.approx(
            prediction.duration_s.value, rel=1e-12
        )


@pytest.mark.slow
def test_drift_taken_out_by_the_probes(made_run):
    """A third of the repetitions run at half speed; the probes beside them say so."""
    run = made_run(slow_share_fraction=0.35, n_reps=3, seed=3)
    with_probes = {error.phase: error for error in fit_step_time([run]).held_out}
    without = {
        error.phase: error for error in fit_step_time([run], is_drift_removed=False).held_out
    }
    for phase in ("prefill", "decode"):
        assert with_probes[phase].p95_fraction < 0.06
        assert without[phase].p95_fraction > 3 * with_probes[phase].p95_fraction


def test_quiet_run_needs_no_correction(made_run):
    assert not fit_step_time([made_run(n_reps=3)], n_folds=2).trained_on.is_drift_removed


def test_one_batch_size_cannot_tell_launches_from_weights(made_run):
    run = made_run(batches=(1,), prompts=(64, 128, 256))
    without_probes = replace(run, ceilings=None)
    informed_by = {
        entry.name: entry.informed_by for entry in fit_step_time([without_probes]).parameters
    }
    assert informed_by["launch_s"] != "data"
    assert informed_by["weight_bytes_per_s"] != "data"
    limits = {
        fit_step_time([without_probes])
        .predict(decode_shape(batch_size=1, context_tokens=128))
        .limited_by
    }
    assert limits == {"undecided"}


def test_cross_validation_leaves_whole_configurations_out(made_run):
    points = fit_and_validate([made_run(n_reps=2)], n_folds=4).held_out
    assert len(points) == 40
    assert {
        (point.prompt_tokens, point.batch_size) for point in points if point.phase == "prefill"
    } == {(prompt, batch) for prompt in (32, 128, 512, 1024) for batch in (1, 2, 4, 8, 16)}


def test_nothing_to_fit():
    with pytest.raises(ModelError, match="no run to fit"):
        fit_step_time([])


def test_runs_of_different_subjects_are_not_mixed(made_run, published_run, axes):
    with pytest.raises(ModelError, match="different models or engine settings"):
        fit_step_time([made_run(n_reps=1), published_run(axes["batch"])])


def test_no_point_ended_well(made_run):
    run = made_run(n_reps=1)
    failed = replace(run, sweep=run.sweep._replace(status=np.ones_like(run.sweep.status)))
    with pytest.raises(ModelError, match="no point of these runs ended well"):
        fit_step_time([failed])
