"""Does ``diagnose`` name what limits a real vLLM server that was started with a wrong setting?

Servers of a small model with random weights come up here on loopback, one after the other, each
limited in a known way or not at all; a load test that stores their metrics is diagnosed afterwards.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from results_log import log_row
from vllm_here import vllm_server, write_model

from inferometer.inputs.catalog import find_model

MODEL_LEN, FOR_S = 4096, 40
ROOMY = {
    "max-model-len": MODEL_LEN,
    "max-num-seqs": 64,
    "max-num-batched-tokens": 2048,
    "block-size": 32,
}
TALK = """
[arrivals]
kind = "open"
rate_per_s = 3
[[classes]]
name = "talk"
prompt_tokens = { kind = "uniform", low = 60, high = 300 }
output_tokens = { kind = "uniform", low = 30, high = 90 }
"""
LONG = """
[[classes]]
name = "long"
weight_ratio = 0.03
prompt_tokens = { kind = "constant", value = 3500 }
output_tokens = { kind = "uniform", low = 8, high = 24 }
"""
SHARED = """
[arrivals]
kind = "open"
rate_per_s = 3
[[classes]]
name = "assistant"
prompt_tokens = { kind = "uniform", low = 20, high = 80 }
output_tokens = { kind = "uniform", low = 10, high = 30 }
[classes.system_prompts]
tokens = { kind = "constant", value = 1000 }
"""


@dataclass(frozen=True)
class Case:
    """A server's flags beside those of ``ROOMY``, and what is sent."""

    name: str
    right: tuple[str, ...]
    """Causes of which each would be a right answer."""
    flags: tuple[str, ...] = ()
    knobs: tuple[tuple[str, int], ...] = ()
    workload: str = TALK
    rate_per_s: float = 3.0


CASES = (
    Case("healthy", ("healthy",)),
    Case("max_num_seqs", ("max_num_seqs",), knobs=(("max-num-seqs", 3),), rate_per_s=6.0),
    Case(
        "kv_cache",
        ("kv_cache",),
        ("--num-gpu-blocks-override", "34"),
        (("max-model-len", 1024),),
        rate_per_s=7.0,
    ),
    Case(
        "small_step_budget",
        ("small_step_budget",),
        knobs=(("max-num-batched-tokens", 64),),
        workload=TALK.replace("low = 60, high = 300", "low = 300, high = 600"),
        rate_per_s=3.5,
    ),
    Case(
        "chunking off",
        ("large_step_budget", "long_prompts"),
        ("--no-enable-chunked-prefill",),
        (("max-num-batched-tokens", MODEL_LEN),),
        TALK + LONG,
    ),
    Case(
        "prefix cache off",
        ("prefix_cache",),
        ("--no-enable-prefix-caching",),
        workload=SHARED,
    ),
    Case("prefix cache on", ("healthy",), workload=SHARED),
    Case("overload", ("overload", "prompt_compute", "step_floor"), rate_per_s=30.0),
)


def inferometer(*words):
    """The command in this environment."""
    line = [Path(sys.executable).parent / "inferometer", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def load(case, folder):
    """A load test of the case's server."""
    workload = folder / f"{case.name}.toml"
    workload.write_text(case.workload)
    flags = [
        part for name, value in (ROOMY | dict(case.knobs)).items() for part in (f"--{name}", value)
    ]
    out = folder / case.name.replace(" ", "-")
    with vllm_server(folder / "model", *flags, *case.flags) as url:
        words = ("--endpoint", "completions", "--prompts", "token-ids", "--no-report")
        inferometer("load", url, "--requests", 5, "--rate", 2, "--out", f"{out}-warm", *words)
        done = inferometer(
            "load", url, "--workload", workload, "--rate", case.rate_per_s, "--for", f"{FOR_S}s",
            "--drain", "10s", "--out", out, *words,
        )  # fmt: skip
    print(done.stdout, done.stderr[-500:], flush=True)
    return out


def main():
    """Every case, or those that are named; with ``--runs`` where the load tests are, or will be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--runs", type=Path)
    asked = parser.parse_args()
    folder = asked.runs or Path(tempfile.mkdtemp())
    write_model(folder / "model", replace(find_model("smollm2-135m"), n_layers=3, vocab_size=8192))
    said = []
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        out = folder / case.name.replace(" ", "-")
        if not out.exists():
            load(case, folder)
        answer = inferometer("diagnose", out, "--json")
        if not answer.stdout:
            said.append((case.name, "refused"))
            print(case.name, answer.stderr)
            continue
        found = json.loads(answer.stdout)
        print(inferometer("diagnose", out).stdout, flush=True)
        named = found["cause"] or "healthy"
        is_right = named in case.right and found["finding"] != "undecided"
        said.append((case.name, "right" if is_right else f"{found['finding']} {named}"))
        print(case.name, said[-1][1], flush=True)
    log_row("diagnose_here", "; ".join(f"{name}: {what}" for name, what in said), "vLLM 0.32")


if __name__ == "__main__":
    main()
