"""A real Ray cluster of two nodes on this machine, each as another host would be.

With an address, and if asked a clock, of its own.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

ROOT = Path(__file__).parents[3]
START = (
    "-m",
    "ray.scripts.scripts",
    "start",
    "--block",
    "--num-cpus",
    "2",
    "--object-store-memory",
    "80000000",
    "--disable-usage-stats",
)
START_S = 120
TOKEN = secrets.token_hex(32)


class Nodes(NamedTuple):
    """A cluster that runs; ``raylets`` are the processes that are its nodes, the head first."""

    address: str
    python: Path
    raylets: tuple[psutil.Process, ...]

    def run(
        self, *words: object, folder: Path, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """The command line in the Python that has Ray."""
        return subprocess.run(
            self.line(*words),
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def line(self, *words: object) -> list[str]:
        return [
            str(self.python),
            "-c",
            "from inferometer.cli.main import main; main()",
            *map(str, words),
        ]


def ray_python() -> Path:
    """The interpreter that has Ray beside the core; it sees this very package through PYTHONPATH."""
    found = Path(os.environ.get("INFEROMETER_RAY_PYTHON", ROOT / ".venv-ray" / "bin" / "python"))
    if not found.exists():
        pytest.skip("no Python with Ray: `make ray` makes one, or INFEROMETER_RAY_PYTHON names it")
    return found


def environment() -> dict[str, str]:
    """With a token of its own: nobody else on this machine can talk to the cluster."""
    path = os.pathsep.join(map(str, (ROOT / "src", Path(__file__).parent)))
    ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    return {**os.environ, **ours, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def in_another_time(ahead_s: int) -> tuple[str, ...]:
    """What starts a process whose CLOCK_MONOTONIC is so far ahead; the test is skipped where nobody may."""
    words = ("unshare", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*words, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not give processes a clock of their own (unshare --time)")
    return words


@contextmanager
def two_nodes(ahead_s: int | None = None) -> Generator[Nodes]:
    """Two nodes, the clock of the second ahead of the first's."""
    python, before = ray_python(), () if ahead_s is None else in_another_time(ahead_s)
    with (
        tempfile.TemporaryDirectory(
            prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
        ) as folder,
        ExitStack() as stack,
    ):
        address = f"127.0.0.2:{free_port()}"
        head = (
            "--head",
            "--port",
            address.rpartition(":")[2],
            "--include-dashboard",
            "false",
            "--temp-dir",
            folder,
        )
        started = [
            stack.enter_context(
                running([*where, str(python), *START, *flags], Path(folder) / f"node-{number}.log")
            )
            for number, (where, flags) in enumerate(
                [
                    ((), (*head, "--node-ip-address", "127.0.0.2")),
                    (before, ("--address", address, "--node-ip-address", "127.0.0.3")),
                ]
            )
        ]
        yield Nodes(address, python, tuple(raylet_of(psutil.Process(node.pid)) for node in started))


@contextmanager
def running(command: list[str], log: Path) -> Generator["subprocess.Popen[bytes]"]:
    """A node that is up, and gone when the block ends."""
    with log.open("wb") as output:
        node = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment(), start_new_session=True
        )
    try:
        wait_for(node, log)
        yield node
    finally:
        family = (
            [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
            if node.poll() is None
            else []
        )
        for process in family:
            if process.is_running():
                process.kill()
        node.wait()
        psutil.wait_procs(family[1:], timeout=10)


def wait_for(node: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(START_S * 5):
        if "Ray runtime started" in log.read_text():
            return
        try:
            node.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the node did not start: {log.read_text()}")


def raylet_of(node: psutil.Process) -> psutil.Process:
    return next(child for child in node.children(recursive=True) if child.name() == "raylet")


def free_port() -> int:
    """Above those of Ray's workers, below those that the system gives to whoever asks for any.

    Either may be taken before Ray is up.
    """
    return next(port for port in range(20_000 + os.getpid() % 10_000, 32_000) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.2", port)) != 0
