"""How fast does a real GPU run a model in transformers, and were our predictions of it true?

Qwen2.5-3B's shape with random weights: a sweep in eager mode, its fit, predictions of other prompts
and batches sealed before those are measured; the same with CUDA graphs; a larger and a smaller
model, to judge a fit that is carried over. All records are kept, under bench/results. Without
a GPU it says so and ends. Each part has a time limit, and one that fails lets the next begin.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from verify_here import POINTS_PLAN
from vllm_here import QUIET

MODEL = "qwen2.5-3b"


def inferometer(*words, limit_s):
    """Run a verb, its output passed on, and print how it ended."""
    print(f"$ inferometer {' '.join(map(str, words))}", flush=True)
    line = [sys.executable, "-m", "inferometer", *map(str, words)]
    began_s = time.monotonic()
    try:
        code = subprocess.run(line, check=False, env=os.environ | QUIET, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        code = "too late"
    print(f"  exit {code} after {time.monotonic() - began_s:.1f} s", flush=True)


def sweep(folder, model, prompts, batches, *flags, asked, limit_s):
    """A sweep with random weights in bfloat16, on the GPU where there is one."""
    inferometer(
        *("sweep", "--model", model, "--load-format", "dummy", "--dtype", asked.dtype),
        *("--seq", prompts, "--batch-sizes", batches, "--gen-tokens", asked.gen_tokens),
        *("--warmup", asked.warmup, "--reps", asked.reps, *flags, "--out", folder),
        limit_s=limit_s,
    )


def seen(folder, asked):
    """The sweep that the fit is of."""
    inferometer("predict", MODEL, "--hardware", "this", limit_s=60)
    prompts, batches = ("16,32", "1,2") if asked.brief else ("128,512,2048", "1,4,16,64")
    sweep(folder / "eager", asked.model, prompts, batches, asked=asked, limit_s=200)


def sealed(folder, asked):
    """Other points, foretold from the fit and sealed, then measured."""
    inferometer("fit", folder / "eager", "--out", folder / "step_time.json", limit_s=90)
    prompts, batches = ("24", "1,3") if asked.brief else ("256,1024,4096", "2,8,32")
    plan = folder / "plan.toml"
    plan.write_text(
        POINTS_PLAN.format(
            name=f"{asked.model} in transformers on a GPU",
            model=asked.model,
            prompts=prompts,
            batches=batches,
            gen_tokens=asked.gen_tokens,
        )
    )
    proof = ("verify", plan, "--out", folder / "proof", "--ledger", folder / "ledger.jsonl")
    inferometer(*proof, "--seal-only", limit_s=60)
    sweep(folder / "unseen", asked.model, prompts, batches, asked=asked, limit_s=200)
    inferometer(*proof, "--check", folder / "unseen", limit_s=60)


def graphs(folder, asked):
    """The same model, its decode step one CUDA graph."""
    prompts, batches = ("16", "1") if asked.brief else ("512,2048", "1,16")
    flags = ("--mode", "compiled")
    sweep(folder / "compiled", asked.model, prompts, batches, *flags, asked=asked, limit_s=300)


def others(folder, asked):
    """A larger and a smaller model on the same device."""
    prompts, batches = ("16", "1") if asked.brief else ("128,1024", "1,32")
    for model in ("smollm2-135m",) if asked.brief else ("llama-3.1-8b", "smollm2-135m"):
        sweep(folder / model, model, prompts, batches, asked=asked, limit_s=120)


PARTS = {"seen": seen, "sealed": sealed, "graphs": graphs, "others": others}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--folder", type=Path, default=Path("runs") / "gpu")
    parser.add_argument("--brief", action="store_true", help="Try it out on a CPU.")
    asked = parser.parse_args()
    if not asked.brief and not torch.cuda.is_available():
        print("no GPU on this machine")
        return
    asked.model, asked.dtype = ("smollm2-135m", "float32") if asked.brief else (MODEL, "bfloat16")
    asked.gen_tokens, asked.warmup, asked.reps = (4, 1, 5) if asked.brief else (16, 2, 7)
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.parts or PARTS:
        PARTS[name](asked.folder, asked)


if __name__ == "__main__":
    main()
