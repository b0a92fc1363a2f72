"""How many requests does the simulator run through in a second of one core?

Bounds: 100,000 chats, 40,000 with prefix caching.

Chat: 200,000 requests, 512 tokens in and 128 out on average, 256 slots, 2,048 tokens a step, no
prefix cache, at a rate that keeps the engine full, and at one that keeps it a quarter full (more
steps for the same work). Prefix caching: a Mooncake trace's own blocks of 512 tokens;
``--mooncake`` names the file. Seconds are of this process's CPU time; the first call, which
compiles, is not counted.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from results_log import log_row, words

from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.quantiles import median_estimate

N_CHATS, N_TRIES = 200_000, 9
BOUND_CHAT_PER_S, BOUND_MOONCAKE_PER_S, BOUND_MILLION_BYTES = 100_000, 40_000, 1.5e9
COST = linear_cost(
    launch_s=5e-3, per_row_s=20e-6, per_context_token_s=20e-9, per_prefill_pair_s=1e-9
)
MOONCAKE_COST = linear_cost(
    launch_s=5e-3, per_row_s=5e-6, per_context_token_s=1e-9, per_prefill_pair_s=1e-11
)
COLD_START = """
import time
start = time.perf_counter()
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
config = SchedulerConfig(num_blocks=1000, max_model_len=1024)
simulate(demand([0], [8], [8]), config, linear_cost(launch_s=1e-3))
print(time.perf_counter() - start)
"""


def chats(n_requests, rate_per_s):
    """Log-normal lengths as chats have them, Poisson arrivals."""
    rng = np.random.default_rng(2026)
    spread = 0.8
    prompt, output = (
        rng.lognormal(np.log(mean) - spread**2 / 2, spread, n_requests) for mean in (512, 128)
    )
    arrival = np.cumsum(rng.exponential(1e9 / rate_per_s, n_requests))
    return demand(
        np.round(arrival), np.clip(np.round(prompt), 1, 6000), np.clip(np.round(output), 1, 2000)
    )


def chat_config(*, is_async):
    return SchedulerConfig(
        num_blocks=20_000,
        max_model_len=8192,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        async_scheduling=is_async,
    )


def mooncake(path):
    """The trace as it is, arrivals spread evenly inside its bins of three seconds; only full blocks can be shared."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    start_ms = np.array([row["timestamp"] for row in rows])
    bin_ms = np.gcd.reduce(start_ms)
    arrival_ms = start_ms + np.random.default_rng(0).uniform(0, bin_ms, len(rows))
    order = np.argsort(arrival_ms, kind="stable")
    rows = [rows[i] for i in order]
    prompt = np.array([row["input_length"] for row in rows])
    requests = demand(
        np.round(arrival_ms[order] * 1e6), prompt, [row["output_length"] for row in rows]
    )
    ids = [row["hash_ids"][: row["input_length"] // 512] for row in rows]
    start = np.concatenate([[0], np.cumsum([len(chain) for chain in ids])])
    return with_contents(
        requests,
        512,
        SharedBlocks(start=start, ids=np.concatenate([np.array(chain, np.int64) for chain in ids])),
    )


def rates_per_s(requests, config, cost, n_tries=N_TRIES):
    """Requests per CPU second of each try, and what the last one gave."""
    rates = []
    for _ in range(n_tries):
        start_s = time.process_time()
        run = simulate(requests, config, cost)
        rates.append(requests.n_requests / (time.process_time() - start_s))
    return np.array(rates), run


def report(name, requests, config, cost, bound_per_s):
    rates, run = rates_per_s(requests, config, cost)
    rate = median_estimate(rates, confidence_fraction=0.95)
    steps = run.steps
    slots = (steps.n_prefill_requests + steps.n_decode_requests).mean()
    hit = run.requests.cached_tokens.sum() / run.requests.prompt_tokens.sum()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    log_row(
        f"simulate: {name}",
        (
            f"{words(rate)} requests per CPU second, bound {bound_per_s:,}"
            if bound_per_s
            else f"{words(rate)} requests per CPU second"
        ),
        f"{requests.n_requests:,} requests, {len(steps.start_ns):,} steps of {slots:.0f} requests,"
        f" {hit:.1%} of prompts cached, {run.requests.n_preemptions.sum()} preemptions, ended"
        f" {run.outcome.name}, peak {peak_bytes / 2**20:.0f} MiB",
    )
    return bound_per_s is None or np.median(rates) >= bound_per_s


def million():
    """A million chats in a process of their own, so that its peak memory is theirs."""
    code = "from bench_simulate_speed import COST, chat_config, chats, simulate; import resource; "
    code += "simulate(chats(1_000_000, 60), chat_config(is_async=False), COST); "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    command = [sys.executable, "-c", code]
    here = Path(__file__).parent
    peak_bytes = int(
        subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout
    )
    log_row(
        "simulate: a million chats",
        f"{peak_bytes / 1e9:.2f} GB at peak, bound 1.5 GB",
        "making the workload and both tables included",
    )
    return peak_bytes <= BOUND_MILLION_BYTES


def plain_simulator():
    """The simulator in plain Python, which stands with the tests."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "simulate"))
    from reference.simulator import simulate_plainly

    return simulate_plainly


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--mooncake", type=Path, default=os.environ.get("INFEROMETER_MOONCAKE_TRACE")
    )
    arguments = parser.parse_args()
    config = chat_config(is_async=False)
    simulate(chats(100, 10), config, COST)
    is_met = report("chat, full", chats(N_CHATS, 60), config, COST, BOUND_CHAT_PER_S)
    is_met &= report(
        "chat, full, async", chats(N_CHATS, 60), chat_config(is_async=True), COST, BOUND_CHAT_PER_S
    )
    report("chat, a quarter full", chats(N_CHATS, 25), config, COST, None)
    if arguments.mooncake is not None:
        caching = SchedulerConfig(
            num_blocks=8000,
            max_model_len=131_072,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            block_size=512,
            async_scheduling=False,
        )
        is_met &= report(
            "Mooncake's blocks, prefix caching",
            mooncake(arguments.mooncake),
            caching,
            MOONCAKE_COST,
            BOUND_MOONCAKE_PER_S,
        )
    is_met &= million()
    few = chats(1000, 60)
    simulate_plainly = plain_simulator()
    start_s = time.process_time()
    simulate_plainly(few, config, COST)
    plain_per_s = 1000 / (time.process_time() - start_s)
    log_row(
        "simulate: plain Python",
        f"{plain_per_s:.0f} requests per CPU second",
        "the same scheduler as reference, one run of 1,000 chats",
    )
    cold = [
        float(
            subprocess.run(
                [sys.executable, "-c", COLD_START], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(5)
    ]
    log_row(
        "simulate: cold start",
        f"{np.median(cold):.2f} s, bound 2 s",
        "imports, compiled code from the cache, one request; median of 5",
    )
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
