"""Does Python get the answers of the command line, typed, as tables and in notebooks?"""

import asyncio
import builtins
import inspect
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import command_line
import duckdb
import numpy as np
import pytest

import inferometer as im
from inferometer.api.predict import Predict
from inferometer.api.progress import PartsDone, command_line as of_process
from inferometer.api.python_calls import words_of_call
from inferometer.api.question import by_field, question_of
from inferometer.api.show import Show
from inferometer.api.simulate import Simulate
from inferometer.api.size import Size
from inferometer.api.sweep import Sweep
from inferometer.errors import InferometerError, MeasureError, SpecError

STATIC = {"hardware": "h100_sxm", "batch": 32, "prompt": 1024}
ONLINE = {"hardware": "h100_sxm", "rate": 5, "requests": 200, "slo": "ttft:p95<500ms"}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    heard = []
    folder = tmp_path_factory.mktemp("api") / "run"
    answer = im.simulate("llama-3.1-8b", **ONLINE, out=folder, progress=heard.append)
    return answer, heard, folder


def test_dictionaries_are_what_json_prints(tmp_path, simulated):
    flags = ("--hardware", "h100_sxm", "--batch", 32, "--prompt", 1024, "--json")
    said = json.loads(command_line.run("predict", "llama-3.1-8b", *flags, folder=tmp_path).stdout)
    now = json.loads(json.dumps(im.predict("llama-3.1-8b", **STATIC).to_dict()))
    assert now == said
    assert simulated[0].to_dict()["verdict"] == simulated[0].verdict


def test_the_dictionary_of_an_unbounded_interval_is_strict_json():
    """The upper end of a lower bound was infinite: ``json.dumps`` wrote ``Infinity``."""
    cut = im.simulate("llama-3.1-8b", hardware="l40s", rate=50, requests=60, until="1s")
    ttft = cut.levels[0].summary.latency("ttft").mean
    assert ttft.is_lower_bound
    assert ttft.seconds.high == float("inf")
    text = json.dumps(cut.to_dict(), allow_nan=False)
    assert json.loads(text) == cut.to_dict()


def test_tables_go_to_arrow_without_its_library(simulated):
    answer, _, _ = simulated
    table = answer.to_arrow()
    assert hasattr(table, "__arrow_c_stream__")
    rows = table.fetchall()
    assert [row[0] for row in rows] == ["likely", *["draw"] * 19]
    assert "summary.offered_requests_per_s" in table.columns
    assert len(answer.to_frame()) == 20


def test_an_answer_in_a_notebook_and_as_text(simulated):
    answer, _, _ = simulated
    assert str(answer).startswith("llama-3.1-8b on NVIDIA H100")
    page = answer._repr_html_()
    assert "llama-3.1-8b on NVIDIA H100" in page
    assert "<script" not in page


class ZMQInteractiveShell:
    """The name by which rich knows a notebook."""


def test_a_notebook_shows_an_answer_once_and_its_text_has_no_colours(simulated, monkeypatch):
    """Rich displayed what was drawn for ``str`` and ``_repr_html_``, beside the notebook itself."""
    shown, page = str(simulated[0]), simulated[0]._repr_html_()
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", None)  # an import of it fails
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(simulated[0]) == shown
    assert "\x1b" not in shown
    assert simulated[0]._repr_html_() == page


def test_a_load_test_may_begin_where_an_event_loop_runs():
    """A notebook's: ``asyncio.run`` is refused there."""

    async def cell() -> None:
        im.load("http://127.0.0.1:1", rate=5, duration="2s")

    with pytest.raises(MeasureError, match="no answer"):
        asyncio.run(cell())


def test_the_record_of_a_run_has_the_command_of_the_call(simulated):
    """It had the arguments of the notebook's kernel: ``inferometer -f kernel.json``."""
    _, _, folder = simulated
    command = json.loads((folder / "manifest.json").read_text())["command"]
    assert command == [
        *("inferometer", "simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--rate", "5"),
        *("--requests", "200", "--slo", "ttft:p95<500ms", "--out", str(folder)),
    ]
    swept = words_of_call("sweep", Sweep, {"model": "m", "seq": [16, 64], "dry_run": True})
    assert swept == ("sweep", "--model", "m", "--seq", "16,64", "--dry-run")
    own = {"model": "m", "set": {"a": 1, "b": "x"}, "rate": None}
    assert words_of_call("simulate", Simulate, own)[1:] == ("m", "--set", "a=1", "--set", "b=x")
    assert words_of_call("read", Show, {"runs": ["a", "b"]}) == ("show", "a", "b")
    assert of_process() == ()  # pytest is no command of ours


def test_progress_is_heard_and_otherwise_nothing_is_printed(simulated, capfd):
    _, heard, _ = simulated
    assert any(isinstance(one, str) and "simulating 200 requests" in one for one in heard)
    assert PartsDone("step times", 20, 20) in heard
    im.predict("llama-3.1-8b", **STATIC)
    assert capfd.readouterr() == ("", "")


def test_stored_runs_are_read_compared_and_reported(simulated, tmp_path):
    _, _, folder = simulated
    read = im.read(folder)
    assert read.requests[0].summaries[0].n_requests == 200
    assert "TTFT" in str(read)
    with pytest.raises(SpecError, match="is on both sides"):
        im.compare(folder, folder)
    page = im.report(folder, out=tmp_path / "page.html")
    assert Path(page.report_file).stat().st_size == page.size_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hardwar": "h100_sxm"}, "hardware"),
        ({"hardware": "h100_sxm", "batch": 0}, "of at least 1"),
        ({"hardware": "h100_sxm", "batch": 1.5}, "whole number"),
        ({"hardware": "h100_sxm", "dtype": "fp99"}, "float8"),
        ({"hardware": "no-such-device"}, "no-such-device"),
        ({"hardware": "h100_sxm", "what_if": "yes"}, "true or false"),
    ],
)
def test_bad_options_are_refused_in_four_parts(options, words):
    with pytest.raises(SpecError) as error:
        im.predict("llama-3.1-8b", **options)
    assert words in str(error.value)
    assert "\n  from: " in str(error.value)


def test_a_duration_may_be_a_timedelta_and_a_table_is_refused_with_what_to_do():
    """The whole table was the name of a file, too long for one."""
    words = {"hardware": "h100_sxm", "rate": 5}
    minute = im.simulate("llama-3.1-8b", duration=timedelta(seconds=20), **words)
    assert minute.to_dict() == im.simulate("llama-3.1-8b", duration="20s", **words).to_dict()
    with pytest.raises(SpecError, match="'5s'"):
        im.simulate("llama-3.1-8b", hardware="h100_sxm", rate=timedelta(seconds=5))
    frame = duckdb.sql("select 0 as timestamp")
    with pytest.raises(SpecError, match="workload is a table in memory") as caught:
        im.simulate("llama-3.1-8b", workload=frame, **words)
    assert "workload='trace.csv'" in caught.value.try_


def test_nothing_and_a_folder_are_refused_in_words(tmp_path):
    """They were an IndexError, a ValueError and a TypeError."""
    for function in (im.read, im.report, im.fit, im.explain):
        with pytest.raises(SpecError, match="runs missing"):
            function([])
    answer = im.predict("llama-3.1-8b", **STATIC)
    for folder in (tmp_path, "."):
        with pytest.raises(InferometerError, match="this is a folder"):
            answer.report(folder)
    with pytest.raises(SpecError, match="True is no function"):
        im.predict("llama-3.1-8b", **STATIC, progress=True)


def test_options_may_be_written_as_on_the_command_line():
    ours = im.predict("llama-3.1-8b", hardware="H100", batch="32", dtype="bf16")
    assert ours.datasheet.scenario.batch_size == 32
    assert ours.datasheet.scenario.engine.dtype == "bfloat16"
    until = im.simulate("llama-3.1-8b", **ONLINE | {"until": "5s"}, set={"block_size": 32})
    assert until.levels[0].summary.n_requests < 200


def test_the_names_of_flags_are_names_of_options():
    """vLLM's ``--tensor-parallel-size`` is in the help of ``--tp``."""
    named = im.predict("llama-3.1-8b", **STATIC, tensor_parallel_size=2)
    assert named.to_dict() == im.predict("llama-3.1-8b", **STATIC, tp=2).to_dict()
    assert im.predict("llama-3.1-8b", **STATIC, tensor_parallel_size=[1, 2]).axes == {"tp": (1, 2)}
    assert im.predict("llama-3.1-8b", **STATIC, tp=np.array([1, 2])).axes == {"tp": (1, 2)}
    with pytest.raises(SpecError, match="tensor_parallel_size and tp are one option"):
        im.predict("llama-3.1-8b", **STATIC, tensor_parallel_size=2, tp=2)


def test_lists_of_what_is_one_text_are_written_with_commas():
    questions = [
        question_of(Size, {"model": "m", "gpus": gpus, "tp": tp, "slo": slo})
        for gpus, tp, slo in (
            (["h100_sxm", "l40s"], [1, 2], ["ttft:p95<1s", "tpot:p95<50ms"]),
            ("h100_sxm,l40s", "1,2", "ttft:p95<1s,tpot:p95<50ms"),
        )
    ]
    assert questions[0] == questions[1]


def test_signatures_show_all_options():
    parameters = inspect.signature(im.simulate).parameters
    assert next(iter(parameters)) == "model"
    assert {"hardware", "rate", "replicas", "slo", "progress"} <= parameters.keys()
    assert parameters["data_parallel_size"].default == 1


def test_a_notebook_completes_the_names_of_the_package():
    assert set(im.__all__) == set(dir(im))


def test_functions_stay_when_rooms_of_their_name_are_imported():

    assert callable(im.simulate)
    assert callable(im.fit)
    with pytest.raises(TypeError, match="is a function"):
        im.fit = 3


def test_the_package_is_imported_quickly():
    code = (
        "import sys, inferometer; "
        "print([m for m in ('numba', 'scipy', 'rich', 'click', 'duckdb') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_errors_have_one_root():
    assert issubclass(SpecError, InferometerError)


def test_what_is_known_and_what_is_here_is_a_table():
    models = im.catalog("models").rows()
    assert {"llama-3.1-8b", "gpt2"} <= {row["model.model_id"] for row in models}
    (named,) = im.catalog("slos", "mlperf:llama2-70b-server").rows()
    assert named["text"] == "ttft:p99<2000ms, tpot:p99<200ms"
    assert "79.2 GiB" in str(im.catalog("hardware", "h100_sxm"))
    assert [row["engine"] for row in im.engines().rows()] == ["transformers", "vllm", "openvino"]
    assert im.doctor().host.n_cores >= 1


def test_an_option_without_its_name_is_refused_with_what_to_write():
    with pytest.raises(SpecError, match="'h100' stands without") as refused:
        im.predict("llama-3.1-8b", "h100")
    assert refused.value.try_ == "predict('llama-3.1-8b', hardware='h100')"
    with pytest.raises(SpecError, match="'c' stands without") as refused:
        im.compare("a", "b", "c")
    assert refused.value.try_ is None


@pytest.mark.parametrize(
    ("ask", "name", "try_"),
    [
        (im.size, "isl", 'workload="1024x256"'),  # without the length of answers
        (im.predict, "dp", None),
        (im.predict, "quantisation", "quantization"),
    ],
)
def test_an_option_of_another_tools_name_is_answered_with_ours(ask, name, try_):
    with pytest.raises(SpecError, match=f"no option '{name}'") as refused:
        ask("llama-3.1-8b", **{name: 4})
    assert refused.value.try_ == try_


@pytest.mark.parametrize(
    ("asked", "given", "taken"),
    [
        (Size, {"hardware": "h100_sxm", "qps": 4}, {"gpus": "h100_sxm", "rate": 4}),
        (Size, {"gpus": "8xh100"}, {"gpus": "h100", "total_gpus": 8}),
        (Size, {"gpus": "8xh100", "total_gpus": 4}, {"gpus": "8xh100", "total_gpus": 4}),
        (Simulate, {"gpu": "l4", "engine": "sglang"}, {"hardware": "l4", "policy": "sglang"}),
        (Simulate, {"hardware": "8xh100"}, {"hardware": "8xh100"}),  # refused: --tp or --replicas?
        (Simulate, {"hardware": "8 H100", "tp": 2}, {"hardware": "H100", "replicas": 4, "tp": 2}),
        (Simulate, {"hardware": "8xh100", "tp": 3}, {"hardware": "8xh100", "tp": 3}),
        (
            Simulate,
            {"hardware": "8xh100", "tp": 2, "prefill_replicas": 2},
            {"hardware": "8xh100", "tp": 2, "prefill_replicas": 2},
        ),
        (Simulate, {"dp_size": 2}, {"data_parallel_size": 2}),
        (Simulate, {"isl": 1024, "max_tokens": 256}, {"workload": "1024x256"}),
        (Predict, {"hardware": "2xH100"}, {"hardware": "H100", "tp": 2}),
        (Predict, {"isl": 1024, "osl": 256}, {"prompt": 1024, "output": 256}),
        (Predict, {"max_concurrency": 8}, {"batch": 8}),
    ],
)
def test_another_tools_name_is_taken_as_on_the_command_line(asked, given, taken):
    """Python refused ``hardware=`` of ``size`` and ``engine=`` of ``simulate``, with ours to try."""
    assert by_field(asked, given) == taken


def test_two_names_of_one_option_are_refused():
    with pytest.raises(SpecError, match="'gpus' is given under two names"):
        im.size("llama-3.1-8b", hardware="h100_sxm", gpus="l4", rate=1)


def test_a_flag_of_the_command_line_names_the_method_that_does_it(tmp_path):
    with pytest.raises(SpecError, match="no option 'report'") as refused:
        im.simulate("llama-3.1-8b", hardware="h100_sxm", report="x.html")
    assert refused.value.try_.startswith("answer.report('report.html')")
    im.predict("llama-3.1-8b", hardware="h100_sxm").report(tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()
