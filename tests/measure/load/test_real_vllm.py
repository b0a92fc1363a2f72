"""The whole way against the real thing: vLLM's server with random weights of a tiny llama.

Every request served, every length honoured.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.measure.vllm_server import vllm_server

from inferometer.measure.load.bodies import FIRST_TOKEN_ID, N_TOKEN_IDS, WORDS
from inferometer.records.reading import read_run
from inferometer.records.types import ABSENT, RequestStatus

pytestmark = pytest.mark.slow
PLAIN = [f"<{index}>" for index in range(FIRST_TOKEN_ID + N_TOKEN_IDS)]
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


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Of a server whose tokenizer has a token for each of our words."""
    with vllm_server(tmp_path_factory.mktemp("vllm"), words=[*PLAIN, *WORDS]) as address:
        yield address


def load(url, folder, *flags):
    (folder / "talk.toml").write_text(WORKLOAD)
    words = [
        "load",
        url,
        "--model",
        "tiny",
        "--workload",
        "talk.toml",
        "--requests",
        60,
        "--out",
        "run",
        "--body",
        "temperature=0",
        *flags,
    ]
    line = [Path(sys.executable).parent / "inferometer", *words]
    return subprocess.run(
        [str(word) for word in line],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


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
    assert outcome.returncode in {0, 3}, (
        outcome.stderr
    )  # beside busy neighbours the client may be late, and says so
    run = read_run(tmp_path / "run")
    requests, exchanges = run.requests, run.exchanges
    assert sorted(requests.request_index.tolist()) == list(range(60))
    assert set(exchanges.error.tolist()) == {""}, outcome.stderr
    assert (requests.status == RequestStatus.LENGTH).all()
    assert (requests.output_tokens == exchanges.asked_output_tokens).all()
    assert (exchanges.usage_output_tokens == exchanges.asked_output_tokens).all()
    if "token-ids" in flags or "chat" in flags:
        assert (requests.prompt_tokens == exchanges.usage_prompt_tokens).all(), (
            "each word or id is one token, as planned"
        )
    assert exchanges.is_reused.sum() > 30
    assert (run.server.name == "vllm:request_success_total").any() or np.char.startswith(
        run.server.name, "vllm"
    ).any()
    if "--no-stream" not in flags:
        several = requests.output_tokens > 1
        assert (requests.first_token_ns[several] <= requests.finished_ns[several]).all()
        assert np.median((requests.finished_ns - requests.first_token_ns)[several]) > 0, (
            "streams, though not each token alone"
        )
        assert (requests.first_token_ns != ABSENT).all()


def test_shared_prefixes_are_found_in_the_servers_cache(url, tmp_path):
    load(url, tmp_path, "--endpoint", "completions", "--prompts", "token-ids", "--seed", "7")
    cached = read_run(tmp_path / "run").server
    hits = cached.value[np.char.find(cached.name, "prefix_cache_hits") >= 0]
    assert hits.size
    assert np.nanmax(hits) - np.nanmin(hits) > 64 * 10, "the system prompt's blocks at the least"
