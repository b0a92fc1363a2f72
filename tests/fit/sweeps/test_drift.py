"""Is the drift of a machine told from its probes, and told from noise?"""

import numpy as np
import pytest

from inferometer.fit.sweeps.drift import MachineState, Repetitions, estimate_drift, machine_states


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
    from dataclasses import replace

    states = machine_states(replace(made_run(n_reps=1), ceilings=None))
    assert np.isnan(states.log_speed).all()
