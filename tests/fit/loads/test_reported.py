"""What does a vLLM server name of itself? Lines of a real one's log."""

import numpy as np
import pytest
from black_boxes import manifest

from inferometer.errors import ModelError
from inferometer.fit.loads.reported import reported_by_server
from inferometer.records.types import RequestTable, Run, ServerSampleTable

LOG = """
INFO [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'dtype': 'float32', 'max_model_len': 1024, 'max_num_seqs': 8}
INFO [scheduler.py:308] Chunked prefill is enabled with max_num_batched_tokens=4096.
INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='tiny', enable_prefix_caching=True, enable_chunked_prefill=True
INFO [kv_cache_utils.py:2327] CPU KV cache size: 1,048,576 tokens, Maximum concurrency for 1,024 tokens per request: 1024.00x
"""


def test_a_log_names_limits_and_switches():
    told = reported_by_server([], LOG)
    assert told.limits == {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "n_kv_blocks": 65535}
    assert told.switches == {"enable_prefix_caching": True, "enable_chunked_prefill": True}


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 40])
def test_a_log_with_numbers_of_no_server_is_refused(number):
    with pytest.raises(ModelError, match="a number of"):
        reported_by_server([], LOG.replace("1,048,576", number))
    status = (
        f"Running: {number} reqs, Waiting: 1 reqs, GPU KV cache usage: 1.2.3%, Running: 3 reqs,"
        " Waiting: 0 reqs"
    )
    assert reported_by_server([], status).limits == {}


def test_metrics_name_the_cache():
    instants = np.array([1, 2], np.int64) * 10**9
    samples = ServerSampleTable(
        scraped_ns=np.repeat(instants, 2),
        name=np.tile(["vllm:cache_config_info", "vllm:num_requests_running"], 2),
        labels=np.tile(['block_size="32",num_gpu_blocks="700"', ""], 2),
        value=np.ones(4),
    )
    run = Run(manifest=manifest("bare"), sweep=None, steps=None, ceilings=None, server=samples)
    told = reported_by_server([run], None)
    assert (told.limits, told.block_tokens) == ({"n_kv_blocks": 699}, 32)
    both = reported_by_server([run], LOG)
    assert (both.limits["n_kv_blocks"], both.block_tokens) == (1_048_576 // 32 - 1, 32)


def answers(tokens, n=50):
    """Requests of which only their answers' length matters."""
    plain = dict.fromkeys(RequestTable._fields, np.zeros(n, np.int64))
    return RequestTable(**plain | {"output_tokens": np.full(n, tokens, np.int32)})


def scraped(running, waiting, kv_usage, tokens=27):
    """A record of these gauges, a scrape a second."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    samples = ServerSampleTable(
        scraped_ns=np.repeat(np.arange(len(running), dtype=np.int64) * 10**9, 3),
        name=np.tile(names, len(running)),
        labels=np.tile(["", "", ""], len(running)),
        value=np.column_stack([running, waiting, kv_usage]).ravel().astype(float),
    )
    return Run(
        manifest=manifest("bare"),
        sweep=None,
        steps=None,
        ceilings=None,
        requests=answers(tokens),
        server=samples,
    )


RUNNING = (16, 16, 15, 15, 13, 15, 16, 15, 15, 14, 16, 15, 14, 16)
"""Of a real vLLM server with 16 slots: answers that just ended have left theirs."""


def slots(running, waiting, kv_usage, tokens=27):
    n = len(running)
    return reported_by_server(
        [scraped(running, [waiting] * n, [kv_usage] * n, tokens)], None
    ).limits.get("max_num_seqs")


def test_a_queue_beside_free_memory_tells_the_seats():
    assert slots(RUNNING, 3, 0.2) == 16
    assert slots(RUNNING, 0, 0.2) is None  # nobody waited
    assert slots(RUNNING, 3, 0.99) is None  # for memory, may be
    assert (
        slots((15, 14, 15, 15, 15, 15), 3, 0.2) is None
    )  # too few looks: its sixteenth slot was free each time
    assert (
        slots(RUNNING, 3, 0.2, tokens=8) is None
    )  # so short that there is always one that just ended
    assert (
        slots((16, *(13, 14, 15) * 10), 3, 0.2) is None
    )  # seldom as many: steps were full of prompts


def test_status_lines_of_a_log_tell_seats_too():
    line = (
        "INFO [loggers.py:271] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation"
        " throughput: 54.1 tokens/s, "
    )
    lines = [
        f"{line}Running: {n} reqs, Waiting: 4 reqs, CPU KV cache usage: 9.9%, Prefix cache hit"
        " rate: 0.0%"
        for n in RUNNING
    ]
    run = Run(
        manifest=manifest("bare"), sweep=None, steps=None, ceilings=None, requests=answers(27)
    )
    assert reported_by_server([run], "\n".join(lines)).limits == {"max_num_seqs": 16}


@pytest.mark.parametrize(("queries", "is_on"), [((0, 900), True), ((0, 0), False)])
def test_lookups_tell_whether_prefixes_are_cached(queries, is_on):
    """vLLM counts looked-up tokens only where there is a cache to look them up in."""
    names = ("vllm:prefix_cache_queries_total", "vllm:request_success_total")
    samples = ServerSampleTable(
        scraped_ns=np.repeat(np.array([1, 2], np.int64) * 10**9, 2),
        name=np.tile(names, 2),
        labels=np.tile(["", ""], 2),
        value=np.array([queries[0], 0.0, queries[1], 7.0]),
    )
    run = Run(manifest=manifest("bare"), sweep=None, steps=None, ceilings=None, server=samples)
    assert reported_by_server([run], None).switches == {"enable_prefix_caching": is_on}


def test_a_log_names_the_longest_request():
    assert reported_by_server([], LOG).max_model_len == 1024
    assert (
        reported_by_server(
            [],
            "with config: model='tiny', dtype=torch.float32, max_seq_len=4096, download_dir=None",
        ).max_model_len
        == 4096
    )


def test_of_several_ranks_the_smallest_cache_counts():
    """Before vLLM 0.12 each rank has a line; uneven ones, of pipeline stages, are cut to the least."""
    lines = "GPU KV cache size: 294,992 tokens\nGPU KV cache size: 160,000 tokens\n"
    assert reported_by_server([], lines).limits == {"n_kv_blocks": 9999}
