"""Does ``diagnose`` name what limits a real vLLM server that was started with a wrong setting, and does its change help as predicted?

Servers of a small model with random weights come up here on loopback, one after the other, each
limited in a known way or not at all, some behind a real proxy or asked by a client that has no core
to itself. A load test that stores their metrics is diagnosed afterwards; where threads of the
server itself are the matter, the server is diagnosed while it is loaded, with ``--local``. Where a
setting is to be changed, the server is started again with it, asked for other requests of the same
traffic, and the sealed prediction is checked. Over half an hour on two quiet cores; needs nginx.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from proxies import throttling_proxy
from results_log import log_row
from vllm_here import vllm_server, write_model

from inferometer.inputs.catalog import find_model

MODEL_LEN, FOR_S = 4096, 40
ROOMY = {
    "max-model-len": MODEL_LEN,
    "max-num-seqs": 64,
    "max-num-batched-tokens": 2048,
    "block-size": 32,
}
STOPPED_S, RUNS_S = 0.4, 0.1
"""A client whose core is taken from it, as by other guests of its host: for how long, and how long
it runs between."""
TALK = """
[arrivals]
kind = "open"
rate_per_s = 3
[[classes]]
name = "talk"
prompt_tokens = { kind = "uniform", low = 60, high = 300 }
output_tokens = { kind = "uniform", low = 30, high = 90 }
"""
LONG = """
[[classes]]
name = "long"
weight_ratio = 0.06
prompt_tokens = { kind = "constant", value = 3500 }
output_tokens = { kind = "uniform", low = 8, high = 24 }
"""
SHARED = """
[arrivals]
kind = "open"
rate_per_s = 3
[[classes]]
name = "assistant"
prompt_tokens = { kind = "uniform", low = 20, high = 80 }
output_tokens = { kind = "uniform", low = 10, high = 30 }
[classes.system_prompts]
tokens = { kind = "constant", value = 1000 }
"""


@dataclass(frozen=True)
class Case:
    """A server's flags beside those of ``ROOMY``, and what is sent."""

    name: str
    right: tuple[str, ...]
    """Causes, and pitfalls that are read off, of which each would be a right answer."""
    flags: tuple[str, ...] = ()
    knobs: tuple[tuple[str, int], ...] = ()
    workload: str = TALK
    rate_per_s: float = 3.0
    threads: int = 1
    mode: str = "compiled"
    client: str = "direct"
    """Or "proxy": behind one that throttles; "stopped": on a core that is taken from it at times."""
    slo: str = "ttft:p95<500ms, tpot:p95<80ms"
    for_s: int = FOR_S
    is_local: bool = False
    """Diagnosed while it is loaded, on its own host."""
    n_layers: int = 3


AT_EASE = {"rate_per_s": 1.2, "slo": "ttft:p90<300ms", "for_s": 150, "n_layers": 1}
"""The work fits, on a slow machine too: one layer. The tenth of the requests that are slowest are
short ones behind a long prompt. Of which there are few: it takes a long window to be sure."""
CASES = (
    Case("healthy", ("healthy",)),
    Case("max_num_seqs", ("max_num_seqs",), knobs=(("max-num-seqs", 3),), rate_per_s=6.0),
    Case(
        "kv_cache",
        ("kv_cache",),
        ("--num-gpu-blocks-override", "34"),
        (("max-model-len", 1024),),
        rate_per_s=7.0,
    ),
    Case(
        "small_step_budget",
        ("small_step_budget",),
        knobs=(("max-num-batched-tokens", 64),),
        workload=TALK.replace("low = 60, high = 300", "low = 300, high = 600"),
        rate_per_s=3.5,
    ),
    Case(
        "chunking off",
        ("large_step_budget", "long_prompts"),
        ("--no-enable-chunked-prefill",),
        (("max-num-batched-tokens", MODEL_LEN),),
        TALK + LONG,
        **AT_EASE,
    ),
    Case(
        "long prompts first",
        ("long_prompts", "large_step_budget"),
        workload=TALK + LONG,
        **AT_EASE,
    ),
    Case(
        "prefix cache off",
        ("prefix_cache",),
        ("--no-enable-prefix-caching",),
        workload=SHARED,
    ),
    Case("prefix cache on", ("healthy",), workload=SHARED),
    Case("overload", ("overload", "prompt_compute", "step_floor"), rate_per_s=30.0),
    Case("slow client", ("outside",), client="stopped"),
    Case("slow proxy", ("outside",), client="proxy"),
    Case(
        "draft that does not match",
        ("speculation_not_paying",),
        (
            "--speculative-config",
            json.dumps(
                {
                    "method": "ngram",
                    "num_speculative_tokens": 4,
                    "prompt_lookup_min": 1,
                    "prompt_lookup_max": 1,
                }
            ),
        ),
    ),
    Case("eager", ("step_floor",), mode="eager", rate_per_s=1.0, slo="tpot:p95<8ms"),
    Case("too many threads", ("oversubscribed_threads",), threads=8, is_local=True, rate_per_s=3.0),
)


def inferometer(*words):
    """The command in this environment."""
    return subprocess.run(_line(words), capture_output=True, text=True, check=False)


def _line(words):
    return [str(Path(sys.executable).parent / "inferometer"), *map(str, words)]


def _each(processes, what):
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            getattr(one, what)()


@contextmanager
def taken_from(process):
    """A process and its children, which run a fifth of the time."""
    is_over, clients = threading.Event(), []

    def steal():
        nonlocal clients
        while not is_over.wait(RUNS_S):
            with suppress(psutil.NoSuchProcess):
                whole = psutil.Process(process.pid)
                clients = [whole, *whole.children(recursive=True)]
            _each(clients, "suspend")
            time.sleep(STOPPED_S)
            _each(clients, "resume")

    thread = threading.Thread(target=steal)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def written_model(folder, n_layers):
    """The folder of the model with so many layers."""
    path = folder / f"model-{n_layers}"
    if not path.exists():
        small = find_model("smollm2-135m")
        write_model(path, replace(small, n_layers=n_layers, vocab_size=8192))
    return path


class Served:
    """A server of a case that is up, and how it is asked."""

    def __init__(self, case, folder, changed=()):
        self._case, self._folder = case, folder
        self._knobs = ROOMY | dict(case.knobs) | dict(changed)
        self._stack = ExitStack()

    def __enter__(self):
        case = self._case
        flags = [part for name, value in self._knobs.items() for part in (f"--{name}", value)]
        self._url = self._stack.enter_context(
            vllm_server(
                written_model(self._folder, case.n_layers),
                *flags,
                *case.flags,
                mode=case.mode,
                threads=case.threads,
            )
        )
        self._asked = self._url
        if case.client == "proxy":
            self._asked = self._stack.enter_context(throttling_proxy(self._url))
        return self

    def __exit__(self, *problem):
        self._stack.close()

    def load(self, out, seed):
        """A load test that is stored in ``out``; of a case that is local the answer of ``diagnose`` too."""
        case = self._case
        workload = self._folder / f"{case.name}.toml"
        workload.write_text(case.workload)
        words = ("--endpoint", "completions", "--prompts", "token-ids", "--no-report")
        inferometer(
            "load", self._asked, "--requests", 5, "--rate", 2, "--out", f"{out}-warm", *words
        )
        line = _line(
            ("load", self._asked, "--workload", workload, "--rate", case.rate_per_s, "--seed", seed,
             "--for", f"{case.for_s}s", "--drain", "10s", "--metrics-url", f"{self._url}/metrics",
             "--out", out, *words)
        )  # fmt: skip
        with ExitStack() as stack:
            process = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if case.client == "stopped":
                stack.enter_context(taken_from(process))
            if case.is_local:
                answer = inferometer(
                    "diagnose", self._url, "--local", "--for", f"{case.for_s - 5}s", "--slo", case.slo, "--json",
                    "--out", f"{out}-sealed", "--ledger", self._folder / "ledger.jsonl",
                )  # fmt: skip
                Path(f"{out}.json").write_text(answer.stdout or answer.stderr)
            print(process.communicate()[0], flush=True)


def diagnosed(case, folder):
    """The answer as JSON, of a load test that is made where there is none yet; None: refused."""
    out = folder / case.name.replace(" ", "-")
    if not out.exists():
        with Served(case, folder) as served:
            served.load(out, 1)
    stored = Path(f"{out}.json")
    if not stored.exists():
        words = ("diagnose", out, "--slo", case.slo, "--ledger", folder / "ledger.jsonl")
        answer = inferometer(*words, "--out", f"{out}-sealed", "--json")
        stored.write_text(answer.stdout or answer.stderr)
    try:
        found = json.loads(stored.read_text())
    except json.JSONDecodeError:
        print(case.name, stored.read_text())
        return None
    return found if "finding" in found else None


def named(found):
    """Every cause that the answer names: the first, or what is read off directly."""
    read_off = [one["name"] for one in found["checks"] if one["finding"] == "found"]
    if found["finding"] == "limited":
        return found["cause"], read_off
    return ("healthy" if found["finding"] == "healthy" else f"undecided {found['cause']}"), read_off


FLAGS = {
    "max_num_seqs": "max-num-seqs",
    "kv_cache": "num-gpu-blocks-override",
    "small_step_budget": "max-num-batched-tokens",
    "large_step_budget": "max-num-batched-tokens",
    "long_prompts": "long-prefill-token-threshold",
}


def checked(case, folder, found):
    """What became of the sealed predictions, where a setting is a number: (inside, outside, undecided)."""
    advised = next((one["change"] for one in found["causes"] if one["name"] == found["cause"]), "")
    value = re.search(r"\d+", advised)
    if found["check"] is None or found["cause"] not in FLAGS or value is None:
        return None
    out = folder / f"{case.name.replace(' ', '-')}-changed"
    if not out.exists():
        flag = FLAGS[found["cause"]]
        plain = replace(case, flags=_without(case.flags, f"--{flag}"))
        with Served(plain, folder, ((flag, value.group()),)) as served:
            served.load(out, 2)
    words = (
        "verify",
        found["check"]["folder"],
        "--check",
        out,
        "--ledger",
        folder / "ledger.jsonl",
    )
    answer = inferometer(*words, "--json")
    print(inferometer(*words).stdout or answer.stderr, flush=True)
    return json.loads(answer.stdout) if answer.stdout else None


def _without(flags, name):
    if name not in flags:
        return flags
    place = flags.index(name)
    return (*flags[:place], *flags[place + 2 :])


def main():
    """Every case, or those that are named; with ``--runs`` where the load tests are, or will be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--runs", type=Path)
    asked = parser.parse_args()
    folder = (asked.runs or Path(tempfile.mkdtemp())).resolve()
    said = []
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        found = diagnosed(case, folder)
        if found is None:
            said.append((case.name, "refused"))
            continue
        first, read_off = named(found)
        is_right = first in case.right or any(one in case.right for one in read_off)
        said.append((case.name, "right" if is_right else f"{first} {read_off}"))
        print(case.name, said[-1][1], first, read_off, flush=True)
        checked(case, folder, found)
    log_row("diagnose_here", "; ".join(f"{name}: {what}" for name, what in said), "vLLM 0.32")


if __name__ == "__main__":
    main()
