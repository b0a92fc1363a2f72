"""Are files replaced whole, and do checksums find what changed?"""

import errno
import os
import shutil
import subprocess

import pytest

from inferometer.errors import RecordError
from inferometer.records import run_folder


def test_a_failed_replacement_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f"
    run_folder.replace_file(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RecordError, match="No space left"):
        run_folder.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_checksums_are_those_of_sha256sum(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    run_folder.write_sums(tmp_path, ("a", "b"))
    assert run_folder.damaged_files(tmp_path) == ()
    if shutil.which("sha256sum"):
        subprocess.run(
            ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True
        )
    (tmp_path / "a").write_bytes(b"One")
    (tmp_path / "b").unlink()
    assert run_folder.damaged_files(tmp_path) == ("a", "b")


@pytest.mark.parametrize("line", ["0123  ../escape", "garbage", "\x00"])
def test_strange_checksum_files_are_damage(tmp_path, line):
    (tmp_path / "SHA256SUMS").write_text(line + "\n")
    assert run_folder.damaged_files(tmp_path)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EACCES, "another folder"),
    ],
)
def test_what_cannot_be_written_is_advised_by_its_cause(number, advice, tmp_path):
    assert advice in run_folder.cannot_write(tmp_path, OSError(number, os.strerror(number))).try_


def test_the_lock_survives_removal_by_its_former_holder(tmp_path):
    path = tmp_path / "writer.lock"
    first = run_folder.WriterLock.acquire(path)
    first.release()
    first.release()
    assert not path.exists()
    second = run_folder.WriterLock.acquire(path)
    with pytest.raises(RecordError, match="another process"):
        run_folder.WriterLock.acquire(path)
    second.release()


@pytest.mark.parametrize("name", ["a" * 300, "../one", "", "no such\x00file", "é" * 1000])
def test_names_beside_sums_that_cannot_be_are_damage(name, tmp_path):
    (tmp_path / run_folder.SUMS_NAME).write_text(f"{'0' * 64}  {name}\n")
    assert run_folder.damaged_files(tmp_path) == (name or run_folder.SUMS_NAME,)
