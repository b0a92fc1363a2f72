"""What does the emulated server cost, and how long after they are due does it write its tokens?

Streams of 64 tokens at 100 requests a second, steps of 5 ms, prompts of ten words; the client is a
bare protocol in this process. Cost: CPU seconds of the server's process per 1,000 requests. The
scheduler's part: the same requests on a clock that does not pass.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
from results_log import log_row, words

from inferometer.serve.emission_log import read_emission_log
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.serve.emulator_words import content_ids
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.live import LiveFleet, LiveRequest
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.stats.quantiles import median_estimate

COST_BOUND_S = 5.0
N_TOKENS, RATE_PER_S = 64, 100.0
CONFIG = SchedulerConfig(num_blocks=50_000, max_model_len=8192)
COST = linear_cost(launch_s=5e-3)
BODY = (
    b'{"model":"m","prompt":"one two three four five six seven eight nine'
    b' ten","max_tokens":64,"stream":true}'
)
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


class Client(asyncio.Protocol):
    """Counts ends of streams, and goes back to the pool."""

    pool: ClassVar[list["Client"]] = []
    n_left = 0
    over: asyncio.Future[None]

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if data.endswith(b"0\r\n\r\n"):
            self.pool.append(self)
            type(self).n_left -= 1
            if self.n_left == 0:
                self.over.set_result(None)


async def drive(port, n_requests):
    loop = asyncio.get_running_loop()
    Client.pool, Client.n_left, Client.over = [], n_requests, loop.create_future()
    began_s = loop.time()
    for i in range(n_requests):
        if (wait_s := began_s + i / RATE_PER_S - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        client = (
            Client.pool.pop()
            if Client.pool
            else (await loop.create_connection(Client, "127.0.0.1", port))[1]
        )
        client.transport.write(REQUEST)
    await Client.over


def served(n_requests):
    """CPU seconds per 1,000 requests, and the lateness of each token."""
    with tempfile.TemporaryDirectory() as folder:
        plan = EmulatorPlan(
            model_name="m",
            fleet=lone_replica(CONFIG, COST),
            mean_output_tokens=None,
            emission_log=Path(folder, "log"),
        )
        with start(plan) as emulator:
            children = psutil.Process().children(recursive=True)
            before_s = sum(sum(child.cpu_times()[:2]) for child in children)
            asyncio.run(drive(int(emulator.url.rpartition(":")[2]), n_requests))
            cpu_s = sum(sum(child.cpu_times()[:2]) for child in children) - before_s
            emulator.stop()
            log = read_emission_log(Path(folder, "log"))
    assert len(log.lateness_ns()) == n_requests * N_TOKENS
    return cpu_s / n_requests * 1000, log.lateness_ns() / 1e6


class Nobody:
    """Listens to nothing."""

    def on_scheduled(self, admitted, n_preempted, replica):
        pass

    def on_step(self, deliveries, now_ns):
        pass

    def on_dropped(self, request, now_ns):
        pass


def scheduled(n_requests):
    """CPU seconds of the scheduler and its loop alone, per 1,000 requests."""
    engine, began_s = LiveFleet(lone_replica(CONFIG, COST), Nobody()), time.process_time()
    for i in range(n_requests):
        now_ns = int(i / RATE_PER_S * 1e9)
        contents = content_ids([(i, k) for k in range(10 + N_TOKENS)], CONFIG.block_size)
        engine.advance(now_ns)
        engine.submit(
            LiveRequest(
                i,
                arrival_ns=now_ns,
                prompt=10,
                stop=N_TOKENS,
                max_tokens=N_TOKENS,
                priority=0,
                contents=contents,
            )
        )
    wake_ns = engine.advance(now_ns)
    while wake_ns != FAR_NS:
        wake_ns = engine.advance(wake_ns)
    assert engine.n_unfinished == 0
    return (time.process_time() - began_s) / n_requests * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--requests", type=int, default=1000)
    flags = parser.parse_args()
    costs, lateness_ms = zip(*(served(flags.requests) for _ in range(flags.runs)), strict=True)
    alone = [scheduled(flags.requests) for _ in range(flags.runs)]
    cost = median_estimate(np.array(costs))
    median, tail = (
        median_estimate(np.array([np.quantile(run, share) for run in lateness_ms]))
        for share in (0.5, 0.99)
    )
    sentence = (
        f"bound {COST_BOUND_S} s; of which the scheduler and its loop"
        f" {words(median_estimate(np.array(alone)))} s"
    )
    log_row("emulator, CPU s per 1,000 streams of 64 tokens at 100 a second", words(cost), sentence)
    log_row(
        "emulator, ms from due to written",
        f"p50 {words(median)}, p99 {words(tail)}",
        "steps of 5 ms, some 32 streams at once",
    )
    assert cost.value <= COST_BOUND_S, "more than half a slow core"


if __name__ == "__main__":
    main()
