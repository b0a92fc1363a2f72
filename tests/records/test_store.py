"""Is a run kept through kill -9, full disks, closed folders, damage and a second writer?"""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.api.provenance import fact_groups
from inferometer.errors import RecordError
from inferometer.inputs.types import Caution, SweepPoint
from inferometer.records import tables
from inferometer.records.reading import read_run
from inferometer.records.store import RunWriter
from inferometer.records.types import ABSENT, PointStatus, RunManifest, ServerSampleTable

POINTS = tuple(
    SweepPoint(prompt_tokens=p, batch_size=b, gen_tokens=8) for p in (128, 256) for b in (1, 2)
)
ENDED_UTC = "2026-11-21T10:00:00Z"


@pytest.fixture
def manifest(make_manifest, make_plan) -> RunManifest:
    return make_manifest(make_plan(POINTS))


@pytest.fixture
def write_points(manifest, one_point_tables):
    def write(directory: Path, indices: tuple[int, ...], *, finish: bool = False) -> None:
        with RunWriter.create_or_resume(directory, manifest) as writer:
            for index in indices:
                writer.append_part(index, *one_point_tables(index, POINTS[index]))
            if finish:
                writer.finish((), ENDED_UTC)

    return write


def same_tables(one, other) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def tables_of(run):
    return run.sweep, run.steps, run.ceilings


def device_samples(at_ns, watts):
    """Power of one device, as the sampler takes it."""
    rows = [
        {"scraped_ns": at, "name": "DCGM_FI_DEV_POWER_USAGE", "labels": 'gpu="0"', "value": value}
        for at, value in zip(at_ns, watts, strict=True)
    ]
    return tables.from_rows(ServerSampleTable, rows)


def test_counters_of_devices_are_kept_with_the_points_beside_which_they_were_sampled(
    tmp_path, manifest, one_point_tables
):
    """Of a point without any there are none: a driver may come and go between two sessions."""
    counters = (device_samples([10, 20], [100.0, 300.0]), None, device_samples([90], [200.0]))
    for index, devices in enumerate(counters):
        with RunWriter.create_or_resume(tmp_path / "run", manifest) as writer:
            writer.append_part(index, *one_point_tables(index, POINTS[index]), devices)
    with RunWriter.create_or_resume(tmp_path / "run", manifest) as writer:
        writer.finish((), ENDED_UTC)
    run = read_run(tmp_path / "run")
    assert run.devices.scraped_ns.tolist() == [10, 20, 90]
    assert run.devices.value.tolist() == [100.0, 300.0, 200.0]
    *_, devices = fact_groups(run, "run")
    assert devices.facts == (('gpu="0" power', "mean 200 W, 100 … 300, 3 samples"),)
    (tmp_path / "run" / "devices.parquet").write_bytes(b"flipped")
    with pytest.raises(RecordError, match=r"devices\.parquet"):
        read_run(tmp_path / "run")


def test_a_complete_run_comes_back_as_it_was_written(tmp_path, write_points, manifest):
    write_points(tmp_path / "run", (2, 0, 3, 1), finish=True)
    run = read_run(tmp_path / "run")
    assert run.manifest.is_complete
    assert run.manifest.ended_utc == ENDED_UTC
    assert run.manifest.plan == manifest.plan
    assert run.sweep.point_index.tolist() == [
        2,
        2,
        2,
        0,
        0,
        0,
        3,
        3,
        3,
        1,
        1,
        1,
    ], "in the order in which they were measured"
    assert run.sweep.reserved_bytes.tolist() == [ABSENT] * 12
    assert np.isnan(run.sweep.energy_joule).all()
    assert run.steps.kv_blocks_used.tolist() == [ABSENT] * 12
    assert run.ceilings.dtype.tolist() == ["", "float32"] * 4
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "SHA256SUMS",
        "ceilings.parquet",
        "manifest.json",
        "steps.parquet",
        "sweep.parquet",
    ]


def test_absent_is_null_in_the_file(tmp_path, write_points):
    import duckdb

    write_points(tmp_path, (0,), finish=True)
    query = f"SELECT count(*), count(reserved_bytes), count(energy_joule), count(prefill_ns) FROM read_parquet('{tmp_path}/sweep.parquet')"  # noqa: S608
    assert duckdb.sql(query).fetchall() == [(3, 0, 0, 3)]


def test_a_partial_run_reads_like_the_complete_one(tmp_path, write_points):
    write_points(tmp_path / "a", (2, 0))
    write_points(tmp_path / "b", (2, 0), finish=True)
    partial, complete = read_run(tmp_path / "a"), read_run(tmp_path / "b")
    assert not partial.manifest.is_complete
    assert same_tables(tables_of(partial), tables_of(complete))
    assert [column.dtype for column in partial.sweep] == [column.dtype for column in complete.sweep]


def test_a_run_without_points_is_readable(tmp_path, write_points):
    write_points(tmp_path, ())
    run = read_run(tmp_path)
    assert len(run.sweep.point_index) == 0
    assert run.steps is None
    assert run.ceilings is None


def test_resume_does_what_is_missing(tmp_path, write_points, manifest, one_point_tables):
    write_points(tmp_path, (2, 0))
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        assert writer.done_parts == {0, 2}
        assert not writer.is_complete
        assert writer.elapsed_ns == 2 * 10**9 + 2000 + 102 + 902 + 1, (
            "after the end of the last stored repetition"
        )
        with pytest.raises(RecordError, match="stored already"):
            writer.append_part(2, *one_point_tables(2, POINTS[2]))
        writer.append_part(1, *one_point_tables(1, POINTS[1]))
    assert read_run(tmp_path).sweep.point_index.tolist() == [2, 2, 2, 0, 0, 0, 1, 1, 1]


def test_a_complete_run_says_so(tmp_path, write_points, manifest, one_point_tables):
    write_points(tmp_path, (0, 1, 2, 3), finish=True)
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        assert writer.is_complete
        with pytest.raises(RecordError, match="complete"):
            writer.append_part(0, *one_point_tables(0, POINTS[0]))
        with pytest.raises(RecordError, match="complete"):
            writer.finish((), ENDED_UTC)


def test_resume_refuses_another_plan_and_says_what_differs(
    tmp_path, write_points, make_manifest, make_plan
):
    write_points(tmp_path, (0,))
    with pytest.raises(RecordError, match=r"plan\.n_reps is 9, stored is 7") as caught:
        RunWriter.create_or_resume(tmp_path, make_manifest(make_plan(POINTS, n_reps=9)))
    assert caught.value.exit_code == 4
    with pytest.raises(RecordError, match=r"plan\.points has 2 entries, stored are 4"):
        RunWriter.create_or_resume(tmp_path, make_manifest(make_plan(POINTS[:2])))
    write_points(tmp_path, (1,))  # a refusal leaves the lock free and the run whole


def test_a_run_without_a_point_keeps_no_folder_from_another_question(
    tmp_path, manifest, make_manifest, make_plan
):
    RunWriter.create_or_resume(
        tmp_path, manifest
    ).close()  # as when the engine then refuses what is asked
    with RunWriter.create_or_resume(
        tmp_path, make_manifest(make_plan(POINTS, n_reps=9), run_id="r2")
    ) as writer:
        assert writer.manifest.run_id == "r2"
    with RunWriter.create_or_resume(
        tmp_path, make_manifest(make_plan(POINTS, n_reps=9), run_id="r3")
    ) as writer:
        assert writer.manifest.run_id == "r2", "the same question goes on with it"


def test_resume_refuses_another_engine_or_machine_but_not_another_loading_time(
    tmp_path, write_points, manifest
):
    from dataclasses import replace

    write_points(tmp_path, (0,))
    other = replace(manifest, engine=replace(manifest.engine, version="5.18.0"))
    with pytest.raises(RecordError, match=r"engine\.version is '5\.18\.0', stored is '5\.17\.0'"):
        RunWriter.create_or_resume(tmp_path, other)
    with pytest.raises(RecordError, match=r"machine\.cpu_model"):
        RunWriter.create_or_resume(
            tmp_path, replace(manifest, host=replace(manifest.host, cpu_model="another"))
        )
    slower_load = replace(manifest, engine=replace(manifest.engine, load_s=99.0), run_id="r2")
    with RunWriter.create_or_resume(tmp_path, slower_load) as writer:
        assert writer.manifest.run_id == "r1"


def test_two_writers_at_once(tmp_path, manifest):
    with RunWriter.create_or_resume(tmp_path, manifest):
        with pytest.raises(RecordError, match=rf"pid {os.getpid()}\b.*is writing"):
            RunWriter.create_or_resume(tmp_path, manifest)
        read_run(tmp_path)
    RunWriter.create_or_resume(tmp_path, manifest).close()


WRITE_FOR_EVER = """
import sys
from pathlib import Path
import msgspec
from inferometer.records import tables
from inferometer.records.store import RunWriter
from inferometer.records.types import RunManifest, SweepTable, StepTable, CeilingTable

directory = Path(sys.argv[1])
manifest = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=RunManifest)
row = dict(repetition=0, is_warmup=False, status=0, prompt_tokens=1, batch_size=1, gen_tokens=2, n_decode_steps=1)
with RunWriter.create_or_resume(directory, manifest) as writer:
    print(f"resumed {len(writer.done_parts)}", flush=True)
    for index in range(100_000):
        if index in writer.done_parts:
            continue
        rows = [row | dict(point_index=index, repetition=i, started_ns=i, prefill_ns=index) for i in range(50)]
        writer.append_part(index, tables.from_rows(SweepTable, rows), tables.empty(StepTable), tables.empty(CeilingTable))
        print(f"stored {index}", flush=True)
        if len(writer.done_parts) >= int(sys.argv[3]):
            writer.finish((), "2026-11-21T10:00:00Z")
            print("finished", flush=True)
            break
"""


@pytest.fixture
def start_writer(tmp_path, manifest):
    import msgspec

    script, stored = tmp_path / "write.py", tmp_path / "asked.json"
    script.write_text(textwrap.dedent(WRITE_FOR_EVER))
    stored.write_bytes(msgspec.json.encode(manifest))

    def start(directory: Path, n_points: int, **options) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), str(directory), str(stored), str(n_points)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    return start


@pytest.mark.slow
@pytest.mark.parametrize("after_lines", [1, 6])
def test_kill_9_loses_at_most_the_point_in_progress(tmp_path, start_writer, after_lines):
    directory = tmp_path / "run"
    process = start_writer(directory, 100_000)
    lines = [process.stdout.readline() for _ in range(after_lines)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    stored = {
        int(line.split()[1])
        for line in [*lines, *rest.splitlines(keepends=True)]
        if line.startswith("stored") and line.endswith("\n")
    }
    run = read_run(directory)
    kept = set(run.sweep.point_index.tolist())
    assert stored <= kept, "what was said to be stored is stored"
    assert len(kept) <= len(stored) + 1
    assert len(run.sweep.point_index) == 50 * len(kept), "a point is there whole or not at all"
    again = start_writer(directory, len(kept) + 2)
    out, err = again.communicate(timeout=30)
    assert again.returncode == 0, err
    assert f"resumed {len(kept)}" in out
    finished = read_run(directory)
    assert finished.manifest.is_complete
    assert set(finished.sweep.point_index.tolist()) == set(range(len(kept) + 2))
    assert not list(directory.rglob("*.tmp"))


DIE_WHILE_MERGING = """
import os, pathlib, sys
from inferometer.records import tables
from inferometer.records.reading import read_run
from inferometer.records.store import RunWriter

def finish_and_die(directory, n_left):
    kept = pathlib.Path.replace
    def dying(self, target):
        nonlocal n_left
        if n_left == 0:
            os.kill(os.getpid(), 9)
        n_left -= 1
        return kept(self, target)
    pathlib.Path.replace = dying
    RunWriter.create_or_resume(directory, read_run(directory).manifest).finish((), "2026-11-21T10:00:00Z")

for n_renamed, name in enumerate(sys.argv[1:]):
    child = os.fork()
    if child == 0:
        finish_and_die(pathlib.Path(name), n_renamed + 1)  # the first rename is that of the manifest on resuming
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_killed_while_merging(tmp_path, write_points):
    """A process that dies at each of the renames of ``finish`` in turn: three tables, the checksums, the manifest."""
    directories = [tmp_path / str(n_renamed) for n_renamed in range(6)]
    for directory in directories:
        write_points(directory, (0, 1))
    command = [sys.executable, "-c", DIE_WHILE_MERGING, *map(str, directories)]
    ends = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert ends == ["-9"] * 5 + ["0"]
    write_points(tmp_path / "whole", (0, 1))
    whole = tables_of(read_run(tmp_path / "whole"))
    for n_renamed, directory in enumerate(directories):
        after = read_run(directory)
        assert same_tables(whole, tables_of(after))
        assert after.manifest.is_complete == (n_renamed == 5)
        if n_renamed < 5:
            write_points(directory, (), finish=True)
            assert same_tables(whole, tables_of(read_run(directory)))
            assert not list(directory.rglob("*.tmp"))


def test_a_file_size_limit_is_told_and_nothing_is_lost(tmp_path, write_points, start_writer):
    directory = tmp_path / "run"
    write_points(directory, (0, 1))
    n_bytes = (
        directory / "manifest.json"
    ).stat().st_size + 200  # the manifest may be written, a point's table may not

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    process = start_writer(directory, 100, preexec_fn=limit)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == "resumed 2\n"
    assert "File too large" in err
    assert "2 measured parts are stored" in err
    assert set(read_run(directory).sweep.point_index.tolist()) == {0, 1}
    assert not list(directory.rglob("*.tmp"))


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_and_nothing_is_lost(tiny_disk, manifest, one_point_tables):
    directory = tiny_disk / "run"
    with RunWriter.create_or_resume(directory, manifest) as writer:
        with pytest.raises(RecordError, match="No space left") as caught:  # noqa: PT012 -- which of them fails is the disk's choice
            for index in range(100):
                writer.append_part(index, *one_point_tables(index, POINTS[0]))
        n_stored = len(writer.done_parts)
        assert n_stored >= 1
        assert f"{n_stored} measured parts are stored" in str(caught.value)
        assert set(read_run(directory).sweep.point_index.tolist()) == set(range(n_stored))
        (tiny_disk / "filler").write_bytes(
            b"x" * os.statvfs(tiny_disk).f_bavail * os.statvfs(tiny_disk).f_frsize
        )
        with pytest.raises(RecordError, match="No space left"):
            writer.finish((), ENDED_UTC)
        (tiny_disk / "filler").unlink()
        assert set(read_run(directory).sweep.point_index.tolist()) == set(range(n_stored))


def test_an_unwritable_folder_is_told(tmp_path, manifest):
    closed = tmp_path / "closed"
    closed.write_text("a file where a folder should be")
    with pytest.raises(RecordError, match="cannot write") as caught:
        RunWriter.create_or_resume(closed / "run", manifest)
    assert "--out" in str(caught.value)
    with pytest.raises(RecordError, match="cannot write"):
        RunWriter.create_or_resume(Path("/proc/inferometer"), manifest)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_told(tmp_path, manifest):
    tmp_path.chmod(0o500)
    with pytest.raises(RecordError, match="Permission denied"):
        RunWriter.create_or_resume(tmp_path / "run", manifest)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, remove])
def test_a_damaged_part_is_named_and_the_rest_can_be_saved(tmp_path, write_points, damage):
    write_points(tmp_path, (0, 1, 2))
    victim = tmp_path / "parts" / "00001-00001" / "sweep.parquet"
    damage(victim)
    with pytest.raises(RecordError, match="damaged") as caught:
        read_run(tmp_path)
    assert caught.value.where == str(victim)
    assert "2 measured points" in str(caught.value)
    run = read_run(tmp_path, skip_damaged=True)
    assert set(run.sweep.point_index.tolist()) == {0, 2}
    assert set(run.steps.point_index.tolist()) == {0, 2}, "a part is used whole or not at all"
    assert [caution.code for caution in run.manifest.cautions] == ["DAMAGED_RECORD"]
    assert "00001-00001/sweep.parquet" in run.manifest.cautions[0].text


def test_a_damaged_part_is_measured_again_on_resume(tmp_path, write_points, manifest):
    write_points(tmp_path, (0, 1, 2))
    flip_a_byte(tmp_path / "parts" / "00001-00001" / "steps.parquet")
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        assert writer.done_parts == {0, 2}
        assert [caution.code for caution in writer.manifest.cautions] == ["DAMAGED_PART"]
    write_points(tmp_path, (1, 3), finish=True)
    run = read_run(tmp_path)
    assert set(run.sweep.point_index.tolist()) == {0, 1, 2, 3}
    assert [caution.code for caution in run.manifest.cautions] == ["DAMAGED_PART"]


def test_a_failed_point_is_measured_again_on_resume(
    tmp_path, write_points, manifest, one_point_tables
):
    write_points(tmp_path, (0,))
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        sweep, steps, ceilings = one_point_tables(1, POINTS[1])
        writer.append_part(
            1,
            sweep._replace(status=np.full_like(sweep.status, PointStatus.FAILED)),
            steps,
            ceilings,
        )
        sweep, steps, ceilings = one_point_tables(2, POINTS[2])
        writer.append_part(
            2,
            sweep._replace(status=np.full_like(sweep.status, PointStatus.OUT_OF_MEMORY)),
            steps,
            ceilings,
        )
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        assert writer.done_parts == {0, 2}, "want of memory is an answer, a failure is not"
    write_points(tmp_path, (1, 3), finish=True)
    run = read_run(tmp_path)
    assert np.bincount(run.sweep.point_index).tolist() == [3, 3, 3, 3]
    assert not (run.sweep.status == PointStatus.FAILED).any()
    assert [caution.code for caution in run.manifest.cautions] == ["FAILED_BEFORE"]


def test_what_the_engine_says_at_the_end_is_kept(tmp_path, write_points, manifest):
    write_points(tmp_path, (0, 1, 2, 3))
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        assert writer.manifest.engine.compile_s is None
        writer.finish((), ENDED_UTC, replace(writer.manifest.engine, compile_s=2.5))
    assert read_run(tmp_path).manifest.engine.compile_s == 2.5


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, remove])
def test_a_damaged_table_of_a_complete_run(tmp_path, write_points, damage):
    write_points(tmp_path, (0, 1), finish=True)
    damage(tmp_path / "steps.parquet")
    with pytest.raises(RecordError, match="damaged") as caught:
        read_run(tmp_path)
    assert caught.value.where == str(tmp_path / "steps.parquet")
    run = read_run(tmp_path, skip_damaged=True)
    assert run.steps is None
    assert len(run.sweep.point_index) == 6


def test_damage_is_found_without_checksums_too(tmp_path, write_points):
    write_points(tmp_path, (0, 1), finish=True)
    (tmp_path / "SHA256SUMS").unlink()
    assert read_run(tmp_path).manifest.is_complete
    truncate(tmp_path / "sweep.parquet")
    with pytest.raises(RecordError, match=r"sweep\.parquet"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"schema_version": 1}', b'{"schema_version": "x"}', b"\xff\xfe"]
)
def test_a_damaged_manifest_is_named(tmp_path, write_points, content):
    write_points(tmp_path, (0,))
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(RecordError, match=r"manifest is (damaged|empty)") as caught:
        read_run(tmp_path)
    assert caught.value.where == str(tmp_path / "manifest.json")


def test_an_impossible_manifest_is_a_record_error(tmp_path, write_points):
    write_points(tmp_path, (0,))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["plan"]["points"][0]["batch_size"] = 0
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match="batch_size = 0"):
        read_run(tmp_path)


def test_what_is_no_run_is_told(tmp_path, write_points):
    with pytest.raises(RecordError, match="no such file"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RecordError, match="this is no run"):
        read_run(tmp_path)
    write_points(tmp_path / "a", (0,))
    assert read_run(tmp_path).manifest.run_id == "r1"
    assert read_run(tmp_path / "a" / "manifest.json").manifest.run_id == "r1"
    write_points(tmp_path / "b", (0,))
    with pytest.raises(RecordError, match="2 runs are in this folder: a, b") as caught:
        read_run(tmp_path)
    assert caught.value.try_ == f"{tmp_path / 'a'} {tmp_path / 'b'}"


def test_a_folder_with_a_difficult_name(tmp_path, write_points):
    write_points(tmp_path / "it's=1" / "a[b]*?", (0, 1), finish=True)
    assert len(read_run(tmp_path / "it's=1" / "a[b]*?").sweep.point_index) == 6


def test_a_run_that_finishes_while_it_is_read(tmp_path, write_points, monkeypatch):
    from inferometer.records import reading

    write_points(tmp_path, (0, 1))
    kept = reading.parts_of

    def parts_that_go_away(directory):
        parts = kept(directory)
        write_points(tmp_path, (), finish=True)
        monkeypatch.undo()
        return parts

    monkeypatch.setattr(reading, "parts_of", parts_that_go_away)
    assert read_run(tmp_path).manifest.is_complete


def test_cautions_are_kept_once(tmp_path, manifest, one_point_tables):
    caution = Caution(code="NOISE", text="the machine was busy", remedy="stop other programs")
    with RunWriter.create_or_resume(tmp_path, manifest) as writer:
        writer.append_part(0, *one_point_tables(0, POINTS[0]))
        writer.finish((caution, caution), ENDED_UTC)
    assert read_run(tmp_path).manifest.cautions == (caution,)
