"""Compare the twins with the real scheduler of vLLM 0.32.0 after every step, and record what it decides.

In vLLM's environment, from the root of the repository; ``--speculating`` does the same with drafts,
``--piped`` on a pipeline::

    PYTHONPATH=src:tests/simulate .venv-vllm/bin/python tests/simulate/record_vllm_traces.py fuzz
    --seeds 0:3000 PYTHONPATH=src:tests/simulate .venv-vllm/bin/python
    tests/simulate/record_vllm_traces.py loop --seeds 0:1000 PYTHONPATH=src:tests/simulate
    .venv-vllm/bin/python tests/simulate/record_vllm_traces.py record --seeds 0:120
"""

import argparse
import collections
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
from cases import piped_case, random_case, speculating_case
from kernel_driver import KernelDriver, demand_of
from stepping import ReferenceDriver, drive
from traces import GOLDEN, GOLDEN_PIPED, GOLDEN_SPECULATING, encode
from vllm_driver import VllmDriver, VllmFactory
from vllm_engine_loop import Loop

from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.step_cost import linear_cost


def fuzz(seeds, make_case, twins) -> int:
    """How many of these workloads differ? Prints one line of JSON with the counts."""
    factory = VllmFactory()
    started = time.monotonic()
    counts = collections.Counter()
    for seed in seeds:
        case = make_case(seed)
        drivers = [VllmDriver(case, factory), *(twin(case) for twin in twins)]
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
    sys.stdout.write(json.dumps(counts) + "\n")
    return counts["different"]


def explain(case, step, call, states):
    sys.stderr.write(f"seed {case.seed}, step {step}, after {call}: {case.config}\n")
    for name, *values in zip(states[0]._fields, *states, strict=True):
        if any(value != values[0] for value in values[1:]):
            sys.stderr.write(f"  {name}: " + " | ".join(map(str, values)) + "\n")


def compare_loops(seeds, make_case) -> int:
    """In how many of these workloads does a token come at another nanosecond than from the real engine loop?"""
    factory = VllmFactory()
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
    sys.stdout.write(json.dumps(counts) + "\n")
    return counts["different"]


def record(path: Path, make_case, n_cases: int) -> None:
    """Write what the real scheduler decides in the first workloads of the fuzz, all of its state after every call."""
    factory = VllmFactory()
    traces = []
    for seed in range(n_cases):
        case = make_case(seed)
        traces.append(
            (case, [states[0] for _, _, states in drive(case, [VllmDriver(case, factory)])])
        )
    path.write_bytes(encode(traces))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("fuzz", "loop", "record"))
    parser.add_argument("--seeds", default="0:2500", help="first:end")
    parser.add_argument("--speculating", action="store_true")
    parser.add_argument("--piped", action="store_true")
    arguments = parser.parse_args()
    make_case, golden = random_case, GOLDEN
    if arguments.speculating:
        make_case, golden = speculating_case, GOLDEN_SPECULATING
    if arguments.piped:
        make_case, golden = piped_case, GOLDEN_PIPED
    first, end = map(int, arguments.seeds.split(":"))
    if arguments.what == "record":
        record(golden, make_case, end)
        return 0
    if arguments.what == "loop":
        return min(compare_loops(range(first, end), make_case), 1)
    return min(fuzz(range(first, end), make_case, [ReferenceDriver, KernelDriver]), 1)


if __name__ == "__main__":
    sys.exit(main())
