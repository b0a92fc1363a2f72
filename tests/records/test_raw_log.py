import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from inferometer.errors import RecordError
from inferometer.records import raw_log
from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.records.raw_log import EndFrame, LagFrame, RawLogReader, RequestFrame, SessionFrame

INT64 = st.integers(-(2**63), 2**63 - 1)
MAYBE = st.none() | st.integers(0, 2**62)
SESSION = SessionFrame(
    session_index=0,
    process_index=1,
    n_processes=2,
    begins_ns=0,
    origin_monotonic_ns=123,
    started_utc="2026-11-21T16:00:00+00:00",
)


@st.composite
def request_frames(draw):
    sizes = draw(st.lists(st.integers(1, 50), max_size=8))
    body = draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
    return RequestFrame(
        request_index=draw(st.integers(0, 2**31 - 1)),
        process_index=draw(st.integers(0, 63)),
        connection_index=draw(st.integers(-1, 10_000)),
        is_reused=draw(st.booleans()),
        intended_ns=draw(st.integers(0, 2**62)),
        sent_ns=draw(MAYBE),
        connected_ns=draw(MAYBE),
        head_ns=draw(MAYBE),
        finished_ns=draw(st.integers(0, 2**62)),
        http_status=draw(st.none() | st.integers(100, 999)),
        error=draw(st.sampled_from(["", *EXCHANGE_ERRORS])),
        detail=draw(st.text(max_size=20)),
        content_type="text/event-stream",
        retry_after=draw(st.sampled_from(["", "3"])),
        asked_prompt_tokens=10,
        asked_output_tokens=20,
        sent_bytes=300,
        received_bytes=len(body),
        read_ns=np.arange(len(sizes), dtype="<i8").tobytes(),
        read_bytes=np.array(sizes, "<i4").tobytes(),
        body=body,
    )


FRAMES = st.lists(
    request_frames()
    | st.builds(
        LagFrame,
        process_index=st.integers(0, 9),
        due_ns=st.binary(),
        lag_ns=st.binary(),
        n_in_flight=st.binary(),
    )
    | st.builds(
        EndFrame,
        process_index=st.integers(0, 9),
        ended_ns=INT64,
        is_interrupted=st.booleans(),
        n_unsent=st.integers(0, 9),
        cpu_s=st.floats(0, 9),
    ),
    max_size=3,
).map(lambda frames: [SESSION, *frames])


def encoded(frames):
    return [raw_log.encode_frame(frame) for frame in frames]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # two shared cores
@given(frames=FRAMES)
def test_what_is_written_is_read(frames, tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "a.raw"
    path.write_bytes(raw_log.MAGIC + b"".join(encoded(frames)))
    reader = RawLogReader(path)
    assert list(reader) == frames
    assert reader.n_left_bytes == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(frames=FRAMES, data=st.data())
def test_a_cut_tail_costs_the_cut_frame_alone(frames, data, tmp_path_factory):
    parts = encoded(frames)
    content = raw_log.MAGIC + b"".join(parts)
    n_kept = data.draw(st.integers(0, len(content) - 1))
    path = tmp_path_factory.mktemp("raw") / "a.raw"
    path.write_bytes(content[:n_kept])
    ends = np.cumsum([len(raw_log.MAGIC), *map(len, parts)])
    n_whole = max(int(np.searchsorted(ends, n_kept, side="right")) - 1, 0)
    reader = RawLogReader(path)
    assert list(reader) == frames[:n_whole]
    assert reader.n_left_bytes == (n_kept - ends[n_whole] if n_kept >= ends[0] else 0)


def test_a_damaged_frame_ends_the_reading(tmp_path):
    parts = encoded([SESSION, SESSION, SESSION])
    second = bytearray(parts[1])
    second[-1] ^= 1
    path = tmp_path / "a.raw"
    path.write_bytes(raw_log.MAGIC + parts[0] + bytes(second) + parts[2])
    reader = RawLogReader(path)
    assert list(reader) == [SESSION]
    assert reader.n_left_bytes == len(second) + len(parts[2])


def test_another_file_is_refused_by_name(tmp_path):
    path = tmp_path / "a.raw"
    path.write_bytes(b"PAR1")
    with pytest.raises(RecordError, match="no raw log"):
        list(RawLogReader(path))


def test_files_sort_by_session_and_process(tmp_path):
    folder = tmp_path / raw_log.RAW_FOLDER
    folder.mkdir()
    for session, process in ((1, 0), (0, 10), (0, 2)):
        (folder / raw_log.file_name(session, process)).touch()
    assert [path.name for path in raw_log.raw_logs(tmp_path)] == [
        raw_log.file_name(*at) for at in ((0, 2), (0, 10), (1, 0))
    ]
