"""What does a vLLM server name of itself? Lines of a real one's log."""

import numpy as np

from inferometer.fit.server_told import told_by_server
from inferometer.records.load_types import ServerSampleTable
from inferometer.records.types import Run

LOG = """
INFO [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'dtype': 'float32', 'max_model_len': 1024, 'max_num_seqs': 8}
INFO [scheduler.py:308] Chunked prefill is enabled with max_num_batched_tokens=4096.
INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='tiny', enable_prefix_caching=True, enable_chunked_prefill=True
INFO [kv_cache_utils.py:2327] CPU KV cache size: 1,048,576 tokens, Maximum concurrency for 1,024 tokens per request: 1024.00x
"""


def test_a_log_names_limits_and_switches():
    told = told_by_server([], LOG)
    assert told.limits == {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "n_kv_blocks": 65536}
    assert told.switches == {"enable_prefix_caching": True, "enable_chunked_prefill": True}


def test_metrics_name_the_cache():
    instants = np.array([1, 2], np.int64) * 10**9
    samples = ServerSampleTable(
        scraped_ns=np.repeat(instants, 2),
        name=np.tile(["vllm:cache_config_info", "vllm:num_requests_running"], 2),
        labels=np.tile(['block_size="32",num_gpu_blocks="700"', ""], 2),
        value=np.ones(4),
    )
    run = Run(manifest=None, sweep=None, steps=None, ceilings=None, server=samples)
    told = told_by_server([run], None)
    assert (told.limits, told.block_tokens) == ({"n_kv_blocks": 699}, 32)
    assert told_by_server([run], LOG).limits["n_kv_blocks"] == 65536


def test_silence_names_nothing():
    assert told_by_server([Run(manifest=None, sweep=None, steps=None, ceilings=None)], None).limits == {}
