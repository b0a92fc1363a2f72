"""What does a real vLLM do on a GPU, and were our predictions of it true?

Qwen2.5-3B's shape with random weights. Three parts, in this order: ``foretold`` seals loads of a
server by the datasheet and the shipped efficiencies, where the GPU need not be; ``sweep`` runs vLLM
in process, fits it, and seals the same loads by that fit; ``server`` starts vLLM, measures those
loads once for both, then starts it with too small a batch and asks ``diagnose`` what limits it.
Records stay in the folder. ``--brief`` tries it out on a CPU with a small model.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from vllm_here import QUIET, vllm_server, write_model

from inferometer.inputs.catalog import find_model

MODEL, BRIEF_MODEL = "qwen2.5-3b", "smollm2-135m"
PLAN = """name = "{name}"
[server]
model = "{model}"
{step_times}
max_num_seqs = {max_num_seqs}
max_num_batched_tokens = {step_tokens}
max_model_len = 4096
own = {{ enable_prefix_caching = false }}
[traffic]
workload = "workload.toml"
{loads}
seed = 20261127
slo = "ttft:p95<500ms, tpot:p95<20ms"
[client]
served_model = "{model}"
prompts = "token-ids"
"""
WORKLOAD = """name = "questions of 1024 tokens at most"
seed = 20261127
[[classes]]
name = "question"
prompt_tokens = {{ kind = "uniform", low = {low}, high = {high} }}
output_tokens = {{ kind = "uniform", low = {least}, high = {most} }}
"""
LOADS = {
    "open": "rates_per_s = [5.0, 20.0, 60.0]\nduration_s = 20.0",
    "closed": "concurrencies = [8, 32, 128]\nn_requests = 400",
}
BRIEF_LOADS = {
    "open": "rates_per_s = [0.5]\nduration_s = 10.0",
    "closed": "concurrencies = [2]\nn_requests = 8",
}
FULL_BATCH, SMALL_BATCH = 256, 8
STEP_TOKENS = 8192
OVERLOAD_PER_S, WINDOW_S = 30.0, 30


def inferometer(*words, limit_s=200):
    """Run a verb, its output passed on, and print how it ended."""
    print(f"$ inferometer {' '.join(map(str, words))}", flush=True)
    line = [sys.executable, "-m", "inferometer", *map(str, words)]
    began_s = time.monotonic()
    try:
        code = subprocess.run(line, check=False, env=os.environ | QUIET, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        code = "too late"
    print(f"  exit {code} after {time.monotonic() - began_s:.1f} s", flush=True)


def write_plans(asked, route, step_times):
    """A plan of each kind of load, with these step times."""
    lengths = (
        {"low": 16, "high": 64, "least": 4, "most": 8}
        if asked.brief
        else {"low": 128, "high": 1024, "least": 64, "most": 192}
    )
    (asked.folder / "workload.toml").write_text(WORKLOAD.format(**lengths))
    for kind, loads in (BRIEF_LOADS if asked.brief else LOADS).items():
        plan = asked.folder / f"{route}-{kind}.toml"
        plan.write_text(
            PLAN.format(
                name=f"{asked.model} by vLLM on {asked.hardware}, {kind} loads, {route}",
                model=asked.model,
                step_times=step_times,
                max_num_seqs=FULL_BATCH,
                step_tokens=STEP_TOKENS,
                loads=loads,
            )
        )
        yield kind, plan


def _proof(asked, route, kind):
    return (
        "--out",
        asked.folder / f"proof-{route}-{kind}",
        "--ledger",
        asked.folder / "ledger.jsonl",
    )


def foretold(asked):
    """Seal by the device's datasheet and the efficiencies that the package ships."""
    for kind, plan in write_plans(asked, "foretold", f'hardware = "{asked.hardware}"'):
        inferometer("verify", plan, *_proof(asked, "foretold", kind), "--seal-only")


def sweep(asked):
    """vLLM in process: its sweep, its fit, and the same loads sealed by that."""
    prompts, batches = ("16,64", "1,2") if asked.brief else ("128,512,2048", "1,8,32,128")
    inferometer(
        *("sweep", "--model", asked.model, "--engine", "vllm", "--load-format", "dummy"),
        *("--dtype", asked.dtype, "--mode", asked.mode, "--seq", prompts),
        *("--batch-sizes", batches, "--gen-tokens", 4 if asked.brief else 16),
        *("--warmup", 1, "--reps", 5, "--out", asked.folder / "sweep"),
        limit_s=300,
    )
    inferometer("fit", asked.folder / "sweep", "--out", asked.folder / "step_time.json")
    for kind, plan in write_plans(asked, "fitted", 'fit = "step_time.json"'):
        inferometer("verify", plan, *_proof(asked, "fitted", kind), "--seal-only")


def _flags(asked, max_num_seqs):
    return (
        *("--served-model-name", asked.model, "--no-enable-prefix-caching"),
        *("--max-model-len", 4096, "--max-num-seqs", max_num_seqs),
        *("--max-num-batched-tokens", STEP_TOKENS),
    )


def _in_loads(asked, url):
    """The loads, measured once, for both routes."""
    for kind in LOADS:
        first = True
        for route in ("foretold", "fitted"):
            plan = asked.folder / f"{route}-{kind}.toml"
            if not plan.exists():
                continue
            where = _proof(asked, route, kind)
            if first:
                inferometer("verify", plan, *where, "--url", url)
                measured = asked.folder / f"proof-{route}-{kind}"
                first = False
            else:
                runs = [path.parent for path in sorted(measured.rglob("manifest.json"))]
                checks = [word for run in runs for word in ("--check", run)]
                inferometer("verify", plan, *where, *checks)


def server(asked):
    """The sealed loads on a real server; then one whose batch is too small, diagnosed."""
    shape = asked.folder / "served"
    model = find_model(asked.model)
    write_model(shape, model, dtype=asked.dtype)
    began_s = time.monotonic()
    with vllm_server(shape, *_flags(asked, FULL_BATCH), mode=asked.mode, dtype=asked.dtype) as url:
        print(f"up after {time.monotonic() - began_s:.0f} s", flush=True)
        _keep_metrics(asked, url, "full")
        _in_loads(asked, url)
        _keep_metrics(asked, url, "full-after")
    with vllm_server(shape, *_flags(asked, SMALL_BATCH), mode=asked.mode, dtype=asked.dtype) as url:
        _diagnosed(asked, url)
    if (advised := _advised(asked)) is not None:
        with vllm_server(shape, *_flags(asked, advised), mode=asked.mode, dtype=asked.dtype) as url:
            _overload(asked, url, asked.folder / "changed", 2)
        inferometer(
            *("verify", asked.folder / "diagnosis", "--check", asked.folder / "changed"),
            *("--ledger", asked.folder / "ledger.jsonl"),
        )
    for log in shape.glob("server-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if re.search(
                r"KV cache|Maximum concurrency|attention backend|Graph capturing|init engine", line
            ):
                print(line[:200])
        log.rename(asked.folder / log.name.replace(".log", ".txt"))


def _keep_metrics(asked, url, name):
    page = urllib.request.urlopen(f"{url}/metrics", timeout=10).read()  # noqa: S310 -- our own loopback
    (asked.folder / f"metrics-{name}.txt").write_bytes(page)


def _overload(asked, url, out, seed):
    """The load that is too much for the small batch."""
    rate, window_s = (1.0, 20) if asked.brief else (OVERLOAD_PER_S, WINDOW_S)
    inferometer(
        *("load", url, "--workload", asked.folder / "workload.toml", "--rate", rate),
        *("--for", f"{window_s + 10}s", "--seed", seed, "--drain", "10s", "--prompts", "token-ids"),
        *("--endpoint", "completions", "--metrics-url", f"{url}/metrics", "--no-report"),
        *("--out", out),
    )
    return window_s


def _diagnosed(asked, url):
    """What is said, while the load runs, to limit a server with room for few sequences."""
    load = threading.Thread(target=_overload, args=(asked, url, asked.folder / "small-batch", 1))
    load.start()
    time.sleep(5)
    window_s = 20 if asked.brief else WINDOW_S
    inferometer(
        *("diagnose", url, "--slo", "ttft:p95<500ms, tpot:p95<20ms", "--for", f"{window_s}s"),
        *("--out", asked.folder / "diagnosis", "--ledger", asked.folder / "ledger.jsonl"),
    )
    load.join()


def _advised(asked):
    """The number of sequences that the diagnosis advises; None where it advises none."""
    sealed = asked.folder / "diagnosis" / "change.json"
    found = json.loads(sealed.read_text()) if sealed.exists() else {}
    value = re.search(r"max.num.seqs\D+(\d+)", json.dumps(found))
    return None if value is None else int(value.group(1))


PARTS = {"foretold": foretold, "sweep": sweep, "server": server}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--folder", type=Path, default=Path("runs") / "gpu-vllm")
    parser.add_argument("--hardware", default="h100_sxm", help="What `foretold` seals for.")
    parser.add_argument("--brief", action="store_true", help="Try it out on a CPU.")
    asked = parser.parse_args()
    asked.model, asked.dtype, asked.mode = MODEL, "bfloat16", "compiled"
    if asked.brief:
        asked.model, asked.dtype, asked.mode = BRIEF_MODEL, "float32", "eager"
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.parts or PARTS:
        PARTS[name](asked)


if __name__ == "__main__":
    main()
