"""inferometer simulate: what would happen if this server got this traffic?"""

import sys
from dataclasses import replace
from typing import Any, Final

import click

from inferometer.cli import (
    cluster_options,
    disaggregation_options,
    executor_options,
    gate_options,
    memory_check,
    missed,
    recording_options,
    simulate_text,
    simulation_length,
)
from inferometer.cli.answer import give, json_option
from inferometer.cli.deployment import takes_deployment
from inferometer.cli.simulation import SimulateAnswer, Simulator, simulate_workload, store
from inferometer.cli.terminal import talk
from inferometer.cli.workload_options import takes_workload
from inferometer.spec import gate as gates, objectives
from inferometer.spec.workload import replay, types
from inferometer.units import NS_PER_S, parse_duration_s

ANSWER = SimulateAnswer
_EXIT_CODES: Final = {None: 0, "met": 0, "missed": 10, "undecided": 11}


@click.command(
    "simulate",
    short_help="What would happen if this server got this traffic?",
    epilog="""\b
Examples:
  inferometer simulate llama-3.1-8b --hardware h100_sxm --workload chat --rate 5
  inferometer simulate llama-3.1-8b --hardware h100_sxm --concurrency 64 --requests 500 --max-num-seqs 32
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 5 --set num_speculative_tokens=3 --set acceptance_fraction=0.7
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --replicas 4 --router prefix-affine
  inferometer simulate qwen3-30b-a3b --hardware h100_sxm --rate 40 --data-parallel-size 2
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --prefill-replicas 2 --replicas 2 --kv-link 50GB/s
  inferometer simulate llama-3.1-8b --hardware h100_sxm --rate 40 --order shortest-remaining
  inferometer simulate llama-2-70b --hardware h100_sxm --tp 4 --rate 0.5 --slo 'ttft:p95<20s, tpot:p95<500ms'
""",
)
@takes_deployment
@cluster_options.takes_replicas
@disaggregation_options.takes_prefill_pool
@takes_workload
@gate_options.takes_gate
@click.option(
    "--slo",
    metavar="TEXT",
    help="The SLO: 'ttft:p95<500ms, tpot:p95<50ms'. Exit 0 met, 10 missed, 11 undecided.",
)
@click.option(
    "--until",
    metavar="DURATION",
    help="Stop the clock there; requests not done by then are unfinished.",
)
@recording_options.takes_recording
@executor_options.takes_executor("inline")
@json_option
def command(
    servers: cluster_options.Servers,
    workload: types.WorkloadSpec,
    gate: gates.GateSpec | None,
    recording: recording_options.Recording,
    where: executor_options.ExecutorChoice,
    **flags: Any,
) -> None:
    """What would happen if MODEL on this server got this traffic.

    Throughput, TTFT, TPOT, E2E, and is the objective met?

    The scheduler is the engine's own, step by step; step times are those of a fit (--fit) or of a
    datasheet (--hardware), and the same requests are simulated at both ends of what is known of
    them; of a fit to load tests, on 19 servers that may be the one.
    """
    objective = None if flags["slo"] is None else objectives.parse_objective(flags["slo"])
    until_ns = (
        None
        if flags["until"] is None
        else round(parse_duration_s(flags["until"], where="--until") * NS_PER_S)
    )
    memory_check.check_before_drawing(workload)
    is_open = objective is not None and until_ns is None and simulation_length.may_go_on(workload)
    drawn = replay.draw_workload(workload)
    has_steps, has_parts = recording.folder is not None, recording.has_parts
    servers = servers._replace(
        seed=workload.seed, class_replicas=servers.rules.replicas_of(drawn.class_names)
    )
    memory_check.check_drawn(
        drawn.plan,
        servers.cluster,
        record_steps=has_steps or has_parts,
        n_replicas=servers.n_in_all,
    )
    engine = servers.deployment.config.engine
    whose = engine if servers.n_in_all == 1 else f"{servers.n_in_all} x {engine}"
    asked = (
        f"{drawn.plan.n_requests:,} requests of {drawn.name} on {whose},"
        f" {len(servers.deployment.cases)} times"
    )
    talk(f"simulating {asked} (its rules are compiled once)")
    simulator = Simulator(
        servers=servers, workload=drawn, objective=objective, until_ns=until_ns, gate=gate
    )
    with executor_options.opened(where, "step times") as executor:
        simulated = simulate_workload(
            simulator, executor, record_steps=has_steps, record_parts=has_parts
        )
        while is_open and simulation_length.is_noise(simulated.answer):
            longer = simulation_length.longer(workload, simulator.workload, servers)
            if longer is None:
                break
            talk(f"noise leaves it undecided: {longer.plan.n_requests:,} requests instead")
            simulator = replace(simulator, workload=longer)
            simulated = simulate_workload(
                simulator, executor, record_steps=has_steps, record_parts=has_parts
            )
    if recording.folder is not None:
        simulated = store(simulated, recording.folder)
    said = simulated.answer
    if said.verdict == "missed" and objective is not None:
        said = replace(
            said,
            next_step=missed.next_of_simulation(
                servers.deployment, simulator.workload.plan, objective
            ),
        )
    give(said, as_json=flags["as_json"], show=simulate_text.simulate_text)
    sys.exit(_EXIT_CODES[said.verdict])
