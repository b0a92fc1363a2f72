"""A real engine in a real worker process: started, asked, starved, killed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.engines import remote
from inferometer.measure.engines.protocol import Measure, OutOfMemory, ProbeSettings, Repeated
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings, worker_variables
from inferometer.records.types import ProbeKind

SPEC = EngineSpec(load_format="dummy", n_threads=1)
TASK = Measure(
    point=SweepPoint(prompt_tokens=4, batch_size=2, gen_tokens=3),
    n_warmup=1,
    n_reps=2,
    seed=0,
    vocab_size=1000,
    probes=None,
)


@pytest.fixture(scope="module")
def engine(tiny):
    with RemoteEngine(SPEC, tiny) as remote:
        yield remote


def repetitions(engine, task=TASK):
    return [result.repetition for result in engine.measure(task) if isinstance(result, Repeated)]


def test_a_point_comes_through(engine):
    assert engine.facts().weights_origin == "random"
    assert [repetition.is_warmup for repetition in repetitions(engine)] == [True, False, False]


def test_other_options_of_the_same_weights_need_no_load(engine):
    engine.facts()
    pid = engine.pid
    first = repetitions(engine)
    static = replace(SPEC, mode="static")
    engine.retune(static)
    assert (engine.pid, engine.spec) == (pid, static)
    assert [one.output_ids for one in repetitions(engine)] == [one.output_ids for one in first]
    with pytest.raises(SpecError, match="another model"):
        engine.retune(replace(static, dtype="bfloat16"))
    engine.retune(SPEC)
    assert engine.pid == pid


def test_ceilings_come_through(engine):
    settings = ProbeSettings(
        kinds=(ProbeKind.READ,), footprint_bytes=2**24, matmul_dtype="float32", n_threads=1
    )
    (ceiling,) = engine.probe(settings)
    assert ceiling.value_per_s > 1e8


@pytest.mark.slow
def test_a_point_that_does_not_fit_leaves_the_worker_alive(engine):
    engine.facts()  # a worker starts with its first question
    pid = engine.pid
    assert pid is not None
    point = SweepPoint(prompt_tokens=500, batch_size=100_000, gen_tokens=3)
    with pytest.raises(OutOfMemory, match="KV cache"):
        list(
            engine.measure(
                Measure(point=point, n_warmup=0, n_reps=1, seed=0, vocab_size=1000, probes=None)
            )
        )
    assert engine.pid == pid
    assert len(repetitions(engine)) == 3


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_the_next_point_gets_a_new_one(engine):
    engine.facts()
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="signal 9"):
        repetitions(engine)
    assert len(repetitions(engine)) == 3
    assert engine.pid != pid


@pytest.mark.slow
def test_a_kill_by_the_kernel_for_memory_is_out_of_memory(engine, monkeypatch):
    # The kernel's killer cannot be had on demand without endangering the machine: its counter is
    # made to move.
    engine.facts()
    assert engine.pid is not None
    monkeypatch.setattr(remote, "_n_killed_for_memory", lambda: 10**9)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(OutOfMemory, match="kernel"):
        repetitions(engine)


@pytest.mark.slow
def test_a_bad_question_comes_back_as_one(tiny):
    with (
        RemoteEngine(EngineSpec(load_format="dummy", dtype="int4"), tiny) as engine,
        pytest.raises(SpecError, match="int4") as error,
    ):
        engine.facts()
    assert error.value.allowed


@pytest.mark.slow
def test_leaving_ends_all_processes(tiny):
    with RemoteEngine(SPEC, tiny) as engine:
        engine.facts()
        pid = engine.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_a_dead_parent_leaves_nobody_behind(tiny, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time, msgspec\nfrom inferometer.measure.engines.protocol import"
        " ModelReference\nfrom inferometer.measure.engines.remote import RemoteEngine\nfrom"
        " inferometer.inputs.types import EngineSpec\nengine ="
        " RemoteEngine(EngineSpec(load_format='dummy', n_threads=1),"
        " msgspec.json.decode(sys.argv[1], type=ModelReference))\nengine.facts()\nprint(engine.pid,"
        " flush=True)\ntime.sleep(600)\n"
    )
    import msgspec

    with subprocess.Popen(
        [sys.executable, str(script), msgspec.json.encode(tiny).decode()], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    for _ in range(100):
        if not psutil.pid_exists(pid):
            break
        time.sleep(0.1)
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_a_worker_without_its_library_says_so(tiny, tmp_path):
    """An interpreter of another environment sees our package and nothing else of ours."""
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    with (
        RemoteEngine(
            SPEC, tiny, WorkerSettings(python=str(tmp_path / "bare" / "bin" / "python"))
        ) as engine,
        pytest.raises(EngineError) as error,
    ):
        engine.facts()
    assert "No module named 'msgspec'" in str(error.value)


def test_silence_is_an_error(tiny):
    with (
        RemoteEngine(SPEC, tiny, WorkerSettings(load_timeout_s=0.05)) as engine,
        pytest.raises(EngineError, match="was silent for"),
    ):
        engine.facts()


def test_variables_are_an_allow_list(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("SOME_SECRET", "x")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    variables = worker_variables(3, (("EXTRA", "1"),))
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["EXTRA"] == "1"
    assert not {"PYTHONPATH", "SOME_SECRET"} & set(variables)


def test_the_same_interpreter_is_found_the_same_modules(monkeypatch):
    """An engine that was found on PYTHONPATH was not there for its worker."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert remote.search_path("/ours", sys.executable) == f"/ours{os.pathsep}/mine"
    assert remote.search_path("/ours", "/other/python") == "/ours"
    monkeypatch.delenv("PYTHONPATH")
    assert remote.search_path("/ours", sys.executable) == "/ours"
