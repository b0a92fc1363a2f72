"""Does ``inferometer timeline`` show what each slot did, of a simulated run and of the tick model?"""

import gzip
import json
import re

import pytest
from command_line import check_refused, run

STATIC = ("timeline", "--batching", "static", "--load", "batch:8", "--ticks", 1000)


def answered(*arguments, folder):
    outcome = run(*arguments, "--json", folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_a_static_batch_cell_by_cell(tmp_path):
    """All contexts in one step, nine tokens together, and again."""
    answer = answered(*STATIC, folder=tmp_path)
    assert answer["slots"] == ["CggggggggE" * 2] * 4
    assert answer["duration_ticks"] == ([8] + [1] * 9) * 2
    assert (answer["start_ticks"][1], answer["duration_ns"]) == (8, None)
    assert answer["ticks"]["n_finished"] == 8
    shown = run(*STATIC, folder=tmp_path).stdout
    assert "0 CggggggggECggggggggE" in shown
    assert "steps 0 to 19 of 20 (34 ticks)" in shown


def test_ways_of_batching_are_compared_on_one_load(tmp_path):
    answer = answered(
        "timeline",
        "--load",
        "batch:200",
        "--ticks",
        400,
        "--deviation",
        2,
        "--compare",
        folder=tmp_path,
    )
    rates = [report["requests_per_1000_ticks"] for _, report in answer["compared"]]
    assert len(rates) == 4
    assert rates[0] == min(rates)
    assert rates[-1] == max(rates)


def test_the_comparison_names_the_best_and_has_each_way_once(tmp_path):
    words = ("timeline", "--load", "rate:300", "--ticks", 2000, "--compare", "--deviation", 2)
    answer = answered(*words, folder=tmp_path)
    assert [name for name, _ in answer["compared"]] == [
        "static", "in-flight", "in-flight (context in 2 chunks)", "one prefill at a time (in 2 chunks)",
    ]  # fmt: skip
    reports = dict(answer["compared"])
    assert reports["in-flight"] == answer["ticks"], (
        "the requested way is one of those that are compared"
    )
    by = {one["by"]: one for one in answer["best"]}
    rate, ttft = by["requests_per_1000_ticks"], by["ttft_ticks"]
    rates = {name: report["requests_per_1000_ticks"] for name, report in reports.items()}
    assert rate["batching"] == [
        name for name, value in rates.items() if value > max(rates.values()) / 1.005
    ]
    assert (rate["worst"], rate["requested"]) == ("static", "in-flight")
    assert rate["gain_over_worst_ratio"] == pytest.approx(max(rates.values()) / rates["static"])
    assert rate["gain_over_requested_ratio"] == pytest.approx(
        max(rates.values()) / rates["in-flight"]
    )
    assert ttft["gain_over_requested_ratio"] == pytest.approx(
        reports["in-flight"]["ttft_ticks"] / min(one["ttft_ticks"] for one in reports.values())
    )
    shown = run(*words, "--steps", 20, "--report", "page.html", folder=tmp_path).stdout
    first = next(line for line in shown.splitlines() if line.startswith("ANSWER"))
    assert "most requests: in-flight (context in 2 chunks)" in first
    assert f"of static ({rate['gain_over_worst_ratio']:.2f}x)" in first
    page = re.sub(
        r"<(style|script).*?</\1>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL
    )
    assert len(re.findall(r"<figure", page)) == 4
    assert "most requests: in-flight (context in 2 chunks)" in page


def test_games_of_others_are_played_by_their_rules(tmp_path):
    words = ("timeline", "--load", "rate:460", "--ticks", 100, "--deviation", 2, "--seed", 7)
    ours = answered(*words, folder=tmp_path)["ticks"]
    theirs = answered(
        *words,
        "--rng",
        "numpy-legacy",
        "--count",
        "started",
        "--horizon",
        "inclusive",
        folder=tmp_path,
    )["ticks"]
    assert theirs["ttft_ticks"] != ours["ttft_ticks"]
    check_refused(run(*words[:-1], -1, "--rng", "numpy-legacy", folder=tmp_path), 2, "seed = -1")


def test_the_page_of_the_tick_model_counts_in_ticks(tmp_path):
    outcome = run(
        *STATIC,
        "--compare",
        "--chunks",
        4,
        "--prefill-ticks",
        4,
        "--report",
        "page.html",
        folder=tmp_path,
    )
    assert outcome.returncode == 0, outcome.stderr
    page = re.sub(
        r"<(style|script).*?</\1>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL
    )
    for way in (
        "static (context in 4 chunks)",
        "static",
        "in-flight",
        "in-flight (context in 4 chunks)",
        "one prefill at a time (in 4 chunks)",
    ):
        assert f"{way}: what each slot did, steps 0 to" in page
    assert "16 ticks" in page
    assert not re.search(r"\d (ms|s)\b", page)


def test_a_simulated_run_has_a_timeline_if_its_parts_were_recorded(tmp_path):
    simulate = ("simulate", "llama-3.1-8b", "--hardware", "h100_sxm", "--rate", 8, "--requests", 50)
    run(*simulate, "--parts", "--out", "with", folder=tmp_path)
    answer = answered("timeline", "with", "--first-step", 20, "--steps", 30, folder=tmp_path)
    assert (answer["ticks"], answer["duration_ticks"]) == (None, None)
    assert len(answer["duration_ns"]) == 30
    assert {len(slot) for slot in answer["slots"]} == {30}
    assert set("".join(answer["slots"])) <= set("CgE·")
    assert run("timeline", "with", "--perfetto", "trace.json.gz", folder=tmp_path).returncode == 0
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    run(*simulate, "--out", "without", folder=tmp_path)
    check_refused(run("timeline", "without", folder=tmp_path), 4, "--parts")
    found = run("timeline", "without", "--perfetto", "bare.json", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "not recorded" in found.stdout
    names = {one["args"]["name"].partition(": ")[2] for one in named(tmp_path / "bare.json")}
    assert names == {"client", "engine"}


def named(path):
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["name"] == "process_name"]


@pytest.mark.parametrize("load", ["batch", "batch:", "batch:x", "queue:3", "rate:0", "rate:-1"])
def test_impossible_loads(load, tmp_path):
    check_refused(run("timeline", "--load", load, folder=tmp_path), 2)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_where_there_is_no_run_the_command_that_makes_one_is_suggested(name, tmp_path):
    (tmp_path / "empty").mkdir()
    refused = run("timeline", name, folder=tmp_path)
    check_refused(refused, 4, "inferometer simulate MODEL --hardware ID --parts --out RUN")
    assert "quick" not in refused.stderr


@pytest.mark.slow
def test_the_suggested_command_makes_a_run_with_slots(tmp_path):
    words = re.search(r"try: inferometer (.*)", run("timeline", "nowhere", folder=tmp_path).stderr)[
        1
    ]
    names = {"MODEL": "llama-3.1-8b", "ID": "h100_sxm", "RUN": "made"}
    done = run(*(names.get(word, word) for word in words.split()), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answered("timeline", "made", folder=tmp_path)["slots"]
