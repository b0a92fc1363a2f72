"""Is every file known by what is in it, and every broken one named, with its field?"""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st

from inferometer.errors import RecordError
from inferometer.records.imports.detection import read_results
from inferometer.records.sweep_csv import read_sweep_csv

RESULTS = Path(__file__).parent / "results"
FILES = sorted(path for path in RESULTS.iterdir() if path.suffix != ".md")
POINT = {"hw": "h200", "tp": 8, "ep": 1, "dp_attention": "false", "conc": 4, "model": "m", "framework": "vllm", "precision": "fp8",
         "tput_per_gpu": 2.0, "output_tput_per_gpu": 1.0, "input_tput_per_gpu": 1.0, "median_tpot": 0.01}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_by_content_and_not_by_name(path, tmp_path):
    renamed = tmp_path / "x.txt"
    renamed.write_bytes(path.read_bytes())
    imported = read_results(renamed)
    assert path.stem.startswith(imported.tool)
    assert imported.runs or imported.summaries


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"{}", "no known format"),
        (b"[]", "no known format"),
        (b"3", "no known format"),
        (b"a log of nothing\n", "neither JSON or YAML .* nor lines"),
        (b"a: [1\nb: 2\n", "neither JSON or YAML .*expected"),
        (b"# made by hand\na: 1\n", "no known format"),
        (b"\xff\xfe", "in UTF-16"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        (b"[" * 100_000, "nested more than 64 deep"),
        (b'{"a":' * 100_000, "nested more than 64 deep"),
        (b'{"duration": 1' + b"0" * 400 + b"}", "no known format"),
        (b'{"version": "0.1", "run": {}, "results": {}}', "version '0.1' of the Benchmark Report"),
        (
            (
                b'{"metadata": {"request_start_ns": 1}, "metrics": {"time_to_first_token":'
                b' {"value": 1, "unit": "h"}}}'
            ),
            "metrics.time_to_first_token.unit",
        ),
        (b'{"metadata": {}, "metrics": {}}', "metadata.request_start_ns is missing"),
        (json.dumps([POINT]).encode(), "no isl and osl"),
        (json.dumps([POINT | {"isl": 1, "osl": 1, "tp": "x"}]).encode(), r"\[0\].tp is 'x'"),
        (json.dumps([POINT | {"isl": 1.5, "osl": 1}]).encode(), r"\[0\].isl is 1.5"),
    ],
)
def test_broken_files_are_named(content, complaint, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=complaint) as caught:
        read_results(path)
    assert "broken.json" in str(caught.value)


@pytest.mark.parametrize("name", ["guidellm.json", "inference-perf-stage.json"])
def test_yaml_says_the_same_as_json(name, tmp_path):
    content = json.loads((RESULTS / name).read_text())
    path = tmp_path / name.replace(".json", ".yaml")
    path.write_text("# a report\n" + yaml.safe_dump(content))
    now, then = read_results(path), read_results(RESULTS / name)
    assert [one.latencies for one in now.summaries] == [one.latencies for one in then.summaries]
    assert len(now.runs) == len(then.runs)


def test_lists_of_other_lengths_are_named(tmp_path):
    content = json.loads((RESULTS / "vllm-bench-detailed.json").read_text())
    content["ttfts"].pop()
    path = tmp_path / "short.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"differ in length: .*'start_times': 24, 'ttfts': 23"):
        read_results(path)


def test_times_without_a_unit_are_told(tmp_path):
    """AIConfigurator's own tables: to send people from ``import`` to ``fit`` and back helps nobody."""
    path = tmp_path / "pareto.csv"
    path.write_text("model,isl,osl,concurrency,ttft,tpot,tp,backend,system\nm,1,2,3,4,5,6,b,s\n")
    for read in (read_results, read_sweep_csv):
        with pytest.raises(RecordError) as refused:
            read(path)
        assert "the unit of ttft, tpot in their names: 'ttft ms' or 'ttft s'" in str(refused.value)


def test_a_table_with_another_header_is_named(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(RecordError, match="columns a, b") as refused:
        read_results(path)
    assert "inferometer fit reads it" in str(refused.value)
    with pytest.raises(RecordError, match="this is a folder") as refused:
        read_results(tmp_path)
    assert f"inferometer import {path}" in str(refused.value)


def test_a_folder_of_llmservingsim_is_a_run(tmp_path):
    (tmp_path / "requests.csv").write_text(
        "request_id,input_toks,output_toks,arrival_s,queued_s,scheduled_s,first_token_s,last_token_s\n"
        "bench-0,20,3,0.0,0.001,0.002,0.1,0.3\nbench-1,30,5,0.5,0.501,0.502,0.6,1.0\n"
    )
    (tmp_path / "meta.json").write_text(
        '{"started_at": "2026-01-01T00:00:00", "engine_kwargs": {"model":'
        ' "meta-llama/Llama-3.1-8B", "tensor_parallel_size": 1, "data_parallel_size": 1,'
        ' "enable_expert_parallel": false, "max_num_seqs": 128, "max_num_batched_tokens": 2048,'
        ' "dtype": "bfloat16"}}'
    )
    (tmp_path / "llmservingsim_prediction_summary.txt").write_text("")
    for path in (tmp_path, tmp_path / "requests.csv"):
        found = read_results(path)
        assert found.tool == "llmservingsim"
        assert found.runs[0].requests.output_tokens.tolist() == [3, 5]

    (tmp_path / "mine.csv").write_bytes((tmp_path / "requests.csv").read_bytes())
    with pytest.raises(RecordError, match=r"is called mine\.csv") as refused:
        read_results(tmp_path / "mine.csv")
    assert refused.value.where == str(tmp_path / "mine.csv")
    (tmp_path / "meta.json").rename(tmp_path / "data.json")
    with pytest.raises(RecordError, match=r"has no meta\.json beside it") as refused:
        read_results(tmp_path / "requests.csv")
    assert refused.value.where == str(tmp_path / "requests.csv")
    assert refused.value.allowed == "requests.csv or requests.jsonl, with meta.json beside it"


@pytest.mark.parametrize("name", ["ttfts", "itls", "latencies", "queue_times"])
def test_no_time_is_below_0(name, tmp_path):
    """A first token before the send would be read as none, and its request be left out."""
    content = json.loads((RESULTS / "vllm-bench-detailed.json").read_text())
    content[name][2] = [-0.05] if name == "itls" else -0.05
    path = tmp_path / "early.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"{name}\[2\](\[0\])? is -0.05") as refused:
        read_results(path)
    assert refused.value.where == str(path)


def test_no_answer_comes_before_its_request(tmp_path):
    """No run is written that cannot be read again."""
    lines = (RESULTS / "aiperf-requests.jsonl").read_text().splitlines()
    early = json.loads(lines[1])
    early["metrics"]["time_to_first_token"]["value"] = -5
    path = tmp_path / "early.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(early)]))
    with pytest.raises(RecordError, match="request 2: its answer begins 5 ms before it was sent"):
        read_results(path)


@given(st.binary(max_size=100))
def test_whatever_the_bytes(content):
    path = RESULTS.parent / "__pycache__" / "any-bytes"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(RecordError):
        read_results(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_whatever_is_wrong_with_one_field(path, tmp_path):
    """Each of many fields in turn is dropped, or replaced by something of another kind.

    It is read, or refused with a RecordError.
    """
    rng = np.random.default_rng(11)
    is_lines = path.suffix == ".jsonl"
    whole = path.read_text().partition("\n")[0] if is_lines else path.read_text()
    for i in range(24):
        content = json.loads(whole)
        places = list(_places(content, 4))
        holder, key = places[rng.integers(len(places))]
        if i % 4 == 0:
            del holder[key]
        else:
            holder[key] = (None, "text", [1, "x"])[i % 4 - 1]
        broken = tmp_path / "broken.json"
        broken.write_text(json.dumps(content))
        with suppress(RecordError):
            read_results(broken)


def _places(content, depth):
    if depth and isinstance(content, dict):
        for key, value in content.items():
            yield content, key
            yield from _places(value, depth - 1)
    elif depth and isinstance(content, list) and content:
        yield from _places(content[0], depth - 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "llama.md",
            (
                "| model | size | backend | test | t/s |\n| --- | --: | --- | --: | --: |\n"
                "| llama 7B F16 | 12.55 GiB | CUDA | pp 512 | 11048.22 ± 269.74 |\n"
            ),
        ),
        (
            "llama.csv",
            (
                "model_type,n_prompt,n_gen,n_depth,test_time,avg_ns,stddev_ns\n"
                '"llama 7B F16","512","0","0","2026-01-01T00:00:00Z","70285660","982040"\n'
            ),
        ),
        (
            "batched.log",
            "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |\n",
        ),
    ],
)
def test_a_table_of_llama_bench_is_sent_to_fit(name, text, tmp_path):
    table = tmp_path / name
    table.write_text(text)
    with pytest.raises(RecordError, match="prefill and decode tests") as caught:
        read_results(table)
    assert f"inferometer fit {table}" in str(caught.value)
