"""Does a killed command leave processes behind?

Each verb with workers is killed at many moments of its life, with three signals.

``python bench/bench_kills.py [--moments 20] [--verbs size,load]``. A process of a command is known
by a variable of its environment, so none escapes by having lost its parent. Seconds are counted
from the end of the command itself to the end of the last of its processes.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.records.reading import read_run
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
PATIENCE_S: Final = 5.0
_MARK: Final = "HF_KILLS_MARK"
"""A name that an engine's worker inherits too."""
_LONGEST_S: Final = 25.0
_SWEEP: Final = Path(__file__).parents[1] / "tests" / "fit" / "data" / "smollm2-135m-float32"
_SLO: Final = "ttft:p95<1s, tpot:p95<100ms"
_MODEL: Final = ("smollm2-135m", "--load-format", "dummy")
_SERVED: Final = ("--url", "URL")
VERBS: Final[dict[str, tuple[str, ...]]] = {
    "size": (
        "llama-3.1-8b",
        "--rate",
        "20",
        "--slo",
        _SLO,
        "--gpus",
        "h100_sxm,l40s",
        "--tp",
        "1,2",
        "--datasheet",
        "--jobs",
        "2",
    ),
    "capacity": (
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
        "--slo",
        _SLO,
        "--executor",
        "processes",
        "--jobs",
        "2",
    ),
    "simulate": (
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
        "--rate",
        "20",
        "--requests",
        "20000",
        "--executor",
        "processes",
        "--jobs",
        "2",
    ),
    "sweep": (
        "--model",
        *_MODEL,
        "--seq",
        "64,256",
        "--batch-sizes",
        "1,2,4",
        "--gen-tokens",
        "16",
        "--out",
        "OUT",
    ),
    "quick": (*_MODEL, "--budget", "30s", "--out", "OUT"),
    "load": (
        "URL",
        "--model",
        "m",
        "--rate",
        "10",
        "--for",
        "6s",
        "--processes",
        "2",
        "--endpoint",
        "completions",
        "--out",
        "OUT",
    ),
    "verify": ("PLAN", *_SERVED, "--out", "OUT", "--ledger", "LEDGER"),
    "emulate": ("smollm2-135m", "--hardware", "l4", "--port", "0", "--for", "6s"),
}
_PLAN: Final = f"""name = 'loads'
[server]
model = 'smollm2-135m'
fit = 'fit.json'
num_blocks = 500
max_model_len = 512
max_num_seqs = 3
[traffic]
workload = 'short.toml'
concurrencies = [4]
n_requests = 1200
slo = '{_SLO}'
[client]
served_model = 'm'
endpoint = 'completions'
processes = 2
"""
_SHORT: Final = """[[classes]]
name = 'short'
prompt_tokens = { kind = 'constant', value = 40 }
output_tokens = { kind = 'constant', value = 6 }
"""


class Outcome(NamedTuple):
    """One command that was killed."""

    verb: str
    signal: str
    moment_s: float
    command_s: float
    """From the signal to the command's own end."""
    left_s: float | None
    """From there to the end of the last of its processes; None: some were left."""
    left: tuple[str, ...]


def marked(mark: str) -> list[int]:
    """The processes that carry the mark, zombies apart."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def killed(
    verb: str, words: list[str], folder: Path, moment_s: float, number: signal.Signals
) -> Outcome:
    """Start a command, kill it at this moment of its life, and see what is left."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "inferometer", verb, *words]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, _MARK: mark},
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=moment_s)
    sent_s = time.monotonic()
    process.send_signal(number)
    process.wait(timeout=60)
    ended_s = time.monotonic()
    while (left := marked(mark)) and time.monotonic() < ended_s + PATIENCE_S:
        time.sleep(0.02)
    left_s = None if left else time.monotonic() - ended_s
    names = []
    for pid in left:
        with contextlib.suppress(OSError):
            names.append(
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")[:120]
            )
            os.kill(pid, signal.SIGKILL)
    return Outcome(verb, number.name, moment_s, ended_s - sent_s, left_s, tuple(names))


@contextlib.contextmanager
def places(folder: Path) -> Iterator[dict[str, str]]:
    """What the commands need: a server, a plan with its fit, and where to write."""
    fit_step_time([read_run(_SWEEP)]).save(folder / "fit.json")
    (folder / "plan.toml").write_text(_PLAN)
    (folder / "short.toml").write_text(_SHORT)
    config = SchedulerConfig(num_blocks=4000, max_model_len=4096, max_num_seqs=32)
    cost = linear_cost(launch_s=5e-3)
    with start(EmulatorPlan(model_name="m", fleet=lone_replica(config, cost))) as emulator:
        yield {
            "URL": emulator.url,
            "PLAN": str(folder / "plan.toml"),
            "LEDGER": str(folder / "ledger.jsonl"),
        }


def life_s(verb: str, words: list[str], folder: Path) -> float:
    """How long does the command take that nobody kills?"""
    began_s = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "inferometer", verb, *words],
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=_LONGEST_S,
        )
    return time.monotonic() - began_s


def outcomes(
    verb: str, n_moments: int, known: Mapping[str, str], folder: Path
) -> Iterator[Outcome]:
    """Kill it at moments that are spread over its life, start and end included; the signals take turns."""
    words = [
        [known.get(word, word).replace("OUT", f"{verb}-{index}") for word in VERBS[verb]]
        for index in range(n_moments + 1)
    ]
    whole_s = life_s(verb, words[-1], folder)
    for index in range(n_moments):
        moment_s = 0.05 + whole_s * (index + 0.5) / n_moments
        yield killed(verb, words[index], folder, moment_s, SIGNALS[index % len(SIGNALS)])


def outcomes_of_all(verbs: list[str], n_moments: int) -> Iterator[Outcome]:
    """Each verb in turn, beside one server."""
    with tempfile.TemporaryDirectory() as name, places(Path(name)) as known:
        for verb in verbs:
            yield from outcomes(verb, n_moments, known, Path(name))


def main() -> None:
    """Kill, and say what was left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--verbs", default=",".join(VERBS))
    asked = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and its children would too
    seen: dict[str, list[Outcome]] = {}
    for one in outcomes_of_all(asked.verbs.split(","), asked.moments):
        seen.setdefault(one.verb, []).append(one)
        print(
            f"{one.verb} {one.signal} at {one.moment_s:.2f} s: command {one.command_s:.2f} s, left"
            f" {one.left_s} {one.left}",
            flush=True,
        )
    for verb, kills in seen.items():
        slowest_s = max(
            (one.left_s for one in kills if one.left_s is not None), default=float("nan")
        )
        n_left = sum(one.left_s is None for one in kills)
        print(
            f"{verb}: {n_left} of {len(kills)} kills left processes; the last was gone after"
            f" {slowest_s:.2f} s"
        )


if __name__ == "__main__":
    main()
