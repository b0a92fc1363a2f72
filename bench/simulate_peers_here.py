"""Which other simulators can be had here, how is each run, and what does it model?

What is installed gets an environment of its own, outside the repository.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
DRIVERS = HERE / "simulate_peers"
ROOT = HERE.parent
INFERENCE_LAB = "@doublewordai/inference-lab"
SAME = "scheduler, slots, token budget, KV blocks and step time as ours"


class AbsentError(Exception):
    """The peer cannot be had here; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    language: str
    models: str
    differs: str
    command: Callable[[], list[str]]
    """What to run: a workload's path is its second argument. Installs first; AbsentError where
    that fails."""
    variables: dict[str, str] = field(default_factory=dict)
    is_ours: bool = False
    is_by_steps: bool = True


def all_peers(folder: Path, vllm_python: Path, vidur_python: Path | None) -> list[Peer]:
    """Every peer, ours first; whether it can be had is found out when it is asked for its command."""
    source = {"PYTHONPATH": str(ROOT / "src")}
    both = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "simulate")])}

    def ours(which):
        return lambda: [sys.executable, str(DRIVERS / "drive_inferometer.py"), "WORKLOAD", which]

    return [
        Peer(
            name="inferometer, kernel",
            language="Python, compiled by numba",
            models="vLLM's scheduler step by step",
            differs="",
            command=ours("kernel"),
            variables=source,
            is_ours=True,
        ),
        Peer(
            name="inferometer, reference",
            language="Python",
            models="vLLM's scheduler step by step",
            differs=SAME,
            command=ours("reference"),
            variables=source,
            is_ours=True,
        ),
        Peer(
            name="vLLM 0.32.0 scheduler",
            language="Python",
            models="the real scheduler and engine loop, clock virtual",
            differs=(
                "scheduler, slots, token budget and KV blocks as ours; step time without its"
                " context terms"
            ),
            command=lambda: _existing(vllm_python, "drive_vllm.py", "no vLLM environment"),
            variables={
                **both,
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_LOGGING_LEVEL": "ERROR",
            },
        ),
        Peer(
            name="sched-sim 0.2.1",
            language="Python",
            models="chunked prefill step by step, KV blocks",
            differs=(
                "its chunked scheduler knows no slots; step time takes the longer of computing and"
                " reading"
            ),
            command=lambda: _from_pypi(folder, "sched-sim==0.2.1", "drive_sched_sim.py"),
        ),
        Peer(
            name="vllm-sr-sim 2026-07-13",
            language="Python",
            models="whole requests in slots, no steps",
            differs=(
                "no batches: a request's whole service is fixed when its slot opens; at most 512"
                " wait; KV for every slot"
            ),
            command=lambda: _from_pypi(
                folder, "vllm-sr-sim==0.1.0.dev20260713123629", "drive_vllm_sr_sim.py"
            ),
            is_by_steps=False,
        ),
        Peer(
            name="Vidur 7d47513",
            language="Python",
            models="Sarathi's scheduler step by step, KV blocks",
            differs=(
                "step times by our formula, not its random forest; its metrics are on, its plots"
                " and Chrome trace off"
            ),
            command=lambda: _existing(
                vidur_python, "drive_vidur.py", "no --vidur-python that can import it"
            ),
        ),
        Peer(
            name="inference-lab 0.2.1",
            language="Rust as WASM, node",
            models="vLLM-like scheduler step by step, KV blocks",
            differs=(
                "draws its own arrivals and lengths, of the same distributions; prefix cache cannot"
                " be turned off, nothing hits; step time takes the longer of computing and reading;"
                " its one call also hands over all latency samples"
            ),
            command=lambda: _from_npm(folder),
        ),
    ]


NOT_HERE = {
    "BLIS (inference-sim)": "Go, to be built from source: not driven here",
    "inference-lab, native": "Rust, to be built from source: its npm package is measured",
    "Frontier": "in no package registry: not driven here",
    "LLMServingSim 2.0": "to be built from source: not driven here",
    "AIConfigurator 0.12": "simulates no requests: a formula for the steady state",
}


def _existing(python, driver, reason):
    if python is None or not python.exists():
        raise AbsentError(reason)
    return [str(python), str(DRIVERS / driver), "WORKLOAD"]


def _from_pypi(folder, requirement, driver):
    environment = folder / requirement.replace("==", "-")
    python = environment / "bin" / "python"
    if not (environment / "ready").exists():
        _install([sys.executable, "-m", "venv", "--clear", str(environment)])
        _install(
            [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", requirement]
        )
        (environment / "ready").touch()
    return [str(python), str(DRIVERS / driver), "WORKLOAD"]


def _from_npm(folder):
    environment = folder / "inference-lab-0.2.1"
    package = environment / "node_modules" / INFERENCE_LAB
    if not package.exists():
        environment.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--ignore-scripts"]
        _install(
            [
                _program("npm"),
                "install",
                "--prefix",
                str(environment),
                *options,
                f"{INFERENCE_LAB}@0.2.1",
            ]
        )
    return [_program("node"), str(DRIVERS / "drive_inference_lab.mjs"), "WORKLOAD", str(package)]


def _program(name):
    path = shutil.which(name)
    if path is None:
        raise AbsentError(f"no {name}")
    return path


def _install(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AbsentError(
            f"installing failed: {(done.stderr.strip() or 'no word').splitlines()[-1]}"
        )


__all__ = ["NOT_HERE", "AbsentError", "Peer", "all_peers"]
