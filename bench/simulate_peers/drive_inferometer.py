"""Run our own simulators over a workload: ``kernel``, after a call that compiles, or ``reference``, in plain Python."""

import json
import sys
import time
from pathlib import Path

from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost


def plain_simulator():
    """The simulator in plain Python, which stands with the tests."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "simulate"))
    from reference.simulator import simulate_plainly

    return simulate_plainly


def main():
    workload = json.loads(Path(sys.argv[1]).read_text())
    run = plain_simulator() if sys.argv[2] == "reference" else simulate
    settings = workload["settings"]
    names = ("num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
    config = SchedulerConfig(
        **{name: settings[name] for name in names},
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    costs = ("launch_s", "per_row_s", "per_context_token_s", "per_prefill_pair_s")
    cost = linear_cost(**{name: settings[name] for name in costs})
    columns = [workload[name] for name in ("arrival_ns", "prompt_tokens", "output_tokens")]
    requests = demand(*columns)
    run(demand(*(column[:10] for column in columns)), config, cost)
    start_s = time.process_time()
    simulation = run(requests, config, cost)
    cpu_s = time.process_time() - start_s
    done = simulation.requests.finished_ns
    print(
        json.dumps(
            {
                "cpu_s": cpu_s,
                "n_done": len(done),
                "n_steps": len(simulation.steps.start_ns),
                "ended_s": int(done.max()) / 1e9,
            }
        )
    )


main()
