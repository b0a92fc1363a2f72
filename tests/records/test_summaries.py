"""Are a point's numbers those that can be worked out by hand?"""

import numpy as np
import pytest

from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.summaries import summarise_points
from inferometer.records.types import (
    CeilingTable,
    Phase,
    PointStatus,
    ProbeKind,
    Run,
    StepTable,
    SweepTable,
)

POINT = SweepPoint(prompt_tokens=100, batch_size=4, gen_tokens=11)


def test_medians_rates_and_intervals(make_run):
    prefills_s = [0.2, 0.21, 0.19, 0.2, 0.2, 0.22, 0.18]
    decodes_s = [1.0, 1.1, 0.9, 1.0, 1.0, 1.2, 0.8]
    (summary,) = summarise_points(make_run({POINT: (prefills_s, decodes_s)}))
    assert summary.status == "ok"
    assert summary.n_reps == 7
    assert (
        summary.prefill_s.value,
        summary.prefill_s.low,
        summary.prefill_s.high,
    ) == pytest.approx((0.2, 0.18, 0.22))
    assert summary.ttft_s == summary.prefill_s
    assert summary.decode_step_s.value == pytest.approx(1.0 / 10), (
        "10 steps, the first token being the prefill's"
    )
    assert summary.tpot_s.value == pytest.approx(1.0 / 10)
    assert summary.n_decode_steps == 10
    assert summary.prefill_tokens_per_s.value == pytest.approx(400 / 0.2)
    assert summary.decode_tokens_per_s.value == pytest.approx(4 * 10 / 1.0)
    assert summary.total_tokens_per_s.value == pytest.approx((400 + 44) / 1.2)
    assert summary.output_tokens_per_s.value == pytest.approx(44 / 1.2), "over the whole time"
    assert summary.reserved_bytes is None
    assert summary.energy_joule is None
    assert summary.read_bytes_per_s is None
    assert summary.prefill_spread_ratio == pytest.approx(1.4826 * 0.01 / 0.2, rel=0.01)


def test_too_few_repetitions_have_no_interval_and_say_why(make_run):
    (summary,) = summarise_points(make_run({POINT: ([0.2] * 5, [1.0] * 5)}))
    assert summary.prefill_s.low is None
    assert "needs 6" in summary.prefill_s.method


def test_out_of_memory_is_a_point_without_times(make_run):
    big = SweepPoint(prompt_tokens=100, batch_size=8, gen_tokens=11)
    small, large = summarise_points(make_run({big: ([], []), POINT: ([0.2], [1.0])}))
    assert (small.point, large.point) == (POINT, big)
    assert small.status == "ok"
    assert large.status == "out_of_memory"
    assert large.n_reps == 0
    assert large.prefill_s is None
    assert large.prefill_spread_ratio is None


def test_warm_ups_and_failures_do_not_count(make_manifest, make_plan, rows):
    made = [
        rows.repetition(
            0, POINT, repetition=0, started_ns=0, is_warmup=True, prefill_ns=10**9, decode_ns=10**9
        ),
        rows.repetition(0, POINT, repetition=0, started_ns=1, prefill_ns=10**8, decode_ns=10**9),
        rows.repetition(0, POINT, repetition=1, started_ns=2, status=PointStatus.FAILED),
    ]
    run = Run(
        manifest=make_manifest(make_plan([POINT])),
        sweep=tables.from_rows(SweepTable, made),
        steps=None,
        ceilings=None,
    )
    (summary,) = summarise_points(run)
    assert (summary.n_reps, summary.status) == (1, "failed")
    assert summary.prefill_s.value == pytest.approx(0.1)


def test_the_step_is_the_median_of_recorded_steps_and_tpot_holds_the_stall(
    make_manifest, make_plan, rows
):
    durations_ns = [10, 10, 10, 10, 10, 10, 10, 10, 10, 910]
    run = Run(
        manifest=make_manifest(make_plan([POINT])),
        sweep=tables.from_rows(
            SweepTable,
            [
                rows.repetition(
                    0,
                    POINT,
                    repetition=0,
                    started_ns=0,
                    prefill_ns=500,
                    decode_ns=sum(durations_ns),
                )
            ],
        ),
        steps=tables.from_rows(
            StepTable,
            [
                rows.step(0, POINT, repetition=0, start_ns=0, duration_ns=500, phase=Phase.PREFILL),
                *(
                    rows.step(0, POINT, repetition=0, start_ns=i, duration_ns=duration)
                    for i, duration in enumerate(durations_ns)
                ),
                *(rows.step(1, POINT, repetition=0, start_ns=i, duration_ns=77) for i in range(3)),
            ],
        ),
        ceilings=None,
    )
    (summary,) = summarise_points(run)
    assert summary.decode_step_s.value == pytest.approx(10e-9)
    assert summary.tpot_s.value == pytest.approx(100e-9)
    assert summary.decode_tokens_per_s.value == pytest.approx(4 / 100e-9)


def test_a_clock_that_did_not_move_tells_nothing(make_run):
    (summary,) = summarise_points(make_run({POINT: ([0.0, 0.2], [1.0, 1.0])}))
    assert summary.prefill_s.n_samples == 1


def test_one_generated_token_has_no_decode(make_manifest, make_plan, rows):
    point = SweepPoint(prompt_tokens=100, batch_size=2, gen_tokens=1)
    sweep = tables.from_rows(
        SweepTable, [rows.repetition(0, point, repetition=0, started_ns=0, prefill_ns=10**9)]
    )
    (summary,) = summarise_points(
        Run(manifest=make_manifest(make_plan([point])), sweep=sweep, steps=None, ceilings=None)
    )
    assert summary.tpot_s is None
    assert summary.decode_tokens_per_s is None
    assert summary.total_tokens_per_s.value == pytest.approx(202 / 1.0)


def test_the_judging_ceiling_is_the_larger_of_the_probes_around_the_repetition(
    make_manifest, make_plan, rows
):
    took = {"prefill_ns": 40, "decode_ns": 50}
    sweep = tables.from_rows(
        SweepTable,
        [
            rows.repetition(0, POINT, repetition=i, started_ns=start, **took)
            for i, start in enumerate((100, 300, 500))
        ],
    )
    probes = [
        rows.probe(-1, started_ns=50, value_per_s=20e9),
        rows.probe(0, started_ns=200, value_per_s=10e9),
        rows.probe(0, started_ns=400, value_per_s=12e9),
        rows.probe(0, started_ns=450, value_per_s=90e9, footprint=2**20),  # lives in a cache
        rows.probe(0, started_ns=460, value_per_s=np.nan),
        rows.probe(0, started_ns=210, value_per_s=1e12, kind=ProbeKind.MATMUL, dtype="bfloat16"),
        rows.probe(0, started_ns=210, value_per_s=2e11, kind=ProbeKind.MATMUL, dtype="float32"),
    ]
    run = Run(
        manifest=make_manifest(make_plan([POINT])),
        sweep=sweep,
        steps=None,
        ceilings=tables.from_rows(CeilingTable, probes),
    )
    (summary,) = summarise_points(run)
    # the repetitions are judged by max(20, 10), max(10, 12) and, nothing being after it, 12
    assert summary.read_bytes_per_s.value == pytest.approx(12e9)
    assert summary.read_bytes_per_s.n_samples == 3
    assert summary.matmul_flop_per_s.value == pytest.approx(2e11), "in the engine's number format"


def test_a_run_without_a_sweep_has_no_points(make_manifest):
    assert (
        summarise_points(Run(manifest=make_manifest(None), sweep=None, steps=None, ceilings=None))
        == ()
    )
