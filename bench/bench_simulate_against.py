"""How much faster than another commit does the simulator run?

Both in turn in one run, so that neighbours disturb both alike.

``git worktree add PLACE COMMIT`` makes the other tree. Each tree runs in a process of its own, with
its own compiled code and its own ``bench_simulate_speed`` for the workloads; a workload's time is
the least CPU time of one call of ``simulate`` among all turns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from results_log import log_row

HERE = Path(__file__).parents[1]
WORKER = """
import sys, time
from pathlib import Path
from bench_simulate_speed import COST, MOONCAKE_COST, SchedulerConfig, chat_config, chats, mooncake, simulate

caching = SchedulerConfig(
    num_blocks=8000, max_model_len=131_072, max_num_seqs=256, max_num_batched_tokens=8192, block_size=512, async_scheduling=False
)
runs = {
    f"chat, {rate_per_s}/s{', async' if is_async else ''}": (chats(n, rate_per_s), chat_config(is_async=is_async), COST)
    for rate_per_s, n in ((60, 100_000), (20, 30_000))
    for is_async in (False, True)
}
if len(sys.argv) > 1:
    runs["Mooncake's blocks"] = (mooncake(Path(sys.argv[1])), caching, MOONCAKE_COST)
simulate(chats(10, 60), *runs["chat, 60/s"][1:])
print(*runs, sep=";", flush=True)
for line in sys.stdin:
    start_s = time.process_time()
    simulate(*runs[line.strip()])
    print(time.process_time() - start_s, flush=True)
"""


def worker(tree, cache, mooncake):
    """A process that runs the workload it is told on this tree, and says how long it took."""
    ways = {"PYTHONPATH": f"{tree / 'src'}:{tree / 'bench'}", "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", WORKER, *([str(mooncake)] if mooncake else [])]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | ways,
        cwd=cache,
    )


def seconds(process, name):
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def commit_of(tree):
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="a tree of the other commit")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--mooncake", type=Path, default=os.environ.get("INFEROMETER_MOONCAKE_TRACE")
    )
    arguments = parser.parse_args()
    other = arguments.other.resolve()
    with tempfile.TemporaryDirectory() as one_cache, tempfile.TemporaryDirectory() as other_cache:
        processes = [
            worker(HERE, one_cache, arguments.mooncake),
            worker(other, other_cache, arguments.mooncake),
        ]
        names, _ = (process.stdout.readline().strip().split(";") for process in processes)
        for name in names:
            turns = [
                [seconds(process, name) for process in processes] for _ in range(arguments.turns)
            ]
            here_s, there_s = map(min, zip(*turns, strict=True))
            log_row(
                f"simulate against {commit_of(other)}: {name}",
                f"{there_s / here_s:.2f} times as fast",
                f"{here_s * 1e3:.0f} ms, the other {there_s * 1e3:.0f} ms of CPU, least of"
                f" {arguments.turns} turns; shared machine, other work beside, load average"
                f" {os.getloadavg()[0]:.0f}",
            )
        for process in processes:
            process.stdin.close()
            process.wait()


if __name__ == "__main__":
    main()
