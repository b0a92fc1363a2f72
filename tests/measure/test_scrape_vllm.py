"""Does a real vLLM server say of itself what was sent to it, and is every token counted?

Tokens come in other fields than the text, too: reasoning, and tool calls under a grammar. Random
weights think until their tokens are spent; a grammar makes them write the JSON of a call. Its
tokens are bytes, so what is no text yet comes late or together, as with real models.
"""

import http.client
import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.measure.vllm_server import MODEL, complete, vllm_server

from inferometer.decide.tuning.start_command import command_of
from inferometer.measure.local_server import server_command
from inferometer.measure.scrape import scraping
from inferometer.measure.server_identity import server_identity
from inferometer.records.reading import read_run
from inferometer.records.server_series import counter_series, gauge_series, server_record
from inferometer.records.server_summaries import summarise_server, ttft_parts
from inferometer.records.types import ABSENT, RequestStatus, RequestTable

pytestmark = pytest.mark.slow

BLOCK_TOKENS = 128
"""vLLM's on a CPU."""
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
PARSERS = (
    *("--reasoning-parser", "qwen3"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")  # has the page /server_info
        with vllm_server(tmp_path_factory.mktemp("vllm"), "--enable-mfu-metrics", *PARSERS) as url:
            complete(url, [1, 2, 3], 2)
            yield url


def test_it_tells_the_limits_that_it_was_started_with(url):
    found = server_identity(url, "vllm")
    assert found.model == MODEL
    assert found.facts.version[0].isdecimal()
    assert found.facts.compute_dtype == "float32"
    assert found.scheduler.max_num_seqs == 8
    assert found.scheduler.max_model_len == 1024
    assert found.scheduler.max_num_batched_tokens >= 1024
    assert found.scheduler.enable_prefix_caching is True


def test_its_command_line_states_them_too(url):
    assert command_of(server_command(url)).value("max_num_seqs") == "8"


def prompt_of(n_tokens: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 257, n_tokens).tolist()


def stream(url: str, prompt: list[int], output_tokens: int) -> tuple[int, int, int]:
    """When it was sent, when the first token came, when the last."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    sent_ns, arrived_ns = time.monotonic_ns(), []
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data: {"):
            arrived_ns.append(time.monotonic_ns())
    connection.close()
    return sent_ns, arrived_ns[0], arrived_ns[-1]


def requests_of(times_ns, started_ns):
    sent, first, last = (
        np.array(column, np.int64) - started_ns for column in zip(*times_ns, strict=True)
    )
    n = len(sent)
    zeros = np.zeros(n, np.int32)
    return RequestTable(
        intended_send_ns=sent, sent_ns=sent, admitted_ns=np.full(n, ABSENT), first_token_ns=first, finished_ns=last, prompt_tokens=zeros,
        cached_tokens=zeros, output_tokens=zeros, n_preemptions=zeros, status=np.full(n, RequestStatus.LENGTH, np.int8), priority=zeros,
        class_index=zeros, request_index=np.arange(n, dtype=np.int32),
    )  # fmt: skip


def test_counts_and_means_are_those_of_what_was_sent(url):
    asked = [(prompt_of(60 + 10 * i, seed=i), 8 + i) for i in range(12)]
    started_ns = time.monotonic_ns()
    with scraping(url, started_ns=started_ns, every_s=0.1) as scraper:
        times_ns = [stream(url, *one) for one in asked]
        time.sleep(0.3)
    server = summarise_server(scraper.table())
    n_output = sum(n for _, n in asked)
    assert (server.kind, server.n_finished, server.n_restarts, server.n_failed_scrapes) == (
        "vllm",
        12,
        0,
        0,
    )
    assert (server.prompt_tokens, server.output_tokens) == (
        sum(len(prompt) for prompt, _ in asked),
        n_output,
    )
    assert {one.name: one.n for one in server.times} == {
        "ttft": 12, "itl": n_output - 12, "tpot": 12, "e2e": 12, "queue": 12, "prefill": 12, "decode": 12, "inference": 12
    }  # fmt: skip
    assert server.kv_block_tokens == BLOCK_TOKENS
    assert server.n_kv_blocks > 1000
    mean_s = {one.name: one.mean_s for one in server.times}
    sent, first, last = (np.array(column) for column in zip(*times_ns, strict=True))
    assert mean_s["inference"] == pytest.approx(mean_s["prefill"] + mean_s["decode"])
    assert 0.5 * (last - sent).mean() / 1e9 < mean_s["e2e"] < (last - sent).mean() / 1e9
    assert mean_s["queue"] + mean_s["prefill"] < mean_s["ttft"] < (first - sent).mean() / 1e9
    for one in server.times:
        assert all(percentile.low_s < percentile.high_s for percentile in one.percentiles)
    parts = ttft_parts(requests_of(times_ns, started_ns), server)
    assert parts.n_requests == parts.n_server_requests == 12
    shares_s = (parts.client_s, parts.network_s, parts.queue_s, parts.prefill_s, parts.handover_s)
    assert all(share_s >= 0 for share_s in shares_s)
    assert sum(shares_s) == pytest.approx((first - sent).mean() / 1e9)
    assert 0 < server.flop_utilisation_fraction(1e12) < 1
    assert 0 < server.bandwidth_utilisation_fraction(1e12) < 1


def test_what_is_going_on_is_seen_as_it_goes_on(url):
    """24 requests for 8 slots: some wait, never more than 8 run, the cache fills and empties."""
    with (
        scraping(url, started_ns=time.monotonic_ns(), every_s=0.02) as scraper,
        ThreadPoolExecutor(24) as pool,
    ):
        list(pool.map(lambda i: complete(url, prompt_of(300, seed=100 + i), 180), range(24)))
    table = scraper.table()
    server, record = summarise_server(table), server_record(table)
    assert 4 < server.running.highest <= 8, (
        "whether a scrape sees all 8 at once is luck where steps are short"
    )
    assert 1 <= server.waiting.highest <= 16
    assert server.time("queue").mean_s > 0.1 * server.time("e2e").mean_s
    used = gauge_series(record, "kv_usage")
    assert used.value[-1] == 0.0
    assert 0 < used.value.max() <= 8 * 4.5 / server.n_kv_blocks
    tokens = counter_series(record, "output_tokens").value
    assert (np.diff(tokens) >= 0).all()
    assert (tokens[0], tokens[-1]) == (0, 24 * 180)
    assert server.n_preemptions == 0


def test_the_prefix_cache_finds_what_was_there(url):
    prompt = prompt_of(2 * BLOCK_TOKENS + 10, seed=999)
    with scraping(url, started_ns=time.monotonic_ns()) as scraper:
        for _ in range(4):
            complete(url, prompt, 2)
    server = summarise_server(scraper.table())
    assert server.prefix_queries_tokens == 4 * len(prompt)
    assert server.prefix_hits_tokens == 3 * 2 * BLOCK_TOKENS
    assert server.prefix_hit_fraction == pytest.approx(0.75 * 256 / 266)


def test_scraping_costs_little(url):
    """CPU time of this process for 50 scrapes, reading them included: what a second of a run costs is a fiftieth."""
    began_s = time.process_time()
    with scraping(url, started_ns=time.monotonic_ns(), every_s=0.02) as scraper:
        time.sleep(1.0)
    taken_s = time.process_time() - began_s
    server = summarise_server(scraper.table())
    assert server.n_scrapes > 20
    assert taken_s / server.n_scrapes < 0.02
    read_s = time.process_time() - began_s - taken_s
    assert read_s / server.n_scrapes < 0.02


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
