"""Does one port serve a whole fleet: replicas behind their router, a gate, prefill replicas?"""

import asyncio
import http.client
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from emulated import MODEL, Client, emulator

from inferometer.simulate.fleet import (
    ClusterConfig,
    Fleet,
    KvLink,
    Placement,
    PrefillReplicas,
    ReplicaGroup,
)
from inferometer.simulate.gate_config import ClassRules, GateConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

STEP_S, N_TOKENS, N_CLIENTS = 0.02, 10, 3
ENGINE = SchedulerConfig(num_blocks=2000, max_model_len=512, max_num_seqs=1)
CLASS_HEADER = "x_gateway_inference_objective"


def fleet_of(n_replicas, **more):
    return Fleet(
        replicas=ClusterConfig(engine=ENGINE, n_replicas=n_replicas, router="least-loaded"),
        step_times=linear_cost(launch_s=STEP_S),
        **more,
    )


def answered(fleet, *, class_names=("*",), headers=({},) * N_CLIENTS, max_tokens=N_TOKENS):
    """The replies of clients that ask at once, and the seconds until each."""

    async def one(port, more):
        client = await Client.connect(port)
        began_s = time.perf_counter()
        body = {"model": MODEL, "prompt": "one two", "max_tokens": max_tokens, "ignore_eos": True}
        reply = await client.ask("POST", "/v1/completions", body, **more)
        await client.close()
        return reply, time.perf_counter() - began_s

    async def main():
        async with emulator(fleet=fleet, class_names=class_names) as port:
            return await asyncio.gather(*(one(port, more) for more in headers))

    return asyncio.run(main())


def test_replicas_work_side_by_side():
    """Each has room for one: on one replica the last waits for all others."""
    alone, together = (max(seconds for _, seconds in answered(fleet_of(n))) for n in (1, N_CLIENTS))
    assert alone >= N_CLIENTS * N_TOKENS * STEP_S
    assert together < alone - N_TOKENS * STEP_S


def test_prefill_replicas_hand_over():
    prefill = PrefillReplicas(
        replicas=ClusterConfig(engine=ENGINE),
        step_times=linear_cost(launch_s=STEP_S),
        link=KvLink(block_bytes=1000, bytes_per_s=1e4, latency_s=0.1),
    )
    for reply, seconds in answered(fleet_of(N_CLIENTS, prefill=prefill)):
        assert reply.json["usage"]["completion_tokens"] == N_TOKENS
        assert seconds >= N_TOKENS * STEP_S + 0.1 + 0.1  # a block of 1000 bytes, and the latency


def test_a_gate_knows_classes_by_their_header():
    gate = GateConfig(
        classes=(ClassRules(name="batch", max_in_flight=1, max_queue=1), ClassRules(max_tokens=4))
    )
    headers = [{CLASS_HEADER: "batch"}] * 3 + [{}]
    replies = answered(fleet_of(4, gate=gate), class_names=("batch", "*"), headers=headers)
    *batch, other = (reply for reply, _ in replies)
    assert sorted(reply.status for reply in batch) == [200, 200, 503]
    assert other.json["usage"]["completion_tokens"] == 4
    assert other.json["choices"][0]["finish_reason"] == "length"
    waited = sorted(seconds for reply, seconds in replies[:3] if reply.status == 200)
    assert waited[1] >= 2 * N_TOKENS * STEP_S


def test_groups_have_their_classes_and_step_times_of_their_own():
    """Each step of the group of class batch takes three times as long."""
    kinds = (
        ReplicaGroup(engine=ENGINE, step_times=linear_cost(launch_s=3 * STEP_S), classes=(0,)),
        ReplicaGroup(engine=ENGINE, step_times=linear_cost(launch_s=STEP_S)),
    )
    placement = Placement(groups=kinds)
    fleet = Fleet(replicas=placement.cluster, step_times=kinds[0].step_times, placement=placement)
    (_, slow_s), (_, fast_s) = answered(
        fleet, class_names=("batch", "*"), headers=[{CLASS_HEADER: "batch"}, {}]
    )
    assert slow_s >= 3 * N_TOKENS * STEP_S
    assert N_TOKENS * STEP_S <= fast_s < slow_s - N_TOKENS * STEP_S


def test_metrics_are_those_of_all_replicas():
    async def main():
        async with emulator(fleet=fleet_of(2)) as port:
            clients = [await Client.connect(port) for _ in range(4)]
            asked = [
                asyncio.create_task(client.complete(max_tokens=30, ignore_eos=True))
                for client in clients[:3]
            ]
            await asyncio.sleep(5 * STEP_S)
            page = (await clients[3].ask("GET", "/metrics")).body.decode()
            await asyncio.gather(*asked)
            for client in clients:
                await client.close()
            return page

    page = asyncio.run(main())
    said = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    running, waiting = (
        next(float(value) for name, value in said.items() if name.startswith(f"vllm:{what}{{"))
        for what in ("num_requests_running", "num_requests_waiting")
    )
    assert (running, waiting) == (2, 1)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            ("--replicas", "3", "--router", "prefix-affine"), id="router", marks=pytest.mark.slow
        ),
        pytest.param(
            ("--prefill-replicas", "1", "--kv-link", "50GB/s"), id="prefill", marks=pytest.mark.slow
        ),
        pytest.param(("--replicas", "2", "--gate", "gate.toml"), id="gate", marks=pytest.mark.slow),
        pytest.param(("--groups", "groups.toml"), id="groups", marks=pytest.mark.slow),
    ],
)
def test_the_command_serves_every_fleet(flags, tmp_path):
    (tmp_path / "gate.toml").write_text(
        "order = 'fair'\n[[classes]]\nname = '*'\nmax_tokens = 3\n[[tenants]]\nname = 'a'\nweight = 2\n"
    )
    (tmp_path / "groups.toml").write_text(
        "[[groups]]\nname = 'a'\ntenants = ['a']\n[[groups]]\nname = 'b'\nserver = {hardware = 'l40s'}\n"
    )
    command = [Path(sys.executable).parent / "inferometer", "emulate", "smollm2-135m", "--json"]
    with subprocess.Popen(
        [*command, "--hardware", "l4", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        said = process.stderr.readline()
        place = said.split()[0].removeprefix("http://")

        def ask(number):
            body = {"model": "smollm2-135m", "prompt": f"word {number}", "max_tokens": 7, "ignore_eos": True}  # fmt: skip
            headers = {"Content-Type": "application/json", "x-gateway-inference-fairness-id": "a"}
            with closing(http.client.HTTPConnection(place, timeout=30)) as line:
                line.request("POST", "/v1/completions", json.dumps(body), headers)
                return json.loads(line.getresponse().read())["usage"]["completion_tokens"]

        try:
            with ThreadPoolExecutor(8) as pool:
                lengths = set(pool.map(ask, range(24)))
        finally:  # an error waits for no server that nobody ends
            process.terminate()
        stdout, stderr = process.communicate(timeout=30)
    assert lengths == ({3} if "--gate" in flags else {7}), stderr
    assert json.loads(stdout)["n_requests"] == 24
    assert ("behind a gate" in said) == ("--gate" in flags)
