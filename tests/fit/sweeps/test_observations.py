"""Does a run become the step times that it showed: medians over repetitions, warm-ups and failures left out?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.fit.sweeps.observations import observe
from inferometer.records.types import ABSENT, PointStatus


def test_one_observation_for_each_phase_and_point(made_run):
    run = made_run(prompts=(32, 64), batches=(1, 4), n_reps=3)
    seen = observe([run], is_drift_removed=False)
    assert len(seen.rows) == 8
    row = next(row for row in seen.rows if row.configuration == (64, 4) and row.phase == "prefill")
    sweep = run.sweep
    mine = (sweep.prompt_tokens == 64) & (sweep.batch_size == 4)
    assert row.duration_s == pytest.approx(np.exp(np.median(np.log(sweep.prefill_ns[mine] / 1e9))))
    assert row.shape.prefill_tokens == 256
    assert row.n_repetitions == 3


def test_decode_is_the_median_step_at_its_mean_context(made_run):
    run = made_run(prompts=(32,), batches=(2,), n_reps=3)
    row = next(row for row in observe([run], is_drift_removed=False).rows if row.phase == "decode")
    durations = run.steps.duration_ns.reshape(3, 8)
    assert row.duration_s == pytest.approx(
        np.exp(np.median(np.log(np.median(durations, axis=1) / 1e9)))
    )
    # Steps at contexts 33 to 40, of two sequences.
    assert row.shape.decode_context_tokens == 73


def test_without_step_table_the_mean_step_counts(made_run):
    run = made_run(prompts=(32,), batches=(2,), n_reps=3)
    row = next(
        row
        for row in observe([replace(run, steps=None)], is_drift_removed=False).rows
        if row.phase == "decode"
    )
    assert row.duration_s == pytest.approx(np.exp(np.median(np.log(run.sweep.decode_ns / 8e9))))


def test_warm_ups_and_failures_are_left_out(made_run):
    run = made_run(prompts=(32, 64), batches=(1,), n_reps=3)
    status = run.sweep.status.copy()
    status[run.sweep.prompt_tokens == 64] = PointStatus.OUT_OF_MEMORY
    is_warmup = run.sweep.repetition == 0
    steps = run.steps._replace(is_warmup=run.steps.repetition == 0)
    changed = replace(
        run, sweep=run.sweep._replace(status=status, is_warmup=is_warmup), steps=steps
    )
    rows = observe([changed]).rows
    assert {row.configuration for row in rows} == {(32, 1)}
    assert {row.n_repetitions for row in rows} == {2}


def test_spread_between_repetitions_is_the_noise(made_run):
    quiet, noisy = (
        observe([made_run(noise_ratio=noise, n_reps=9)], is_drift_removed=False)
        for noise in (0.02, 0.1)
    )
    ratio = np.median([row.noise_ratio for row in noisy.rows]) / np.median(
        [row.noise_ratio for row in quiet.rows]
    )
    assert 3.5 < ratio < 6.5


def test_repetitions_of_a_disturbed_machine_count_less(made_run):
    """A point that was measured in quiet once is taken at that, though two disturbed repetitions say otherwise."""
    run = made_run(slow_share_fraction=0.5, n_reps=3, seed=11)
    quiet = {
        (row.phase, row.configuration): row.duration_s
        for row in observe([made_run(n_reps=3, seed=12)]).rows
    }
    errors = [
        abs(np.log(row.duration_s / quiet[row.phase, row.configuration]))
        for row in observe([run]).rows
    ]
    raw = [
        abs(np.log(row.duration_s / quiet[row.phase, row.configuration]))
        for row in observe([run], is_drift_removed=False).rows
    ]
    assert np.quantile(errors, 0.9) < 0.08
    assert np.quantile(raw, 0.9) > 0.5


@pytest.mark.parametrize(("lacking", "kept"), [("prefill_ns", "decode"), ("decode_ns", "prefill")])
def test_a_table_without_a_phase_has_none_of_it(made_run, lacking, kept):
    run = made_run(prompts=(32, 64), batches=(1, 2), n_reps=3)
    sweep = run.sweep._replace(**{lacking: np.full_like(run.sweep.prefill_ns, ABSENT)})
    rows = observe([replace(run, sweep=sweep, steps=None)], is_drift_removed=False).rows
    assert [row.phase for row in rows] == [kept] * 4
    assert all(row.n_repetitions == 3 for row in rows)
