"""Tokens that come in other fields than the text: a real vLLM server's reasoning, and its tool calls under a grammar.

Random weights think until their tokens are spent; a grammar makes them write the JSON of a call.
Its tokens are bytes, so what is no text yet comes late or together, as with real models.
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tests.measure.vllm_server import MODEL, vllm_server

from inferometer.records.reading import read_run
from inferometer.records.types import ABSENT, RequestStatus

pytestmark = pytest.mark.slow
N_REQUESTS, N_TOKENS = 30, 100
WORKLOAD = f"""
n_requests = {N_REQUESTS}
[arrivals]
kind = "open"
rate_per_s = 6.0
[[classes]]
name = "thinker"
prompt_tokens = {{ kind = "constant", value = 40 }}
output_tokens = {{ kind = "constant", value = {N_TOKENS} }}
"""
FUNCTION = {
    "name": "look_up",
    "parameters": {
        "type": "object",
        "properties": {"words": {"type": "string"}},
        "required": ["words"],
    },
}
WRITTEN = r'<tool_call>\{"name": "look_up", "arguments": \{"words": "[a-z ]{20}"\}\}</tool_call>'
CALL = {
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "structured_outputs": {"regex": WRITTEN},
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    parsers = (
        "--reasoning-parser",
        "qwen3",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    )
    with vllm_server(tmp_path_factory.mktemp("vllm"), *parsers) as address:
        yield address


def fields_of(url, **more):
    """Which fields of its deltas does the server fill?"""
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": N_TOKENS,
        "ignore_eos": True,
    } | more
    body = json.dumps(asked | {"stream": True}).encode()
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 -- our own loopback
        events = [
            line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: {")
        ]
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return {name for delta in deltas for name, value in delta.items() if value}


@pytest.mark.parametrize(
    ("body", "field"), [({}, "reasoning"), (CALL, "tool_calls")], ids=["reasoning", "a tool call"]
)
def test_tokens_count_in_whichever_field_they_come(body, field, url, tmp_path):
    assert field in fields_of(url, **body)
    (tmp_path / "w.toml").write_text(WORKLOAD)
    extra = [
        word for name, value in body.items() for word in ("--body", f"{name}={json.dumps(value)}")
    ]
    line = [
        Path(sys.executable).parent / "inferometer",
        "load",
        url,
        "--model",
        MODEL,
        "--workload",
        "w.toml",
        "--out",
        "run",
        *extra,
    ]
    outcome = subprocess.run(
        [str(word) for word in line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert outcome.returncode in {0, 3}, outcome.stderr
    run = read_run(tmp_path / "run")
    requests, exchanges = run.requests, run.exchanges
    assert set(exchanges.error.tolist()) == {""}, outcome.stderr
    assert len(requests.status) == N_REQUESTS
    assert (requests.output_tokens == exchanges.usage_output_tokens).all()
    assert (requests.first_token_ns != ABSENT).all()
    after_s = (requests.finished_ns - requests.first_token_ns) / 1e9
    assert np.median(after_s) > 0, (
        "the first token is that of the first field that is filled, not the end"
    )
    if not body:
        assert (requests.status == RequestStatus.LENGTH).all()
        assert (requests.output_tokens == N_TOKENS).all()
