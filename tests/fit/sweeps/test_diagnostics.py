"""Do the parts of a measured step sum to what was measured, and is the rest called unexplained?"""

import pytest

from inferometer.fit.sweeps.regression import explain
from inferometer.fit.sweeps.step_time import fit_step_time


def test_parts_sum_to_what_was_measured(made_run):
    run = made_run(n_reps=3)
    steps = explain(run, fit_step_time([run], n_folds=2))
    assert len(steps) == 40
    for step in steps:
        assert sum(term.duration_s for term in step.terms) == pytest.approx(
            step.measured_s, rel=1e-12
        )
        assert step.terms[-1].name == "unexplained"
        assert abs(step.terms[-1].duration_s) < 0.05 * step.measured_s


def test_another_machine_shows_as_unexplained(made_run, truth):
    """A run on a machine of half the matmul speed, explained by the model of the first.

    Its prefill is half unexplained.
    """
    from dataclasses import replace

    model = fit_step_time([made_run(n_reps=3)], n_folds=2)
    slower = made_run(replace(truth, matmul_flop_per_s=truth.matmul_flop_per_s / 2), n_reps=1)
    largest = next(
        step
        for step in explain(slower, model)
        if (step.phase, step.prompt_tokens, step.batch_size) == ("prefill", 1024, 16)
    )
    assert largest.terms[-1].duration_s > 0.25 * largest.measured_s
