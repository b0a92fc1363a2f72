"""How does a real vLLM server with random weights come up here, on loopback, for as long as a benchmark needs it?"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from inferometer.inputs.config_writing import config_from_model
from inferometer.measure.environments import ENGINES_DIR, find_environment

ROOT = Path(__file__).parents[1]
KV_GIB = 1
UP_S, MAX_LIFE_S = 420, 3600
QUIET = {
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    ENGINES_DIR: str(ROOT),
}
_SERVER = {
    "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def server_settings(n_threads):
    """The environment of a server, and how many threads compute for it."""
    return _SERVER | {"OMP_NUM_THREADS": str(n_threads)}


def vllm_python():
    """The interpreter of vLLM's environment."""
    os.environ.setdefault(ENGINES_DIR, str(ROOT))
    return find_environment("vllm").python


def write_model(folder, model, *, dtype="float32"):
    """The shape of the model, and a tokenizer that has a word for each id: prompts are sent as ids."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {f"<{index}>": index for index in range(model.vocab_size)}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        **parts,
    }
    tokenizer["model"] = {"type": "WordLevel", "vocab": words, "unk_token": "<0>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<0>",
        "eos_token": "<1>",
    }
    for name, content in (
        ("config", config_from_model(model, dtype=dtype)),
        ("tokenizer", tokenizer),
        ("tokenizer_config", settings),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))


@contextmanager
def vllm_server(folder, *flags, core=None, mode="eager", threads=1, dtype="float32"):
    """The URL of a server of the model in ``folder``, up; on one ``core`` where that is said.

    ``mode`` is "eager", or "compiled" as vLLM does by itself. It ends with the block, or in an
    hour.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [
        *(["taskset", "-c", core] if core else []),
        "timeout",
        str(MAX_LIFE_S),
        str(vllm_python()),
    ]
    line += [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--load-format",
        "dummy",
        "--dtype",
        dtype,
    ]
    line += ["--enforce-eager"] if mode == "eager" else []
    line += ["--host", "127.0.0.1", "--port", str(port), *map(str, flags)]
    settings = os.environ | QUIET | server_settings(threads)
    log = folder / f"server-{port}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            line, stdout=file, stderr=file, env=settings, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until_up(url, process, log):
    """Until the server that the process is answers; what it wrote, where it does not."""
    until_s = time.monotonic() + UP_S
    while not _is_up(url):
        if process.poll() is not None or time.monotonic() > until_s:
            raise SystemExit(
                f"the server did not come up\n{log.read_text(errors='replace')[-3000:]}"
            )
        time.sleep(0.5)


def _is_up(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200  # noqa: S310 -- our own loopback
    except OSError:
        return False
