"""Is a run of requests written all or not at all, and does it come back as it was?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.inputs.types import Caution
from inferometer.records import tables
from inferometer.records.reading import read_run
from inferometer.records.store import write_run
from inferometer.records.types import (
    ABSENT,
    RequestStatus,
    RequestTable,
    Run,
    StepPartTable,
    StepTable,
)

REQUEST = dict.fromkeys(RequestTable._fields, 0) | {
    "status": RequestStatus.LENGTH,
    "prompt_tokens": 10,
    "output_tokens": 3,
}
STEP = dict.fromkeys(StepTable._fields, 0) | {
    "point_index": -1,
    "repetition": -1,
    "is_warmup": False,
    "duration_ns": 1_000,
}
PART = dict.fromkeys(StepPartTable._fields, 0)


@pytest.fixture
def run(make_manifest) -> Run:
    unfinished = REQUEST | {
        "finished_ns": None,
        "first_token_ns": None,
        "admitted_ns": None,
        "status": RequestStatus.UNFINISHED,
    }
    return Run(
        manifest=make_manifest(
            None,
            origin="simulated",
            is_complete=True,
            cautions=(Caution(code="overload", text="t", remedy="r"),),
        ),
        sweep=None,
        steps=tables.from_rows(
            StepTable, [STEP, STEP | {"start_ns": 1_000, "kv_blocks_used": None}]
        ),
        ceilings=None,
        requests=tables.from_rows(RequestTable, [REQUEST, unfinished]),
        parts=tables.from_rows(StepPartTable, [PART, PART | {"step_index": 1, "slot": 3}]),
    )


def same(one, other) -> bool:
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def test_it_comes_back_as_it_was(tmp_path, run):
    write_run(tmp_path / "run", run)
    back = read_run(tmp_path / "run")
    assert back.manifest == run.manifest
    assert same(back.requests, run.requests)
    assert same(back.steps, run.steps)
    assert same(back.parts, run.parts)
    assert back.sweep is None
    assert back.ceilings is None
    assert back.requests.finished_ns.tolist() == [0, ABSENT]


def test_absent_tables_are_absent_files(tmp_path, run):
    write_run(tmp_path, replace(run, steps=None, parts=None))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "SHA256SUMS",
        "manifest.json",
        "requests.parquet",
    ]
    assert read_run(tmp_path).steps is None


def test_a_run_without_requests_is_a_run(tmp_path, run):
    write_run(tmp_path, replace(run, requests=tables.empty(RequestTable)))
    assert tables.n_rows(read_run(tmp_path).requests) == 0


def test_a_run_without_tables_is_refused(tmp_path, run):
    with pytest.raises(RecordError, match="no table"):
        write_run(tmp_path, replace(run, requests=None, steps=None, parts=None))
    assert not list(tmp_path.iterdir())


def test_a_stored_run_is_not_overwritten(tmp_path, run):
    write_run(tmp_path, run)
    with pytest.raises(RecordError, match="holds a run already") as caught:
        write_run(tmp_path, replace(run, steps=None, parts=None))
    assert "--out" in str(caught.value)
    assert read_run(tmp_path).steps is not None


def test_what_a_killed_writer_left_is_no_run_and_no_hindrance(tmp_path, run):
    tables.write_table(tmp_path / "ceilings.parquet", run.requests)
    (tmp_path / "requests.parquet.tmp").write_bytes(b"half")
    with pytest.raises(RecordError, match="no run"):
        read_run(tmp_path)
    write_run(tmp_path, run)
    assert same(read_run(tmp_path).requests, run.requests)
    assert read_run(tmp_path).ceilings is None


def test_a_write_that_fails_leaves_nothing(tmp_path, run, monkeypatch):
    write_table = tables.write_table

    def full_disk(path: Path, table) -> None:
        if path.name.startswith("requests"):
            raise RecordError("no space left on device", where=str(path))
        write_table(path, table)

    monkeypatch.setattr(tables, "write_table", full_disk)
    with pytest.raises(RecordError, match="no space"):
        write_run(tmp_path, run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["requests.parquet", "steps.parquet"])
def test_damage_is_named_and_the_rest_can_be_saved(tmp_path, run, name):
    write_run(tmp_path, run)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RecordError, match="damaged") as caught:
        read_run(tmp_path)
    assert name in str(caught.value)
    saved = read_run(tmp_path, skip_damaged=True)
    assert [caution.code for caution in saved.manifest.cautions] == ["overload", "DAMAGED_RECORD"]
    assert (saved.requests is None) == (name == "requests.parquet")
    assert (saved.steps is None) == (name == "steps.parquet")


def test_a_missing_table_is_damage_not_absence(tmp_path, run):
    write_run(tmp_path, run)
    (tmp_path / "steps.parquet").unlink()
    with pytest.raises(
        RecordError, match=r"steps\.parquet differs from its checksum or is missing"
    ):
        read_run(tmp_path)


def test_without_checksums_what_is_there_is_read(tmp_path, run):
    write_run(tmp_path, run)
    (tmp_path / "SHA256SUMS").unlink()
    assert same(read_run(tmp_path).requests, run.requests)
    assert read_run(tmp_path).ceilings is None


def test_an_answer_before_its_request_is_refused(tmp_path, run):
    rows = [REQUEST, REQUEST | {"sent_ns": 5}]
    write_run(tmp_path, replace(run, requests=tables.from_rows(RequestTable, rows)))
    with pytest.raises(RecordError, match="row 1: first_token_ns lies before sent_ns"):
        read_run(tmp_path)
