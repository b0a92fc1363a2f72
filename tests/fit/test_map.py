"""Does the search find what a simulation was given, and is its doubt honest, also where the simulation jumps?"""

import numpy as np
import pytest

from inferometer.fit.map import Prior, posterior_of

N_MISFITS, N_GROUPS = 400, 40


def made(seed, n_unknowns=4, step=0.0):
    """Misfits that are linear in the unknowns, but for jumps of ``step`` standard deviations, and noise of variance 1 at the truth."""
    rng = np.random.default_rng(seed)
    slopes = (
        rng.standard_normal((N_MISFITS, n_unknowns)) * np.array([8.0, 3.0, 1.0, 0.02])[:n_unknowns]
    )
    unknowns = Prior(
        names=("a", "b", "c", "d")[:n_unknowns],
        mean=np.zeros(n_unknowns),
        sd=np.full(n_unknowns, 0.5),
    )
    truth = rng.standard_normal(n_unknowns) * unknowns.sd
    noise, phase = rng.standard_normal(N_MISFITS), rng.uniform(0, 1, N_MISFITS)

    def misfit(x):
        smooth = slopes @ (x - truth) + noise
        return step * np.floor(smooth / step + phase) if step else smooth

    return misfit, unknowns, truth, slopes


def groups_of(n_misfits):
    return np.arange(n_misfits) * N_GROUPS // n_misfits


def test_a_line_has_its_answer():
    """Weights of outliers apart, the covariance is that of the normal equations, and the answer within it of the truth."""
    misfit, unknowns, truth, slopes = made(1)
    solution = posterior_of(misfit, unknowns, groups_of(N_MISFITS))
    exact = np.linalg.inv(slopes.T @ slopes + np.diag(1 / unknowns.sd**2))
    deviations = np.sqrt(np.diag(solution.covariance))
    assert deviations == pytest.approx(np.sqrt(np.diag(exact)), rel=0.6)
    assert np.all(np.abs(solution.x - truth) < 4 * deviations)
    assert deviations[3] == pytest.approx(unknowns.sd[3], rel=0.1)  # nothing tells d


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_intervals_hold_the_truth_nine_times_in_ten(step):
    inside = []
    for seed in range(20):
        misfit, unknowns, truth, _ = made(seed, step=step)
        solution = posterior_of(misfit, unknowns, groups_of(N_MISFITS))
        inside += (
            np.abs(solution.x - truth) < 1.645 * np.sqrt(np.diag(solution.covariance))
        ).tolist()
    # 80 intervals of 90 %: fewer than 62 inside happens once in 2,000 (binomial); unknowns of one
    # run are all but independent
    assert sum(inside) >= 62


def test_outliers_do_not_lead():
    misfit, unknowns, truth, _ = made(2)
    wild = np.where(np.arange(N_MISFITS) % 20 == 0, 30.0, 0.0)
    solution = posterior_of(lambda x: misfit(x) + wild, unknowns, groups_of(N_MISFITS))
    assert np.all(np.abs(solution.x - truth)[:3] < 0.3)


def test_groups_that_stray_together_add_doubt():
    misfit, unknowns, _, _ = made(3, n_unknowns=1)
    groups = groups_of(N_MISFITS)
    slopes = np.sign(misfit(np.ones(1)) - misfit(np.zeros(1)))
    shared = np.random.default_rng(4).standard_normal(N_GROUPS)[groups] * slopes
    alone = posterior_of(misfit, unknowns, groups)
    together = posterior_of(lambda x: misfit(x) + 2 * shared, unknowns, groups)
    assert together.covariance[0, 0] > 1.5 * alone.covariance[0, 0]
