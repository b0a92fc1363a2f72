"""Compile the simulator before the tests: two processes that test side by side would each compile the same.

Two processes compile here too, each other engines: kinds of one engine's loop share most of their
code, engines share little. Who is done first compiles what the tests drive by hand.

Likewise the bytecode of the tests, whose assertions pytest rewrites, and of what they import: that
is kept from the first time on.
"""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from cases import random_case
from gate_driver import CompiledGate
from kernel_driver import KernelDriver
from stepping import drive
from whole_fleets import PoolCosts, simulate_cluster, simulate_disaggregated

from inferometer.simulate.batch_config import DynamicBatching
from inferometer.simulate.demand import demand
from inferometer.simulate.fleet import ClusterConfig, DisaggregatedConfig, KvLink
from inferometer.simulate.gate_config import GateConfig
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import KvPool, SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.trtllm_config import TrtllmConfig

COST = linear_cost(launch_s=1e-6)
REQUESTS = demand([0], [8], [8])
VLLM = SchedulerConfig(num_blocks=100, max_model_len=128)


def vllm():
    """Its loops, which take longest."""
    simulate(REQUESTS, VLLM, COST)
    pool = KvPool(n_blocks=VLLM.n_kv_blocks, block_size=VLLM.block_size)
    simulate(REQUESTS, replace(VLLM, kv_pools=(pool,)), COST)
    cluster = ClusterConfig(engine=VLLM, n_replicas=2)
    simulate_cluster(REQUESTS, cluster, COST)
    simulate_cluster(REQUESTS, cluster, COST, gate=GateConfig())
    simulate_cluster(REQUESTS, replace(cluster, in_lockstep=True), COST)
    simulate_disaggregated(
        REQUESTS,
        DisaggregatedConfig(prefill=cluster, decode=cluster, link=KvLink(block_bytes=1)),
        PoolCosts(COST, COST),
    )


def driven():
    """The functions that the twin and the gate are driven by."""
    for case in map(random_case, range(20)):
        for _ in drive(case, [KernelDriver(case)]):
            pass
    gate = CompiledGate(demand([0, 0], [8, 8], [8, 8]), GateConfig())
    gate.offer(0, 0)
    gate.offer(1, 0)
    gate.gone(1, 0)
    gate.shed(0)
    gate.ended(gate.release(0, 1), 8, 0)


def others():
    """The engines that a fast suite sees without a router; Triton's instances are a cluster's."""
    for engine in (
        SglangConfig(max_total_num_tokens=1000, context_length=128),
        TrtllmConfig(num_blocks=100, max_seq_len=128),
        DynamicBatching(num_blocks=100, max_model_len=128),
        DynamicBatching(num_blocks=100, max_model_len=128, instance_count=2),
    ):
        simulate(REQUESTS, engine, COST)


def collected():
    """What each of the processes that test does first. What is wrong there, they say."""
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "--ignore=tests/house"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def main():
    sys.stderr.write("compiling the simulator\n")
    with ProcessPoolExecutor(2) as pool:
        for done in [pool.submit(part) for part in (vllm, collected, others, driven)]:
            done.result()


if __name__ == "__main__":
    main()
