"""What servers say that they are: pages as vLLM 0.32, SGLang 0.5 and llama.cpp answer.

The fields of SGLang's page are those of the page that its documentation shows, of a real server of
Qwen2.5 0.5B; llama.cpp's are those of its documentation. A real vLLM's are read in ``test_scrape_vllm.py``.
"""

import http.server
import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from inferometer.api.diagnose_source import Source, stated_limits
from inferometer.measure.server_identity import ServerIdentity, server_identity
from inferometer.records.server_names import SERVERS
from inferometer.records.server_series import ServerRecord
from inferometer.records.types import EngineFacts, SchedulerFacts

RECORD = ServerRecord(names=SERVERS[0], scraped_ns=np.arange(3), n_failed_scrapes=0, families={})
WINDOW = SimpleNamespace(summary=SimpleNamespace(n_kv_blocks=None), record=RECORD, replica=None)
SGLANG = {
    "model_path": "qwen/qwen2.5-0.5b-instruct",
    "served_model_name": "qwen/qwen2.5-0.5b-instruct",
    "context_length": None,
    "dtype": "auto",
    "max_running_requests": 128,
    "max_total_tokens": 20480,
    "max_total_num_tokens": 20480,
    "chunked_prefill_size": 8192,
    "max_prefill_tokens": 16384,
    "page_size": 1,
    "tp_size": 1,
    "dp_size": 1,
    "disable_radix_cache": False,
    "api_key": "s3cret",
    "internal_states": [
        {"memory_usage": {"token_capacity": 20480}, "effective_max_running_requests_per_dp": 96}
    ],
    "version": "0.5.9",
}
LLAMA_CPP = {
    "default_generation_settings": {"n_ctx": 1024},
    "total_slots": 4,
    "model_path": "models/7B/model.gguf",
    "build_info": "b6000-(unknown)",
}
VLLM = {
    "vllm_config": {
        "model_config": {"model": "m", "max_model_len": 2048, "dtype": "torch.bfloat16"},
        "scheduler_config": {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 4096,
            "enable_chunked_prefill": True,
            "async_scheduling": False,
        },
        "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": 4},
        "cache_config": {
            "num_gpu_blocks": None,
            "block_size": 16,
            "enable_prefix_caching": True,
        },
    }
}


@contextmanager
def served(**pages):
    """The URL of a server with these pages, and the paths that it was asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = pages.get(self.path.partition("?")[0].strip("/").replace("/", "_"))
            if body is None:
                self.send_error(404)
                return
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


def test_sglang_tells_what_its_ranks_made_of_its_arguments():
    with served(server_info=SGLANG) as (url, _):
        found = server_identity(url, "sglang")
    assert found.model == "qwen/qwen2.5-0.5b-instruct"
    assert found.facts == EngineFacts(
        engine="sglang",
        version="0.5.9",
        n_kv_blocks=20480,
        kv_block_tokens=1,
        scheduler=SchedulerFacts(
            max_num_seqs=96,
            max_num_batched_tokens=8192,
            enable_prefix_caching=True,
            enable_chunked_prefill=True,
            tensor_parallel_size=1,
            data_parallel_size=1,
        ),
    )


def test_the_page_of_an_older_sglang_has_another_name_and_whole_prompts_have_another_limit():
    page = SGLANG | {"chunked_prefill_size": -1, "internal_states": [], "disable_radix_cache": True}
    with served(get_server_info=page) as (url, asked):
        found = server_identity(f"{url}/v1", "sglang")
    assert asked[:2] == ["/server_info", "/get_server_info"]
    limits = found.scheduler
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (128, 16384)
    assert (limits.enable_prefix_caching, limits.enable_chunked_prefill) == (False, False)


def test_llama_cpp_tells_its_slots():
    models = {"data": [{"id": "models/7B/model.gguf"}]}
    with served(props=LLAMA_CPP, v1_models=models) as (url, _):
        found = server_identity(f"{url}/metrics", "llama.cpp")
    assert found.facts.version == "b6000-(unknown)"
    assert found.scheduler == SchedulerFacts(max_num_seqs=4, max_model_len=1024)


def test_nim_tells_its_model_beside_its_metrics():
    with served(v1_models={"data": [{"id": "meta/llama-3.1-8b-instruct"}]}) as (url, _):
        assert server_identity(f"{url}/v1/metrics", "nim").model == "meta/llama-3.1-8b-instruct"


def test_vllm_tells_its_limits_in_its_development_mode():
    models = {"data": [{"id": "served", "max_model_len": 2048}]}
    with served(server_info=VLLM, version={"version": "0.32.0"}, v1_models=models) as (url, _):
        found = server_identity(url, "vllm")
    assert found.model == "served"
    assert (found.facts.version, found.facts.compute_dtype) == ("0.32.0", "bfloat16")
    assert found.facts.n_kv_blocks is None
    assert found.scheduler == SchedulerFacts(
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        max_model_len=2048,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        async_scheduling=False,
        tensor_parallel_size=2,
        data_parallel_size=4,
    )


@pytest.mark.parametrize(
    "kind", ["vllm", "sglang", "tensorrt-llm", "triton", "llama.cpp", "tgi", "nim"]
)
@pytest.mark.parametrize("body", [None, b"", b"\xff{", b"[]", b"7", {"vllm_config": 3, "data": 1}])
def test_a_server_that_says_nothing_that_can_be_read_says_nothing(kind, body):
    names = ("server_info", "get_server_info", "props", "version", "v1_models")
    with served(**dict.fromkeys(names, body)) as (url, _):
        found = server_identity(url, kind)
    assert found.model is None
    assert found.scheduler is None or not any(
        getattr(found.scheduler, name) for name in ("max_num_seqs", "max_num_batched_tokens")
    )


@pytest.mark.parametrize("value", [0, -1, True, "8", 8.0, None, 10**12])
def test_what_is_no_limit_is_not_taken_for_one(value):
    page = SGLANG | {"internal_states": None, "max_running_requests": value}
    with served(server_info=page) as (url, _):
        assert server_identity(url, "sglang").scheduler.max_num_seqs is None


def test_nobody_there_says_nothing():
    with served() as (url, _):
        pass
    assert server_identity(url, "vllm") == ServerIdentity(None, None)


def test_limits_of_the_server_itself_go_before_its_command_and_ranks_are_left_alone():
    stated = SchedulerFacts(max_num_seqs=8)
    facts = EngineFacts(engine="vllm", version="0.32.0", n_kv_blocks=7, scheduler=stated)
    words = ("vllm", "serve", "m", "--max-num-seqs", "4", "--max-num-batched-tokens=2048")
    source = Source(window=WINDOW, identity=ServerIdentity("m", facts), command=words)
    assert stated_limits(source, {}) == {
        "max_num_seqs": (8, "server"),
        "max_num_batched_tokens": (2048, "command"),
        "n_kv_blocks": (7, "server"),
    }
    assert stated_limits(source, {"max_num_seqs": 9})["max_num_seqs"] == (9, "known")
    ranks = replace(facts, scheduler=replace(stated, data_parallel_size=2))
    assert stated_limits(replace(source, identity=ServerIdentity("m", ranks)), {}) == {}


def test_a_command_line_in_words_that_are_no_numbers_states_no_limit():
    words = ("python", "-m", "sglang.launch_server", "--max-running-requests", "many")
    assert stated_limits(Source(window=WINDOW, command=words), {}) == {}
