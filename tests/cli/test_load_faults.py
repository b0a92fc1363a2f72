"""A load test of a server that commits every fault there is: no request is lost, none hangs, each fault has its code."""

import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from command_line import run

from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.records.reading import read_run
from inferometer.serve.emission_log import read_emission_log
from inferometer.serve.emulator_plan import EmulatorPlan, FaultKind, parse_faults
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

EXPECTED = {
    "http-429": {"rate_limited"},
    "http-500": {"http_error"},
    "http-503": {"overloaded"},
    "redirect-loop": {"redirected"},
    "gzip-bomb": {"compressed", "body_too_long"},
    "never-answers": {"head_timeout"},
    "endless-headers": {"head_too_long", "head_timeout"},
    "slow-headers": {"", "head_timeout"},
    "stall": {"read_timeout"},
    "reset": {"reset", "truncated"},
    "truncated-sse": {"truncated", "no_end", "bad_event"},
    "missing-done": {"", "no_end"},
    "malformed-json": {"bad_event"},
    "invalid-utf8": {"invalid_utf8", "bad_event"},
    "huge-chunk": {"body_too_long", "bad_event"},
    "wrong-usage": {"too_many_tokens"},
    "no-usage": {""},
    "error-event": {"error_event"},
    "comments": {""},
    "split-writes": {""},
    "tokens-per-chunk": {""},
}
N_REQUESTS = 150
PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=4096, max_num_seqs=256),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
)
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = 50.0
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 20 }
output_tokens = { kind = "constant", value = 12 }
"""


def test_every_fault_is_named_here():
    assert set(EXPECTED) == set(get_args(FaultKind))
    assert set().union(*EXPECTED.values()) <= {"", *EXCHANGE_ERRORS}


@pytest.mark.slow
def test_all_faults_at_once(tmp_path):
    kinds = [kind for kind in EXPECTED if kind != "tokens-per-chunk"]
    options = {
        "stall": "(for=4s)",
        "huge-chunk": "(bytes=4MiB)",
        "endless-headers": "(bytes=4MiB)",
        "gzip-bomb": "(bytes=4MiB)",
    }
    # At most one strikes, the first that hits: each gets an equal share of all.
    shares = [1 / (len(kinds) + 1 - index) for index in range(len(kinds))]
    text = ", ".join(
        f"{kind}:{share:.4f}{options.get(kind, '')}"
        for kind, share in zip(kinds, shares, strict=True)
    )
    log = tmp_path / "emissions.bin"
    (tmp_path / "short.toml").write_text(WORKLOAD)
    flags = (
        "--workload",
        "short.toml",
        "--requests",
        N_REQUESTS,
        "--head-timeout",
        "1.5s",
        "--read-timeout",
        "1.5s",
        "--max-body",
        "1MiB",
    )
    with start(replace(PLAN, faults=parse_faults(text), emission_log=log)) as emulator:
        started_s = time.monotonic()
        outcome = run(
            "load",
            emulator.url,
            "--model",
            "m",
            *flags,
            "--timeout",
            "20s",
            "--no-preflight",
            "--out",
            "run",
            folder=tmp_path,
        )
        assert time.monotonic() - started_s < 90
        emulator.stop()
    assert outcome.returncode in {0, 3}, outcome.stderr
    loaded = read_run(tmp_path / "run")
    assert sorted(loaded.requests.request_index.tolist()) == list(range(N_REQUESTS)), "none is lost"
    by_number = {
        one.client_id.rpartition("-")[2]: one.fault for one in read_emission_log(log).requests
    }
    struck = Counter()
    for row, error in zip(
        loaded.exchanges.request_index.tolist(), loaded.exchanges.error.tolist(), strict=True
    ):
        fault = by_number.get(str(row))
        struck[fault] += 1
        assert error in EXPECTED[fault] if fault is not None else error in {"", *EXCHANGE_ERRORS}, (
            row,
            fault,
            error,
        )
    assert len(struck) > 12, struck
    finished = loaded.requests.finished_ns - loaded.requests.sent_ns
    assert (finished < 21e9).all()
    good = loaded.exchanges.error == ""
    is_miscounted = np.array(
        [
            by_number.get(str(row)) == "wrong-usage"
            for row in loaded.exchanges.request_index.tolist()
        ]
    )
    assert (loaded.requests.output_tokens[good & ~is_miscounted] == 12).all()
    assert np.count_nonzero(good) > 10


@pytest.mark.slow
def test_sixty_kinds_of_raw_answers_end_in_little_memory():
    """The benchmark with four requests of each kind; its own assertions judge."""
    bench = Path(__file__).parents[2] / "bench" / "bench_faults.py"
    ended = subprocess.run(
        [sys.executable, bench, "--requests", "256", "--rate", "30"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


@pytest.mark.parametrize("tokens", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_tokens_are_counted_whatever_a_chunk_carries(tokens, tmp_path):
    (tmp_path / "short.toml").write_text(WORKLOAD)
    with start(replace(PLAN, faults=parse_faults(f"tokens-per-chunk={tokens}"))) as emulator:
        run(
            "load",
            emulator.url,
            "--model",
            "m",
            "--workload",
            "short.toml",
            "--requests",
            20,
            "--out",
            "run",
            folder=tmp_path,
        )
    loaded = read_run(tmp_path / "run")
    assert loaded.requests.output_tokens.tolist() == [12] * 20
    assert (loaded.exchanges.n_chunks == 12 // tokens).all()
