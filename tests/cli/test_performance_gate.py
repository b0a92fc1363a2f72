"""Do the steps of ``examples/github-action.yml`` fail where the changed server is slower, and only there?"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

JOB = yaml.safe_load((Path(__file__).parents[2] / "examples" / "github-action.yml").read_text())[
    "jobs"
]["compare"]
STEPS = {step["name"]: step["run"] for step in JOB["steps"] if "run" in step}


def run_step(name, folder, *, more="", ports=(8001, 8002), **variables):
    """As a GitHub runner does: ``bash -e -o pipefail``; ``more`` is run after it."""
    step = STEPS[name].replace("8001", str(ports[0])).replace("8002", str(ports[1]))
    environment = {
        **os.environ,
        **{key: str(value) for key, value in JOB["env"].items()},
        **variables,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step + more]
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.run(
            command, cwd=folder, env=environment, check=False, stdout=log, stderr=log, timeout=300
        ).returncode


def test_every_step_is_known():
    assert list(STEPS) == ["Install", "Start both servers", "Load them in turns", "Decide"]


@pytest.mark.parametrize(
    ("verdict", "exit_code"), [("better", 0), ("equivalent", 0), ("undecided", 0), ("worse", 1)]
)
def test_only_a_slower_server_fails(verdict, exit_code, tmp_path):
    answer = {"comparison": {"answer": {"verdict": verdict}}}
    (tmp_path / "comparison.json").write_text(json.dumps(answer))
    assert run_step("Decide", tmp_path) == exit_code


def free_ports():
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


def emulator(device, port):
    return (
        f"inferometer emulate llama-3.1-8b --served-model-name m --hardware {device}"
        f" --port {port} --for 240s"
    )


@pytest.mark.slow
def test_a_slower_device_is_found_out(tmp_path):
    ports = free_ports()
    servers = {
        "SERVE_MAIN": emulator("h100_sxm", ports[0]),
        "SERVE_CHANGED": emulator("l40s", ports[1]),
    }
    load = {"LOAD": "--workload 64x16 --rate 10 --for 3s --force", "PAIRS": "6"}
    started = run_step(
        "Start both servers", tmp_path, more="jobs -p > pids", ports=ports, **servers
    )
    try:
        assert started == 0
        assert run_step("Load them in turns", tmp_path, ports=ports, **load) == 0
        assert run_step("Decide", tmp_path) == 1
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
