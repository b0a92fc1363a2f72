"""Does a sweep point have one TPOT and one speed in the CSV file, the terminal, the page and the JSON?"""

import csv
import io
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from inferometer.api.analysis import analyse
from inferometer.api.measured import measured_answer, measured_page, places_of
from inferometer.inputs.types import EngineSpec, SweepPlan, SweepPoint
from inferometer.records import tables
from inferometer.records.types import (
    Origin,
    Phase,
    PointStatus,
    Run,
    RunManifest,
    StepTable,
    SweepTable,
)
from inferometer.report.tables import definitions, points_table
from inferometer.report.terminal import page_text
from inferometer.units import format_number

MS_NS = 1_000_000
POINTS = [SweepPoint(prompt_tokens=32, batch_size=batch, gen_tokens=8) for batch in (1, 4)]
N_REPS, N_STEPS = 7, 7
ORIGIN: Origin = "measured"


def step_ms(point, repetition, step):
    """Steady steps and one stall in each repetition, so that the mean and the median of the steps differ much."""
    return 20.0 * point.batch_size**0.5 + repetition + (150.0 if step == 3 else 0.0)


def stalling_run():
    repetitions, steps = [], []
    for i_point, point in enumerate(POINTS):
        shape = {"point_index": i_point, "is_warmup": False}
        for i_rep in range(N_REPS):
            took_ms = [step_ms(point, i_rep, step) for step in range(N_STEPS)]
            repetitions.append(
                shape
                | {
                    "repetition": i_rep,
                    "status": PointStatus.OK,
                    "prompt_tokens": point.prompt_tokens,
                    "batch_size": point.batch_size,
                    "gen_tokens": point.gen_tokens,
                    "started_ns": i_rep,
                    "prefill_ns": (60 + i_rep) * MS_NS,
                    "decode_ns": round(sum(took_ms) * MS_NS),
                    "n_decode_steps": N_STEPS,
                }
            )
            steps += [
                shape
                | {
                    "repetition": i_rep,
                    "phase": Phase.DECODE,
                    "start_ns": step,
                    "duration_ns": round(took * MS_NS),
                    "n_prefill_requests": 0,
                    "n_decode_requests": point.batch_size,
                    "n_waiting_requests": 0,
                    "n_preempted_requests": 0,
                    "prefill_tokens": 0,
                    "prefill_context_product_tokens2": 0,
                    "decode_context_tokens": point.batch_size * point.prompt_tokens,
                }
                for step, took in enumerate(took_ms)
            ]
    plan = SweepPlan(
        model="m", engine=EngineSpec(), points=tuple(POINTS), n_warmup=0, n_reps=N_REPS, seed=0
    )
    manifest = RunManifest(
        run_id="r1", origin=ORIGIN, created_utc="2026-11-21T09:00:00Z", command=("inferometer", "sweep"), tool_version="0.1.0",
        plan=plan, model=None, engine=None, host=None, source=None,
    )  # fmt: skip
    return Run(
        manifest=manifest,
        sweep=tables.from_rows(SweepTable, repetitions),
        steps=tables.from_rows(StepTable, steps),
        ceilings=None,
    )


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return measured_answer(analyse(stalling_run(), folder, label="run"), places_of(folder, folder))


def by_hand(point):
    """(TPOT, median step, output tok/s), from the steps themselves."""
    steps_ms = np.array(
        [[step_ms(point, rep, step) for step in range(N_STEPS)] for rep in range(N_REPS)]
    )
    tpot_ms = float(np.median(steps_ms.mean(axis=1)))
    return tpot_ms, float(np.median(np.median(steps_ms, axis=1))), point.batch_size / tpot_ms * 1e3


def test_csv_json_page_and_terminal_give_the_same_numbers(answer):
    with Path(answer.csv).open(newline="") as file:
        lines = list(csv.DictReader(file))
    rows = json.loads(msgspec.json.encode(answer))["view"]["points"]
    page = points_table(answer.view)
    out = io.StringIO()
    Console(file=out, width=200).print(page_text(measured_page(answer)))
    for point, line, row, cells in zip(POINTS, lines, rows, page.rows, strict=True):
        tpot_ms, median_ms, tokens_per_s = by_hand(point)
        assert (
            float(line["decode_p50_ms_per_tok"])
            == float(line["tpot_ms"])
            == pytest.approx(tpot_ms, rel=1e-5)
        )
        assert float(line["median_step_ms"]) == pytest.approx(median_ms, rel=1e-5)
        assert float(line["decode_tok_s"]) == pytest.approx(tokens_per_s, rel=1e-5)
        assert int(line["decode_steps"]) == N_STEPS
        assert (row["tpot_s"]["value"] * 1e3, row["decode_tokens_per_s"]["value"]) == pytest.approx(
            (tpot_ms, tokens_per_s)
        )
        assert row["decode_step_s"]["value"] * 1e3 == pytest.approx(median_ms)
        named = dict(zip(page.header, cells, strict=True))
        names = ("TPOT ms", "median step ms", "output tok/s")
        assert [named[name].split(" ")[0] for name in names] == [
            format_number(v) for v in (tpot_ms, median_ms, tokens_per_s)
        ]
        (shown,) = [
            text
            for text in out.getvalue().splitlines()
            if text.split()[:2] == [str(point.prompt_tokens), str(point.batch_size)]
        ]
        assert f" {format_number(tpot_ms)} [" in shown
        assert f" {format_number(tokens_per_s)} [" in shown
        assert f" {format_number(median_ms)} " in shown


def test_the_page_defines_both_step_times(answer):
    words = dict(definitions(answer.view))
    assert "decode time ÷ decode steps" in words["TPOT"]
    assert "one stall does not move it" in words["Median step"]
