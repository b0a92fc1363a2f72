"""Compare the twins with the real scheduler of vLLM 0.32.0 after every step, and record what it decides.

In vLLM's environment, from the root of the repository. One process does one thing or several: to
import vLLM takes longer than hundreds of workloads::

    PYTHONPATH=src:tests/simulate .venv-vllm/bin/python tests/simulate/record_vllm_traces.py \\
        fuzz:random:3000 fuzz:drafts:600 fuzz:pipeline:600 loop:random:1000
    PYTHONPATH=src:tests/simulate .venv-vllm/bin/python tests/simulate/record_vllm_traces.py \\
        record:random:120
"""

import argparse
import collections
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
from cases import piped_case, random_case, speculating_case, windowed_case
from kernel_driver import KernelDriver, demand_of
from stepping import ReferenceDriver, drive
from traces import GOLDEN, GOLDEN_PIPED, GOLDEN_SPECULATING, GOLDEN_WINDOWED, encode
from vllm_driver import VllmDriver, VllmFactory, capacity
from vllm_engine_loop import Loop

from inferometer.inputs.catalog import load_models
from inferometer.perfmodel.kv_cache import kv_block_fraction, kv_bytes_per_token, kv_groups
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost


def fuzz(seeds, make_case, factory) -> dict:
    """How many of these workloads differ, and what happened in them?"""
    started = time.monotonic()
    counts = collections.Counter()
    for seed in seeds:
        case = make_case(seed)
        drivers = [VllmDriver(case, factory), ReferenceDriver(case), KernelDriver(case)]
        counts["workloads"] += 1
        for step, call, states in drive(case, drivers):
            counts["steps"] += bool(states[0].scheduled)
            counts["empty steps"] += call == "schedule" and not states[0].scheduled
            counts["preemptions"] += len(states[0].preempted)
            counts["drafts"] += drivers[0].n_drafts() if call == "schedule" else 0
            if any(state != states[0] for state in states[1:]):
                counts["different"] += 1
                explain(case, step, call, states)
                break
        else:
            counts["unfinished workloads"] += drivers[0].has_unfinished()
    counts["seconds"] = round(time.monotonic() - started)
    return counts


def explain(case, step, call, states):
    sys.stderr.write(f"seed {case.seed}, step {step}, after {call}: {case.config}\n")
    for name, *values in zip(states[0]._fields, *states, strict=True):
        if any(value != values[0] for value in values[1:]):
            sys.stderr.write(f"  {name}: " + " | ".join(map(str, values)) + "\n")


def compare_loops(seeds, make_case, factory) -> dict:
    """In how many of these workloads does a token come at another nanosecond than from the real engine loop?"""
    counts = collections.Counter()
    for seed in seeds:
        case, rng = make_case(seed), np.random.default_rng([seed, 1])
        requests = demand_of(case)
        n_requests = requests.n_requests
        arrival = np.sort(rng.integers(0, rng.choice([1, 300, 3000]), n_requests))
        gone = np.where(
            rng.random(n_requests) < 0.1, arrival + rng.integers(1, 900, n_requests), ABSENT
        )
        order = [
            dataclasses.replace(request, arrival=int(when))
            for request, when in zip(case.requests, arrival, strict=True)
        ]
        case = dataclasses.replace(case, requests=tuple(order))
        requests = requests._replace(
            arrival_ns=arrival.astype(np.int64), abort_ns=gone.astype(np.int64)
        )
        cost = linear_cost(launch_s=20e-9, per_row_s=1e-9, per_request_s=2e-9)
        outcome, _, table, steps, *_ = simulate(requests, case.config, cost)
        counts[outcome.name] += 1
        if outcome is not Outcome.FINISHED:
            continue  # the real loop would not end
        first, last = Loop(case, requests, factory, cost).run()
        done = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
        counts["steps"] += len(steps.start_ns)
        if (
            table.first_token_ns.tolist() != first
            or np.where(done, table.finished_ns, ABSENT).tolist() != last
        ):
            counts["different"] += 1
            sys.stderr.write(
                f"seed {seed}: {case.config}\n  {table.first_token_ns.tolist()}\n  {first}\n"
            )
    return counts


def record(path: Path, seeds, make_case, factory) -> dict:
    """Write what the real scheduler decides in the first workloads of the fuzz, all of its state after every call."""
    traces = []
    for seed in seeds:
        case = make_case(seed)
        traces.append(
            (case, [states[0] for _, _, states in drive(case, [VllmDriver(case, factory)])])
        )
    path.write_bytes(encode(traces))
    return {"workloads": len(traces)}


def compare_capacities(factory) -> dict:
    """In how many models with windows does the KV cache hold anything else than vLLM itself reckons?"""
    counts = collections.Counter()
    for model in load_models():
        groups = kv_groups(model)
        if groups.n_sliding == 0:
            continue
        memory_bytes, counts["models"] = 40 * 2**30 + 12345, counts["models"] + 1
        block_bytes = round(kv_bytes_per_token(model, "bfloat16") * 16 * kv_block_fraction(model))
        config = SchedulerConfig(
            num_blocks=memory_bytes // block_bytes,
            max_model_len=8192,
            max_num_batched_tokens=2048,
            sliding_window=groups.window_tokens,
            num_sliding_groups=groups.n_sliding,
            num_full_groups=groups.n_full,
        )
        windows = (groups.window_tokens,) * groups.n_sliding + (0,) * groups.n_full
        concurrency = config.num_blocks / config.n_blocks_at_most_len
        own = (windows, groups.n_layers, config.num_blocks, int(concurrency * 8192), concurrency)
        real = capacity(model, config, memory_bytes, factory)
        # layers of other heads have longer blocks in vLLM, and several blocks here: as many tokens
        is_alike = (
            own == real if model.attention.full is None else abs(own[-1] / real[-1] - 1) < 0.01
        )
        if not is_alike:
            counts["different"] += 1
            sys.stderr.write(f"{model.model_id}: {own} for {real}\n")
    return counts


CASES = {
    "random": (random_case, GOLDEN),
    "drafts": (speculating_case, GOLDEN_SPECULATING),
    "pipeline": (piped_case, GOLDEN_PIPED),
    "windows": (windowed_case, GOLDEN_WINDOWED),
}


def done(job: str, factory) -> dict:
    """``fuzz:random:3000``: what of it was found."""
    if job.startswith("capacities"):
        return compare_capacities(factory)
    what, kind, n_cases = job.split(":")
    make_case, golden = CASES[kind]
    if what == "record":
        return record(golden, range(int(n_cases)), make_case, factory)
    return {"fuzz": fuzz, "loop": compare_loops}[what](range(int(n_cases)), make_case, factory)


def main() -> None:
    """Prints one line of JSON for each job, with its counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "jobs", nargs="+", help="fuzz|loop|record:random|drafts|pipeline|windows:N, or capacities:0"
    )
    factory = VllmFactory()
    for job in parser.parse_args().jobs:
        sys.stdout.write(json.dumps({"job": job, **done(job, factory)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
