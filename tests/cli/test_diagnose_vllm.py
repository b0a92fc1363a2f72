"""inferometer diagnose of load tests of a real vLLM server with few places and no prefix cache."""

import json

import pytest
from command_line import run
from tests.measure.vllm_server import MODEL, vllm_server

from inferometer.measure.load.bodies import FIRST_TOKEN_ID, N_TOKEN_IDS, WORDS

pytestmark = pytest.mark.slow

PLAIN = [f"<{index}>" for index in range(FIRST_TOKEN_ID + N_TOKEN_IDS)]
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = {rate_per_s}
[[classes]]
name = "all"
prompt_tokens = {{ kind = "uniform", low = 20, high = 60 }}
output_tokens = {{ kind = "uniform", low = {low}, high = {high} }}
"""
SHARED = """
[classes.system_prompts]
tokens = { kind = "constant", value = 900 }
"""
FLAGS = ("--max-num-seqs", "3", "--no-enable-prefix-caching")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with vllm_server(tmp_path_factory.mktemp("vllm"), *FLAGS, words=[*PLAIN, *WORDS]) as address:
        yield address


def diagnosed(url, folder, workload, *words):
    (folder / "all.toml").write_text(workload)
    sent = ("--endpoint", "completions", "--prompts", "token-ids", "--no-report")
    took = ("--for", "20s", "--drain", "5s", "--out", "loaded")
    load = ("load", url, "--model", MODEL, "--workload", "all.toml", *sent, *took)
    done = run(*load, folder=folder)
    assert (folder / "loaded" / "server.parquet").exists(), done.stderr
    found = run("diagnose", "loaded", *words, "--json", folder=folder)
    assert found.stdout, found.stderr
    return json.loads(found.stdout)


def test_a_full_batch_is_named(url, tmp_path):
    answer = diagnosed(url, tmp_path, WORKLOAD.format(rate_per_s=15, low=60, high=120))
    assert (answer["finding"], answer["cause"]) == ("limited", "max_num_seqs")
    limit = {"name": "max_num_seqs", "low": 3, "high": 3, "source": "identified"}
    assert answer["limits"][0] == limit
    assert answer["version"][0].isdecimal()


def test_a_prefix_cache_that_is_off_is_named_where_prompts_are_alike(url, tmp_path):
    answer = diagnosed(url, tmp_path, WORKLOAD.format(rate_per_s=2, low=5, high=10) + SHARED)
    assert (answer["finding"], answer["cause"]) == ("limited", "prefix_cache")


def test_a_server_at_ease_is_healthy(url, tmp_path):
    light = WORKLOAD.format(rate_per_s=2, low=5, high=10)
    answer = diagnosed(url, tmp_path, light, "--slo", "ttft:p95<2s, tpot:p90<1s")
    assert (answer["finding"], answer["slo_verdict"]) == ("healthy", "met")
    by_name = {row["name"]: row for row in answer["latencies"]}
    assert by_name["tpot:p90"]["measured_high_s"] is not None
