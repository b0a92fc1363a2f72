"""Is a profiler's trace read as the profiler means it, and the device's time told apart?

The trace of a device is written here as Kineto and nsys write them, so that each gap's cause is
known. That busy and idle time of real traces of A100 and V100 equal those of another reader was
checked by hand (bench/RESULTS.md): such traces are not ours to keep.
"""

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from inferometer.errors import RecordError
from inferometer.records.device_time import device_times, host_times
from inferometer.records.device_trace import is_trace, read_trace

REAL = Path(__file__).parent / "traces" / "decode-cpu.json.gz"
"""Two decode steps of a random llama of 4 layers by torch 2.13 on a CPU."""

# name, start, end, launch start, launch end (µs); a launch of None: no call in the trace.
STEPS = (
    ("void cutlass::Kernel2<cutlass_80_gemm>(P)", 100, 200, 90, 95),
    # launched before the gap of 10 µs began
    ("flash_fwd_splitkv_kernel", 210, 300, 96, 99),
    # launched in the gap, 30 µs late, then 5 µs on its way
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)", 335, 345, 330, 334),
    # overlaps the one before it
    ("ncclDevKernel_AllReduce", 340, 400, 338, 339),
    # after a synchronisation that ended at 440
    ("nvjet_hsh_64x8", 470, 500, 460, 465),
    # nobody knows who launched it
    ("flash_fwd_splitkv_kernel", 520, 530, None, None),
)  # fmt: skip
WAIT = ("cudaStreamSynchronize", 402, 440)
EXPECTED_IDLE_US = {
    "device": 10,
    "host": 30,
    "launch": 5 + 10,
    "synchronisation": 60,
    "unknown": 20,
}
BUSY_US = 100 + 90 + 65 + 30 + 10


def chrome_events():
    events = [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": "Spans", "args": {"name": "x"}},
        {"ph": "X", "cat": "cuda_runtime", "name": WAIT[0], "ts": WAIT[1], "dur": WAIT[2] - WAIT[1],
         "tid": 7, "args": {"correlation": 99}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 80, "dur": 20, "tid": 7, "args": {}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "ts": 82, "dur": 5, "tid": 7},
    ]  # fmt: skip
    for index, (name, start, end, launch, launched) in enumerate(STEPS):
        arguments = {"device": 0, "stream": 7, "correlation": index + 1, "queued": 0}
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "tid": 7,
             "pid": 0, "args": arguments}
        )  # fmt: skip
        if launch is not None:
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": float(launch),
                 "dur": launched - launch, "tid": 7, "args": {"correlation": index + 1}}
            )  # fmt: skip
    return events


def write_chrome(path):
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],
        "traceEvents": chrome_events(),
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def write_nsys(path):
    """The tables that ``nsys export --type sqlite`` writes, of the columns that are read and some more."""
    names = dict.fromkeys(
        [*(one[0] for one in STEPS), WAIT[0] + "_v3020", "cudaLaunchKernel_v7000"]
    )
    ids = {name: index for index, name in enumerate(names, start=10)}
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE StringIds (id INTEGER, value TEXT);"
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
        " streamId INTEGER, correlationId INTEGER, demangledName INTEGER, shortName INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER,"
        " globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);"
    )
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, n) for n, i in ids.items()])
    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100', 108)")
    tid = 282540519621230
    calls = [(WAIT[1], WAIT[2], 99, WAIT[0] + "_v3020")]
    for index, (name, start, end, launch, launched) in enumerate(STEPS):
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, ?, ?)",
            (start * 1000, end * 1000, index + 1, ids[name], ids[name]),
        )
        if launch is not None:
            calls.append((launch, launched, index + 1, "cudaLaunchKernel_v7000"))
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
        [(one * 1000, other * 1000, tid, number, ids[name]) for one, other, number, name in calls],
    )
    database.commit()
    database.close()
    return path


@pytest.fixture(params=["chrome", "nsys"])
def trace(request, tmp_path):
    if request.param == "chrome":
        return read_trace(write_chrome(tmp_path / "trace.json.gz"))
    return read_trace(write_nsys(tmp_path / "report.sqlite"))


def test_each_gap_has_its_cause(trace):
    (device,) = device_times(trace)
    assert device.device_name == "NVIDIA A100"
    assert device.window_s == pytest.approx(430e-6)
    assert device.busy_s == pytest.approx(BUSY_US * 1e-6)
    idle_us = {part.cause: part.idle_s * 1e6 for part in device.idle}
    assert idle_us == pytest.approx(EXPECTED_IDLE_US)
    assert sum(part.window_fraction for part in device.idle) + device.busy_fraction == pytest.approx(1)  # fmt: skip
    assert device.median_launch_call_s == pytest.approx(4e-6)


def test_kernels_are_told_apart(trace):
    (device,) = device_times(trace)
    kinds = {kind.name: kind for kind in device.kinds}
    assert {name: one.n_launches for name, one in kinds.items()} == {
        "matmul": 2,
        "attention": 2,
        "communication": 1,
        "elementwise": 1,
    }
    assert kinds["matmul"].device_s == pytest.approx(130e-6)
    assert kinds["matmul"].idle_before_s == pytest.approx(70e-6)
    assert "vectorized_elementwise_kernel FillFunctor" in {one.name for one in device.kernels}
    assert sum(one.device_time_fraction for one in device.kinds) == pytest.approx(1)


def test_what_is_called_within_is_not_counted_twice(tmp_path):
    trace = read_trace(write_chrome(tmp_path / "trace.json.gz"))
    assert {one.name: round(one.self_s * 1e6) for one in host_times(trace.operations)} == {
        "aten::mm": 15,
        "aten::empty": 5,
    }


def test_a_real_trace_of_the_host():
    assert is_trace(REAL)
    trace = read_trace(REAL)
    assert device_times(trace) == ()
    operations = {one.name: one for one in host_times(trace.operations)}
    # Of each step: 7 products in each of 4 layers, and the logits.
    assert operations["aten::mm"].n_calls == 2 * (7 * 4 + 1)
    assert host_times(trace.operations)[0].name == "aten::mm"
    whole_s = sum(one.self_s for one in operations.values())
    steps_s = (trace.operations.end_ns.max() - trace.operations.start_ns.min()) / 1e9
    assert 0.8 * steps_s < whole_s <= steps_s


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schemaVersion": 1, "traceEvents": []}', "neither kernels nor host operations"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]}', "ts = 'soon'"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "k", "ts": 1e300}]}', "ts = 1e"),
        (b'{"traceEvents": 7}', "traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "na', "trace"),
        (b"SQLite format 3\x00" + bytes(200), "the report cannot be read"),
    ],
)  # fmt: skip
def test_a_damaged_trace_is_refused_with_what_to_try(tmp_path, content, said):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert is_trace(path)
    with pytest.raises(RecordError, match=said) as caught:
        read_trace(path)
    assert caught.value.allowed
    assert caught.value.try_


def test_a_report_whose_kernels_end_before_they_start_is_refused(tmp_path):
    path = write_nsys(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1")
    with pytest.raises(RecordError, match="CUPTI_ACTIVITY_KIND_KERNEL"):
        read_trace(path)


def test_a_run_is_no_trace(tmp_path):
    assert not is_trace(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 3}')
    assert not is_trace(tmp_path / "run.json")
