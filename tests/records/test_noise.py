"""Is noise told when there is some, and silence kept when there is none?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.repetitions import noise_cautions, noise_of
from inferometer.records.summaries import summarise_points
from inferometer.records.sweep_csv import SweepRow, column_texts
from inferometer.records.types import CeilingTable

POINTS = [SweepPoint(prompt_tokens=128 * (i + 1), batch_size=1, gen_tokens=9) for i in range(6)]


def run_with(make_run, scale_of, *, noise=0.003, n_reps=8):
    """``scale_of(i_repetition)`` multiplies all times; points take times of their own."""
    rng = np.random.default_rng(4)
    times = {}
    for i, point in enumerate(POINTS):
        scales = np.array([scale_of(i_rep) for i_rep in range(n_reps)])
        times[point] = tuple(
            base * (i + 1) * scales * np.exp(rng.normal(0, noise, n_reps)) for base in (0.1, 1.0)
        )
    return make_run(times)


def steady(_i_rep):
    return 1.0


def interleaved(run):
    """The same repetitions, as a harness that goes through all points in rounds would have ordered them."""
    return replace(
        run, sweep=run.sweep._replace(started_ns=run.sweep.repetition.astype(np.int64) * 10**9)
    )


def with_probes(run, values_per_s, rows):
    probes = [
        rows.probe(0, started_ns=i * 10**9, value_per_s=float(value))
        for i, value in enumerate(values_per_s)
    ]
    return replace(run, ceilings=tables.from_rows(CeilingTable, probes))


def codes(run):
    return {caution.code for caution in noise_cautions(run)}


def test_a_quiet_run_has_no_cautions(make_run, rows):
    quiet = np.random.default_rng(1).normal(20e9, 0.05e9, 60)
    run = with_probes(run_with(make_run, steady), quiet, rows)
    assert noise_cautions(run) == ()
    assert noise_of(run).median_spread_ratio == pytest.approx(0.003, rel=0.5)


def test_drift_of_interleaved_repetitions(make_run):
    run = interleaved(run_with(make_run, lambda i_rep: 1 + 0.02 * i_rep))
    assert {"DRIFT_PREFILL", "DRIFT_DECODE"} <= codes(run)
    assert noise_of(run).decode_drift.ratio.value > 1.05


def test_drift_of_the_machine_shows_in_its_ceilings(make_run, rows):
    falling = np.linspace(20e9, 12e9, 60) * np.exp(np.random.default_rng(2).normal(0, 0.01, 60))
    cautions = noise_cautions(with_probes(run_with(make_run, steady), falling, rows))
    assert {caution.code for caution in cautions} == {"DRIFT_READ_CEILING", "UNSTEADY_CEILING"}
    drifted = next(caution for caution in cautions if caution.code == "DRIFT_READ_CEILING")
    assert "changed by -2" in drifted.text
    assert "doctor" in drifted.remedy


def test_scatter_is_told_with_its_worst_point(make_run):
    run = run_with(make_run, steady, noise=0.2)
    (caution,) = [caution for caution in noise_cautions(run) if caution.code == "SPREAD"]
    assert "worst: " in caution.text


def test_repetitions_that_resemble_their_neighbours(make_run):
    run = run_with(make_run, lambda i_rep: 1 + 0.1 * (i_rep >= 4))
    assert "CORRELATED" in codes(run)


def test_few_repetitions(make_run):
    (caution,) = [
        c
        for c in noise_cautions(run_with(make_run, steady, n_reps=5))
        if c.code == "FEW_REPETITIONS"
    ]
    assert caution.remedy == "--reps 6 or more"
    published = make_run({POINTS[0]: ([0.1], [1.0])}, origin="published")
    assert [c.code for c in noise_cautions(published)] == ["FEW_REPETITIONS"]
    assert "--reps" not in noise_cautions(published)[0].remedy


def test_nothing_measured_is_not_noisy(make_run):
    assert noise_cautions(make_run({POINTS[0]: ([], [])})) == ()


def test_points_too_short_for_telemetry_are_named(make_run):
    """A repetition of 0.2 s and more has four samples; one of 0.11 s has two."""

    def with_power(durations_s):
        times = {
            point: ([duration_s / 2] * 7, [duration_s / 2] * 7)
            for point, duration_s in zip(POINTS, durations_s, strict=False)
        }
        run = make_run(times)
        n = len(run.sweep.point_index)
        powered = run.sweep._replace(power_watt=np.full(n, 300.0), energy_joule=np.full(n, 30.0))
        return replace(run, sweep=powered)

    assert "SHORT_FOR_TELEMETRY" not in codes(with_power([0.3, 0.4]))
    (caution,) = [
        one for one in noise_cautions(with_power([0.11, 0.4])) if one.code == "SHORT_FOR_TELEMETRY"
    ]
    assert "1 of 2 points" in caution.text
    powered = with_power([0.4])
    (summary,) = summarise_points(powered)
    assert summary.power_watt.value == 300
    assert summary.energy_joule_per_token.value == pytest.approx(30 / 9)
    column = column_texts(SweepRow(summary=summary))
    assert (column["power_w"], column["tok_s_per_w"], column["output_tok_s"]) == (
        "300",
        "0.3",
        "22.5",
    )
