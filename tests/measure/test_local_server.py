"""The processes of a server on this machine: which they are, and whether they wait for cores."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from inferometer.errors import MeasureError, SpecError
from inferometer.measure.local_server import server_processes, watching

SERVER = """
import http.server, json, os, subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(sys.argv[1]))]
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(json.dumps({"port": server.server_port, "children": [one.pid for one in children]}), flush=True)
try:
    server.serve_forever()
finally:
    for one in children:
        one.kill()
"""


@contextmanager
def served(n_busy, cores, **environment):
    """A server whose processes keep ``n_busy`` threads busy on these cores: its URL, and all its pids."""
    with subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-c", SERVER, str(n_busy)],
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    ) as process:
        said = json.loads(process.stdout.readline())
        try:
            yield f"http://127.0.0.1:{said['port']}", [process.pid, *said["children"]]
        finally:
            for pid in said["children"]:
                os.kill(pid, 9)
            process.kill()


def test_a_servers_processes_are_the_one_that_listens_and_its_children():
    with served(2, os.sched_getaffinity(0)) as (url, pids):
        assert [one.pid for one in server_processes(url)] == pids


def test_four_busy_processes_on_one_core_wait_for_it():
    core = {min(os.sched_getaffinity(0))}
    with served(4, core, OMP_NUM_THREADS="4") as (url, _), watching(url) as numbers:
        time.sleep(2)
        found = numbers()
    # Each has a quarter of the core, and waits for the rest of the time.
    assert 0.6 < found["waits_for_cores"] < 0.9
    assert found["oversubscribed_threads"] == 4


def test_a_server_that_does_nothing_says_nothing_of_cores():
    with served(0, os.sched_getaffinity(0)) as (url, _), watching(url) as numbers:
        found = numbers()
    assert found["waits_for_cores"] is None


def test_a_server_elsewhere_is_refused():
    with pytest.raises(SpecError, match="is not on this machine"):
        server_processes("http://192.0.2.17:8000")


def test_a_port_where_nothing_listens_is_said():
    with served(0, os.sched_getaffinity(0)) as (url, _):
        pass
    with pytest.raises(MeasureError, match="no process of this machine listens"):
        server_processes(url)
