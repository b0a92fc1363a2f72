"""Does tune find a flag that was set wrongly on real servers, and say what goes wrong with them?"""

import json
import socket
import sys

import jsonschema
import psutil
import pytest
from command_line import check_refused, run

EMULATE = (
    f"{sys.executable} -m inferometer emulate llama-3.1-8b --hardware h100_sxm --output-tokens max"
)
SLO = ("--slo", "ttft:p95<300ms, tpot:p95<30ms")
LOAD = ("--rate", "20", "--workload", "200x60", "--for", "6s")
SHORT = (*LOAD[:-1], "2s")
BOUNDS = ("--steps", "max_num_seqs", "--pairs", "5", "--out", "tuned")
FEWEST = (*BOUNDS[:3], "4", *BOUNDS[4:])


@pytest.fixture
def url():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def check_nobody_is_left(url):
    port = url.rpartition(":")[2]
    assert not [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if port in " ".join(one.info.get("cmdline") or ())
    ]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((*SLO, *LOAD), ("no start command", "--start")),
        (("--start", "vllm serve m", *LOAD), ("--slo",)),
        (("--start", "vllm 'serve", *SLO, *LOAD), ("No closing quotation",)),
        (("--start", "vllm serve m --port 9", *SLO, *LOAD), ("listens at port 9",)),
        (("--start", "vllm serve m", *SLO, *LOAD, "--force"), ("which goes on", "--out")),
        (("--start", "cd x && vllm serve m", *SLO, *LOAD), ("'&&' is for a shell",)),
        (("--start", "vllm serve $MODEL", *SLO, *LOAD), ("'$MODEL' is for a shell",)),
        (("--start", "bash -c 'vllm serve m'", *SLO, *LOAD), ("does not pass on the flags",)),
        (("--start", "vllm serve m", *SLO, *LOAD, "--try", "x"), ("begins with no flag",)),
        (("--start", "vllm serve m", *SLO, *LOAD, "--try", "--x '1"), ("--try", "quotation")),
        (
            ("--start", "vllm serve m", *SLO, *LOAD, "--goal", "throughput"),
            ("answers no more than is sent", "--concurrency"),
        ),
        (("--start", "vllm serve m", *SLO, *LOAD, "--max-num-seqs", "8"), ("in --start",)),
        (("--start", "vllm serve m", *SLO, *LOAD, "--pairs", "3"), ("--pairs",)),
        (
            ("--start", "vllm serve m", *SLO, "--requests", "20", "--rate", "1"),
            ("20 requests", "30 or"),
        ),
    ],
)
def test_what_cannot_be_is_refused(words, what, tmp_path, url):
    check_refused(run("tune", url, *words, folder=tmp_path), 2, *what)


@pytest.mark.parametrize(
    "address",
    ["http://192.0.2.1:8000", "http://127.0.0.1:99999", "http://127.0.0.1", "127.0.0.1:0"],
)
def test_what_is_no_port_of_this_machine_is_refused(address, tmp_path):
    words = ("--start", "vllm serve m", *SLO, *LOAD)
    outcome = run("tune", address, *words, folder=tmp_path)
    check_refused(outcome, 2, "not a port of this machine")


def test_an_address_needs_no_scheme(tmp_path):
    check_refused(run("tune", "localhost:8000", *SLO, folder=tmp_path), 2, "no start command")


@pytest.mark.parametrize("flag", ["--try", "--usd-per-hour", "--pairs", "--start-timeout"])
def test_what_is_of_a_started_server_says_so_of_a_simulated_one(flag, tmp_path):
    value = {"--try": "--x 1", "--start-timeout": "5s"}.get(flag, "9")
    words = ("llama-3.1-8b", "--hardware", "l4", "--rate", "1", "--workload", "200x60", *SLO)
    outcome = run("tune", *words, flag, value, folder=tmp_path)
    check_refused(outcome, 2, f"{flag} is of a server that is started here", "--start")


def test_a_dry_run_starts_nothing(tmp_path, url):
    start = ("--start", "no-such-server --tensor-parallel-size 2", "--usd-per-hour", "3")
    words = (*start, *SLO, *LOAD, *BOUNDS, "--try", "--x 1", "--dry-run")
    outcome = run("tune", url, *words, "--json", folder=tmp_path)
    plan = json.loads(outcome.stdout)
    assert [one["name"] for one in plan["steps"]] == ["max_num_seqs", "--x 1"]
    assert plan["n_restarts"] == 1 + 2 * (3 + 3 * 5)
    assert plan["duration_s"] == plan["n_restarts"] * 6
    assert plan["cost"].startswith(
        "at most 37 servers for 2 steps, 4 minutes of loads, 7 device-minutes, 0.37 $; one after"
    )
    assert not (tmp_path / "tuned").exists()


def test_a_server_that_does_not_start_is_said(tmp_path, url):
    words = ("--start", f"{sys.executable} -c 'raise SystemExit(\"CUDA out of memory\")'")
    outcome = run("tune", url, *words, *SLO, *LOAD, *BOUNDS, folder=tmp_path)
    assert outcome.returncode == 3
    assert "out of memory" in outcome.stderr
    check_nobody_is_left(url)


def check_found(folder, outcome, url):
    answer = json.loads(outcome.stdout)
    schema = json.loads(run("schema", "tune", "--json", folder=folder).stdout)["schema"]
    jsonschema.validate(answer, schema)
    [step] = [one for one in answer["steps"] if one["name"] == "max_num_seqs"]
    assert (step["decision"], answer["is_confirmed"]) == ("keep", True), outcome.stderr
    assert answer["gain_fraction"]["low"] > 0
    assert len(answer["checklist"]) == 10
    assert answer["command"] in (folder / "tuned/serve.sh").read_text()
    check_nobody_is_left(url)
    return answer


@pytest.mark.slow
def test_a_batch_that_is_too_small_is_found_and_a_flag_that_fails_is_said(tmp_path, url):
    start = ("--start", f"{EMULATE} --max-num-seqs 4")
    words = ("tune", url, *start, *SLO, *SHORT, *FEWEST, "--try", "--no-such-flag 1", "--json")
    outcome = run(*words, folder=tmp_path)
    answer = check_found(tmp_path, outcome, url)
    assert answer["slo_after"] == "met"
    failed = answer["steps"][-1]
    assert (failed["name"], failed["decision"]) == ("--no-such-flag 1", "failed")
    assert "ended before it was ready" in failed["why"]
    other = run(*words, "--pairs", "6", folder=tmp_path)
    check_refused(other, 4, "begun for another question")


@pytest.mark.slow
def test_a_server_that_answers_nothing_ends_it(tmp_path, url):
    start = ("--start", f"{EMULATE} --fault http-500")
    outcome = run("tune", url, *start, *SLO, *SHORT, *BOUNDS, folder=tmp_path)
    assert outcome.returncode == 3, outcome.stderr
    assert "answered no request" in outcome.stderr
    check_nobody_is_left(url)
