"""inferometer watch against emulated servers: the state, the changes, and what Prometheus sees of it."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command_line import run
from tests.decide.peers import free_port, program, prometheus

import inferometer as im
from inferometer.api.watch_prediction import prediction_of
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import serve
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

pytestmark = pytest.mark.slow  # real seconds

STEP_S = 40e-3
GOLDEN = Path(__file__).parents[1] / "golden" / "answers"
CONFIG = SchedulerConfig(num_blocks=4000, max_model_len=1024, max_num_seqs=64)


def plan(step_s=STEP_S, port=0, **config):
    return EmulatorPlan(
        model_name="m",
        fleet=lone_replica(replace(CONFIG, **config), linear_cost(launch_s=step_s)),
        mean_output_tokens=None,
        port=port,
    )


class Loop:
    """An event loop in a thread of its own, in which servers and their traffic live."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self):
        self.do(asyncio.sleep(0.5))  # connections are closed
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Server:
    """An emulated server on a port of its own that can be stopped and started anew."""

    def __init__(self, loop, **config):
        self._loop, self._config, self._port = loop, config, free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._loop.do(self._start({}))
        self.traffic = Traffic(loop, self.url)

    def stop(self):
        self._loop.do(self._stop())

    def close(self):
        self.traffic.stop()
        self.stop()

    async def _start(self, changes):
        self._over, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        made = plan(port=self._port, **(self._config | changes))
        self._serving = asyncio.create_task(serve(made, self._over, ready))
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        assert ready.done()

    async def _stop(self):
        self._over.set()
        await self._serving


class Traffic:
    """Requests to one server: users who wait for their answers, and arrivals that do not."""

    def __init__(self, loop, url):
        self.address = urlsplit(url)
        self.n_users, self.rate_per_s, self.n_tokens, self.is_alike = 2, 0.0, 20, True
        self._n, self._is_over = 0, False
        self._running = asyncio.run_coroutine_threadsafe(self._run(), loop.loop)

    def stop(self):
        self._is_over = True
        self._running.result(30)

    async def _run(self):
        users, arrivals, came = set(), set(), 0.0
        while not self._is_over:
            users = {one for one in users if not one.done()}
            while len(users) < self.n_users:
                users.add(asyncio.create_task(self._ask()))
            came += self.rate_per_s * 0.05
            while came >= 1:
                came -= 1
                arrivals.add(asyncio.create_task(self._ask()))
            await asyncio.sleep(0.05)
        for task in users | arrivals:
            task.cancel()
        await asyncio.gather(*users, *arrivals, return_exceptions=True)

    async def _ask(self):
        self._n += 1
        first = 0 if self.is_alike else self._n * 1000
        words = " ".join(f"w{first + i}" for i in range(120))
        body = json.dumps(
            {"model": "m", "prompt": words, "max_tokens": self.n_tokens, "ignore_eos": True}
        )
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
            head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            try:
                writer.write((head + body).encode())
                answer = await reader.read(-1)
            finally:
                writer.close()
            assert not answer or answer.startswith(b"HTTP/1.1 200"), answer
            return
        await asyncio.sleep(0.2)


def heavier(traffic, **changes):
    for name, value in changes.items():
        setattr(traffic, name, value)


@contextmanager
def emulated(servers):
    """These servers, by name, in this process."""
    loop, made = Loop(), {}
    try:
        for name, config in servers.items():
            made[name] = Server(loop, **config)
        yield made
    finally:
        for one in made.values():
            one.close()
        loop.close()


def test_once_in_json_has_the_state_and_in_a_pipe_there_are_only_changes(tmp_path):
    with emulated({"full": {"max_num_seqs": 2}}) as servers:
        emulator = servers["full"]
        heavier(emulator.traffic, n_users=6)
        time.sleep(3)
        words = ("--slo", "ttft:p95<50ms, tpot:p95<2s")
        once = run(
            "watch", emulator.url, *words, "--once", "--window", "25s", "--json",
            folder=tmp_path,
        )  # fmt: skip
        piped = subprocess.run(
            [
                Path(sys.executable).parent / "inferometer",
                "watch",
                emulator.url,
                "--for",
                "15s",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert once.returncode == 10, once.stderr
    (server,) = json.loads(once.stdout)["servers"]
    assert (server["server"], server["conditions"]) == ("vllm", ["max_num_seqs_full"])
    assert (server["n_running"], server["n_waiting"]) == (2, 4)
    by_name = {one["name"]: one for one in server["latencies"]}
    assert set(by_name) == {
        f"{name}:{p}" for name in ("ttft", "tpot", "e2e") for p in ("p50", "p95")
    }
    tpot = by_name["tpot:p95"]
    assert tpot["low_s"] <= STEP_S <= tpot["high_s"]
    assert by_name["ttft:p95"]["breach_soonest_s"] == 0
    assert server["limit"]["cause"] == "max_num_seqs", server["limit"]
    assert server["headroom_ratio"] < 0
    assert piped.returncode == 0, piped.stderr
    (line,) = piped.stdout.splitlines()
    assert line.endswith(f"{emulator.url} batch full (max_num_seqs): requests wait for a place")


SCRAPES = """
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: watch
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def test_prometheus_reads_predictions_residuals_and_the_regime(tmp_path):
    program("prometheus", "prometheus")
    (golden, *_) = sorted(GOLDEN.glob("simulate-llama-3-1-8b-hardware-h100-sxm-rate-5-*.json"))
    predicted = tmp_path / "predicted.json"
    predicted.write_text(json.dumps(json.loads(golden.read_text())["answer"]))
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(SCRAPES.format(port=port))
    (tmp_path / "prometheus-rules.yaml").write_text("groups: []\n")
    with emulated({"one": {}}) as servers, prometheus(tmp_path) as server:
        url = servers["one"].url
        answer = im.watch(
            url, duration=15, predicted=predicted, slo="tpot:p95<1s", limit=False, export_port=port
        )

        def values(name):
            found = server.values(f"last_over_time(inferometer_{name}[5m])")
            return {tuple(sorted(labels.items())): value for labels, value in found}

        (state,) = answer.servers
        bounds = values('predicted_tpot_seconds{quantile="0.95"}')
        assert len(bounds) == 3
        (row,) = [one for one in state.latencies if one.name == "tpot:p95"]
        assert sorted(bounds.values()) == [
            row.predicted_low_s, row.predicted_s, row.predicted_high_s
        ]  # fmt: skip
        assert list(values("model_valid").values()) == [0.0]
        assert list(values("model_info").values()) == [1.0]
        assert set(values('regime{condition="overloaded"}').values()) == {0.0}
        assert all(0 < value <= 1 for value in values("headroom_ratio").values())
        (residual,) = values('residual_ratio{metric="tpot"}').values()
        assert residual == pytest.approx(
            STEP_S / prediction_of(predicted).means_s["tpot"].mid_s - 1, rel=0.2
        )
