"""Does ``inferometer simulate`` put a gate before the engine, judge each class, and say whom the gate turned away?"""

import json

import pytest
from command_line import check_refused, run

from inferometer.records.reading import read_run
from inferometer.records.types import RequestStatus

LLAMA = (
    "simulate",
    "llama-3.1-8b",
    "--hardware",
    "h100_sxm",
    "--datasheet",
    "--max-num-seqs",
    16,
    "--requests",
    1500,
)
MIX = """
arrivals = { kind = "open", rate_per_s = 40 }
[[classes]]
name = "chat"
weight_ratio = 3
prompt_tokens = { kind = "constant", value = 200 }
output_tokens = { kind = "constant", value = 20 }
slo = "ttft:p95<1s"
[[classes]]
name = "report"
prompt_tokens = { kind = "constant", value = 2000 }
output_tokens = { kind = "constant", value = 400 }
slo = "ttft:p95<10min"
"""
GATE = """
order = "earliest-deadline"
[[classes]]
name = "report"
max_queue = 30
max_tokens = 300
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mix.toml").write_text(MIX)
    (tmp_path / "desk.toml").write_text(GATE)
    return tmp_path


def answered(*arguments, folder):
    outcome = run(*LLAMA, "--workload", "mix.toml", *arguments, "--json", folder=folder)
    answer = json.loads(outcome.stdout)
    verdicts = {one["verdict"] for one in answer["slos"]}
    worst = 10 if "missed" in verdicts else 11 if "undecided" in verdicts else 0
    assert outcome.returncode == worst, outcome.stderr
    return answer


def kept(answer):
    """Which share of each class's requests was within its limits, at the likely step times?"""
    return {one["name"]: one["likely"]["good"]["value"] for one in answer["slos"]}


def test_an_order_keeps_what_first_come_first_served_breaks(folder):
    """More than the server takes: both classes wait alike, or the one that can wait does."""
    plain, ordered = (
        answered(*flags, folder=folder) for flags in ((), ("--order", "earliest-deadline"))
    )
    assert plain["gate"] is None
    assert kept(plain)["chat"] < 0.1
    assert kept(plain)["report"] == 1
    assert ordered["gate"]["order"] == "earliest-deadline"
    assert kept(ordered)["chat"] > 0.9
    assert kept(ordered)["report"] == 1


def test_a_gate_file_limits_and_the_answer_says_whom(folder):
    answer = answered("--gate", "desk.toml", "--out", "kept", folder=folder)
    (shed,) = [one["text"] for one in answer["cautions"] if one["code"] == "shed"]
    assert shed.startswith("the gate turned away ")
    assert "requests of report: " in shed
    assert shed.endswith("found their class's queue full")
    counts = dict(answer["levels"][0]["summary"]["n_by_status"])
    assert counts["rejected"] == int(shed.split()[4])
    requests = read_run(folder / "kept").requests
    is_served_report = (requests.class_index == 1) & (requests.status != RequestStatus.REJECTED)
    assert set(requests.output_tokens[is_served_report].tolist()) == {300}
    assert set(requests.status[is_served_report].tolist()) == {RequestStatus.LENGTH}
    words = ("--workload", "mix.toml", "--gate", "desk.toml", "--verbose")
    text = run(*LLAMA, *words, folder=folder).stdout
    assert "gate: earliest-deadline, 1 classes and 0 tenants with rules" in text
    assert "WHY    chat: " in text
    assert "nearest its limit ttft:p95<1000ms" in text


def test_what_a_gate_cannot_be_is_refused(folder):
    (folder / "typo.toml").write_text("[[classes]]\nname = 'chatt'\n")
    arguments = (*LLAMA, "--workload", "mix.toml", "--gate")
    check_refused(
        run(*arguments, "typo.toml", folder=folder), 2, "no class 'chatt'", "chat, report"
    )
    check_refused(
        run(*arguments, "nowhere.toml", folder=folder), 2, "cannot be read", "a .toml file"
    )
    check_refused(
        run(*LLAMA, "--order", "least-slack", folder=folder),
        2,
        "no class has a deadline",
        "from: --gate, --order",
        "ttft_limit_s",
    )
