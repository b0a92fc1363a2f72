"""Were we right on this machine?

Predictions sealed before they are measured, and entered in the ledger, misses too.

points: SmolLM2-135M swept at some prompts and batches, a fit of that, its predictions of other
prompts and batches sealed, then swept. server: the same in vLLM on one core; the fit of that sweep
and vLLM's scheduler, simulated, foretell two rates of a real vLLM server that has not been started
yet. It then gets the very same requests from the other core.

Each takes about six minutes on two slow cores, of which nobody else may need one; then `inferometer
ledger --into README.md`, and into docs/accuracy.md. What is measured is stored: the same command
goes on. ``--brief`` is for trying it out, into a ledger of its own.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from vllm_here import KV_GIB, QUIET, ROOT, vllm_server, write_model

from inferometer.inputs.catalog import find_model

INFEROMETER = Path(sys.executable).parent / "inferometer"
MODEL = "smollm2-135m"
ENGINE_CORE, CLIENT_CORE = "1", "0"
FAILED = (1, 2, 4, 5, 6)
"""Exit codes that are no answers; 3, 10 and 11 are."""
SEATS, STEP_TOKENS, MODEL_LEN, BLOCK_TOKENS = 8, 1024, 1024, 128
POINTS_PLAN = """name = "{name}: points between and beyond those of the fit"
[server]
model = "{model}"
fit = "step_time.json"
[points]
prompt_tokens = [{prompts}]
batch_sizes = [{batches}]
gen_tokens = {gen_tokens}
"""
SERVER_PLAN = """name = "SmolLM2-135M on a real vLLM server: two rates, from a sweep and vLLM's scheduler alone"
[server]
model = "{model}"
fit = "step_time.json"
max_num_seqs = {seats}
max_num_batched_tokens = {step_tokens}
max_model_len = {model_len}
block_size = {block_tokens}
num_blocks = {num_blocks}
own = {{ enable_prefix_caching = false }}
[traffic]
workload = "workload.toml"
rates_per_s = [{rates}]
n_requests = {n_requests}
slo = "ttft:p95<2s, tpot:p95<200ms"
[client]
served_model = "{model}"
prompts = "token-ids"
"""
WORKLOAD = """name = "short questions"
seed = 20261121
[[classes]]
name = "short"
prompt_tokens = { kind = "uniform", low = 32, high = 128 }
output_tokens = { kind = "uniform", low = 8, high = 24 }
"""


def inferometer(*words, core=None):
    """Run a verb, its output passed on; a failure that is no answer ends all."""
    pinned = ["taskset", "-c", core] if core else []
    line = [*pinned, str(INFEROMETER), *map(str, words)]
    print(f"$ inferometer {' '.join(map(str, words))}", flush=True)
    code = subprocess.run(line, check=False, env=os.environ | QUIET).returncode
    if code in FAILED or code < 0:
        raise SystemExit(f"exit code {code}")


def sweep(folder, asked, *flags, core=None):
    points = (
        "--seq",
        asked["prompts"],
        "--batch-sizes",
        asked["batches"],
        "--gen-tokens",
        asked["gen_tokens"],
    )
    how = ("--warmup", 1, "--reps", asked["reps"], "--load-format", "dummy", "--dtype", "float32")
    inferometer("sweep", "--model", MODEL, *points, *how, *flags, "--out", folder, core=core)


def prove_points(folder, ledger, brief):
    """Sweep, fit, seal the points that were left out, sweep those, check."""
    gen_tokens, reps = (4, 5) if brief else (16, 7)
    seen = {
        "prompts": "16,64" if brief else "32,128,256",
        "batches": "1,2" if brief else "1,2,8",
        "gen_tokens": gen_tokens,
        "reps": reps,
    }
    unseen = seen | {"prompts": "32" if brief else "64,192,320", "batches": "1" if brief else "1,4"}
    sweep(folder / "seen", seen)
    inferometer("fit", folder / "seen", "--out", folder / "step_time.json")
    plan = folder / "plan.toml"
    plan.write_text(
        POINTS_PLAN.format(
            name="SmolLM2-135M in transformers on 2 cores",
            model=MODEL,
            **{key: unseen[key] for key in ("prompts", "batches", "gen_tokens")},
        )
    )
    proof = ("verify", plan, "--out", folder / "proof", "--ledger", ledger)
    inferometer(*proof, "--seal-only")
    sweep(folder / "unseen", unseen)
    inferometer(*proof, "--check", folder / "unseen")


def prove_server(folder, ledger, brief):
    """Sweep vLLM in process, fit, seal two rates of a server, start it, send the very same requests."""
    seen = {
        "prompts": "32,128" if brief else "32,128,512",
        "batches": "1,2" if brief else "1,2,4,8",
        "gen_tokens": 8,
    }
    reps = {"reps": 3 if brief else 5}
    sweep(folder / "seen", seen | reps, "--engine", "vllm", "--threads", 1, core=ENGINE_CORE)
    inferometer("fit", folder / "seen", "--out", folder / "step_time.json")
    (folder / "workload.toml").write_text(WORKLOAD)
    plan = folder / "plan.toml"
    kv_bytes = (
        2
        * find_model(MODEL).n_layers
        * find_model(MODEL).attention.n_kv_heads
        * find_model(MODEL).attention.head_dim
        * 4
    )
    plan.write_text(
        SERVER_PLAN.format(
            model=MODEL,
            seats=SEATS,
            step_tokens=STEP_TOKENS,
            model_len=MODEL_LEN,
            block_tokens=BLOCK_TOKENS,
            num_blocks=KV_GIB * 2**30 // (kv_bytes * BLOCK_TOKENS),
            rates="0.5" if brief else "0.5, 1.0",
            n_requests=10 if brief else 80,
        )
    )
    proof = ("verify", plan, "--out", folder / "proof", "--ledger", ledger)
    inferometer(*proof, "--seal-only")
    write_model(folder / "served", find_model(MODEL))
    flags = (
        "--served-model-name",
        MODEL,
        "--no-enable-prefix-caching",
        "--max-model-len",
        MODEL_LEN,
    )
    flags += ("--max-num-seqs", SEATS, "--max-num-batched-tokens", STEP_TOKENS)
    with vllm_server(folder / "served", *flags, core=ENGINE_CORE) as url:
        inferometer(*proof, "--url", url, core=CLIENT_CORE)


PARTS = {"points": prove_points, "server": prove_server}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="points, server. [both]")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs") / f"verify-here-{time.strftime('%Y%m%d')}"
    )
    parser.add_argument("--ledger", type=Path, default=ROOT / "ledger" / "ledger.jsonl")
    parser.add_argument(
        "--brief", action="store_true", help="Try it out: into the folder's own ledger."
    )
    asked = parser.parse_args()
    for name in asked.parts or PARTS:
        began_s, folder = time.monotonic(), asked.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        PARTS[name](
            folder, asked.folder / "ledger.jsonl" if asked.brief else asked.ledger, asked.brief
        )
        print(f"{name}: {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
