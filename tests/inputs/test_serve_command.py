"""Is a server's start command taken apart as the shell and the engine would?"""

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.serve_command import read_serve_command


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


@pytest.mark.parametrize(
    "text", ["", "llama-3.1-8b", "models/my vllm/m", "serve m", "vllm bench m"]
)
def test_other_texts_are_none(text):
    assert read_serve_command(text) is None


@pytest.mark.parametrize("text", ["vllm serve", "vllm serve --port 1", "vllm serve 'm"])
def test_a_command_without_a_model_or_an_end_is_refused(text):
    with pytest.raises(SpecError):
        read_serve_command(text)
