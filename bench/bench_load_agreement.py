"""Do ``inferometer load``, ``vllm bench serve`` and AIPerf say the same of one real vLLM server, once their definitions are the same?

vLLM serves random weights of a small llama on one core, the clients run on the other; every run
sends the same number of requests with the same lengths at a constant rate that the server sustains.
Runs go ours, vLLM's, ours, AIPerf's, ours, ...: each of the others' is held against the mean of
ours before and after, in its tool's own definitions (``records.tool_views``). Latencies of each run
are taken in the server's own mean of that run, so that what drifts on the machine cancels. Ours is
also held against the server's own counters. Bar: 3 %.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
from load_peers_here import (
    AIPERF,
    QUIET,
    VOCABULARY,
    Asked,
    cost_of,
    installed,
    our_command,
    write_tokenizer,
)
from results_log import log_row, words
from vllm_here import QUIET as HERE, vllm_python, vllm_server

from inferometer.inputs.config_writing import config_from_model
from inferometer.inputs.types import AttentionSpec, MlpSpec, ModelSpec, Source
from inferometer.records.exposition import PageReader
from inferometer.records.imports.detection import read_results
from inferometer.records.reading import read_run
from inferometer.records.tool_views import tool_views
from inferometer.stats.quantiles import median_estimate

SERVER_CORE, CLIENT_CORE = "1", "0"
BAR = 0.03
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 24
MODEL = ModelSpec(
    model_id="agreement",
    architecture="llama",
    n_layers=8,
    hidden_size=512,
    vocab_size=VOCABULARY,
    max_position_tokens=1024,
    attention=AttentionSpec(n_heads=8, n_kv_heads=4, head_dim=64),
    mlp=MlpSpec(intermediate_size=1536),
    source=Source(kind="unsourced", where="a benchmark"),
    tie_word_embeddings=True,
)
FLAGS = ("--served-model-name", "m", "--max-model-len", 512, "--no-enable-prefix-caching")
COUNTERS = {
    "ttft_s": "vllm:time_to_first_token_seconds",
    "tpot_s": "vllm:request_time_per_output_token_seconds",
    "e2e_s": "vllm:e2e_request_latency_seconds",
}
TOKENS = "vllm:generation_tokens_total"


class Said(NamedTuple):
    """What a tool says of a run."""

    ttft_mean_s: float
    ttft_median_s: float
    tpot_mean_s: float
    tpot_median_s: float
    tokens_per_s: float


class Truth(NamedTuple):
    """The server's own sums over a run."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    n_tokens: float


def counters(url):
    """The server's counters: sums, counts, tokens."""
    with urllib.request.urlopen(  # noqa: S310
        urllib.request.Request(  # noqa: S310
            f"{url}/metrics", headers={"Accept": "text/plain;version=0.0.4"}
        )
    ) as answer:
        samples = PageReader().read(answer.read())
    return {sample.series.name: sample.value for sample in samples}


class Tester:
    """Runs each tool on the same load, with the server's counters before and after."""

    def __init__(self, asked, aiperf, driver, driver_log, folder):
        self.asked, self.aiperf, self.driver, self.driver_log, self.folder = (
            asked,
            aiperf,
            driver,
            driver_log,
            folder,
        )
        self.n_runs = 0

    def run(self, name):
        """What the tool's results say, and the server."""
        self.n_runs += 1
        folder = self.folder / f"{self.n_runs}-{name}"
        folder.mkdir()
        before = counters(self.asked.url)
        said = {"inferometer": self._ours, "vLLM bench": self._vllm, "AIPerf": self._aiperf}[name](
            folder
        )
        time.sleep(0.3)
        after = counters(self.asked.url)
        gained = {key: after[key] - before.get(key, 0.0) for key in after}
        means = {
            key: gained[f"{name}_sum"] / gained[f"{name}_count"] for key, name in COUNTERS.items()
        }
        return said, Truth(**means, n_tokens=gained[TOKENS])

    def _ours(self, folder):
        # Of its one token the server would tell a TPOT of 0.
        cost_of(
            [*our_command(self.asked, folder), "--no-preflight"],
            folder,
            prefix=("taskset", "-c", CLIENT_CORE),
        )
        run = read_run(folder / "run")
        print(f"  ours is {run.manifest.validity.verdict}", flush=True)
        return run

    def _aiperf(self, folder):
        cost_of(
            AIPERF.command(self.aiperf, self.asked, folder),
            folder,
            prefix=("taskset", "-c", CLIENT_CORE),
        )
        return said_by(read_results(folder / AIPERF.results[0]).summaries[0], self.asked)

    def _vllm(self, folder):
        asked = self.asked
        arguments = [
            "--backend",
            "openai",
            "--base-url",
            asked.url,
            "--model",
            asked.model,
            "--tokenizer",
            str(asked.tokenizer),
        ]
        arguments += [
            "--ignore-eos",
            "--dataset-name",
            "random",
            "--random-input-len",
            str(asked.prompt_tokens),
        ]
        arguments += [
            "--random-output-len",
            str(asked.output_tokens),
            "--num-prompts",
            str(asked.n_requests),
            "--save-detailed",
        ]
        arguments += [
            "--request-rate",
            str(asked.rate_per_s),
            "--burstiness",
            "inf",
            "--ready-check-timeout-sec",
            "0",
        ]
        arguments += [
            "--disable-tqdm",
            "--save-result",
            "--result-dir",
            str(folder),
            "--result-filename",
            "result.json",
        ]
        self.driver.stdin.write(json.dumps(arguments) + "\n")
        self.driver.stdin.flush()
        if self.driver.stdout.readline().strip() != "done":
            raise SystemExit(
                f"vllm bench serve failed\n{self.driver_log.read_text(errors='replace')[-3000:]}"
            )
        return said_by(read_results(folder / "result.json").summaries[0], asked)


def said_by(summary, asked):
    """The numbers of another tool."""
    if summary.n_completed != asked.n_requests:
        raise SystemExit(f"{summary.tool} completed {summary.n_completed} of {asked.n_requests}")
    ttft, tpot = summary.latency("ttft"), summary.latency("tpot")
    middle = [one.percentile_s(0.5) for one in (ttft, tpot)]
    return Said(ttft.mean_s, middle[0], tpot.mean_s, middle[1], summary.output_tokens_per_s)


def ours_as(tool, run):
    """Our record in the other tool's definitions."""
    view = next(one for one in tool_views(run) if one.tool == tool)
    return Said(
        view.ttft.mean_s,
        view.ttft.median_s,
        view.tpot.mean_s,
        view.tpot.median_s,
        view.rates.output_tokens_per_s,
    )


def in_servers(said, truth):
    """What a tool says of latencies, in the server's own means of the same run: a machine that was slower then cancels."""
    return np.array(said) / (truth.ttft_s, truth.ttft_s, truth.tpot_s, truth.tpot_s, 1.0)


def compare(tester, n_turns):
    """Ratios ours / theirs by tool and number, one for each turn, and ours / the server's."""
    ratios, ours_over_server, tokens_apart = {}, [], []
    before = tester.run("inferometer")
    for turn in range(n_turns):
        for name in ("vLLM bench", "AIPerf"):
            theirs = tester.run(name)
            after = tester.run("inferometer")
            around = np.sqrt(
                np.prod(
                    [in_servers(ours_as(name, run), truth) for run, truth in (before, after)],
                    axis=0,
                )
            )
            ratios.setdefault(name, []).append(around / in_servers(*theirs))
            print(
                f"turn {turn}, {name}: {theirs[0]}; ours / theirs {np.round(ratios[name][-1], 3)}",
                flush=True,
            )
            run, truth = before = after
            ours = ours_as("inferometer", run)
            ours_over_server.append(
                (
                    ours.ttft_mean_s - truth.ttft_s,
                    ours.tpot_mean_s / truth.tpot_s,
                    ours.ttft_mean_s / truth.ttft_s,
                )
            )
            tokens_apart.append(int(run.requests.output_tokens.sum()) - truth.n_tokens)
    return ratios, np.array(ours_over_server), np.array(tokens_apart)


def log_agreement(ratios, asked):
    load = (
        f"{asked.n_requests} requests of {asked.prompt_tokens} + {asked.output_tokens} tokens a"
        f" run, {asked.rate_per_s:g}/s, bar {BAR:.0%}"
    )
    for name, turns in ratios.items():
        columns = np.array(turns).T
        text = "; ".join(
            f"{field} {words(median_estimate(column))}"
            for field, column in zip(Said._fields, columns, strict=True)
        )
        medians = dict(
            zip(Said._fields, (float(np.median(column)) for column in columns), strict=True)
        )
        off = max(
            abs(medians[field] - 1) for field in ("ttft_median_s", "tpot_median_s", "tokens_per_s")
        )
        log_row(
            f"load: ours / {name}, on a real vLLM server",
            text,
            f"most of the medians' three: {off:.1%} off; {load}; {machine_load()}",
        )


def log_server(found, tokens_apart):
    late_s, tpot, ttft = (median_estimate(column) for column in found.T)
    log_row(
        "load: ours against vLLM's own histograms of the same run",
        f"mean TPOT {words(tpot)} of the server's; mean TTFT {words(late_s.scaled(1e3))} ms longer,"
        f" {words(ttft)} of the server's",
        "output tokens:"
        f" {'equal in every run' if not tokens_apart.any() else f'apart by {tokens_apart.tolist()}'};"
        f" {machine_load()}",
    )


def machine_load():
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "inferometer-peers",
        help="of the environments",
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rate", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    options = parser.parse_args()
    aiperf = installed(AIPERF, options.folder)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tokenizer(folder / "model")
        (folder / "model" / "config.json").write_text(
            json.dumps(config_from_model(MODEL, dtype="float32"))
        )
        driver_line = [
            "taskset",
            "-c",
            CLIENT_CORE,
            str(vllm_python()),
            str(Path(__file__).with_name("vllm_bench_driver.py")),
        ]
        driver_log = folder / "vllm-bench.log"
        with (
            driver_log.open("wb") as log,
            vllm_server(folder / "model", *FLAGS, core=SERVER_CORE) as url,
        ):
            pipes = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": log,
                "text": True,
            }
            with subprocess.Popen(
                driver_line, **pipes, env={**os.environ, **QUIET, **HERE}
            ) as driver:
                n_requests = round(options.rate * options.seconds)
                lengths = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
                asked = Asked(
                    url=url,
                    model="m",
                    tokenizer=folder / "model",
                    n_requests=n_requests,
                    rate_per_s=options.rate,
                    **lengths,
                )
                driver.stdout.readline()
                tester = Tester(asked, aiperf, driver, driver_log, folder)
                tester.run("inferometer")  # the server's own warm-up
                found = compare(tester, options.turns)
                driver.stdin.close()
    log_agreement(found[0], asked)
    log_server(*found[1:])


if __name__ == "__main__":
    sys.exit(main())
