"""Prometheus, promtool and HAProxy as they are installed here.

Started on loopback, bounded in time, ended by their starter.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml

PEERS_DIR = "INFEROMETER_PEERS_DIR"
"""A folder with the programs, where they are not on the PATH."""
MAX_LIFE_S = 600


def program(name, package):
    found = shutil.which(
        name, path=os.pathsep.join([os.environ.get(PEERS_DIR, ""), os.environ["PATH"], "/usr/sbin"])
    )
    if found is None:
        pytest.skip(
            f"{name} is neither on the PATH nor in {PEERS_DIR} (Debian: apt-get install {package})"
        )
    return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def promtool(*words, folder):
    done = subprocess.run(
        [program("promtool", "prometheus"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(command, folder, is_up):
    """A process that is up, and is ended."""
    with (folder / "peer.log").open("wb") as log:
        process = subprocess.Popen(
            ["timeout", str(MAX_LIFE_S), *command], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        until_s = time.monotonic() + 30
        while not is_up():
            assert process.poll() is None, (folder / "peer.log").read_text()
            assert time.monotonic() < until_s, (folder / "peer.log").read_text()
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


class Prometheus:
    """Its HTTP interface."""

    def __init__(self, port):
        self.port = port

    def get(self, path, **query):
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as line:
            line.request("GET", f"{path}?{urlencode(query)}" if query else path)
            answer = line.getresponse()
            return answer.status, answer.read()

    def is_up(self):
        try:
            return self.get("/-/ready")[0] == http.client.OK
        except OSError:
            return False

    def values(self, expression, at_s=None):
        """(labels, value) of each series that the query gives, now or at an instant (Unix time)."""
        at = {} if at_s is None else {"time": at_s}
        status, body = self.get("/api/v1/query", query=expression, **at)
        said = json.loads(body)
        assert status == http.client.OK, f"{expression}: {said}"
        return [(row["metric"], float(row["value"][1])) for row in said["data"]["result"]]

    def rules(self):
        return [
            rule
            for group in json.loads(self.get("/api/v1/rules")[1])["data"]["groups"]
            for rule in group["rules"]
        ]


@contextmanager
def prometheus(folder: Path):
    """A Prometheus with the folder's ``prometheus.yml`` and rules, which looks every second."""
    path = program("prometheus", "prometheus")
    for name in ("prometheus.yml", "prometheus-rules.yaml"):
        text = (folder / name).read_text().replace("scrape_interval: 15s", "scrape_interval: 1s")
        (folder / name).write_text(
            text.replace("evaluation_interval: 15s", "evaluation_interval: 1s").replace(
                "interval: 15s", "interval: 1s"
            )
        )
    assert (
        yaml.safe_load((folder / "prometheus.yml").read_text())["global"]["scrape_interval"] == "1s"
    )
    server = Prometheus(free_port())
    command = [
        path,
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{server.port}",
    ]
    with running(command, folder, server.is_up):
        yield server


def haproxy(folder: Path, config: str):
    """HAProxy with this configuration on loopback ports of its own: (port, a context in which it runs)."""
    path, port, status_port = program("haproxy", "haproxy"), free_port(), free_port()
    text = config.replace("bind :8080", f"bind 127.0.0.1:{port}").replace(
        "bind :8404", f"bind 127.0.0.1:{status_port}"
    )
    assert text != config
    (folder / "local.cfg").write_text(text)

    def is_up():
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", status_port, timeout=5)) as line:
                line.request("GET", "/health")
                return line.getresponse().status == http.client.OK
        except OSError:
            return False

    return port, running([path, "-f", "local.cfg"], folder, is_up)
