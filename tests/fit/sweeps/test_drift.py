"""Is the drift of a machine told from its probes, and told from noise?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.fit.sweeps.drift import (
    BETWEEN_TIMES_RATIO,
    DriftCorrection,
    MachineState,
    Repetitions,
    between_times_ratio,
    estimate_drift,
    machine_states,
)
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.perfmodel.types import decode_shape


def repetitions(phase, log_speed, log_s):
    state = MachineState(
        log_speed=np.stack([log_speed, log_speed], axis=1), unrest=np.abs(log_speed)
    )
    return Repetitions(phase=phase, log_s=log_s, state=state)


@pytest.mark.parametrize("exponent", [0.4, 1.0])
def test_exponent_comes_back(exponent):
    rng = np.random.default_rng(1)
    samples = []
    for point in range(20):
        for phase in ("prefill", "decode"):
            log_speed = rng.normal(0, 0.3, 5)
            samples.append(
                repetitions(phase, log_speed, point - exponent * log_speed + rng.normal(0, 0.01, 5))
            )
    drift = estimate_drift(samples)
    assert drift is not None
    assert drift.helps
    assert drift.prefill_read_ratio + drift.prefill_matmul_ratio == pytest.approx(
        exponent, abs=0.03
    )
    assert drift.decode_read_ratio + drift.decode_matmul_ratio == pytest.approx(exponent, abs=0.03)
    assert drift.spread_after_ratio == pytest.approx(0.01, rel=0.3)
    corrected = drift.applied(samples[0])
    assert np.std(corrected) < 0.03 < np.std(samples[0].log_s)


def test_probes_that_tell_nothing_do_not_help():
    rng = np.random.default_rng(2)
    samples = [
        repetitions(phase, rng.normal(0, 0.3, 5), rng.normal(0, 0.05, 5))
        for _ in range(20)
        for phase in ("prefill", "decode")
    ]
    drift = estimate_drift(samples)
    assert drift is not None
    assert not drift.helps


def test_too_few_repetitions_say_nothing():
    sample = [
        repetitions(phase, np.array([0.1, -0.1]), np.array([0.0, 0.1]))
        for phase in ("prefill", "decode")
    ]
    assert estimate_drift(sample) is None


def test_states_are_those_of_the_probes_around(made_run):
    run = made_run(slow_share_fraction=0.2, n_reps=3, seed=5)
    states = machine_states(run)
    assert states.log_speed.shape == (60, 2)
    slow = states.unrest > 0.3
    assert 4 <= slow.sum() <= 22
    # Half speed, less the 5 % that may be the probes' own noise.
    np.testing.assert_allclose(states.log_speed[slow], np.log(0.5) + 0.05, atol=1e-9)
    np.testing.assert_allclose(states.log_speed[~slow], 0.0, atol=1e-9)


def test_no_probes_no_states(made_run):
    states = machine_states(replace(made_run(n_reps=1), ceilings=None))
    assert np.isnan(states.log_speed).all()


def slow_at_the_beginning(run, ratio):
    """The same with all probes of the run's first quarter at this speed."""
    probes = run.ceilings
    times_ns = run.sweep.started_ns
    is_early = probes.started_ns < np.quantile(times_ns, 0.27)
    value_per_s = np.where(is_early, probes.value_per_s * ratio, probes.value_per_s)
    return replace(run, ceilings=probes._replace(value_per_s=value_per_s))


def test_a_quarter_of_a_run_that_was_slow_shows_how_unlike_times_are(made_run):
    full = {"prefill_read_ratio": 0.6, "prefill_matmul_ratio": 0.4}
    full |= {"decode_read_ratio": 1.0, "decode_matmul_ratio": 0.0}
    drift = DriftCorrection(
        **full, restless_ratio=0.1, spread_before_ratio=0.2, spread_after_ratio=0.1
    )
    run = made_run(n_reps=3, seed=5)
    assert between_times_ratio([run], drift) == pytest.approx(BETWEEN_TIMES_RATIO)
    assert between_times_ratio([run], None) == BETWEEN_TIMES_RATIO
    # one of four medians is log 2 less the probes' own noise, of both phases
    seen = np.sqrt((np.log(2) - 0.05) ** 2 / 4)
    slow = slow_at_the_beginning(run, 0.5)
    assert between_times_ratio([slow], drift) == pytest.approx(
        np.hypot(BETWEEN_TIMES_RATIO, seen), abs=0.01
    )
    # moments are none: a tenth of them slow, anywhere
    moments = made_run(slow_share_fraction=0.1, n_reps=3, seed=5)
    assert between_times_ratio([moments], drift) == pytest.approx(BETWEEN_TIMES_RATIO, abs=0.01)


def test_intervals_of_a_fit_hold_for_a_machine_that_is_slower_tomorrow(made_run):
    model = fit_step_time([made_run(n_reps=3, seed=5)])
    shape = decode_shape(batch_size=4, context_tokens=200)
    assert model.machine_ratio == pytest.approx(BETWEEN_TIMES_RATIO)
    wide, narrow = (
        one.predict(shape).duration_s for one in (model, replace(model, machine_ratio=0))
    )
    tomorrow = narrow.value * np.exp(np.random.default_rng(3).normal(0, BETWEEN_TIMES_RATIO, 400))
    inside = (tomorrow > wide.low) & (tomorrow < wide.high)
    assert 0.86 < inside.mean() < 0.97
    assert ((tomorrow > narrow.low) & (tomorrow < narrow.high)).mean() < 0.8
