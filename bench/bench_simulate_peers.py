"""How many requests does a CPU second simulate, in our kernel and in other simulators, on the same workload?

Two workloads of log-normal lengths, 512 tokens in and 128 out on average, 256 slots, 2,048 tokens a
step, no prefix cache, chunked prefill: ``steady`` at 6.45 requests a second, ``full`` as the chats
of ``bench_simulate_speed``. Each peer runs 1,000 requests and the most that it finishes in about
``--seconds``, which shows who is superlinear; the kernel runs the same requests in between. Every
run is a process of its own; its CPU time from the moment all inputs are in memory counts, the rest
is start-up. Medians of 3 [lowest, highest].
"""

import argparse
import fcntl
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench_simulate_speed import chat_config, chats
from results_log import log_row
from simulate_peers_here import NOT_HERE, ROOT, AbsentError, all_peers

N_FIRST, N_MOST, N_TRIES = 1_000, 200_000, 3
RATES_PER_S = {"steady": 6.45, "full": 60.0}
SPREAD = 0.8
STEP_TIME = {
    "launch_s": 5e-3,
    "per_row_s": 20e-6,
    "per_context_token_s": 20e-9,
    "per_prefill_pair_s": 1e-9,
}
"""``bench_simulate_speed.COST``, term by term."""
COMPILE_LIMIT_S, LIMIT_S, HOLD_S = 900, 150, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One peer on one workload at one size, and the kernel in between."""

    n_requests: int
    runs: list[dict]
    kernel_runs: list[dict]

    def rates_per_s(self):
        return [run["n_done"] / run["cpu_s"] for run in self.runs]

    def kernel_rates_per_s(self):
        return [run["n_done"] / run["cpu_s"] for run in self.kernel_runs]

    def ratio(self):
        return float(np.median(self.kernel_rates_per_s()) / np.median(self.rates_per_s()))


class Turn:
    """Our turn on a machine that others measure on too: a lock on a file, given back every now and then."""

    def __init__(self, path):
        self._file = path.open("a") if path else None
        self._since_s = None

    def take(self):
        if self._file is None:
            return
        if self._since_s is not None and time.monotonic() - self._since_s > HOLD_S:
            self.give_back()
        if self._since_s is None:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._since_s = time.monotonic()

    def give_back(self):
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._since_s = None
            time.sleep(1)


def workload_file(folder, name, n_requests):
    """The workload as a file that every peer's driver reads."""
    path = folder / f"{name}-{n_requests}.json"
    if not path.exists():
        requests, config = chats(n_requests, RATES_PER_S[name]), chat_config(is_async=False)
        names = (
            "num_blocks",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
        )
        content = {
            "settings": {name: getattr(config, name) for name in names} | STEP_TIME,
            "rate_per_s": RATES_PER_S[name],
            "log_prompt": [float(np.log(512) - SPREAD**2 / 2), SPREAD],
            "log_output": [float(np.log(128) - SPREAD**2 / 2), SPREAD],
        }
        for column in ("arrival_ns", "prompt_tokens", "output_tokens"):
            content[column] = getattr(requests, column).tolist()
        path.write_text(json.dumps(content))
    return path


def run_once(peer, command, workload, turn, limit_s=LIMIT_S):
    """What the driver says of one run, and the CPU seconds that the process took besides; AbsentError where it fails."""
    turn.take()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = [str(workload) if part == "WORKLOAD" else part for part in command]
    environment = {**os.environ, **peer.variables}
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=True, timeout=limit_s, env=environment
        )
    except subprocess.TimeoutExpired:
        raise AbsentError(f"not done after {limit_s} s") from None
    except subprocess.CalledProcessError as error:
        raise AbsentError(
            f"failed: {(error.stderr.strip() or 'no word').splitlines()[-1]}"
        ) from None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(done.stdout.splitlines()[-1])
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result | {"start_up_s": spent_s - result["cpu_s"]}


def next_size(n_requests, cpu_s, limit_s):
    """A round size that takes no longer than the limit, should the time grow with the square of the size; twice the first at least."""
    most = max(2 * N_FIRST, min(N_MOST, n_requests * np.sqrt(limit_s / cpu_s)))
    sizes = [
        n
        for scale in (10**3, 10**4, 10**5)
        for n in (scale, 2 * scale, 3 * scale, 5 * scale, 7 * scale)
        if n <= most
    ]
    return max(sizes)


def measure(peer, command, workloads, turn, limit_s):
    """The peer at the first size and at the largest that it finishes in time, each in turn with the kernel."""
    kernel, kernel_command = workloads["kernel"]
    file = workloads["file"]
    first = run_once(peer, command, file(N_FIRST), turn)
    n_largest, largest = N_FIRST, first
    while (n_more := next_size(n_largest, largest["cpu_s"], limit_s)) > 1.3 * n_largest:
        n_largest, largest = n_more, run_once(peer, command, file(n_more), turn)
    measured = []
    for n_requests, run in {N_FIRST: first, n_largest: largest}.items():
        runs, kernel_runs = [run], []
        for i in range(N_TRIES):
            if i:
                runs.append(run_once(peer, command, file(n_requests), turn))
            if peer is not kernel:
                kernel_runs.append(run_once(kernel, kernel_command, file(n_requests), turn))
        measured.append(Measured(n_requests=n_requests, runs=runs, kernel_runs=kernel_runs or runs))
    return measured


def spread_words(values):
    return f"{np.median(values):,.0f} [{min(values):,.0f}, {max(values):,.0f}]"


def details(sizes):
    """What else the runs of the largest size told: steps, simulated end, start-up, requests lost."""
    size = sizes[-1]
    run, kernel = size.runs[-1], size.kernel_runs[-1]
    steps = (
        "" if run["n_steps"] is None else f"{run['n_steps']:,} steps, ours {kernel['n_steps']:,}; "
    )
    lost = (
        ""
        if run["n_done"] == size.n_requests
        else f"only {run['n_done']:,} of {size.n_requests:,} finished; "
    )
    start_up_s = np.median([one["start_up_s"] for each in sizes for one in each.runs])
    return (
        f"{steps}{lost}simulated {run['ended_s']:,.0f} s, ours {kernel['ended_s']:,.0f} s; start-up"
        f" {start_up_s:.1f} CPU s apart"
    )


def log(peer, name, sizes):
    """One row of RESULTS.md for this peer on this workload."""
    rates = "; ".join(
        f"{spread_words(size.rates_per_s())} at {size.n_requests:,}" for size in sizes
    )
    if peer.is_ours and peer.name.endswith("kernel"):
        log_row(
            f"simulate, peers: {peer.name}, {name}",
            f"{rates} requests per CPU second",
            details(sizes),
        )
        return
    ratios = ", ".join(f"{size.ratio():,.1f}x" for size in sizes)
    kernel = ", ".join(f"{np.median(size.kernel_rates_per_s()):,.0f}" for size in sizes)
    result = f"{rates} requests per CPU second; kernel on the same {kernel}: {ratios}"
    log_row(
        f"simulate, peers: {peer.name}, {name}",
        result,
        f"{peer.models}; {peer.differs}; {details(sizes)}",
    )


def table(peers, results, absent):
    """Everything in one view: a row a peer, and what is not here."""
    print("\nRequests per CPU second (kernel on the same requests / peer), at each size")
    for peer in peers:
        cells = [peer.name, peer.language, peer.models]
        for name in RATES_PER_S:
            if (peer.name, name) not in results:
                cells.append(f"{name}: {absent[f'{peer.name}, {name}']}")
                continue
            cells += [
                f"{name} {s.n_requests:,}: {np.median(s.rates_per_s()):,.0f} ({s.ratio():,.1f}x)"
                for s in results[peer.name, name]
            ]
        print(" | ".join(cells))
        if peer.differs:
            print(f"    {peer.differs}")
    for name, reason in {**absent, **NOT_HERE}.items():
        print(f"{name} | absent: {reason}")


def verdict(peers, results):
    """The smallest ratio over workloads and sizes, against each kind of peer."""
    kinds = {
        "Python peers that go step by step": lambda peer: (
            peer.language == "Python" and peer.is_by_steps
        ),
        "Python peers of any kind": lambda peer: peer.language == "Python",
        "native-code peers": lambda peer: peer.language != "Python",
    }
    for kind, belongs in kinds.items():
        chosen = [peer for peer in peers if not peer.is_ours and belongs(peer)]
        found = [
            (size.ratio(), size.n_requests, peer.name, name)
            for peer in chosen
            for name in RATES_PER_S
            for size in results.get((peer.name, name), [])
        ]
        if found:
            ratio, n_requests, who, name = min(found)
            most = max(found)
            result = (
                f"{ratio:,.1f}x ({who}, {name}, {n_requests:,}) to {most[0]:,.1f}x ({most[2]},"
                f" {most[3]}, {most[1]:,})"
            )
            log_row(
                f"simulate, peers: kernel / {kind}",
                result,
                "smallest and largest ratio of medians over both workloads and all sizes",
            )


def installed(peers):
    """How each peer is started, and why the others are absent."""
    commands, absent = {}, {}
    for peer in peers:
        try:
            commands[peer.name] = peer.command()
        except AbsentError as error:
            absent[peer.name] = str(error)
    return commands, absent


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--environments", type=Path, default=Path(tempfile.gettempdir()) / "inferometer-peers"
    )
    parser.add_argument(
        "--vllm-python",
        type=Path,
        default=os.environ.get("INFEROMETER_VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"),
    )
    parser.add_argument("--vidur-python", type=Path, help="a Python that can import vidur")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="what a run of the largest size may take"
    )
    parser.add_argument(
        "--only", nargs="+", help="parts of names: measure these peers and no others"
    )
    parser.add_argument(
        "--lock",
        type=Path,
        help="a file to lock while measuring, where others measure on the machine",
    )
    arguments = parser.parse_args()
    arguments.environments.mkdir(parents=True, exist_ok=True)
    peers = all_peers(arguments.environments, Path(arguments.vllm_python), arguments.vidur_python)
    commands, absent = installed(peers)
    turn, results = Turn(arguments.lock), {}
    with tempfile.TemporaryDirectory() as folder:
        if (
            peers[0].name in commands
        ):  # compiles, where the cache does not have it, outside our turn
            run_once(
                peers[0],
                commands[peers[0].name],
                workload_file(Path(folder), "full", N_FIRST),
                Turn(None),
                COMPILE_LIMIT_S,
            )
        chosen = [
            peer
            for peer in peers
            if peer.name in commands
            and (arguments.only is None or any(p in peer.name for p in arguments.only))
        ]
        for peer in chosen:
            for name in RATES_PER_S:
                workloads = {
                    "kernel": (peers[0], commands[peers[0].name]),
                    "file": lambda n, name=name: workload_file(Path(folder), name, n),
                }
                try:
                    results[peer.name, name] = measure(
                        peer, commands[peer.name], workloads, turn, arguments.seconds
                    )
                except AbsentError as error:
                    absent[f"{peer.name}, {name}"] = str(error)
                    print(f"{peer.name}, {name}: {error}", file=sys.stderr)
                else:
                    log(peer, name, results[peer.name, name])
    turn.give_back()
    table(chosen, results, absent)
    verdict(chosen, results)
    missing = "; ".join(f"{name}: {reason}" for name, reason in {**absent, **NOT_HERE}.items())
    log_row("simulate, peers: absent", f"{len(absent) + len(NOT_HERE)} not measured", missing)


if __name__ == "__main__":
    main()
