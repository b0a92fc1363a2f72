"""The whole way against the real thing: vLLM's server with random weights of a tiny llama.

Every request served, every length honoured.
"""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tests.measure.vllm_server import vllm_server

import otlp_receiver
from inferometer.inputs import spans as names
from inferometer.inputs.spans import read_spans
from inferometer.inputs.workload.reading import read_workload
from inferometer.inputs.workload.replay import draw_workload
from inferometer.measure.load.bodies import FIRST_TOKEN_ID, N_TOKEN_IDS, WORDS
from inferometer.records.reading import read_run
from inferometer.records.request_spans import span_times
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.run import demand_of, simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

pytestmark = pytest.mark.slow
PLAIN = [f"<{index}>" for index in range(FIRST_TOKEN_ID + N_TOKEN_IDS)]
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = 8.0
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
def collector(tmp_path_factory):
    with otlp_receiver.receiver(tmp_path_factory.mktemp("spans") / "spans.jsonl") as receiver:
        yield receiver


@pytest.fixture(scope="module")
def url(tmp_path_factory, collector):
    """Of a server whose tokenizer has a token for each of our words, and which sends its spans."""
    flags = ("--otlp-traces-endpoint", f"{collector.url}/v1/traces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        with vllm_server(
            tmp_path_factory.mktemp("vllm"), *flags, words=[*PLAIN, *WORDS]
        ) as address:
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


EXPORTED_S = 30.0


def test_each_request_has_its_span_of_vllm_and_the_parts_add_up(url, collector, tmp_path):
    flags = ("--endpoint", "completions", "--prompts", "token-ids", "--seed", "8")
    outcome = load(url, tmp_path, *flags, "--otlp-endpoint", collector.url)
    assert outcome.returncode in {0, 3}, outcome.stderr
    ends_s = time.monotonic() + EXPORTED_S
    while time.monotonic() < ends_s and n_served(spans_of(collector)) < 60:
        time.sleep(0.5)
    times = span_times(spans_of(collector))
    assert (times.seen_by, times.n_requests) == ("client and server", 60)
    assert times.n_client_only == 0
    means_s = {part.name: part.mean_s.value for part in times.parts}
    assert set(means_s) == {
        *("schedule delay", "network and router", "server's front end"),
        *("queue", "prefill", "decode"),
    }
    assert sum(means_s.values()) == pytest.approx(times.total_s.value)
    # The server's time is a part of the client's, up to what two clocks differ in a request.
    assert all(value_s > -2e-3 for value_s in means_s.values()), means_s
    assert means_s["decode"] > 0
    assert means_s["prefill"] > 0


def spans_of(collector):
    """Those of this run's traces: vLLM sends spans of requests that nobody traces, too."""
    spans = read_spans(collector.path)
    traced = {span.trace_id for span in spans if span.name == names.RUN}
    return tuple(span for span in spans if span.trace_id in traced)


def n_served(spans):
    return sum(span.number(names.IN_QUEUE) is not None for span in spans)


BEAMS = """
n_requests = 1
[[classes]]
name = "search"
prompt_tokens = { kind = "constant", value = 100 }
output_tokens = { kind = "constant", value = 40 }
[classes.beams]
width = WIDTH
"""
COUNTS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
)


def counted(url):
    """The server's counters, when they stand still."""
    found, before = None, ()
    while found != before:
        time.sleep(1.5)
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:  # noqa: S310 -- our own loopback
            lines = answer.read().decode().splitlines()
        before, found = (
            found,
            [
                sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}"))
                for name in COUNTS
            ],
        )
    return np.array(found)


@pytest.mark.parametrize("width", [2, 4])
def test_its_beam_search_is_the_requests_of_our_plan(url, width, tmp_path):
    """As many requests of one token, as long prompts, and as many tokens of them found in blocks of 128."""
    (tmp_path / "beams.toml").write_text(BEAMS.replace("WIDTH", str(width)))
    plan = draw_workload(read_workload(tmp_path / "beams.toml"), has_beams=True).plan
    config = SchedulerConfig(num_blocks=500, max_model_len=1024, max_num_seqs=8, block_size=128)
    simulated = simulate(demand_of(plan, 128), config, linear_cost(launch_s=1e-2)).requests
    n_prompt = int(simulated.prompt_tokens.sum())
    body = {
        "model": "tiny",
        "prompt": [FIRST_TOKEN_ID + (37 * k + width) % N_TOKEN_IDS for k in range(100)],
        "max_tokens": 40,
        "n": width,
        "use_beam_search": True,
        "temperature": 0.0,
    }
    before = counted(url)
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 -- our own loopback
        assert len(json.loads(answer.read())["choices"]) == width
    assert (counted(url) - before).tolist() == [
        n_prompt,
        plan.n_requests,
        plan.n_requests,
        n_prompt,
        int(simulated.cached_tokens.sum()),
    ]
