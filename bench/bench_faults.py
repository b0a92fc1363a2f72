"""Does a load test end, and stay small, whatever a server answers?

10,000 requests to a server with more than 60 kinds of answers.

``python bench/bench_faults.py [--requests 10000] [--rate 150]``. The bar: the command ends, none of
its processes holds more than 300 MB, no request is lost, the run is INVALID for its false counts,
and ``show`` of it takes at most 5 s of CPU.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
from faulty_server import FAULTS, N_TOKENS
from results_log import log_row

from inferometer.records.reading import read_run

_MOST_BYTES = 300_000_000
_SHOW_CPU_S = 5.0
_WORKLOAD = f"""name = "faults"
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "short"
prompt_tokens = {{ kind = "constant", value = 20 }}
output_tokens = {{ kind = "constant", value = {N_TOKENS} }}
"""


class PeakMemory(threading.Thread):
    """The largest resident memory of a process and of each of its children, looked at 20 times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.most_bytes: dict[str, int] = {}

    def run(self) -> None:
        """Until the process is gone."""
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            for name, process in (
                ("command", self._process),
                *(("client", child) for child in self._process.children(recursive=True)),
            ):
                try:
                    self.most_bytes[name] = max(
                        self.most_bytes.get(name, 0), process.memory_info().rss
                    )
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.05)


def _load(
    url: str, folder: Path, n_requests: int, rate_per_s: float
) -> tuple[int, float, dict[str, int], str]:
    (folder / "faults.toml").write_text(_WORKLOAD)
    limits = (
        "--connect-timeout",
        "3s",
        "--head-timeout",
        "2s",
        "--read-timeout",
        "2s",
        "--timeout",
        "10s",
        "--max-body",
        "1MiB",
    )
    traffic = (
        "--workload",
        "faults.toml",
        "--rate",
        f"{rate_per_s:g}",
        "--requests",
        str(n_requests),
    )
    words = (
        "load",
        url,
        "--model",
        "m",
        "--endpoint",
        "completions",
        *traffic,
        *limits,
        "--no-preflight",
        "--no-report",
        "--verbose",
        "--out",
        "run",
    )
    began_s = time.monotonic()
    child = subprocess.Popen(
        [_command(), *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    memory = PeakMemory(child.pid)
    memory.start()
    said, _ = child.communicate(timeout=20 * n_requests / rate_per_s + 300)
    return child.returncode, time.monotonic() - began_s, memory.most_bytes, said


def _command() -> Path:
    return Path(sys.executable).parent / "inferometer"


def main() -> None:
    """Load, look, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=150.0)
    asked = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("faulty_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            code, took_s, most_bytes, said = _load(url, folder, asked.requests, asked.rate)
        finally:
            server.kill()
            server.wait()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = subprocess.run(
            [_command(), "show", "run"], cwd=folder, capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        show_cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        run = read_run(folder / "run")
    assert run.requests is not None
    assert run.exchanges is not None
    kinds = list(FAULTS)
    codes = Counter(
        zip(
            (kinds[row % len(kinds)] for row in run.exchanges.request_index.tolist()),
            run.exchanges.error.tolist(),
            strict=True,
        )
    )
    for (kind, error), n in sorted(codes.items()):
        print(f"{kind:36} {error or 'good':20} {n:6}")
    assert sorted(run.requests.request_index.tolist()) == list(range(asked.requests)), (
        "none is lost"
    )
    assert code == 3, said
    assert "more tokens than can be" in said, said
    assert shown.returncode == 0, shown.stderr
    assert max(most_bytes.values()) <= _MOST_BYTES, most_bytes
    assert show_cpu_s <= _SHOW_CPU_S, show_cpu_s
    megabytes = ", ".join(f"{name} {n / 1e6:.0f} MB" for name, n in sorted(most_bytes.items()))
    log_row(
        f"load: {asked.requests:,} requests to a server with {len(kinds)} kinds of answers",
        f"ended after {took_s:.0f} s, INVALID; {megabytes} at most; show {show_cpu_s:.1f} s of CPU",
        f"{asked.rate:g} requests/s; none lost; {len({error for _, error in codes})} codes; bars"
        " 300 MB and 5 s",
    )


if __name__ == "__main__":
    main()
