"""Whole sweeps: a tiny random llama in the fast ones, SmolLM2 with its real weights in the slow ones."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from inferometer.errors import EngineError, MeasureError, RecordError, SpecError
from inferometer.inputs.types import EngineSpec, SweepPlan, SweepPoint
from inferometer.measure.engines.remote import WorkerSettings
from inferometer.measure.sweep import run_sweep
from inferometer.measure.time_left import Progress
from inferometer.records.reading import read_run
from inferometer.records.types import ABSENT, Phase, PointStatus, ProbeKind

HUGE = SweepPoint(prompt_tokens=500, batch_size=100_000, gen_tokens=4)


def plan_of(*points: SweepPoint, **engine: object) -> SweepPlan:
    spec = EngineSpec(**({"load_format": "dummy", "n_threads": 1} | engine))  # type: ignore[arg-type]
    return SweepPlan(model="tiny", engine=spec, points=points, n_warmup=1, n_reps=2, seed=5)


def grid(*, prompts=(8, 16), batches=(1, 3), gen_tokens=4) -> tuple[SweepPoint, ...]:
    return tuple(
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=gen_tokens)
        for prompt in prompts
        for batch in batches
    )


def check_complete(run, plan: SweepPlan) -> None:
    """Every repetition of every point is there, once."""
    n_runs = plan.n_warmup + plan.n_reps
    pairs = list(zip(run.sweep.point_index.tolist(), run.sweep.repetition.tolist(), strict=True))
    assert sorted(pairs) == [
        (index, repetition) for index in range(len(plan.points)) for repetition in range(n_runs)
    ]
    assert run.manifest.is_complete


PLAN = plan_of(
    SweepPoint(prompt_tokens=8, batch_size=1, gen_tokens=4),
    SweepPoint(prompt_tokens=16, batch_size=3, gen_tokens=4),
    HUGE,
)


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """One sweep from end to end: its folder, and what it said on the way."""
    folder = tmp_path_factory.mktemp("finished")
    seen: list[Progress] = []
    run_sweep(PLAN, tiny, folder, seen.append, command=("inferometer", "sweep"))
    return folder, seen


@pytest.mark.slow
def test_progress_counts_points_and_estimates_once_something_was_measured(finished):
    _, seen = finished
    assert [progress.n_done for progress in seen] == [0, 1, 2, 3]
    assert seen[0].left_s is None
    assert all(progress.left_s is not None for progress in seen[1:])


@pytest.mark.slow
def test_every_repetition_and_step_is_recorded_and_want_of_memory_too(finished):
    run = read_run(finished[0])
    assert run.manifest.is_complete
    assert run.manifest.engine is not None
    assert run.manifest.engine.weights_origin == "random"
    assert run.manifest.command == ("inferometer", "sweep")

    sweep = run.sweep
    is_huge = sweep.point_index == 2
    assert sweep.status[is_huge].tolist() == [PointStatus.OUT_OF_MEMORY]
    assert sweep.prefill_ns[is_huge].tolist() == [ABSENT]
    assert (sweep.status[~is_huge] == PointStatus.OK).all()
    assert (sweep.n_decode_steps[~is_huge] == 3).all()
    assert (sweep.prefill_ns[~is_huge] > 0).all()
    assert (np.diff(sweep.started_ns) > 0).all()

    is_decode = run.steps.phase == Phase.DECODE
    assert is_decode.sum() == 2 * 3 * 3
    for index, point in enumerate(PLAN.points[:2]):
        of_point = is_decode & (run.steps.point_index == index)
        assert set(run.steps.n_decode_requests[of_point].tolist()) == {point.batch_size}
        contexts = point.batch_size * (point.prompt_tokens + np.arange(1, 4))
        assert set(run.steps.decode_context_tokens[of_point].tolist()) == set(contexts.tolist())


@pytest.mark.slow
def test_ceilings_stand_between_repetitions_and_at_both_ends(finished):
    run = read_run(finished[0])
    is_read = run.ceilings.kind == ProbeKind.READ
    assert [int((is_read & (run.ceilings.point_index == index)).sum()) for index in range(2)] == [
        3,
        3,
    ]
    assert int((run.ceilings.kind == ProbeKind.COPY).sum()) == 2


@pytest.mark.slow
def test_the_same_command_again_measures_nothing(tiny, finished):
    folder, _ = finished
    before = (folder / "sweep.parquet").read_bytes()
    run_sweep(PLAN, tiny, folder, lambda _: pytest.fail("nothing is to be measured"))
    assert (folder / "sweep.parquet").read_bytes() == before


@pytest.mark.slow
def test_rounds_go_forth_and_back_are_gone_on_with_and_leave_out_what_does_not_fit(tiny, tmp_path):
    plan = replace(plan_of(*grid(prompts=(8,)), HUGE), n_rounds=2)

    def interrupt_in_the_second_round(progress: Progress) -> None:
        if progress.n_done == 3:
            raise KeyboardInterrupt

    with pytest.raises(MeasureError, match="3 of 6 visits to points are stored") as error:
        run_sweep(plan, tiny, tmp_path, interrupt_in_the_second_round)
    assert "the same command" in str(error.value)
    run = run_sweep(plan, tiny, tmp_path, lambda _: None)
    assert run.manifest.is_complete
    fits = run.sweep.status == PointStatus.OK
    assert run.sweep.point_index[fits].tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
        0,
        0,
    ], "the second round runs backwards"
    assert run.sweep.repetition[fits].tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert run.sweep.is_warmup[fits].tolist() == [True, False] * 4
    assert (run.sweep.status == PointStatus.OUT_OF_MEMORY).any()


@pytest.mark.slow
def test_a_bad_question_leaves_no_points(tiny, tmp_path):
    with pytest.raises(SpecError, match="int4"):
        run_sweep(plan_of(grid()[0], dtype="int4"), tiny, tmp_path, lambda _: None)
    assert not list(tmp_path.glob("parts/*"))


@pytest.mark.slow
def test_when_the_time_is_over_two_points_are_measured_and_the_others_named(tiny, tmp_path):
    plan = replace(plan_of(*grid()), n_warmup=0, n_reps=2, n_rounds=2)
    seen = []
    run = run_sweep(plan, tiny, tmp_path, seen.append, until_s=time.monotonic())
    assert [one.n_done for one in seen] == [0, 1, 2, 3, 4], "not all eight: two were left out"
    assert run.sweep.point_index.tolist() == [0, 1, 1, 0], "there and back, both rounds of each"
    assert run.manifest.is_complete
    caution = next(one for one in run.manifest.cautions if one.code == "TIME_OVER")
    assert caution.text == "2 of 4 points were left out: the time was over"


@pytest.mark.slow
def test_a_folder_that_holds_another_plan_is_refused_before_anything_is_loaded(tiny, finished):
    began_s = time.monotonic()
    with pytest.raises(RecordError, match="another run"):
        run_sweep(plan_of(grid()[1]), tiny, finished[0], lambda _: None)
    assert time.monotonic() - began_s < 3


@pytest.mark.slow
def test_a_crash_is_tried_again_then_recorded_and_the_sweep_goes_on(tiny, tmp_path):
    """Positions beyond the model's learned ones crash GPT-2 for real: an index out of range in the engine's process."""
    from inferometer.inputs.catalog import find_model
    from inferometer.measure.engines.protocol import ModelReference

    gpt2 = replace(find_model("gpt2"), n_layers=1, vocab_size=1000)
    model = ModelReference(kind="spec", location=None, spec=gpt2)
    fits, crashes = (
        SweepPoint(prompt_tokens=8, batch_size=1, gen_tokens=2),
        SweepPoint(prompt_tokens=1100, batch_size=1, gen_tokens=2),
    )
    run = run_sweep(
        plan_of(fits, crashes, replace(fits, batch_size=2)), model, tmp_path / "run", lambda _: None
    )
    assert run.sweep.status[run.sweep.point_index == 1].tolist() == [PointStatus.FAILED]
    assert (run.sweep.status[run.sweep.point_index != 1] == PointStatus.OK).all()
    assert "POINT_FAILED" in {caution.code for caution in run.manifest.cautions}
    with pytest.raises(EngineError, match="index out of range"):
        run_sweep(plan_of(crashes), model, tmp_path / "first", lambda _: None)


SCRIPT = """
import sys, pathlib, msgspec
from inferometer.measure.engines.protocol import ModelReference
from inferometer.measure.sweep import run_sweep
from inferometer.inputs.types import SweepPlan
plan, model = msgspec.json.decode(sys.argv[1], type=SweepPlan), msgspec.json.decode(sys.argv[2], type=ModelReference)
run_sweep(plan, model, pathlib.Path(sys.argv[3]), lambda progress: print(progress.n_done, flush=True))
"""


@pytest.mark.slow
def test_kill_in_the_middle_loses_nothing_and_measures_nothing_twice(tiny, tmp_path):
    plan = plan_of(*grid(gen_tokens=200))
    arguments = [
        msgspec.json.encode(plan).decode(),
        msgspec.json.encode(tiny).decode(),
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 3:
                time.sleep(0.1)  # into the fourth point
                os.kill(process.pid, signal.SIGKILL)
                break
    kept = read_run(tmp_path / "run")
    assert not kept.manifest.is_complete
    before = {(row[0], row[1]): row for row in zip(*kept.sweep, strict=True)}
    assert {index for index, _ in before} == {0, 1, 2}

    run = run_sweep(plan, tiny, tmp_path / "run", lambda _: None)
    check_complete(run, plan)
    for row in zip(*run.sweep, strict=True):
        if (row[0], row[1]) in before:
            np.testing.assert_array_equal(
                np.asarray(row, dtype=float), np.asarray(before[row[0], row[1]], dtype=float)
            )
    assert (np.diff(np.sort(run.sweep.started_ns)) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_no_bandwidth_above_the_ceilings_that_bracket_it(smollm2, tmp_path, dtype):
    """The weights alone, read in each decode step, against the faster of the probes before and after the repetition."""
    plan = plan_of(
        SweepPoint(prompt_tokens=16, batch_size=1, gen_tokens=9),
        SweepPoint(prompt_tokens=16, batch_size=8, gen_tokens=9),
        load_format="auto",
        n_threads=2,
        dtype=dtype,
    )
    run = run_sweep(plan, smollm2, tmp_path, lambda _: None)
    assert run.manifest.engine is not None
    is_read = run.ceilings.kind == ProbeKind.READ
    mbus = []
    for index, repetition, is_warmup, step_ns in zip(
        run.sweep.point_index,
        run.sweep.repetition,
        run.sweep.is_warmup,
        run.sweep.decode_ns / run.sweep.n_decode_steps,
        strict=True,
    ):
        if is_warmup:
            continue
        around = (
            is_read
            & (run.ceilings.point_index == index)
            & np.isin(run.ceilings.repetition, (repetition, repetition + 1))
        )
        assert around.sum() == 2
        mbus.append(
            run.manifest.engine.weight_bytes
            / (step_ns / 1e9)
            / run.ceilings.value_per_s[around].max()
        )
    assert 0.02 < max(mbus) < 1, mbus


@pytest.mark.slow
def test_an_address_space_limit_is_a_recorded_point(tiny, tmp_path):
    fits, does_not = grid()[0], SweepPoint(prompt_tokens=256, batch_size=40_000, gen_tokens=2)
    plan = plan_of(fits, does_not, replace(fits, batch_size=2))
    run = run_sweep(
        plan, tiny, tmp_path, lambda _: None, settings=WorkerSettings(memory_limit_bytes=6 * 2**30)
    )
    assert run.sweep.status[run.sweep.point_index == 1][-1] == PointStatus.OUT_OF_MEMORY
    assert (run.sweep.status[run.sweep.point_index != 1] == PointStatus.OK).all()
