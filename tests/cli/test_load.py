"""inferometer load against an emulated server.

The whole way from flags to a judged run, its exit codes, its seams, its secrets.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import jsonschema
import numpy as np
import psutil
import pytest
from command_line import check_refused, run

from inferometer.api.load_sending import redacted
from inferometer.cli.verbs import VERBS
from inferometer.records.reading import read_run
from inferometer.records.types import RequestStatus
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

PLAN = EmulatorPlan(
    model_name="m",
    fleet=lone_replica(
        SchedulerConfig(num_blocks=20_000, max_model_len=16_384, max_num_seqs=64),
        linear_cost(launch_s=1e-3),
    ),
    mean_output_tokens=None,
    enable_prompt_tokens_details=True,
)
WORKLOAD = """
name = "short"
n_requests = 40
[arrivals]
kind = "open"
rate_per_s = 100.0
process = "constant"
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 20 }
output_tokens = { kind = "constant", value = 8 }
"""


@pytest.fixture(scope="module")
def url():
    with start(PLAN) as emulator:
        yield emulator.url


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "short.toml").write_text(WORKLOAD)
    return tmp_path


def load(url, *flags, folder):
    return run(
        "load",
        url,
        "--model",
        "m",
        "--workload",
        "short.toml",
        "--out",
        "run",
        "--no-report",
        *flags,
        folder=folder,
    )


def test_a_page_is_written_the_model_found_and_the_rate_shown(url, folder):
    outcome = run("load", url, "--workload", "short.toml", "--out", "run", "--json", folder=folder)
    assert outcome.returncode in {0, 3}, outcome.stderr
    assert "model: m, the only one that the server offers" in outcome.stderr
    assert "no rate was given: 100 requests/s, the workload's own" in outcome.stderr
    answer = json.loads(outcome.stdout)
    assert answer["report_file"] == "run/report.html"
    assert (
        f"m · {url.partition('//')[2]} · short · 100 requests/s"
        in (folder / "run" / "report.html").read_text()
    )
    assert answer["requests"]["title"].endswith("100 requests/s")


@pytest.mark.slow
def test_others_who_use_the_server_are_a_caution_and_their_times_no_share(url, folder):
    other = {"model": "m", "prompt": "one two", "max_tokens": 1, "stream": True}
    is_over = threading.Event()

    def ask():
        while not is_over.is_set():
            with contextlib.closing(HTTPConnection(url.partition("//")[2])) as way:
                way.request(
                    "POST",
                    "/v1/completions",
                    json.dumps(other),
                    {"Content-Type": "application/json"},
                )
                way.getresponse().read()

    others = [threading.Thread(target=ask) for _ in range(2)]
    for one in others:
        one.start()
    outcome = load(url, "--rate", 10, "--requests", 20, folder=folder)
    is_over.set()
    for one in others:
        one.join()
    assert "others use the server: it counted" in outcome.stdout, outcome.stderr
    assert "of the mean TTFT" not in outcome.stdout


@pytest.mark.slow
def test_a_cap_beside_a_rate_and_alone(url, folder):
    flags = ("--requests", 30, "--max-concurrency", 2)
    beside = load(url, "--rate", 400, *flags, folder=folder)
    assert beside.returncode in {0, 3}, beside.stderr
    stored = read_run(folder / "run")
    ended = np.maximum(stored.requests.finished_ns, stored.exchanges.last_byte_ns)
    in_flight = [
        (np.count_nonzero(stored.requests.sent_ns <= at) - np.count_nonzero(ended < at))
        for at in stored.requests.sent_ns
    ]
    assert max(in_flight) == 2
    assert "at 400 requests/s, at most 2 in flight" in beside.stderr
    assert (
        next(one for one in stored.manifest.validity.reasons if one.check == "rate").verdict
        == "VALID"
    )
    alone = run(
        "load", url, "--model", "m", "--workload", "short.toml", "--dry-run", *flags, folder=folder
    )
    assert alone.returncode == 0, alone.stderr
    assert "at concurrency 2" in alone.stderr, "as vllm bench serve, whose default rate is endless"
    check_refused(load(url, "--concurrency", 2, *flags, folder=folder), 2, "--max-concurrency")


def test_the_texts_of_a_file_are_sent(url, folder):
    said = [
        {"from": who, "value": what}
        for who, what in (
            ("human", "one two"),
            ("gpt", "three"),
            ("human", "four"),
            ("gpt", "five"),
        )
    ]
    (folder / "talks.json").write_text(json.dumps([{"conversations": said}] * 3))
    outcome = load(
        url, "--workload", "talks.json", "--rate", 20, "--prompts", "trace", folder=folder
    )
    assert outcome.returncode in {0, 3}, outcome.stderr
    assert "prompts as trace" in outcome.stderr
    assert (read_run(folder / "run").requests.status == RequestStatus.LENGTH).sum() == 6
    check_refused(
        load(url, "--prompts", "trace", "--out", "other", folder=folder), 2, "no trace is replayed"
    )


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_run_of_each_kind(endpoint, stream, url, folder):
    outcome = load(url, "--endpoint", endpoint, stream, "--json", folder=folder)
    assert outcome.returncode in {0, 3}, (
        outcome.stderr
    )  # a busy machine makes an INVALID run, and says so
    answer = json.loads(outcome.stdout)
    schema = json.loads(run("schema", "load", "--json", folder=folder).stdout)["schema"]
    jsonschema.validate(answer, schema)
    stored = read_run(folder / "run")
    assert (stored.requests.status == RequestStatus.LENGTH).all()
    assert stored.requests.output_tokens.tolist() == [8] * 40
    assert stored.requests.request_index.tolist() == list(range(40))
    assert (stored.exchanges.error == "").all()
    assert stored.manifest.validity is not None
    assert stored.manifest.load.url == url
    assert stored.server is not None, "the emulator shows its own numbers"
    assert 0 <= stored.server.scraped_ns.max() < 60e9, "on the clock of the run"
    assert answer["requests"]["online"]["validity"]["verdict"] in {"VALID", "SUSPECT", "INVALID"}


def test_token_ids_have_exact_lengths(url, folder):
    load(url, "--endpoint", "completions", "--prompts", "token-ids", folder=folder)
    assert read_run(folder / "run").exchanges.usage_prompt_tokens.tolist() == [20] * 40


def test_the_objective_decides_the_exit_code(url, folder):
    outcome = load(url, "--slo", "ttft:p50<1us", folder=folder)
    assert outcome.returncode in {10, 3}, outcome.stderr
    assert "✘ misses the SLO" in outcome.stdout
    again = load(url, "--slo", "ttft:p50<20s", folder=folder)
    assert "had been made before: this is what was stored (another --out" in again.stderr
    # 11: on a busy machine requests depend on one another so much that p50 has no interval.
    assert again.returncode in {0, 3, 11}, again.stdout
    shown = run("show", "run", folder=folder)
    assert shown.returncode == 0
    assert "TTFT" in shown.stdout


def test_another_question_does_not_touch_the_folder(url, folder):
    load(url, folder=folder)
    check_refused(load(url, "--rate", 3, folder=folder), 4, "another run", "--out")


def test_only_talk_is_on_stderr(url, folder, capfd):
    assert load(url, "--rate", 40, folder=folder).returncode in {0, 3}
    assert "leaked" not in capfd.readouterr().err, "the client processes write to the same stderr"


def test_a_closed_loop_ends_when_its_time_is_over(url, folder):
    started_s = time.monotonic()
    load(url, "--concurrency", 3, "--for", "1s", folder=folder)
    assert time.monotonic() - started_s < 30
    requests = read_run(folder / "run").requests
    assert 3 < len(requests.sent_ns) < 900
    assert requests.intended_send_ns.max() <= 1e9


def test_users_who_ran_out_of_requests_are_named(url, folder):
    load(url, "--concurrency", 2, "--for", "30s", "--requests", 6, folder=folder)
    stored = read_run(folder / "run")
    assert len(stored.requests.sent_ns) == 6
    assert "RAN_OUT" in [caution.code for caution in stored.manifest.cautions]


@pytest.mark.parametrize(
    ("flags", "n_requests"),
    [
        (("--ramp", "10:50:1s", "--for", "1s"), (10, 60)),
        (("--trace", "short.jsonl"), (2, 2)),
        (("--trace", "short.jsonl", "--speed-up", 2, "--trace-format", "mooncake"), (2, 2)),
        (("--rate", 80), (40, 40)),
    ],
)
def test_kinds_of_arrivals(flags, n_requests, url, folder):
    (folder / "short.jsonl").write_text(
        '{"timestamp": 0, "input_length": 6, "output_length": 2, "hash_ids": [0]}\n'
        '{"timestamp": 250, "input_length": 6, "output_length": 2, "hash_ids": [1]}\n'
    )
    extra = ("--requests", 2) if "--trace" in flags else ()
    outcome = load(url, *flags, *extra, folder=folder)
    assert outcome.returncode in {0, 3}, outcome.stderr
    requests = read_run(folder / "run").requests
    assert n_requests[0] <= len(requests.sent_ns) <= n_requests[1]
    if "--trace" in flags:
        assert requests.intended_send_ns.tolist() == [
            0,
            125_000_000 if "--speed-up" in flags else 250_000_000,
        ]


def test_a_wrong_model_is_found_before_the_run(url, folder):
    other = ("load", url, "--model", "other", "--workload", "short.toml", "--out", "run")
    check_refused(
        run(*other, folder=folder),
        3,
        "The model `other` does not exist",
        "the server offers m",
        "--model m",
    )
    assert not (folder / "run").exists()


def test_what_the_server_says_of_a_wrong_model_is_shown(url, folder):
    other = (
        "load",
        url,
        "--model",
        "other",
        "--workload",
        "short.toml",
        "--requests",
        3,
        "--no-preflight",
        "--out",
        "run",
    )
    outcome = run(*other, folder=folder)
    assert outcome.returncode == 3
    (caution,) = [
        one for one in read_run(folder / "run").manifest.cautions if one.code == "ERROR_SAID"
    ]
    assert "other" in caution.text
    assert "http_error" in caution.text
    assert "--model" in caution.remedy
    assert "other" in outcome.stdout.partition("CAUTION http_error")[2]


@pytest.mark.slow
def test_a_second_run_is_not_served_from_the_prefix_cache_of_the_first(folder):
    with start(PLAN) as emulator:
        for name in ("first", "second"):
            load(emulator.url, "--out", name, folder=folder)
        for name in ("third", "fourth"):
            load(emulator.url, "--out", name, "--seed", 1, folder=folder)
    cached = {
        name: int(read_run(folder / name).exchanges.usage_cached_tokens.sum())
        for name in ("first", "second", "third", "fourth")
    }
    assert cached["first"] == cached["second"] == cached["third"] == 0
    assert cached["fourth"] > 0, "the same seed, the same words"


def test_secrets_are_nowhere_in_the_record(url, folder, monkeypatch):
    monkeypatch.setenv("INFEROMETER_API_KEY", "hush-token")
    monkeypatch.setenv("TEAM", "hush-team")
    outcome = load(url, "--header", "X-A: hush-header", "--header=X-B: $TEAM", folder=folder)
    assert "hush" not in outcome.stdout + outcome.stderr
    for path in (folder / "run").rglob("*"):
        assert path.is_dir() or b"hush" not in path.read_bytes(), path
    manifest = read_run(folder / "run").manifest
    assert manifest.load.header_names == ("X-A", "X-B")
    assert manifest.load.sends_bearer_token
    assert "X-A: …" in manifest.command
    assert "--header=X-B: $TEAM" in manifest.command


def test_texts_of_a_body_and_a_token_for_the_metrics_are_nowhere(url, folder):
    metrics = url.replace("://", "://me:hush-password@") + "/metrics?token=hush-query"
    flags = (
        "--body",
        'user="hush-body-token"',
        "--body",
        "temperature=0.5",
        "--metrics-url",
        metrics,
    )
    outcome = load(url, *flags, folder=folder)
    assert "hush" not in outcome.stdout + outcome.stderr
    for path in (folder / "run").rglob("*"):
        assert path.is_dir() or b"hush" not in path.read_bytes(), path
    stored = read_run(folder / "run")
    assert stored.server is not None, "the metrics were read all the same"
    assert [name for name, _ in stored.manifest.load.extra_body] == ["temperature", "user"]
    assert stored.manifest.load.extra_body[0] == ("temperature", "0.5")
    assert load(url, *flags, folder=folder).returncode in {0, 3}, "the same question"
    other = load(url, "--body", 'user="other"', *flags[2:], folder=folder)
    check_refused(other, 4, "another run")
    check_refused(
        load(url, "--body", "user=hush-bare", folder=folder),
        2,
        "from: --body user",
        "in double quotes",
    )
    assert "hush" not in load(url, "--body", "user=hush-bare", folder=folder).stderr


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (("--header", "X-A: hush", "--rate", "5"), ("--header", "X-A: …", "--rate", "5")),
        (("--header=X-A: hush",), ("--header=X-A: …",)),
        (("--header", "X-A: $TEAM"), ("--header", "X-A: $TEAM")),
        (("--header", "X-A: Bearer ${TEAM}"), ("--header", "X-A: Bearer ${TEAM}")),
        (("--header", "X-A: $TEAM hush"), ("--header", "X-A: …")),
        (("--proxy", "http://me:hush@p:1"), ("--proxy", "http://…@p:1")),
        (("--proxy=http://me:hush@p:1",), ("--proxy=http://…@p:1",)),
        (("--proxy", "http://p:1", "--body", "a=1"), ("--proxy", "http://p:1", "--body", "a=1")),
        (("--b-body", 'a={"b":"token"}'), ("--b-body", 'a={"b":"…3c469e9d"}')),
        (("--body=a=hush",), ("--body=a=…",)),
        (("--otlp-endpoint", "http://me:hush@c:4318"), ("--otlp-endpoint", "http://…@c:4318")),
        (("--metrics-url", "http://me:hush@h/m?t=hush"), ("--metrics-url", "http://…@h/m?…")),
    ],
)
def test_the_stored_command_has_no_secrets(given, stored):
    assert redacted(given) == stored


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rate", 1, "--ramp", "1:2:3s"), ("--rate", "--ramp")),
        (("--ramp", "1:2"), ("--ramp", "1:20:60s")),
        (("--ramp", "2:0:3s"), ("--ramp",)),
        (("--body", "temperature"), ("--body",)),
        (("--body", "temperature=hot"), ("--body temperature", "JSON")),
        (("--header", "nothing"), ("--header",)),
        (("--prompts", "token-ids"), ("chat", "--endpoint completions")),
        (("--timeout", "5"), ("--timeout", "unit")),
        (("--proxy", "ftp://p"), ("--proxy",)),
        (("--requests", 2 * 10**9), ("--requests", "GiB")),
    ],
)
def test_impossible_questions(flags, words, url, folder):
    check_refused(load(url, *flags, folder=folder), 2, *words)


def test_a_server_that_is_not_there(folder):
    check_refused(load("http://127.0.0.1:9", folder=folder), 3, "no answer", "127.0.0.1:9")


def test_an_https_url_of_a_plain_port_is_answered_with_the_http_one(url, folder):
    """Without --model the question for the models is what meets the port first."""
    https = url.replace("http://", "https://")
    for more in ((), ("--model", "m")):
        words = ("load", https, "--workload", "short.toml", "--out", "run", *more)
        check_refused(run(*words, folder=folder), 3, "the port does not speak TLS", f"try: {url}")


def test_a_rate_of_inf_sends_all_at_once(url, folder):
    flags = ("--request-rate", "inf", "--num-prompts", "30")
    words = ("load", url, "--workload", "128x8", "--out", "run", *flags)
    assert run(*words, folder=folder).returncode in {0, 3}
    sent_ns = read_run(folder / "run").requests.intended_send_ns
    assert len(sent_ns) == 30
    assert np.ptp(sent_ns) == 0
    check_refused(
        run("load", url, "--rate", "inf", "--out", "none", folder=folder), 2, "--concurrency 256"
    )


@pytest.mark.slow
def test_too_few_requests_are_answered_with_the_longer_run(url, folder):
    outcome = load(url, "--slo", "ttft:p99<20s", folder=folder)
    found = re.search(r"^NEXT .*\n +(inferometer load .*)$", outcome.stdout, re.MULTILINE)
    assert found is not None, outcome.stdout
    words = shlex.split(found[1])
    assert words[words.index("--requests") + 1] == "368"
    assert words[words.index("--out") + 1] == "run-longer"
    assert words[2] == url
    assert run(*words[1:], folder=folder).returncode in {0, 3, 11}
    assert len(read_run(folder / "run-longer").requests.status) == 368


def test_a_dry_run_sends_nothing(folder):
    outcome = load("http://127.0.0.1:9", "--dry-run", folder=folder)
    assert (outcome.returncode, outcome.stdout) == (0, "")
    assert "40 requests" in outcome.stderr
    assert not (folder / "run").exists()


def test_examples(url, folder):
    (folder / "trace.jsonl").write_text(
        '{"timestamp": 0, "input_length": 6, "output_length": 2, "hash_ids": [0]}\n'
    )
    lines = [
        line.strip()
        for line in VERBS["load"].examples.splitlines()
        if line.strip().startswith("inferometer ")
    ]
    assert len(lines) == 3
    for line in lines:
        outcome = run(*shlex.split(line)[1:], "--dry-run", folder=folder)
        assert outcome.returncode == 0, outcome.stderr


def started(url, folder, *flags):
    line = [
        Path(sys.executable).parent / "inferometer",
        "load",
        url,
        "--model",
        "m",
        "--workload",
        "short.toml",
        "--out",
        "run",
        *flags,
    ]
    return subprocess.Popen(
        [str(word) for word in line],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_log(folder):
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if sum(path.stat().st_size for path in folder.glob("run/raw/*.raw")) > 5000:
            return
        time.sleep(0.02)
    raise AssertionError("nothing was sent")


LONG = ("--rate", "80", "--requests", "200")


@pytest.mark.slow
def test_ctrl_c_keeps_what_ended_and_the_same_command_goes_on(url, folder):
    child = started(url, folder, *LONG)
    wait_for_log(folder)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "TTFT" in stdout
    assert not (folder / "run" / "manifest.json").exists()
    for verb in ("show", "report"):
        partial = run(verb, "run", folder=folder)
        assert partial.returncode == 0, partial.stderr
    shown = run("show", "run", folder=folder).stdout
    ended, open_ = re.search(
        r"PARTIAL: the load test is not over; (\d+) requests ended so far, (\d+) were in flight",
        shown,
    ).groups()
    assert f"measured · {int(ended) + int(open_)} requests" in shown
    assert f"the same command goes on: inferometer load {url} --model m" in shown
    check_refused(
        run("fit", "--load", "run", folder=folder), 4, "is not over", "try: inferometer show run"
    )
    again = load(url, *LONG, folder=folder)
    assert again.returncode in {0, 3}, again.stderr
    assert "going on" in again.stderr
    stored = read_run(folder / "run")
    assert stored.requests.request_index.tolist() == list(range(200))
    assert (stored.exchanges.error == "").all()
    assert "RESUMED" in [caution.code for caution in stored.manifest.cautions]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_a_test_as_ctrl_c_does(number, exit_code, url, folder):
    child = started(url, folder, *LONG)
    wait_for_log(folder)
    workers = psutil.Process(child.pid).children()
    for one in (*workers, child):  # as a supervisor ends a whole group
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == exit_code, stderr
    assert "TTFT" in stdout
    assert "Traceback" not in stderr
    assert not any(worker.is_running() for worker in workers)
    assert (folder / "run" / "load.json").exists()


@pytest.mark.slow
def test_a_client_that_stood_still_makes_the_run_invalid(url, folder):
    child = started(url, folder, *LONG)
    wait_for_log(folder)
    worker = psutil.Process(child.pid).children()[0]
    for _ in range(3):
        worker.suspend()
        time.sleep(0.5)
        worker.resume()
        time.sleep(0.1)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 3, stderr
    assert "INVALID" in stdout
    stored = read_run(folder / "run")
    assert len(stored.requests.sent_ns) == 200, "late, but none left out"
    gaps = (stored.requests.intended_send_ns[1:] - stored.requests.intended_send_ns[:-1]).tolist()
    assert set(gaps) == {12_500_000}, "the schedule did not move"


@pytest.mark.slow
def test_a_client_process_that_dies_ends_the_run_and_loses_nothing(url, folder):
    child = started(url, folder, *LONG)
    wait_for_log(folder)
    os.kill(psutil.Process(child.pid).children()[0].pid, signal.SIGKILL)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 3, stderr
    assert "a client process died" in stderr
    again = load(url, *LONG, folder=folder)
    assert again.returncode in {0, 3}, again.stderr
    assert read_run(folder / "run").requests.request_index.tolist() == list(range(200))


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--dataset-name", "random"), "no workload 'random'"),
        (("--goodput", "ttft:500"), "try: --slo"),
        (("--base-url", "http://127.0.0.1:9"), "unexpected extra argument (http://127.0.0.1:9)"),
        (("--for", "3"), "try: 3s"),
    ],
)
def test_words_of_other_tools_are_known(flags, word, folder):
    check_refused(load("http://127.0.0.1:9", *flags, folder=folder), 2, word)


@pytest.mark.slow
def test_a_run_is_written_for_other_tools_too(url, folder):
    flags = (
        "--requests",
        5,
        "--slo",
        "ttft:p50<20s",
        "--export",
        "llm-d",
        "--export",
        "vllm-bench",
        "--export",
        "csv",
    )
    outcome = load(url, *flags, folder=folder)
    assert outcome.returncode in {0, 3, 11}, outcome.stderr
    assert json.loads((folder / "run" / "vllm-bench.json").read_text())["completed"] == 5
    assert json.loads((folder / "run" / "llm-d-report.json").read_text())["version"]
    assert len((folder / "run" / "requests.csv").read_text().splitlines()) == 6
    stored = read_run(folder / "run")
    assert stored.manifest.client_scheduling in {("real-time",), ("short slices",), ("usual",)}
    again = load(url, *flags, "--export", "csv", folder=folder)
    assert "requests.csv" in again.stderr


def test_a_cap_alone_is_a_rate_that_was_given(url, folder):
    """`--max-concurrency 2` was reported as the workload's own."""
    flags = ("--model", "m", "--workload", "short.toml", "--max-concurrency", 2, "--dry-run")
    outcome = run("load", url, *flags, folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    assert "concurrency 2" in outcome.stderr
    assert "no rate was given" not in outcome.stderr
