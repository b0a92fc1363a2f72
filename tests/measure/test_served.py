"""Is a server started, waited for, and stopped so that nothing of it is left, whatever it does?"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from inferometer.errors import SpecError
from inferometer.measure.served import PlaceFault, ServerFault, ServerStart, served

SERVER = """
import http.server, json, subprocess, sys, signal, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"version": "9.9"} if self.path == "/version" else {"data": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        import os
        os._exit(3)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Pages).serve_forever()
"""


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_of(tmp_path, port, *words, timeout_s=60.0):
    words = words or (sys.executable, "-c", SERVER, str(port))
    return ServerStart(
        words=words,
        url=f"http://127.0.0.1:{port}",
        log=tmp_path / "server.log",
        timeout_s=timeout_s,
    )


def kill_by_request(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            client.recv(10)
    time.sleep(0.5)


def child_of(log):
    return int(log.read_text().split()[1])


def is_there(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_it_runs_and_nothing_is_left(tmp_path, port):
    start = start_of(tmp_path, port)
    with served(start) as facts:
        assert facts.version == "9.9"
        assert facts.memory_bytes > 2**20
        child = child_of(start.log)
        assert is_there(child)
    assert not is_there(child)
    with served(start) as again:  # the port is free at once
        assert again.start_s > 0


def test_what_dies_at_its_start_says_why(tmp_path, port):
    words = (sys.executable, "-c", "raise SystemExit('CUDA out of memory')")
    with (
        pytest.raises(ServerFault, match=r"before it was ready .*out of memory"),
        served(start_of(tmp_path, port, *words)),
    ):
        pass


def test_what_is_quoted_of_our_own_error_is_what_was_wrong(tmp_path, port):
    """Its last line, what to try, was quoted as if the server had written it."""
    command = (sys.executable, "-m", "inferometer", "emulate", "no-such-model", "--port", str(port))
    with (
        pytest.raises(ServerFault, match=r"inferometer: .*no-such-model") as caught,
        served(start_of(tmp_path, port, *command)),
    ):
        pass
    assert "try:" not in caught.value.what


def test_a_command_that_is_not_there(tmp_path, port):
    with (
        pytest.raises(ServerFault, match="No such file"),
        served(start_of(tmp_path, port, "no-such-server")),
    ):
        pass


def test_what_is_never_ready_is_given_up(tmp_path, port):
    words = (sys.executable, "-c", "import time; time.sleep(60)")
    start = start_of(tmp_path, port, *words, timeout_s=1.0)
    with pytest.raises(ServerFault, match="not ready after 1"), served(start):
        pass


def test_what_dies_under_load_is_said(tmp_path, port):
    start = start_of(tmp_path, port)
    with pytest.raises(ServerFault, match="ended under load"), served(start):
        kill_by_request(port)
    assert not is_there(child_of(start.log))


def test_what_is_killed_is_said_to_be(tmp_path, port):
    words = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    start = start_of(tmp_path, port, *words)
    with pytest.raises(ServerFault, match="SIGKILL, as the kernel does"), served(start):
        pass


def test_a_port_that_is_taken_is_refused(tmp_path, port):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with (
            pytest.raises(PlaceFault, match="listens there already"),
            served(start_of(tmp_path, port)),
        ):
            pass


@pytest.mark.parametrize("url", ["http://example.com:80", "http://127.0.0.1"])
def test_only_ports_of_this_machine(tmp_path, url):
    start = ServerStart(words=("true",), url=url, log=tmp_path / "log", timeout_s=1.0)
    with pytest.raises(SpecError, match="port of this machine"), served(start):
        pass


def test_a_killed_starter_leaves_nobody(tmp_path, port):
    code = (
        "import sys, pathlib, time\n"
        "from inferometer.measure.served import ServerStart, served\n"
        f"start = ServerStart(words=tuple({(sys.executable, '-c', SERVER, str(port))!r}),"
        f" url='http://127.0.0.1:{port}', log=pathlib.Path({str(tmp_path / 'server.log')!r}),"
        " timeout_s=60.0)\n"
        "with served(start):\n"
        "    print('up', flush=True); time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert starter.stdout.readline() == b"up\n", shlex.quote(code)
    child = child_of(tmp_path / "server.log")
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    until_s = time.monotonic() + 10
    while is_there(child) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not is_there(child)
