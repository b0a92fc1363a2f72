"""inferometer diagnose URL against an emulated server under load, of the load test afterwards, and by Prometheus."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import check_refused, run
from tests.decide.peers import program, prometheus
from tests.measure.test_forward_passes import PUBLISHER

from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate import step_cost
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

pytestmark = pytest.mark.slow  # the metrics of real seconds

CONFIG = SchedulerConfig(
    num_blocks=4000, max_model_len=1024, max_num_seqs=4, enable_prefix_caching=False
)
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(CONFIG, step_cost.linear_cost(launch_s=10e-3)),
    mean_output_tokens=None,
)
WORKLOAD = """
n_requests = 260
[arrivals]
kind = "open"
rate_per_s = 10
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 100 }
output_tokens = { kind = "constant", value = 60 }
"""
SCRAPES = """
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: emulator
    static_configs: [{{targets: ["{address}"]}}]
"""


def test_a_full_batch_is_found_live_in_the_stored_load_test_and_by_prometheus(tmp_path):
    program("prometheus", "prometheus")
    (tmp_path / "short.toml").write_text(WORKLOAD)
    with start(PLAN) as emulator:
        address = emulator.url.removeprefix("http://")
        (tmp_path / "prometheus.yml").write_text(SCRAPES.format(address=address))
        (tmp_path / "prometheus-rules.yaml").write_text("groups: []\n")
        with prometheus(tmp_path) as server:
            began = datetime.now(UTC) + timedelta(seconds=3)
            live = loaded_and_diagnosed(emulator.url, tmp_path)
            later = run("diagnose", "loaded", "--json", folder=tmp_path)
            times = f"{began.isoformat()}..{(began + timedelta(seconds=30)).isoformat()}"
            past = ("--prometheus", f"http://127.0.0.1:{server.port}", "--range", times)
            by_prometheus = run("diagnose", emulator.url, *past, "--json", folder=tmp_path)
            check_refused(
                run("diagnose", "a:1", *past, folder=tmp_path), 3, "did not scrape a:1", address
            )
    for outcome, code in ((live, 10), (later, 0), (by_prometheus, 0)):
        assert outcome.returncode == code, outcome.stderr
        answer = json.loads(outcome.stdout)
        assert (answer["finding"], answer["cause"]) == ("limited", "max_num_seqs")
        limit = {"name": "max_num_seqs", "low": 4, "high": 4, "source": "identified"}
        assert answer["limits"][0] == limit
    checks = {one["name"]: one["finding"] for one in json.loads(live.stdout)["checks"]}
    assert checks["waits_for_cores"] in {"found", "ruled out"}
    assert json.loads(by_prometheus.stdout)["when"].startswith(f"{began:%Y-%m-%dT%H:%M:%S}..")


def test_steps_that_the_server_publishes_are_measured_while_its_metrics_are_read(tmp_path):
    pytest.importorskip("zmq", reason="the extra fpm is not installed")
    (tmp_path / "short.toml").write_text(WORKLOAD)
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    # Four requests at once, steps of 10 to 12 ms: what the emulated server does.
    line = [sys.executable, "-c", PUBLISHER, endpoint, "1", "120"]
    with start(PLAN) as emulator, subprocess.Popen(line) as publisher:
        try:
            live = loaded_and_diagnosed(emulator.url, tmp_path, "--fpm", endpoint)
        finally:
            publisher.kill()
    assert live.returncode == 10, live.stderr
    n_steps = re.search(r"([\d,]+) steps were published", live.stderr)
    assert int(n_steps[1].replace(",", "")) > 1000
    answer = json.loads(live.stdout)
    assert (answer["finding"], answer["cause"]) == ("limited", "max_num_seqs")


@pytest.mark.long
def test_the_suggested_load_test_can_be_diagnosed(tmp_path):
    refused = run("diagnose", "nowhere", folder=tmp_path).stderr
    words = re.search(r"try: inferometer (.*)", refused)[1].split()
    with start(PLAN) as emulator:
        names = {"URL": emulator.url, "RUN": "loaded"}
        made = [names.get(word, word) for word in words]
        done = run(
            *made,
            "--model",
            "m",
            "--workload",
            "100x40",
            "--rate",
            8,
            "--for",
            "20s",
            folder=tmp_path,
        )
    assert done.returncode in {0, 3}, done.stderr
    answer = json.loads(run("diagnose", "loaded", "--json", folder=tmp_path).stdout)
    assert answer["n_requests"] > 100


def loaded_and_diagnosed(url, folder, *words_of_steps):
    """What is said of the server while a load test runs."""
    words = ("--model", "m", "--workload", "short.toml", "--out", "loaded")
    inferometer = Path(sys.executable).parent / "inferometer"
    load = subprocess.Popen(
        [inferometer, "load", url, *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    slo = ("--slo", "ttft:p95<200ms")
    how = ("--local", *words_of_steps, "--for", "24s", *slo)
    live = run("diagnose", url, *how, "--json", folder=folder)
    load.wait(timeout=120)
    return live


@contextmanager
def slow_way_to(url, delay_s):
    """The URL of a proxy on loopback that holds back whatever a client sends."""
    host, port = url.removeprefix("http://").split(":")

    opened = []

    def relay(source, sink, held_s):
        with suppress(OSError):
            while data := source.recv(2**16):
                time.sleep(held_s)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def serve(listener):
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((host, int(port)))
                opened.extend((client, server))
                for ends in ((client, server, delay_s), (server, client, 0.0)):
                    threading.Thread(target=relay, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for one in opened:
                one.close()


def test_time_that_a_proxy_takes_is_not_the_servers(tmp_path):
    (tmp_path / "short.toml").write_text(WORKLOAD.replace("value = 60", "value = 10"))
    words = ("--model", "m", "--workload", "short.toml", "--rate", "4", "--for", "15s")
    with start(PLAN) as emulator, slow_way_to(emulator.url, 0.3) as way:
        loads = [
            run(
                "load", way, *words, "--metrics-url", emulator.url, "--out", "slow", folder=tmp_path
            ),
            run("load", emulator.url, *words, "--out", "straight", folder=tmp_path),
        ]
    for load in loads:
        assert load.returncode == 0, load.stderr
    diagnoses = [run("diagnose", name, "--json", folder=tmp_path) for name in ("slow", "straight")]
    for diagnosis in diagnoses:
        assert diagnosis.returncode in {0, 10}, diagnosis.stderr
    slow, straight = (json.loads(diagnosis.stdout) for diagnosis in diagnoses)
    assert (slow["finding"], slow["cause"]) == ("limited", "outside")
    assert [one["latency"] for one in slow["outside"]] == ["ttft", "e2e"]
    assert all(one["outside_s"] > 0.29 for one in slow["outside"])
    assert straight["cause"] != "outside"
    assert all(one["outside_s"] < 0.1 for one in straight["outside"])
    page = run("diagnose", "slow", folder=tmp_path).stdout
    assert "the client, a proxy or the network" in page
