"""Do clients that others wrote work against the emulator, unchanged, and is what they measure what was written?

INFEROMETER_VLLM_PYTHON names an interpreter that has vLLM and OpenAI's client.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated import MODEL, PLAN
from word_tokenizer import write_word_tokenizer

from inferometer.serve.emission_log import EmissionKind, read_emission_log
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

pytestmark = pytest.mark.slow
N_REQUESTS, N_INPUT, N_OUTPUT = 60, 50, 20
CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=4096)


def python():
    named = os.environ.get("INFEROMETER_VLLM_PYTHON")
    if not named:
        pytest.skip("INFEROMETER_VLLM_PYTHON names no interpreter that can import vllm")
    return named


def run(*words):
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [python(), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **offline},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_openais_client():
    with start(replace(PLAN, fleet=lone_replica(CONFIG, PLAN.fleet.step_times))) as emulator:
        said = json.loads(run(Path(__file__).parent / "openai_client.py", emulator.url))
    assert said["model"] == MODEL
    assert len(said["whole"]["choices"][0]["text"].split()) == 5
    assert said["whole"]["usage"]["prompt_tokens"] == 3
    assert said["chat"]["usage"]["completion_tokens"] == 4
    assert said["role"] == "assistant"
    assert len(said["text"].split()) == 6
    assert said["finish_reason"] == "length"
    assert (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"]) == (2, 6)
    assert "The model `other` does not exist." in said["refused"]
    assert "maximum context length" in said["too_long"]


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")],
)
def test_vllm_bench_serve(backend, endpoint, tmp_path):
    tokenizer = write_word_tokenizer(tmp_path / "tokenizer")
    plan = replace(
        PLAN, fleet=lone_replica(CONFIG, linear_cost(launch_s=10e-3)), emission_log=tmp_path / "log"
    )
    flags = {
        "backend": backend,
        "endpoint": endpoint,
        "model": MODEL,
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-input-len": N_INPUT,
        "random-output-len": N_OUTPUT,
        "num-prompts": N_REQUESTS,
        "request-rate": 20,
        "result-dir": tmp_path,
        "result-filename": "result.json",
    }
    with start(plan) as emulator:
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        run(
            Path(__file__).parent / "vllm_bench.py",
            "--base-url",
            emulator.url,
            *words,
            "--ignore-eos",
            "--save-result",
        )
        emulator.stop()
        log = read_emission_log(tmp_path / "log")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == N_REQUESTS
    assert result["failed"] == 0
    assert result["total_output_tokens"] == N_REQUESTS * N_OUTPUT
    measured = [
        request
        for request in log.requests
        if request.accepted_ns >= log.requests[-N_REQUESTS].accepted_ns
    ]
    assert [request.output_tokens for request in measured[-N_REQUESTS:]] == [N_OUTPUT] * N_REQUESTS
    assert (
        abs(
            result["total_input_tokens"] / N_REQUESTS
            - np.mean([request.prompt_tokens for request in log.requests[-N_REQUESTS:]])
        )
        < 1
    )
    check_times(result, log)


def check_times(result, log):
    """A client cannot see a token before it is written.

    This one's own lag has no upper bound that a shared machine keeps.
    """
    ttft_ms, tpot_ms = [], []
    for request in log.requests[-N_REQUESTS:]:
        instants_ns = log.token_instants_ns(request.number)
        ttft_ms.append((instants_ns[0] - request.accepted_ns) / 1e6)
        tpot_ms.append((instants_ns[-1] - instants_ns[0]) / 1e6 / (N_OUTPUT - 1))
    assert result["mean_ttft_ms"] > np.mean(ttft_ms)
    assert result["mean_tpot_ms"] == pytest.approx(np.mean(tpot_ms), rel=0.15)
    assert np.mean(tpot_ms) == pytest.approx(10, rel=0.05)
    assert np.sum(log.kind == EmissionKind.HEADERS) == len(log.requests)
