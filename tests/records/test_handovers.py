"""How long were requests on their way between servers, and how was memory used, by hand?"""

import numpy as np
import pytest

from inferometer.records import tables
from inferometer.records.latencies import summarise_handovers
from inferometer.records.reading import read_run
from inferometer.records.run_folder import LOADERS
from inferometer.records.run_series import hole_series, summarise_memory, swap_series, value_series
from inferometer.records.store import write_run
from inferometer.records.types import (
    ABSENT,
    RequestStatus,
    RequestTable,
    Run,
    StepMemoryTable,
    StepTable,
    VisitTable,
)

REQUEST = dict.fromkeys(RequestTable._fields, 0) | {"status": RequestStatus.LENGTH}
STEP = dict.fromkeys(StepTable._fields, 0) | {
    "point_index": -1,
    "repetition": -1,
    "is_warmup": False,
    "duration_ns": 10,
}
MS = 10**6


@pytest.fixture
def split_run(make_manifest) -> Run:
    """Request 0 is on its way for 2 ms, 1 for 4, 2 has never arrived by 30 ms, 3 goes away after 5, 4 stays where it was."""
    rows = [
        (0, 0, 0, 1),
        (0, 1, 3, 9),
        (1, 0, 0, 2),
        (1, 1, 6, 20),
        (2, 0, 5, 10),
        (3, 0, 5, 11),
        (4, 0, 0, 30),
    ]
    visits = [
        {"request_index": i, "replica": r, "arrived_ns": a * MS, "left_ns": left * MS}
        for i, r, a, left in rows
    ]
    finished = [9 * MS, 20 * MS, None, 16 * MS, 30 * MS]
    requests = [
        REQUEST | {"request_index": i, "finished_ns": when} for i, when in enumerate(finished)
    ]
    return Run(
        manifest=make_manifest(None, origin="simulated", is_complete=True),
        sweep=None,
        steps=None,
        ceilings=None,
        requests=tables.from_rows(RequestTable, requests),
        visits=tables.from_rows(VisitTable, visits),
    )


def test_who_never_arrived_took_at_least_so_long(split_run):
    found = summarise_handovers(split_run)
    assert (found.n_requests, found.n_never_arrived) == (4, 2)
    assert [(one.percentile_fraction, one.seconds.value) for one in found.percentiles] == [
        (0.5, 0.004),
        (0.95, 0.02),
        (0.99, 0.02),
    ]


def test_where_nobody_goes_on_there_is_nothing(split_run):
    stayed = split_run.visits._replace(
        left_ns=split_run.requests.finished_ns[split_run.visits.request_index]
    )
    alone = VisitTable._make(column[[1, 3, 6]] for column in stayed)
    assert (
        summarise_handovers(Run(manifest=split_run.manifest, sweep=None, steps=None, ceilings=None))
        is None
    )
    assert (
        summarise_handovers(
            Run(
                manifest=split_run.manifest,
                sweep=None,
                steps=None,
                ceilings=None,
                requests=split_run.requests,
                visits=alone,
            )
        )
        is None
    )


@pytest.fixture
def run_with_holes(make_manifest) -> Run:
    """Three steps of 10, 10 and 20 ns; somebody waits in the last two, whom moving lets in in the second only."""
    steps = [
        STEP | {"start_ns": start, "duration_ns": long, "kv_blocks_used": used}
        for start, long, used in ((0, 10, 4), (10, 10, 8), (20, 20, 6))
    ]
    memory = [(6, 6, 0, 0, 0), (2, 1, 3, 5, 2), (4, 3, -1, 0, 4)]
    return Run(
        manifest=make_manifest(None, origin="simulated", is_complete=True),
        sweep=None,
        steps=tables.from_rows(StepTable, steps),
        ceilings=None,
        requests=tables.from_rows(RequestTable, [REQUEST]),
        step_memory=tables.from_rows(
            StepMemoryTable,
            [dict(zip(StepMemoryTable._fields, row, strict=True)) for row in memory],
        ),
    )


def test_memory_by_hand(run_with_holes):
    found = summarise_memory(run_with_holes)
    assert found.mean_used_blocks == (4 * 10 + 8 * 10 + 6 * 20) // 40
    assert (found.peak_used_blocks, found.peak_compaction_debt_blocks, found.swapped_blocks) == (
        8,
        3,
        5,
    )
    assert found.mean_fragmented_fraction == pytest.approx((0 * 10 + 1 / 2 * 10 + 1 / 4 * 20) / 40)
    assert found.waits_for_compaction_fraction == 10 / 40
    assert found.moved_blocks == hole_series(run_with_holes).n_moved == 2 + 4
    assert np.nanmax(hole_series(run_with_holes).largest.most) == 6
    assert np.nanmax(swap_series(run_with_holes).most) == 5


def test_what_nobody_could_tell_is_none(run_with_holes):
    unknown = run_with_holes.step_memory._replace(
        swapped_blocks=np.full(3, ABSENT), moved_blocks=np.full(3, ABSENT)
    )
    without = Run(
        manifest=run_with_holes.manifest,
        sweep=None,
        steps=run_with_holes.steps,
        ceilings=None,
        requests=None,
        step_memory=unknown,
    )
    assert summarise_memory(without).swapped_blocks is None
    assert summarise_memory(without).moved_blocks is hole_series(without).n_moved is None
    assert swap_series(without) is None
    paged = Run(
        manifest=run_with_holes.manifest, sweep=None, steps=run_with_holes.steps, ceilings=None
    )
    assert summarise_memory(paged).mean_fragmented_fraction is None
    assert hole_series(paged) is None


def test_nobody_moved_what_an_older_record_does_not_say_was_moved(run_with_holes):
    columns = run_with_holes.step_memory._asdict()
    del columns["moved_blocks"]
    grown = LOADERS[3].loader_of("step_memory")(columns)
    assert tables.from_columns(StepMemoryTable, grown).moved_blocks.tolist() == [ABSENT] * 3


def test_the_memory_of_steps_comes_back_as_it_was(tmp_path, run_with_holes):
    write_run(tmp_path / "run", run_with_holes)
    back = read_run(tmp_path / "run").step_memory
    assert all(
        np.array_equal(one, other)
        for one, other in zip(back, run_with_holes.step_memory, strict=True)
    )


def test_replicas_add_up(run_with_holes):
    steps = run_with_holes.steps
    both = tables.concat(StepTable, [steps, steps._replace(replica=np.ones(3, np.int64))])
    series = value_series(both, np.array([1, 2, 3, 10, 20, 30]), n_windows=1)
    assert series.most.tolist() == [33]
    assert series.mean.tolist() == [pytest.approx((1 + 2 + 6 + 10 + 20 + 60) / 4)]
