"""What a notebook holds is taken as options' values, or refused with what to write."""

import copy
import pickle
from datetime import timedelta

import numpy as np
import pytest

import inferometer as im
from inferometer.api.predict import Predict
from inferometer.api.python_calls import option_values, plain_value
from inferometer.api.simulate import Simulate
from inferometer.api.size import Size
from inferometer.errors import RecordError, SpecError

STATIC = {"hardware": "h100_sxm", "batch": 4}


@pytest.mark.parametrize(
    "slo",
    [
        {"ttft": {"p95": timedelta(milliseconds=500)}, "tpot": {"p99": "50ms"}},
        {"ttft:p95": "500ms", "tpot_p99": "<50ms"},
        {"ttft": "p95<500ms", "tpot:p99<": "50ms"},
        ["ttft:p95<500ms", "tpot:p99<50ms"],
    ],
    ids=str,
)
def test_an_slo_may_be_a_dictionary(slo):
    text = "ttft:p95<500ms, tpot:p99<50ms"
    known, given = (im.predict("llama-3.1-8b", **STATIC, slo=one).to_dict() for one in (text, slo))
    assert known == given


def test_lengths_may_be_a_dictionary():
    for lengths in ({"prompt": 1024, "output": np.int64(128)}, {"isl": 1024, "osl": 128}):
        assert plain_value("workload", lengths) == "prompt=1024,output=128"


@pytest.mark.parametrize(
    ("name", "value", "try_"),
    [
        ("workload", {"classes": []}, "workload='traffic.json'"),
        ("workload", {"prompt": {"mean": 3}, "output": 4}, "workload='traffic.json'"),
        ("workload", [{"prompt_tokens": 4, "output_tokens": 2}], "workload='trace.json'"),
    ],
    ids=str,
)
def test_traffic_in_memory_is_refused_with_what_writes_it(name, value, try_):
    with pytest.raises(SpecError) as refused:
        im.simulate("llama-3.1-8b", hardware="h100_sxm", **{name: value})
    assert try_ in refused.value.try_


def test_values_of_numpy_and_of_python_are_plain_ones():
    """A format of NumPy was a TypeError, its durations and an iterator were refused."""
    assert plain_value("dtype", np.float16) == "float16"
    assert plain_value("duration", np.timedelta64(1500, "ms")) == "1.5s"
    assert plain_value("duration", [timedelta(minutes=1), "30s"]) == ["60s", "30s"]
    assert plain_value("batch", iter((1, 2))) == [1, 2]
    assert plain_value("batch", np.array([1, 2])) == [1, 2]


def test_settings_of_an_engine_may_be_keywords():
    given = {"model": "m", "enable_prefix_caching": False, "scheduling_policy": "priority"}
    values = option_values(Simulate, given | {"set": {"block_size": 32}})
    assert values["set"] == ("block_size=32", "enable_prefix_caching=false", "policy=priority")
    sizes = option_values(Size, {"model": "m", "set": {"enable_chunked_prefill": [True, False]}})
    assert im.simulate.question is Simulate
    assert sizes["set"] == {"enable_chunked_prefill": [True, False]}


def test_dictionaries_are_written_as_the_option_has_them(monkeypatch):
    """A list in a body was a TypeError; a header was refused."""
    seen = []
    monkeypatch.setattr("inferometer.api.load_sending.send", seen.append)
    with pytest.raises(SpecError, match="a dry run prints") as refused:
        im.load(
            "http://h",
            header={"X-Key": "a"},
            body={"stop": ["x"], "n": 1},
            duration=5,
            dry_run=True,
        )
    assert not seen
    assert refused.value.try_.startswith("!inferometer load http://h ")
    assert " --for 5s " in refused.value.try_
    assert "'X-Key: a'" in refused.value.try_
    assert """'stop=["x"]'""" in refused.value.try_


def test_an_option_of_servers_under_load_names_simulate():
    with pytest.raises(SpecError) as refused:
        option_values(Predict, {"model": "m", "max_num_seqs": 32})
    assert refused.value.try_ == "im.simulate(model, max_num_seqs=32)"


def test_an_answer_stands_for_what_it_stored(tmp_path):
    """The text of the whole answer was the name of a folder."""
    stored, other = (
        im.simulate("llama-3.1-8b", hardware="h100_sxm", rate=5, requests=20, out=out)
        for out in (tmp_path / "run", None)
    )
    assert im.read(stored).runs == (str(tmp_path / "run"),)
    with pytest.raises(SpecError, match="this SimulateAnswer is not stored") as refused:
        im.compare(stored, other)
    assert "out='PATH'" in refused.value.try_


def test_a_dictionary_is_no_path():
    with pytest.raises(SpecError, match="plan is a dict") as refused:
        im.verify({"a": 1})
    assert refused.value.allowed == "the path of a file"


def test_a_list_of_one_path_is_the_path_and_of_several_is_refused(tmp_path):
    """The list itself was looked for: "there is no run, from: ['a']"."""
    for old in ("nothing", ["nothing"]):
        with pytest.raises(RecordError, match="there is no run") as caught:
            im.compare(old, str(tmp_path))
        assert caught.value.where == "nothing"
    with pytest.raises(SpecError, match="old is a list of 2 paths"):
        im.compare(["a", "b"], "c")


def test_a_name_twice_is_a_type_error():
    with pytest.raises(TypeError, match="model twice"):
        im.predict("m", model="n")


def test_all_functions_take_progress():
    assert im.catalog("slos", progress=print).rows()


def test_servers_are_measured_where_a_url_stands():
    """In Python neither ``capacity`` nor ``compare`` took a URL; port 1 answers nobody."""
    with pytest.raises(im.errors.MeasureError, match="no answer"):
        im.capacity("http://127.0.0.1:1", slo="ttft:p95<1s", rate=1, out="unused", model="m")
    with pytest.raises(SpecError, match="carry no interval"):
        im.compare("http://127.0.0.1:1", "http://127.0.0.1:2", repeats=2, rate=1, model="m")


def test_a_start_command_stands_for_the_model_and_its_flags():
    text = "vllm serve Qwen/Qwen3-8B -tp 2 --no-enable-prefix-caching --max-num-seqs 64 --port 1"
    values = option_values(Simulate, {"model": text, "rate": 2})
    assert values == {
        "model": "Qwen/Qwen3-8B",
        "policy": "vllm",
        "tp": "2",
        "max_num_seqs": "64",
        "rate": 2,
        "set": ("enable_prefix_caching=false",),
    }


def test_flags_of_a_start_command_that_choose_kernels_are_a_warning():
    with pytest.warns(UserWarning, match="not of --attention-backend"):
        option_values(Simulate, {"model": "vllm serve m --attention-backend FLASHINFER"})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tpot_s", "answer.answered.tpot_s.value"),
        ("p95_ttft_ms", "answer.answered.ttft_s.value"),
        ("throughput", "answer.answered.output_tokens_per_s.value"),
        ("answerd", "answer.answered"),
        ("nothing_like_it", "it has answered, basis"),
    ],
)
def test_a_name_that_an_answer_has_not_is_answered_with_numbers_that_it_has(name, near):
    answer = im.predict("llama-3.1-8b", hardware="h100_sxm")
    with pytest.raises(AttributeError, match=f"has no '{name}'") as refused:
        getattr(answer, name)
    assert near in str(refused.value)
    assert not hasattr(answer, "_repr_png_")
    assert "table" not in answer.to_dict()
    assert copy.deepcopy(answer) == pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301


def test_the_numbers_of_a_table_are_named_by_their_row():
    answer = im.simulate("llama-3.1-8b", hardware="h100_sxm", rate=1, requests=20)
    with pytest.raises(AttributeError) as refused:
        answer.p95_ttft_ms  # noqa: B018
    assert 'answer.rows()[0]["summary.ttft_p95_s.value"]' in str(refused.value)
    assert "table" not in answer.to_dict()
    found = im.capacity("llama-3.1-8b", hardware="h100_sxm", slo="ttft:p95<9s", time_limit=0.5)
    with pytest.raises(AttributeError) as refused:
        found.max_rate  # noqa: B018
    assert 'answer.rows()[0]["capacity.located_load"]' in str(refused.value)


@pytest.mark.parametrize("name", ["predict", "simulate", "load", "sweep"])
def test_a_call_without_its_first_argument_says_which_is_missing(name):
    with pytest.raises(SpecError, match="is missing"):
        getattr(im, name)()


def test_a_study_without_a_name_lists_the_studies():
    with pytest.raises(SpecError) as raised:
        im.study()
    assert "precision" in str(raised.value.allowed)


def test_a_benchmarks_command_stands_for_the_model_and_its_traffic():
    text = (
        "vllm bench serve --model llama-3.1-8b --backend vllm --random-input-len 64"
        " --random-output-len 8 --request-rate 2 --num-prompts 30"
    )
    answer = im.simulate(text, hardware="l4", datasheet=True)
    assert (answer.workload_name, answer.given_rate_per_s) == ("64x8", 2)
    assert answer.workload.n_requests == 30


def test_a_capacity_is_answered_with_loads():
    answer = im.capacity(
        "llama-3.1-8b", hardware="h100_sxm", slo="ttft:p95<1s", requests=200, datasheet=True
    )
    with pytest.raises(AttributeError, match=r"capacity\.met_load"):
        _ = answer.capacity
