"""inferometer verify and ledger: sealed, replayed, compared, kept; tampered with, killed, gone on with."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from command_line import check_refused, run

from inferometer.cli.verbs import VERBS
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.inputs.plans import plan_from_text
from inferometer.perfmodel.steptime import load_step_time_model
from inferometer.perfmodel.steptime_levels import fitted_levels
from inferometer.records import run_folder
from inferometer.records.reading import read_run
from inferometer.records.run_folder import now_utc
from inferometer.serve.emulator_plan import EmulatorPlan, parse_faults
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m"
SWEEP = ROOT / "tests" / "fit" / "data" / "smollm2-135m-float32"
N_TRIES = 3
N_DISTURBED = 2
"""Of eight numbers: the emulator shares its cores with whatever else runs there."""
SOME_ANSWERS_BYTES = 20_000
SERVER = "[server]\nmodel = 'smollm2-135m'\nfit = 'fit.json'\n"
POINTS = (
    f"name = 'points'\n{SERVER}[points]\nprompt_tokens = [64, 256]\nbatch_sizes = [1,"
    " 4]\ngen_tokens = 13\n"
)
LOADS = f"""name = 'loads'
{SERVER}
num_blocks = 500
max_model_len = 512
max_num_seqs = 3
own = {{ enable_prefix_caching = false }}
[traffic]
workload = 'short.toml'
concurrencies = [4]
n_requests = N
slo = 'ttft:p50<10s'
"""
SHORT = """[[classes]]
name = 'short'
prompt_tokens = { kind = 'constant', value = 40 }
output_tokens = { kind = 'constant', value = 6 }
"""
CONFIG = SchedulerConfig(
    num_blocks=500, max_model_len=512, max_num_seqs=3, enable_prefix_caching=False
)


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """The fit of the recorded sweep; and one that is as sure of itself as a long calibration makes it."""
    folder = tmp_path_factory.mktemp("fits")
    model = fit_step_time([read_run(SWEEP)])
    model.save(folder / "recorded.json")
    sure = replace(
        model,
        box=tuple(replace(entry, low=1, high=10**6) for entry in model.box),
        covariance=tuple((0.0,) * len(model.free) for _ in model.free),
        uncertainties=tuple(
            replace(doubt, spread_ratio=0.02, interval_ratio=1.645) for doubt in model.uncertainties
        ),
    )
    sure.save(folder / "sure.json")
    return folder


@pytest.fixture
def folder(tmp_path, fits):
    (tmp_path / "short.toml").write_text(SHORT)
    (tmp_path / "points.toml").write_text(POINTS)
    (tmp_path / "loads.toml").write_text(LOADS.replace("N", "90"))
    shutil.copy(fits / "sure.json", tmp_path / "fit.json")
    return tmp_path


def emulator(folder, *, time_scale_ratio=1.0, faults="", port=0):
    cost = fitted_levels(load_step_time_model(folder / "fit.json")).likely
    rules = parse_faults(faults) if faults else ()
    plan = EmulatorPlan(
        model_name=MODEL,
        fleet=lone_replica(CONFIG, cost),
        mean_output_tokens=None,
        time_scale_ratio=time_scale_ratio,
        faults=rules,
        port=port,
    )
    return start(plan)


def skip_where_others_compute():
    n_cores, n_wanted = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if n_wanted > n_cores:
        pytest.skip(
            f"{n_wanted:.0f} processes want {n_cores} cores: the emulated server is slower than it"
            " says"
        )


def verify(*words, folder):
    return run("verify", *words, "--out", "out", "--ledger", "l.jsonl", "--json", folder=folder)


def check_valid(url, folder):
    """The check of a server, tried again where the measurement itself was no good.

    A machine that stands still is no one's error.
    """
    for _ in range(N_TRIES):
        outcome = verify("loads.toml", "--url", url, folder=folder)
        if answer_of(outcome)["verdict"] != "INVALID":
            return outcome
    pytest.skip(
        f"{N_TRIES} load tests on this machine were INVALID:"
        f" {answer_of(outcome)['experiment']['measured']}"
    )


def answer_of(outcome):
    said = json.loads(outcome.stdout)
    schema = json.loads((ROOT / "docs" / "schemas" / "verify.json").read_text())
    jsonschema.validate(said, schema)
    return said


def outcomes(said):
    return [state["outcome"] for state in said["experiment"]["claims"]]


def entries(folder):
    return [json.loads(line) for line in (folder / "l.jsonl").read_text().splitlines()]


def measured_now(folder):
    """The recorded sweep, as if it had been measured now: its tables are untouched."""
    made = folder / "sweep"
    shutil.copytree(SWEEP, made)
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps(manifest | {"created_utc": now_utc()}))
    return made


def test_points_are_sealed_then_checked(folder, fits):
    shutil.copy(fits / "recorded.json", folder / "fit.json")
    sealed = verify("points.toml", "--seal-only", folder=folder)
    assert sealed.returncode == 0, sealed.stderr
    assert answer_of(sealed)["verdict"] == "open"
    made = measured_now(folder)
    checked = verify("points.toml", "--check", made, folder=folder)
    said = answer_of(checked)
    assert checked.returncode == {"held": 0, "wrong": 10, "undecided": 11}[said["verdict"]]
    assert len(outcomes(said)) == 8
    assert all(abs(outcome["error_fraction"]) < 0.2 for outcome in outcomes(said))
    assert (folder / "out" / "report.html").read_text().count("Predicted against measured, ms") >= 1
    assert verify("points.toml", "--check", made, folder=folder).stdout == checked.stdout
    assert [entry["check"] is None for entry in entries(folder)] == [True, False]


def test_the_plans_of_the_page_are_plans(folder):
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "verify.md").read_text(), re.DOTALL)
    assert [plan_from_text(block, where="docs/verify.md").kind for block in blocks] == [
        "load",
        "sweep",
    ]
    (folder / "plan.toml").write_text(blocks[0])
    said = answer_of(verify("plan.toml", "--seal-only", folder=folder))
    assert [question["at"] for question in said["experiment"]["seal"]["questions"]] == [
        "1 requests/s",
        "2 requests/s",
    ]
    assert said["experiment"]["seal"]["belief"]["subject"].startswith("llama-3.1-8b on ")


@pytest.mark.parametrize(
    ("n_requests", "slo", "needed"),
    [(40, "ttft:p50<10s", 72), (100, "ttft:p50<10s", None), (100, "ttft:p99<10s", 368)],
)
def test_a_percentile_of_too_few_requests_is_a_caution(folder, n_requests, slo, needed):
    """A p95 of 40 requests was sealed without a word, and could only stay undecided."""
    text = re.sub(
        r"n_requests = \d+", f"n_requests = {n_requests}", (folder / "loads.toml").read_text()
    )
    (folder / "loads.toml").write_text(text.replace("ttft:p50<10s", slo))
    sealed = verify("loads.toml", "--seal-only", folder=folder)
    cautions = [one["remedy"] for one in answer_of(sealed)["cautions"]]
    assert [f"n_requests = {needed} or more" in one for one in cautions] == [True] * bool(needed)
    shown = run("verify", "loads.toml", "--seal-only", "--out", "out", folder=folder)
    assert ("CAUTION" in shown.stdout) is bool(needed)
    assert f"SLO {slo}" in shown.stdout.replace("\n", " ")


def test_an_slo_that_is_sealed_as_undecided_is_a_caution(folder):
    """No measurement can prove it or refute it, and nothing told why or what would."""
    text = re.sub(r"n_requests = \d+", "n_requests = 80", (folder / "loads.toml").read_text())
    (folder / "loads.toml").write_text(text.replace("ttft:p50<10s", "ttft:p95<10s"))
    sealed = answer_of(verify("loads.toml", "--seal-only", folder=folder))
    undecided = [
        one["at"]
        for one in sealed["experiment"]["seal"]["promises"]
        if one["predicted"] == "undecided"
    ]
    assert undecided
    found = [one["text"].partition(":")[0] for one in sealed["cautions"]]
    assert found == undecided
    assert "a larger n_requests" in sealed["cautions"][0]["remedy"]


@pytest.mark.slow
def test_the_examples_run(folder, fits):
    """Those of --help, each against what it names; exit codes are answers too."""
    (folder / "loads.toml").rename(folder / "plan.toml")
    sealed, replayed, checked = [
        line.split()[1:]
        for line in VERBS["verify"].examples.splitlines()
        if line.strip().startswith("inferometer")
    ]
    with emulator(folder) as believed:
        for words in (
            sealed,
            [believed.url if word.startswith("http") else word for word in replayed],
        ):
            outcome = run(*words, folder=folder)
            assert outcome.returncode in {0, 3, 10, 11}, outcome.stderr
            assert "of 9 predictions" in outcome.stdout
    shutil.copy(fits / "recorded.json", folder / "fit.json")
    run("verify", "points.toml", "--seal-only", "--out", "runs/points", folder=folder)
    measured_now(folder).rename(folder / "runs" / "held-out")
    outcome = run(*checked, folder=folder)
    assert outcome.returncode in {0, 10, 11}, outcome.stderr
    shown = run("ledger", folder=folder)
    assert shown.returncode == 0
    assert "ANSWER" in shown.stdout


def test_what_was_measured_before_the_seal_is_refused(folder, fits):
    shutil.copy(fits / "recorded.json", folder / "fit.json")
    check_refused(
        verify("points.toml", "--check", SWEEP, folder=folder), 4, "nothing was sealed here"
    )
    verify("points.toml", "--seal-only", folder=folder)
    check_refused(
        verify("points.toml", "--check", SWEEP, folder=folder),
        4,
        "before its prediction was sealed",
    )
    assert len(entries(folder)) == 1


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "out/seal.json",
            lambda text: text.replace('"low": 0.', '"low": 0.0'),
            "the seal was edited",
        ),
        ("out/seal.json", lambda _: "{", "is damaged"),
        ("points.toml", lambda text: text.replace("[1, 4]", "[1, 2]"), "changed since"),
        (
            "points.toml",
            lambda text: text.replace("gen_tokens = 13", "gen_tokens = 14"),
            "changed since",
        ),
        (
            "fit.json",
            lambda text: text + " ",
            "the fit, the gate, the groups, or the model and its device, changed since",
        ),
        (
            "l.jsonl",
            lambda text: text.replace("points", "pointz"),
            "line 1 of the ledger cannot be trusted",
        ),
    ],
)
def test_tampering_is_refused(folder, name, change, words):
    verify("points.toml", "--seal-only", folder=folder)
    path = folder / name
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    check_refused(verify("points.toml", "--seal-only", folder=folder), 4, words)


def test_another_workload_is_refused(folder):
    verify("loads.toml", "--seal-only", folder=folder)
    (folder / "short.toml").write_text(SHORT.replace("40", "41"))
    check_refused(
        verify("loads.toml", "--seal-only", folder=folder),
        4,
        "the workload, or its points changed since",
    )


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("loads.toml",), 2, "no ways to verify are given"),
        (
            ("loads.toml", "--seal-only", "--url", "http://127.0.0.1:1"),
            2,
            "several ways to verify are given",
        ),
        (("points.toml", "--url", "http://127.0.0.1:1"), 2, "cannot be timed from outside"),
        (("none.toml", "--seal-only"), 2, "cannot be read"),
        (("loads.toml", "--url", "ftp://x"), 2, "ftp"),
    ],
)
def test_bad_questions(folder, words, exit_code, said):
    check_refused(verify(*words, folder=folder), exit_code, said)
    assert not (folder / "l.jsonl").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('hardware = "h100_sxm"', 'hardware = "h100_smx"', "the plan's [server]: hardware\n"),
        ('hardware = "h100_sxm"', 'hardware = "8xH100"', 'try: hardware = "H100", tp = 8'),
        ('model = "llama-3.1-8b"', 'model = "lama-3.1-8b"', "the plan's [server]: model\n"),
        ('hardware = "h100_sxm"', 'hardware = "h100_sxm"\ntp = 0', "the plan's [server]: tp\n"),
    ],
)
def test_an_error_of_the_plan_names_the_plans_key(old, new, said, tmp_path):
    text = (
        'name = "x"\n[server]\nmodel = "llama-3.1-8b"\nhardware = "h100_sxm"\n'
        "[points]\nprompt_tokens = [128]\nbatch_sizes = [1]\n"
    )
    (tmp_path / "plan.toml").write_text(text.replace(old, new))
    check_refused(run("verify", "plan.toml", "--seal-only", folder=tmp_path), 2, said)


def test_a_ledger_that_is_not_there_is_no_empty_one(folder):
    check_refused(run("ledger", "none.jsonl", folder=folder), 4, "no such ledger")
    assert "No prediction was sealed yet" in run("ledger", folder=folder).stdout
    check_refused(run("ledger", "--ledger", "none.jsonl", folder=folder), 4, "no such ledger")


def test_a_ledger_is_named_as_verify_names_it(folder):
    verify("points.toml", "--seal-only", folder=folder)
    named = run("ledger", "--ledger", "l.jsonl", folder=folder)
    assert named.returncode == 0
    assert "ANSWER" in named.stdout
    assert named.stdout == run("ledger", "l.jsonl", folder=folder).stdout
    both = run("ledger", "l.jsonl", "--ledger", "l.jsonl", folder=folder)
    check_refused(both, 2, "two ledgers")


def test_a_server_that_is_not_there_leaves_the_seal_open(folder):
    outcome = verify("loads.toml", "--url", "http://127.0.0.1:9", folder=folder)
    assert outcome.returncode == 3
    assert "\n  try: start the server, or check the URL\n" in outcome.stderr + "\n"
    assert [entry["check"] for entry in entries(folder)] == [None, None]
    assert entries(folder)[1]["attempt"]["at"] == "4 users", (
        "what is about to be measured is in the ledger before it begins"
    )
    shown = run("ledger", "l.jsonl", "--json", folder=folder)
    assert json.loads(shown.stdout)["verdicts"] == ["open"]


@pytest.mark.slow
def test_a_client_that_must_change_is_sealed_anew(folder):
    """The plan was then refused: it had changed since the seal."""
    named = LOADS.replace("N", "90") + "[client]\nserved_model = 'another'\n"
    (folder / "loads.toml").write_text(named)
    with emulator(folder) as server:
        outcome = verify("loads.toml", "--url", server.url, folder=folder)
    assert outcome.returncode == 3
    assert f"takes as --model {MODEL}, and another --out: a plan that is" in outcome.stderr


@pytest.mark.slow
def test_what_size_writes_is_sealed(folder):
    run(
        "size", "llama-3.1-8b", "--rate", "1", "--slo", "ttft:p95<5s", "--gpus", "h100_sxm", "--tp", "1", "--max-num-seqs", "64",
        "--max-num-batched-tokens", "8192", "--probe-requests", "100", "--executor", "inline", "--out", "fleet", folder=folder,
    )  # fmt: skip
    said = answer_of(verify("fleet/verify.toml", "--seal-only", folder=folder))
    assert said["experiment"]["seal"]["belief"]["basis"] == "published"
    assert [promise["claim"]["objective"] for promise in said["experiment"]["promises"]] == [
        "ttft:p95<5000ms"
    ]


def with_new_sums(made, **changes):
    """A run's manifest edited by its owner, who writes the sums anew."""
    manifest = json.loads((made / "manifest.json").read_text())
    content = json.dumps(manifest | changes).encode()
    run_folder.write_sums(
        made, tuple(path.name for path in made.glob("*.parquet")), {"manifest.json": content}
    )
    (made / "manifest.json").write_bytes(content)


def test_a_simulated_run_is_never_a_measured_one(folder):
    verify("loads.toml", "--seal-only", folder=folder)
    simulated = run(
        "simulate", MODEL, "--fit", "fit.json", "--num-blocks", "500", "--max-model-len", "512", "--max-num-seqs", "3",
        "--workload", "short.toml", "--concurrency", "4", "--requests", "90", "--out", "made", folder=folder,
    )  # fmt: skip
    assert simulated.returncode == 0, simulated.stderr
    check_refused(verify("loads.toml", "--check", "made", folder=folder), 4, "it was simulated")
    manifest = json.loads((folder / "made" / "manifest.json").read_text())
    (folder / "made" / "manifest.json").write_text(json.dumps(manifest | {"origin": "measured"}))
    check_refused(
        verify("loads.toml", "--check", "made", folder=folder),
        4,
        "manifest.json differs from its checksum",
    )
    with_new_sums(folder / "made", origin="measured")
    check_refused(verify("loads.toml", "--check", "made", folder=folder), 4, "it has no raw log")
    assert all(entry["check"] is None for entry in entries(folder))


def test_an_anchor_is_printed_and_expected(folder):
    verify("points.toml", "--seal-only", folder=folder)
    anchor = run("ledger", "l.jsonl", "--anchor", folder=folder).stdout.strip()
    assert re.fullmatch(r"1:[0-9a-f]{64}", anchor)
    assert (
        f"still holds {anchor}"
        in run("ledger", "l.jsonl", "--expect", anchor, folder=folder).stdout
    )
    (folder / "l.jsonl").write_bytes(b"")
    check_refused(
        run("ledger", "l.jsonl", "--expect", anchor, folder=folder), 4, "its end was cut off"
    )
    check_refused(run("ledger", "l.jsonl", "--expect", "head", folder=folder), 2, "is no anchor")
    empty = run("ledger", "l.jsonl", "--anchor", folder=folder).stdout.strip()
    assert empty == f"0:{'0' * 64}"
    verify("points.toml", "--seal-only", folder=folder)
    assert run("ledger", "l.jsonl", "--expect", empty, folder=folder).returncode == 0


def test_what_is_no_ledger_has_no_anchor(tmp_path):
    """It was 0 and zeros: an anchor of nothing, which every later chain holds."""
    check_refused(run("ledger", "--anchor", folder=tmp_path), 4, "there is no such ledger")
    answer = run("ledger", "--json", folder=tmp_path)
    assert json.loads(answer.stdout)["anchor"] is None


@pytest.mark.slow
def test_the_server_that_was_believed_holds(folder):
    skip_where_others_compute()
    with emulator(folder) as believed:
        held = check_valid(believed.url, folder)
    inside = [outcome["is_inside"] for outcome in outcomes(answer_of(held))]
    assert sum(inside) >= len(inside) - N_DISTURBED, held.stdout
    assert held.returncode in {0, 11} or not all(inside), "11: too few requests for what p95 was"


@pytest.mark.slow
def test_a_slower_server_is_found_out_and_the_ledger_says_so(folder):
    skip_where_others_compute()
    with emulator(folder, time_scale_ratio=1.3) as slower:
        missed = check_valid(slower.url, folder)
    said = answer_of(missed)
    assert (said["verdict"], missed.returncode) == ("wrong", 10)
    wrong = [
        state["claim"]["metric"]
        for state in said["experiment"]["claims"]
        if state["outcome"]["verdict"] == "wrong"
    ]
    assert {"ttft_p50_s", "tpot_p50_s", "e2e_p50_s"} <= set(wrong)
    assert not any(outcome["is_inside"] for outcome in outcomes(said))
    ledger = json.loads(run("ledger", "l.jsonl", "--json", folder=folder).stdout)
    (total,) = ledger["score"]["totals"]
    assert (ledger["verdicts"], total["n_inside"], total["n_wrong"]) == (["wrong"], 0, len(wrong))
    assert total["median_error_fraction"] > 0.15


@pytest.mark.slow
def test_an_invalid_run_proves_nothing_and_is_tried_again(folder):
    with emulator(folder, faults="http-500:0.5") as broken:
        invalid = verify("loads.toml", "--url", broken.url, folder=folder)
    assert (answer_of(invalid)["verdict"], invalid.returncode) == ("INVALID", 3)
    with emulator(folder) as healthy:
        again = verify("loads.toml", "--url", healthy.url, folder=folder)
    said = answer_of(again)
    assert said["experiment"]["measured"][0]["validity"] == "INVALID"
    assert said["verdict"] == "INVALID" or said["experiment"]["open_questions"] == []
    assert (folder / "out" / "load-00-try-2" / "manifest.json").exists()


def begun(url, folder):
    """The check of a server, as a process of its own that has some answers already."""
    words = [
        str(Path(sys.executable).parent / "inferometer"),
        "verify",
        "loads.toml",
        "--out",
        "out",
        "--ledger",
        "l.jsonl",
        "--json",
    ]
    process = subprocess.Popen(
        [*words, "--url", url],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until_s = time.monotonic() + 120
    while (
        sum(log.stat().st_size for log in (folder / "out" / "load-00" / "raw").glob("*"))
        < SOME_ANSWERS_BYTES
    ):
        assert time.monotonic() < until_s
        assert process.poll() is None
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_a_check_that_was_killed_goes_on_with_the_same_seal(folder):
    with emulator(folder) as believed:
        process = begun(believed.url, folder)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert [entry["attempt"] is None for entry in entries(folder)] == [True, False]
        sealed = (folder / "out" / "seal.json").read_bytes()
        said = answer_of(verify("loads.toml", "--url", believed.url, folder=folder))
    assert (folder / "out" / "seal.json").read_bytes() == sealed
    assert said["experiment"]["open_questions"] == [] or said["verdict"] == "INVALID"
    assert [entry["check"] is None for entry in entries(folder)] == [True, True, True, False]
    assert "1 broken off" in run("ledger", "l.jsonl", folder=folder).stdout


@pytest.mark.slow
def test_a_server_that_dies_is_recorded_as_invalid(folder):
    (folder / "loads.toml").write_text(LOADS.replace("N", "400"))
    with emulator(folder) as believed:
        process = begun(believed.url, folder)
        believed.stop()
        stdout, _ = process.communicate(timeout=200)
    assert process.returncode == 3
    assert json.loads(stdout)["verdict"] == "INVALID"
    assert json.loads(stdout)["experiment"]["open_questions"] == ["4 users"]


@pytest.mark.slow
def test_a_load_test_made_elsewhere_is_checked_by_its_requests(folder):
    verify("loads.toml", "--seal-only", folder=folder)
    run(
        "verify",
        "loads.toml",
        "--seal-only",
        "--out",
        "tool",
        "--ledger",
        "tool.jsonl",
        folder=folder,
    )
    (folder / "other.toml").write_text(SHORT.replace("40", "50"))
    flags = (
        "--model",
        MODEL,
        "--endpoint",
        "completions",
        "--concurrency",
        "4",
        "--requests",
        "90",
    )
    with emulator(folder) as believed:
        run(
            "load",
            believed.url,
            *flags,
            "--workload",
            "other.toml",
            "--out",
            "other",
            folder=folder,
        )
        run(
            "load", believed.url, *flags, "--workload", "short.toml", "--out", "same", folder=folder
        )
    check_refused(
        verify("loads.toml", "--check", "other", folder=folder),
        4,
        "its requests are not those that were sealed",
    )
    said = answer_of(verify("loads.toml", "--check", "same", folder=folder))
    assert said["experiment"]["measured"][0]["asked_as"] == "the very requests"
    assert said["verdict"] == "INVALID" or {outcome["metric"] for outcome in outcomes(said)} >= {
        "ttft_p95_s",
        "output_tokens_per_s",
    }
    run(
        "verify",
        "loads.toml",
        "--seal-only",
        "--out",
        "late",
        "--ledger",
        "late.jsonl",
        folder=folder,
    )
    shutil.copytree(folder / "same", folder / "later")
    with_new_sums(folder / "later", created_utc=now_utc())
    late = run(
        "verify",
        "loads.toml",
        "--check",
        "later",
        "--out",
        "late",
        "--ledger",
        "late.jsonl",
        folder=folder,
    )
    check_refused(late, 4, "before its prediction was sealed")
    run("export", "same", "--format", "vllm-bench", "--out", "bench.json", folder=folder)
    told = answer_of(
        run(
            "verify",
            "loads.toml",
            "--check",
            "bench.json",
            "--out",
            "tool",
            "--ledger",
            "tool.jsonl",
            "--json",
            folder=folder,
        )
    )
    assert told["experiment"]["measured"][0]["asked_as"].startswith(
        "as many requests of the same mean lengths"
    )
    assert len([outcome for outcome in outcomes(told) if outcome is not None]) >= 6
