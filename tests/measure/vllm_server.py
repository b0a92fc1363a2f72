"""A real vLLM server on loopback, with a tiny random model.

From the engine's own environment, bounded in time, ended by its starter.

Its tokens are bytes, or words of the test's.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from inferometer.errors import EngineError
from inferometer.measure.environments import ENGINES_DIR, find_environment

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
START_TIMEOUT_S = 400.0
MAX_LIFE_S = 900
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
}


END, THOUGHT = "<|end|>", ("<think>", "</think>")
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_model(folder: Path, words: Sequence[str] = ()) -> None:
    """A configuration and a tokenizer of one token per word, or per byte where there are no words.

    VLLM draws the weights.
    """
    parts = word_tokenizer(words) if words else byte_tokenizer()
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        **parts,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": words[1] if words else END,
        "model_max_length": 1024,
    }
    settings |= {"chat_template": TEMPLATE} | ({"unk_token": words[0]} if words else {})
    config = CONFIG | {"vocab_size": len(parts["model"]["vocab"])}
    for name, content in (
        ("config", config),
        ("tokenizer", tokenizer),
        ("tokenizer_config", settings),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))


def byte_tokenizer() -> dict:
    """Ids 1 to 256 are bytes, 0 is the end, the last two are about a thought."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    letters = [chr(byte) for byte in printable] + [
        chr(256 + i) for i in range(256 - len(printable))
    ]
    vocabulary = {word: i for i, word in enumerate([END, *letters, *THOUGHT])}
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "added_tokens": [
            {"id": vocabulary[word], "content": word, **flags} for word in (END, *THOUGHT)
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def word_tokenizer(words: Sequence[str]) -> dict:
    """The first stands for what is no word, the second is the end."""
    model = {
        "type": "WordLevel",
        "vocab": {word: i for i, word in enumerate(words)},
        "unk_token": words[0],
    }
    return {
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": None,
        "model": model,
    }


def vllm_python() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENGINES_DIR, str(ROOT))
        try:
            return str(find_environment("vllm").python)
        except EngineError as error:
            pytest.skip(f"{error.what}; {error.try_}")


@contextmanager
def vllm_server(folder: Path, *further: str, words: Sequence[str] = ()) -> Generator[str]:
    """The address of a server that is up.

    ``folder`` is where its model, of these ``words`` or of bytes, and its log are written.
    """
    write_model(folder, words)
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        vllm_python(),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--served-model-name",
        MODEL,
    ]
    command += [
        "--load-format",
        "dummy",
        "--dtype",
        "float32",
        "--max-model-len",
        "1024",
        "--enforce-eager",
        "--max-num-seqs",
        "8",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), *further]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no worker process beside the engine's: 10 of 27 CPU s
        "HF_HUB_OFFLINE": "1",
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["timeout", str(MAX_LIFE_S), *command],
            env=os.environ | settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        _wait_until_up(url, process, folder / "server.log")
        yield url
    finally:
        _end(process)


def complete(url: str, prompt: list[int], output_tokens: int) -> dict:
    """One whole answer of exactly so many tokens."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
    }
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        return json.load(connection.getresponse())


def _end(process: subprocess.Popen) -> None:
    """Ask it to end, then end it and the processes that it started, which are one group."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _wait_until_up(url: str, process: subprocess.Popen, log: Path) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            pytest.fail(
                "the server ended with"
                f" {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}"
            )
        try:
            with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=2)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == http.client.OK:
                    return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.5)
    pytest.fail(
        f"the server was not up after {START_TIMEOUT_S}"
        f" s:\n{log.read_text(errors='replace')[-3000:]}"
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
