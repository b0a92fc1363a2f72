"""Is a server's start command taken apart as the shell and the engine would?"""

import json

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.serve_command import read_benchmark_command, read_serve_command


@pytest.mark.parametrize(
    ("text", "model", "engine", "flags"),
    [
        ("vllm serve m/n", "m/n", "vllm", {}),
        (
            "CUDA_VISIBLE_DEVICES=0,1 .venv/bin/vllm serve m --max-num-seqs 64 --port=80 -tp 2",
            "m",
            "vllm",
            {"--max-num-seqs": "64", "-tp": "2"},
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --dtype auto --model m --max_model_len=9",
            "m",
            "vllm",
            {"--max-model-len": "9"},
        ),
        (
            "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11 --model m --enforce-eager",
            "m",
            "vllm",
            {"--enforce-eager": None},
        ),
        (
            "python3 -m sglang.launch_server \\\n  --model-path m \\\n  --ep-size 8 --host 0.0.0.0",
            "m",
            "sglang",
            {"--ep": None},
        ),
        ("sglang serve --model-path m --ep-size 1", "m", "sglang", {}),
        (
            "trtllm-serve m --tp_size 4 --backend pytorch",
            "m",
            "trtllm",
            {"--tp-size": "4"},
        ),
        (
            'vllm serve m --no-enable-prefix-caching --speculative-config \'{"method": "mtp"}\'',
            "m",
            "vllm",
            {"--no-enable-prefix-caching": None, "--speculative-config": '{"method": "mtp"}'},
        ),
    ],
)
def test_model_engine_and_the_flags_that_matter(text, model, engine, flags):
    found = read_serve_command(text)
    assert (found.model, found.engine, dict(found.flags)) == (model, engine, flags)


def test_flags_that_choose_kernels_are_named():
    found = read_serve_command("vllm serve m --attention-backend FLASHINFER -O 3 --seed 1")
    assert (found.flags, found.unmodelled) == ((), ("--attention-backend", "-O"))


def test_what_is_not_simulated_is_named_once_and_is_no_flag():
    found = read_serve_command(
        "vllm serve m --enable-lora --max-loras 4 --kv-offloading-size 100 --max-num-seqs 8"
    )
    assert dict(found.flags) == {"--max-num-seqs": "8"}
    assert len(found.left_out) == 2
    assert "LoRA" in found.remark
    assert "computed again" in found.remark


@pytest.mark.parametrize(
    ("parallel", "flags"),
    [
        ("--tp 8 --dp 8 --enable-dp-attention", {"--tp": "1", "--dp": "8"}),
        ("--tp-size 16 --dp-size 4 --enable-dp-attention", {"--tp-size": "4", "--dp-size": "4"}),
        ("--tp 2 --dp 4", {"--tp": "2", "--replicas": "4", "--router": "round-robin"}),
        ("--tp 2 --dp 1", {"--tp": "2"}),
        ("--tp 8 --enable-dp-attention", {"--tp": "8"}),
    ],
)
def test_data_parallelism_of_sglang_is_of_as_many_devices_as_there(parallel, flags):
    found = read_serve_command(f"python -m sglang.launch_server --model-path m {parallel}")
    assert dict(found.flags) == flags


def test_data_parallelism_of_vllm_stays():
    found = read_serve_command("vllm serve m --tensor-parallel-size 2 --data-parallel-size 4")
    assert dict(found.flags) == {"--tensor-parallel-size": "2", "--data-parallel-size": "4"}


def test_ranks_that_do_not_divide_the_devices_are_refused():
    with pytest.raises(SpecError, match="not a multiple of 8 ranks"):
        read_serve_command("sglang serve --model-path m --tp 6 --dp 8 --enable-dp-attention")


@pytest.mark.parametrize(
    "text", ["", "llama-3.1-8b", "models/my vllm/m", "serve m", "vllm bench m"]
)
def test_other_texts_are_none(text):
    assert read_serve_command(text) is None


@pytest.mark.parametrize("text", ["vllm serve", "vllm serve --port 1", "vllm serve 'm"])
def test_a_command_without_a_model_or_an_end_is_refused(text):
    with pytest.raises(SpecError):
        read_serve_command(text)


def test_keys_of_an_object_in_flags_of_their_own_are_one_object():
    """Refused before: the form of vLLM's recipes for GLM-4.5."""
    found = read_serve_command(
        "vllm serve m --speculative-config.method mtp"
        " --speculative_config.num_speculative_tokens 1 --limit-mm-per-prompt.video 0"
    )
    (only,) = found.flags
    assert only[0] == "--speculative-config"
    assert json.loads(only[1]) == {"method": "mtp", "num_speculative_tokens": 1}
    assert found.unmodelled == ("--limit-mm-per-prompt",)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (
            "vllm bench serve --model m --request-rate 4 --save-result",
            {"--model": "m", "--request-rate": "4"},
        ),
        ("vllm bench serve", {"--max-concurrency": "1000", "--num-prompts": "1000"}),
        (
            "vllm bench serve --dataset-name random --max-concurrency 8 --request-rate inf",
            {"--max-concurrency": "8", "--num-prompts": "1000"},
        ),
        (
            "python -m sglang.bench_serving --num-prompts 9",
            {"--num-prompts": "9", "--max-concurrency": "9"},
        ),
        ("genai-perf profile -m m --concurrency 8", {"-m": "m", "--concurrency": "8"}),
    ],
)
def test_the_traffic_of_a_benchmarks_command(text, flags):
    assert dict(read_benchmark_command(text)) == flags


@pytest.mark.parametrize("text", ["vllm serve m", "vllm bench latency", "", "m"])
def test_no_benchmark_is_none(text):
    assert read_benchmark_command(text) is None


_EAGLE = "sglang serve --model-path m --speculative-algorithm EAGLE --speculative-num-steps 3"


@pytest.mark.parametrize(
    ("more", "draft"),
    [
        ("--speculative-eagle-topk 1 --speculative-num-draft-tokens 4", "mtp:3"),
        ("--speculative-draft-model-path d", "eagle:3"),
    ],
)
def test_chains_of_drafts_of_sglang_are_speculation(more, draft):
    assert dict(read_serve_command(f"{_EAGLE} {more}").flags) == {"--speculative": draft}


def test_trees_of_drafts_stay_as_they_are():
    found = dict(read_serve_command(f"{_EAGLE} --speculative-eagle-topk 4").flags)
    assert found["--speculative-eagle-topk"] == "4"
