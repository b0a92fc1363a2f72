"""What does a thousand streamed requests of 64 tokens cost in AIPerf, GuideLLM and here.

One server, one run, one after the other?

CPU seconds of each tool's whole tree of processes, start and report included, and what each further
thousand costs (the slope between a short and a long run). The server is an emulated one with steps
of 5 ms; the load a constant rate that all sustain. Bar: 4 times less. The environments of the
others are made on the first call (several GB, minutes) in ``--folder``.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from load_peers_here import (
    AIPERF,
    GUIDELLM,
    Asked,
    cost_of,
    installed,
    our_command,
    write_tokenizer,
)
from results_log import log_row

from inferometer.records.imports.detection import read_results
from inferometer.records.reading import read_run
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

OUTPUT_TOKENS, PROMPT_TOKENS = 64, 32
BOUND_RATIO = 4.0
OURS = "inferometer"


def n_answered(folder, peer):
    """How many requests came back whole, as the tool's own results say."""
    if peer is None:
        return int((read_run(folder / "run").requests.output_tokens == OUTPUT_TOKENS).sum())
    return read_results(folder / peer.results[0]).summaries[0].n_completed


def measure(asked, environments, sizes, n_turns, scratch):
    """CPU seconds by tool, size and turn; and wall seconds.

    Of a short run before the others, which finds no bytecode, nothing is kept.
    """
    cpu_s, wall_s = {}, {}
    turns = [
        (-1, sizes[0]),
        *((turn, n_requests) for turn in range(n_turns) for n_requests in sizes),
    ]
    for turn, n_requests in turns:
        load = Asked(**{**asked, "n_requests": n_requests})
        for peer, environment in ((None, None), *environments):
            name = OURS if peer is None else peer.name
            folder = scratch / f"{turn}-{n_requests}-{name.split()[0]}"
            folder.mkdir()
            command = (
                our_command(load, folder)
                if peer is None
                else peer.command(environment, load, folder)
            )
            cost = cost_of(command, folder)
            n_done = n_answered(folder, peer)
            print(
                f"{name}, {n_requests} requests: {cost.cpu_s:.2f} CPU s, {cost.wall_s:.1f} s,"
                f" {n_done} answered",
                flush=True,
            )
            if n_done != n_requests:
                raise SystemExit(f"{name} answered {n_done} of {n_requests}")
            if turn >= 0:
                cpu_s.setdefault((name, n_requests), []).append(cost.cpu_s)
                wall_s.setdefault((name, n_requests), []).append(cost.wall_s)
    return cpu_s, wall_s


def log_costs(cpu_s, wall_s, names, sizes, rate_per_s):
    few, many = sizes
    slopes = {
        name: (np.array(cpu_s[name, many]) - np.array(cpu_s[name, few])) / (many - few) * 1000
        for name in names
    }
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    for name in names:
        whole = np.array(cpu_s[name, many])
        fixed_s = np.median(wall_s[name, many]) - many / rate_per_s
        log_row(
            f"load testers: {name}, {many:,} streams of {OUTPUT_TOKENS} tokens",
            f"{words(whole)} CPU s with start and report; {words(slopes[name])} for each 1,000"
            " more",
            f"{fixed_s:.0f} s longer than its load lasts; {rate_per_s:g} requests/s, all its"
            f" processes; {load}",
        )
    for name in names[1:]:
        whole = np.array(cpu_s[name, many]) / np.array(cpu_s[OURS, many])
        log_row(
            f"load testers: CPU of {name} / ours",
            f"{words(whole)} with start and report; {words(slopes[name] / slopes[OURS])} for each"
            " 1,000 more",
            f"bar {BOUND_RATIO:g}; ratios of neighbours in turn, median [least, greatest]; {load}",
        )


def words(values):
    return f"{np.median(values):.3g} [{values.min():.3g}, {values.max():.3g}] (n = {len(values)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "inferometer-peers",
        help="of the environments",
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs=2, default=(100, 1000))
    parser.add_argument("--rate", type=float, default=50.0)
    options = parser.parse_args()
    environments = [(peer, installed(peer, options.folder)) for peer in (AIPERF, GUIDELLM)]
    config = SchedulerConfig(num_blocks=20_000, max_model_len=512, max_num_seqs=256)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = write_tokenizer(Path(scratch) / "tokenizer")
        plan = EmulatorPlan(
            model_name="m",
            fleet=lone_replica(config, linear_cost(launch_s=5e-3)),
            mean_output_tokens=None,
        )
        with start(plan) as emulator:
            asked = {
                "url": emulator.url,
                "model": "m",
                "tokenizer": tokenizer,
                "rate_per_s": options.rate,
            }
            asked |= {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
            found = measure(asked, environments, options.sizes, options.turns, Path(scratch))
    log_costs(*found, [OURS, *(peer.name for peer, _ in environments)], options.sizes, options.rate)


if __name__ == "__main__":
    main()
