"""Do frames reach the disk by themselves, and does a full disk say so?"""

import errno
import os
import time

import pytest

from inferometer.errors import RecordError
from inferometer.measure.load import client
from inferometer.measure.load.client import RawLogWriter
from inferometer.records.raw_log import EndFrame, RawLogReader

FRAME = EndFrame(process_index=0, ended_ns=1, is_interrupted=False, n_unsent=0, cpu_s=0.0)


def test_frames_are_written_within_a_second_without_being_asked(tmp_path):
    writer = RawLogWriter(tmp_path / "raw" / "a.raw")
    writer.append(FRAME)
    deadline_s = time.monotonic() + 10
    while not list(RawLogReader(tmp_path / "raw" / "a.raw")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert list(RawLogReader(tmp_path / "raw" / "a.raw")) == [FRAME]
    for _ in range(1000):
        writer.append(FRAME)
    writer.close()
    assert len(list(RawLogReader(tmp_path / "raw" / "a.raw"))) == 1001


def test_a_log_is_never_overwritten(tmp_path):
    RawLogWriter(tmp_path / "a.raw").close()
    with pytest.raises(RecordError, match="cannot write"):
        RawLogWriter(tmp_path / "a.raw")


def test_a_full_disk_ends_the_run_with_words(tmp_path, monkeypatch):
    writer = RawLogWriter(tmp_path / "a.raw")

    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(client.os, "write", no_room)
    writer.append(FRAME)
    time.sleep(1.0)  # the thread writes four times a second
    with pytest.raises(RecordError, match="No space left"):
        writer.append(FRAME)
    with pytest.raises(RecordError, match="No space left"):
        writer.close()
