"""Does `inferometer size` answer what cannot be, take fits and prices, and follow traffic that changes?"""

import functools
import json
import re
import shlex
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import inferometer as im
from inferometer.api import size as size_api
from inferometer.api.size_page import size_page
from inferometer.api.sizing_answer import OverTime
from inferometer.api.sizing_offers import Fit, offers_of
from inferometer.cli.main import app
from inferometer.errors import InferometerError, SpecError
from inferometer.inputs import catalog
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime import load_step_time_model
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.perfmodel.steptime_limits import BoxRange, PhaseUncertainty
from inferometer.records.reading import read_run
from inferometer.records.store import write_run

SMOLLM2 = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"
SMALL = (
    "--tp",
    "1",
    "--max-num-seqs",
    "256",
    "--max-num-batched-tokens",
    "2048",
    "--probe-requests",
    "200",
    "--jobs",
    "1",
    "--datasheet",
)
FEWER = ("--requests", "1000")
EASY = "ttft:p95<4s, tpot:p95<200ms"


def size(*flags, slo=EASY, model="llama-3.1-8b", published=False):
    small = [flag for flag in SMALL if not published or flag != "--datasheet"]
    done = CliRunner().invoke(app, ["size", model, "--slo", slo, *small, *flags, "--json"])
    if isinstance(done.exception, InferometerError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def fit(tmp_path):
    """A fit with 2 % of doubt about steps: otherwise the datasheet's, as a file."""
    engine, path = EngineSpec(dtype="bfloat16", device="cuda"), tmp_path / "step_time.json"
    model = datasheet_step_time(
        catalog.find_model("llama-3.1-8b"), engine, catalog.find_hardware("l40s")
    )
    uncertainties = tuple(
        PhaseUncertainty(phase=phase, spread_ratio=0.01, interval_ratio=2.0)
        for phase in ("prefill", "decode")
    )
    replace(
        model, uncertainties=uncertainties, trained_on=replace(model.trained_on, n_observations=20)
    ).save(path)
    return path


def test_a_promise_that_nothing_keeps_names_the_nearest_and_the_term():
    code, said = size("--rate", "5", "--gpus", "l4,h100_sxm", slo="ttft:p95<10s, tpot:p50<1ms")
    assert code == 10
    assert (said["pick"], said["verdict"]) == (None, "missed")
    nearest, other = said["impossible"]
    assert "H100" in nearest["hardware"]
    assert "not even idle replicas meet the SLO; tpot:p50<1ms" in nearest["why"]
    assert 1 < nearest["margin_ratio"] < other["margin_ratio"]


@pytest.mark.slow
@pytest.mark.parametrize("is_trace", [False, True])
def test_what_few_requests_leave_open_is_undecided_and_more_of_them_are_wanted(tmp_path, is_trace):
    """At half of its limit one replica was said to miss the SLO, and other devices to be wanted."""
    path = tmp_path / "log.csv"
    rows = "".join(f"{3 * i},500,{20 + i}\n" for i in range(40))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    flags = ("--workload", str(path)) if is_trace else ("--rate", "0.3", "--requests", "40")
    code, said = size("--gpus", "l40s", *flags, slo="ttft:p95<2s")
    assert (code, said["verdict"]) == (11, "undecided")
    assert (said["pick"]["n_replicas"], said["impossible"]) == (1, [])
    wanted = "a longer trace, of 200 requests or more" if is_trace else "--requests 200"
    assert said["next_step"].endswith(wanted)


def test_a_kind_that_misses_when_idle_is_out_before_replicas_are_counted():
    """Once, replicas were raised by half again and again: 1,530 of them were simulated."""
    code, said = size(
        "--rate", "20", "--gpus", "l40s", slo="ttft:p95<1s, tpot:p95<5ms", model="llama-3.1-70b"
    )
    assert code in {6, 10}
    code, said = size("--rate", "200", "--gpus", "l4", slo="ttft:p95<100ms")
    assert code == 10
    assert "not even idle replicas meet the SLO" in said["impossible"][0]["why"]


def test_what_likely_step_times_meet_and_slow_ones_never_do_is_sized_and_undecided():
    """ "Nothing on offer meets the SLO" was the answer, where 8 replicas do unless steps are slow."""
    asked = ("--rate", "2", "--gpus", "l4", "--tp", "2", "--requests", "600")
    code, said = size(*asked, slo="ttft:p95<1s", published=True)
    assert (code, said["verdict"], said["sized_for"]) == (11, "undecided", "likely")
    verdicts = {pace["step_times"]: pace["served"]["verdict"] for pace in said["pick"]["paces"]}
    assert (verdicts["likely"], verdicts["slow"]) == ("met", "missed")
    code, said = size(*asked, "--sure", slo="ttft:p95<1s", published=True)
    assert (code, said["pick"], said["sized_for"]) == (10, None, "slow")


def test_a_number_for_slow_step_times_names_what_counts_likely_ones():
    """384 devices were named for what 96 do at likely step times, and nothing told of them."""
    asked = ("--rate", "14", "--gpus", "l40s", "--workload", "512x64", "--requests", "600")
    code, said = size(*asked, slo="ttft:p95<1s", published=True)
    assert (code, said["verdict"]) == (0, "met")
    assert said["pick"]["n_replicas"] > 1
    assert "slow step times: --likely counts the replicas" in said["next_step"]
    for other in ("--sure", "--likely"):
        _, said = size(*asked, other, slo="ttft:p95<1s", published=True)
        assert "--likely counts" not in (said["next_step"] or "")


def test_what_the_time_limit_leaves_out_is_counted():
    flags = ("--rate", "2", "--gpus", "l40s", "--time-limit", "1ms", "--max-num-seqs", "64,128,256")
    _, said = size(*flags)
    assert (said["n_unexamined"], said["next_step"]) == (3, "a longer --time-limit")
    _, said = size(*flags, published=True)
    assert said["sized_for"] == "slow"
    assert "; --likely counts the replicas" in said["next_step"]
    words = ["size", "llama-3.1-8b", "--slo", EASY, *SMALL, *flags, "--verbose"]
    assert "3 not examined within the time limit (--time-limit)" in " ".join(
        CliRunner().invoke(app, words).stdout.split()
    )


@pytest.mark.slow
def test_the_sizing_that_is_suggested_asks_for_the_same_devices():
    """It asked for the fewest that carry all of the load, without the options that were given."""
    given = ("--burstiness", "2", "--router", "round-robin", "--quantization", "bfloat16")
    flags = (*given, *FEWER, "--gpus", "h100_sxm", "--likely")
    code, said = size("--total-gpus", "2", *flags)
    best = said["best_use"]["rows"][0]
    assert (code, best["needs_quality_check"]) == (0, False)
    words = shlex.split(said["best_use"]["next_step"].partition("inferometer size ")[2])
    for flag, value in (("--burstiness", "2"), ("--router", "round-robin"), ("--replicas", "2")):
        assert words[words.index(flag) + 1] == value
    load = float(words[words.index("--rate") + 1])
    assert load == pytest.approx(0.9 * best["met_requests_per_s"], rel=0.01)
    suggested = ["size", *words[: words.index("--out")], "--json"]
    assert json.loads(CliRunner().invoke(app, suggested).stdout)["pick"]["n_devices"] == 2


@pytest.mark.slow
def test_the_sizing_that_is_suggested_counts_at_the_same_step_times():
    """At slow ones it bought seven devices for the rate that four were said to serve."""
    for flag, pace in (("--likely", "likely"), ("--sure", "slow")):
        given = ("--quantization", "bfloat16", *(() if flag == "--likely" else (flag,)))
        code, said = size(
            *("--total-gpus", "1", "--gpus", "h100_sxm", "--probe-requests", "100"),
            *(*FEWER, *given),
        )
        assert (code, said["sized_for"]) == (0, pace)
        assert f" {flag} " in said["best_use"]["next_step"]
    refused = CliRunner().invoke(
        app, ["size", "llama-3.1-8b", "--total-gpus", "1", "--gpus", "l4", "--slo", "ttft:p95<1ms"]
    )
    head, _, why = refused.stdout.partition("\nWHY ")
    assert why
    assert head.count("ttft:p95<1ms") == 1
    assert "no layout of 1 device meets" in head


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "exit_code", "verdict"), [("1/s", 0, "met"), ("6000/min", 10, "missed")]
)
def test_a_rate_beside_a_number_of_devices_is_judged(rate, exit_code, verdict):
    flags = (*FEWER, "--gpus", "1xh100", "--tp", "1", "--quantization", "bfloat16")
    code, said = size("--rate", rate, *flags)
    assert (code, said["verdict"]) == (exit_code, verdict)
    assert said["best_use"]["asked_requests_per_s"] in {1.0, 100.0}
    assert ("how many it takes" in said["best_use"]["next_step"]) == (verdict == "missed")


@pytest.mark.slow
def test_headroom_is_of_the_capacity_that_is_shown():
    # probes of 200 requests show no miss
    flags = ("--gpus", "l40s", "--tp", "1", "--rate", "2", "--probe-requests", "500")
    page = CliRunner().invoke(app, ["size", "llama-3.1-8b", "--slo", EASY, *SMALL, *flags]).stdout
    _, said = size(*flags)
    pick = said["pick"]
    asked = next(one for one in pick["paces"] if one["step_times"] == pick["sized_at"])
    located, low, high = (asked[f"{name}_requests_per_s"] for name in ("located", "met", "missed"))
    assert low < located < high
    beyond = [load / 2 - 1 for load in (located, low, high)]
    assert beyond == pytest.approx(
        [pick[f"headroom_{name}fraction"] for name in ("", "low_", "high_")]
    )
    value, least, most = (f"{one:.0%}" for one in beyond)
    said_of_it = " ".join(page[page.index("  capacity ") :].split())  # narrow terminals wrap it
    assert f"headroom {value} [{least}, {most}]" in said_of_it
    assert said_of_it.startswith(f"capacity {located:.3g} req/s")


@pytest.mark.slow
def test_i_have_two_gpus(tmp_path, monkeypatch):
    """One search, whose answer is looked at as a record, on the terminal, on its page and in its files."""
    answers, searched = [], size_api.size

    @functools.wraps(searched)  # the verb's question is read from its annotations
    def seen(asked):
        answers.append(searched(asked))
        return answers[-1]

    monkeypatch.setattr(size_api, "size", seen)
    flags = ("--total-gpus", "2", "--gpus", "h100_sxm", "--tp", "1,2", "--time-limit", "5min")
    page, files = tmp_path / "best.html", tmp_path / "deployment"
    short = ("--isl", "256", "--osl", "32", *FEWER)  # a tenth of the steps of a chat
    words = ["size", "llama-3.1-8b", "--slo", EASY, *SMALL, *short, *flags, "--verbose"]
    done = CliRunner().invoke(app, [*words, "--report", str(page), "--out", str(files)])
    assert done.exit_code == 0
    said = answers[-1].to_dict()  # behind that of the rate which its files are for
    rows = said["best_use"]["rows"]
    assert rows[0]["needs_quality_check"] is False
    assert rows[0]["n_devices"] == 2
    assert {row["weights_dtype"] for row in rows} == {"bfloat16", "float8", "int4"}
    assert all(row["needs_quality_check"] for row in rows if row["weights_dtype"] != "bfloat16")
    assert rows[0]["met_requests_per_s"] <= rows[0]["located_requests_per_s"] == said["rate_per_s"]
    text = " ".join(done.stdout.split())
    assert "OR TP" in text
    assert "needs a quality check" in text
    assert re.search(r"NEXT the files that deploy it at [\d.]+ requests/s: inferometer size ", text)
    assert "serve up to" in page.read_text()
    assert json.loads((files / "plan.json").read_text())


def test_a_model_that_fits_nowhere():
    with pytest.raises(
        InferometerError, match=r"nothing that is on offer can serve 'llama-3\.1-405b'"
    ) as caught:
        size("--rate", "1", "--gpus", "l4", model="llama-3.1-405b")
    assert caught.value.exit_code == 6


def test_what_is_nearest_is_said_with_how_far_it_is_and_what_to_ask_instead():
    done = CliRunner().invoke(
        app,
        [
            "size",
            "llama-3.1-8b",
            "--slo",
            "tpot:p50<1ms",
            *SMALL,
            "--rate",
            "5",
            "--gpus",
            "h100_sxm,t4",
            "--dtype",
            "bf16",
            "--verbose",
        ],
    )
    text = " ".join(done.stdout.split())
    assert "nearest: NVIDIA H100 SXM5 80GB, TP1 bfloat16, max_num_seqs 256, at " in text
    first_screen = text.partition(" WHY ")[0]
    assert first_screen.count("tpot:p50<1ms") == 1
    assert " times its limit" in text
    assert "NEXT limits " in text
    assert "tried: 1 kind of replica, 1 searched" in text
    assert "the others" not in text


def test_longer_limits_are_not_suggested_where_the_nearest_is_within_its_limit():
    """What no simulation decided is no miss."""
    answer = im.size("llama-3.1-8b", slo="tpot:p50<1ms", rate=5, gpus="h100_sxm", dtype="bf16")
    nearest = answer.impossible[0]
    for ratio, is_longer in ((0.28, False), (3.0, True)):
        open_ = replace(answer, impossible=(replace(nearest, margin_ratio=ratio),))
        (line,) = [one for one in size_page(open_).lines if one.label == "NEXT"]
        assert line.text.startswith("limits ") == is_longer


@pytest.mark.parametrize(("flag", "value"), [("--window", "1min"), ("--target", "0.8")])
def test_what_replicas_that_come_and_go_have_is_refused_for_steady_traffic(flag, value):
    with pytest.raises(SpecError, match="traffic that does not change") as refused:
        size("--rate", "5", "--gpus", "h100_sxm", flag, value)
    assert refused.value.where == flag


def test_a_rate_of_the_busiest_window_is_named_so():
    answer = im.size("llama-3.1-8b", slo=EASY, rate=5, gpus="h100_sxm", tp="1", probe_requests=200)
    over = OverTime(
        window_s=60.0,
        start_up_s=180.0,
        rates_per_s=(1.0, 5.0),
        capacities_per_s=(9.0,),
        target_fraction=0.7,
        policies=(),
    )
    assert "at its busiest" not in str(size_page(answer).title)
    page = size_page(replace(answer, over_time=over))
    assert "5 requests/s of chat at its busiest" in page.title
    (cost,) = [one for one in page.numbers if one.name == "cost"]
    assert cost.note.endswith("/ 1M output tok at its busiest")


def test_more_devices_to_a_replica_are_suggested_only_where_a_larger_number_was_not_tried():
    wanted = {"slo": "tpot:p50<1ms", "rate": 5, "gpus": "h100_sxm", "dtype": "bf16"}
    found = [im.size("llama-3.1-8b", tp=tp, **wanted) for tp in ("1", "1,2", "1,2,4,8")]
    assert [one.impossible[0].larger_tp for one in found] == [2, 4, None]
    (first,), (last,) = (
        [line.text for line in size_page(one).lines if line.label == "NEXT"]
        for one in (found[0], found[-1])
    )
    assert "more of them to a replica (--tp 2), or fewer bits" in first
    assert "--tp" not in last


def test_other_devices_are_not_suggested_where_noise_leaves_it_open():
    answer = im.size("llama-3.1-8b", slo="tpot:p50<1ms", rate=5, gpus="h100_sxm", dtype="bf16")
    page = size_page(replace(answer, verdict="undecided", next_step="more requests"))
    assert [line.text for line in page.lines if line.label == "NEXT"] == ["more requests"]
    assert page.chips[0].verdict == "undecided"
    assert "nothing was shown to meet the SLO" in page.title


def test_what_cannot_be_for_one_reason_is_said_once():
    flags = ("--rate", "1", "--gpus", "l4,t4", "--tp", "1,2,4", "--dtype", "bf16")
    done = CliRunner().invoke(
        app, ["size", "smollm2-135m", "--slo", EASY, *SMALL[2:], *flags, "--verbose"]
    )
    text = " ".join(done.stdout.split())
    assert "1 request/s of chat → 1 × NVIDIA L4" in text
    assert (
        "not: bfloat16 on 2 x NVIDIA L4, bfloat16 on 4 x NVIDIA L4: tensor parallelism does not"
        " divide its 9 query heads" in text
    )
    assert "bfloat16 on 1 x NVIDIA T4: NVIDIA T4 has no known rate in bfloat16" in text


def test_weights_lie_as_published_and_devices_go_by_short_names():
    flags = ("--rate", "1", "--gpus", "h200", "--tp", "8", "--quantization", "float8,int4,none")
    said = " ".join(
        CliRunner()
        .invoke(app, ["size", "deepseek-r1", "--slo", EASY, *SMALL[2:], *flags, "--verbose"])
        .stdout.split()
    )
    assert re.search(r"→ 8 × NVIDIA H200 SXM 141GB \(1 replica, TP8 (float8|int4) weights", said), (
        said
    )
    assert "tried: 3 kinds of replica" in said, "published, int4, and two stages for bfloat16"


@pytest.mark.slow
def test_a_format_that_is_named_is_the_only_one_tried():
    flags = ("--rate", "1", "--gpus", "h100", "--tp", "1")
    plain, alone, both = (
        size(*flags, *words)[1]
        for words in ((), ("--quantization", "awq"), ("--quantization", "none,awq"))
    )
    assert (plain["pick"]["weights_dtype"], alone["pick"]["weights_dtype"]) == ("bfloat16", "int4")
    assert both["n_candidates"] == plain["n_candidates"] + alone["n_candidates"]


def test_prompts_that_no_replica_takes_are_refused_before_the_search():
    with pytest.raises(
        SpecError, match=r"prompts are too long for every replica: up to [\d,]+ tokens"
    ) as caught:
        size("--rate", "1", "--gpus", "l4", "--workload", "long-context", model="smollm2-135m")
    assert "fewer than 8,192" in caught.value.allowed


def test_what_long_simulations_miss_is_said_with_the_reason():
    """One prompt of 6,000 is too long: "nothing meets the SLO; nearest: at 0.105 times its limit"."""
    rare = ("--rate", "1", "--gpus", "h200", "--workload", "prompt=16..4096,output=1..9")
    code, said = size(*rare, "--probe-requests", "1000", slo="ttft:p95<1s", model="llama-2-7b")
    (found,) = said["impossible"]
    assert (code, found["margin_ratio"]) == (10, None)
    assert "miss it in a long one: " in found["why"]
    assert "refuse" in found["why"].rpartition("long one")[2]


@pytest.mark.slow
def test_what_a_death_costs_is_said():
    words = [
        "size",
        "llama-3.1-8b",
        "--slo",
        "ttft:p95<2s, tpot:p95<100ms",
        "--rate",
        "30",
        "--gpus",
        "h100_sxm",
        *SMALL,
        "--verbose",
    ]
    said = " ".join(CliRunner().invoke(app, words).stdout.split())
    told = re.search(
        r"if one replica dies: (\d+) requests are cut off and come again; of ([\d,]+) until another"
        r" answers \(3 min\)",
        said,
    )
    assert told, said
    assert int(told[1]) > 0
    assert float(told[2].replace(",", "")) == pytest.approx(30 * 180, rel=0.1), (
        "those who came meanwhile"
    )


@pytest.mark.slow
def test_rents_of_one_kind_are_compared_and_others_are_doubted():
    code, said = size("--rate", "2", "--gpus", "h100_sxm,mi300x")
    assert code in {0, 11}
    assert {kind["rent"]["basis"] for kind in said["kinds"]} == {"3-year rental assumption"}
    _, listed = size("--rate", "2", "--gpus", "h100_sxm,l40s")
    assert {kind["rent"]["basis"] for kind in listed["kinds"]} == {"on-demand list"}
    _, mixed = size("--rate", "2", "--gpus", "mi300x,l40s")
    assert len({kind["rent"]["basis"] for kind in mixed["kinds"]}) == 2
    assert "PRICE_KINDS" in [caution["code"] for caution in mixed["cautions"]]


@pytest.mark.slow
def test_a_device_without_a_price_is_ranked_last(tmp_path):
    (tmp_path / "prices.yaml").write_text(
        "source: us\ndate_utc: 2026-11\nusd_per_hour: {h100_sxm: 3}\n"
    )
    _, said = size(
        "--rate", "2", "--gpus", "l40s,h100_sxm", "--prices", str(tmp_path / "prices.yaml")
    )
    assert [kind["hardware_id"] for kind in said["kinds"]] == ["h100_sxm", "l40s"]
    unpriced = said["kinds"][1]
    assert unpriced["usd_per_hour"] is None
    assert unpriced["costs"]["usd_per_million_output_tokens"] is None
    assert "NO_PRICE" in {caution["code"] for caution in said["cautions"]}


@pytest.mark.slow
def test_sized_for_the_slow_end_of_a_fit_it_is_decided(fit):
    code, said = size("--rate", "8", "--gpus", "l40s", "--fit", str(fit), "--sure")
    pick = said["pick"]
    assert (code, said["verdict"]) == (0, "met")
    assert pick["step_times_from"].startswith("fitted to")
    assert "DATASHEET" not in {caution["code"] for caution in said["cautions"]}
    stated = {name: pick[name] for name in ("model_id", "weights_dtype", "tensor_parallel_size")}
    assert stated == {
        "model_id": "llama-3.1-8b",
        "weights_dtype": "bfloat16",
        "tensor_parallel_size": 1,
    }
    assert 0 < pick["in_flight_load"] < 256
    assert pick["n_replicas_if_one_fails"] == pick["n_replicas"] + 1
    assert pick["without_one"] is None or pick["without_one"]["verdict"] != "met"
    for latency in ("ttft", "tpot"):
        seconds = pick["paces"][2]["served"][latency]["seconds"]
        assert seconds["low"] <= seconds["value"] <= seconds["high"]


@pytest.mark.slow
def test_lengths_that_a_fit_was_not_checked_on_are_named(fit, tmp_path):
    narrow, path = load_step_time_model(fit), tmp_path / "narrow.json"
    replace(narrow, box=(BoxRange(quantity="prompt tokens per request", low=32, high=256),)).save(
        path
    )
    said, narrowly = (
        size("--rate", "2", "--gpus", "l40s", "--fit", str(one))[1] for one in (fit, path)
    )
    assert "FIT_BOX" not in {caution["code"] for caution in said["cautions"]}
    texts = {caution["code"]: caution["text"] for caution in narrowly["cautions"]}
    assert "outside 32 to 256" in texts["FIT_BOX"]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("{}", "a fit of l40s, which is none of those on offer"),
        ("h100_sxm={}", "the fit is of the device l40s, not of h100_sxm"),
        ("{}.nowhere", "the step-time model cannot be read"),
    ],
)
def test_fits_that_cannot_be_used(fit, named, words):
    with pytest.raises(InferometerError, match=words):
        size("--rate", "1", "--gpus", "h100_sxm,a100_80gb_sxm", "--fit", named.format(fit))


def test_power_that_was_measured_beside_the_fit_is_what_counts(fit, tmp_path):
    run = read_run(SMOLLM2)
    watt = np.full(len(run.sweep.power_watt), np.nan)
    watt[3], watt[7] = 180.0, 250.0
    write_run(tmp_path / "run", replace(run, sweep=run.sweep._replace(power_watt=watt)))
    (tmp_path / "run" / "step_time.json").write_bytes(fit.read_bytes())
    model = catalog.find_model("llama-3.1-8b")
    beside, alone = (
        offers_of("l40s", None, [Fit(None, path)], model)[0] for path in (tmp_path / "run", fit)
    )
    assert (beside.power.value, beside.power.source.kind) == (250.0, "measured")
    assert alone.power is None


@pytest.mark.slow
def test_bought_rented_and_elsewhere(tmp_path):
    (tmp_path / "prices.yaml").write_text(
        "source: us\ndate_utc: 2026-11\nusd_per_hour: {l40s: 1.5}\nowned: {l40s: {price_usd: 17532,"
        " n_years: 4}}\npower: {usd_per_kwh: 0.2, pue_ratio: 1.25}\nused_fraction: 0.5\napi: {one:"
        " {input_usd_per_million_tokens: 0.1, output_usd_per_million_tokens: 0.4}}\n"
    )
    page = tmp_path / "page.html"
    _, said = size(
        "--rate",
        "2",
        "--gpus",
        "l40s",
        "--prices",
        str(tmp_path / "prices.yaml"),
        "--report",
        str(page),
    )
    pick = said["pick"]
    owned_usd_per_hour = 17532 / (4 * 8766) / 0.5 + 0.35 * 1.25 * 0.2
    assert pick["usd_per_hour"] == pytest.approx(owned_usd_per_hour * pick["n_devices"])
    assert pick["owned_break_even_fraction"] == pytest.approx(0.5 / (1.5 - 0.0875))
    (api,) = pick["costs"]["apis"]
    assert api["price"]["name"] == "one"
    drawn = page.read_text(encoding="utf-8")
    assert f"1M output tok; one: ${api['usd_per_hour']:.2f}/h" in drawn
    assert all(
        f'<figure class="fig" id="{name}"' in drawn
        for name in ("pareto", "cost-vs-slo", "goodput-vs-rate")
    )


@pytest.mark.slow
def test_users_who_wait_are_sized_for():
    code, said = size("--concurrency", "100", "--gpus", "l40s", slo="tpot:p95<60ms")
    pick = said["pick"]
    assert code in {0, 11}
    assert said["users"] == 100
    asked = next(one for one in pick["paces"] if one["step_times"] == pick["sized_at"])
    assert asked["met_requests_per_s"] is None
    assert asked["met_users"] >= 100
    # by Little's law each user has one request under way, or thinks
    in_flight = pick["in_flight_load"] * pick["n_replicas"]
    assert 50 < in_flight <= 100.5
    assert pick["costs"]["usd_per_million_output_tokens"] == pytest.approx(
        pick["usd_per_hour"] / 3600 / (said["rate_per_s"] * pick["mean_output_tokens"]) * 1e6
    )


@pytest.mark.slow
def test_users_share_a_number_of_devices_and_their_files_send_as_users_do(tmp_path):
    flags = ("--concurrency", "8", "--gpus", "l40s", "--max-num-seqs", "8", "--total-gpus", "2")
    flags = (*flags, "--quantization", "bfloat16")
    plan = tmp_path / "plan"
    code, said = size(*flags, "--probe-requests", "100", "--out", str(plan), slo="tpot:p95<1s")
    used = said["best_use"]
    best = used["rows"][0]
    assert (code, said["verdict"], said["users"], used["asked_users"]) == (0, "met", 8, 8)
    assert best["located_users"] >= best["met_users"] >= 8
    assert best["located_requests_per_s"] is used["asked_requests_per_s"] is None
    check = (plan / "check-promise.sh").read_text()
    assert "--concurrency 8 --for" in check
    assert "--rate" not in check
    sealed = tomllib.loads((plan / "verify.toml").read_text())["traffic"]
    assert (sealed["concurrencies"], sealed["rates_per_s"]) == ([8], [])
    assert sealed["n_requests"] >= 2000
    assert re.search(
        r"Traffic: 8 users who wait \(.* requests/s\)", (plan / "README.md").read_text()
    )


@pytest.mark.slow
def test_a_trace_is_sized_for_its_busiest_window_and_followed(fit, tmp_path):
    """Ten minutes at 2 requests/s, ten at 8, ten at 2, in Azure's format."""
    gaps_s = np.concatenate([np.full(1200, 0.5), np.full(4800, 0.125), np.full(1200, 0.5)])
    at = [
        datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=float(s)) for s in np.cumsum(gaps_s)
    ]
    rows = [
        f"{when:%Y-%m-%d %H:%M:%S.%f},{600 + 37 * i % 900},{50 + 13 * i % 200}"
        for i, when in enumerate(at)
    ]
    (tmp_path / "trace.csv").write_text(
        "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
    )
    code, said = size(
        "--workload",
        str(tmp_path / "trace.csv"),
        "--window",
        "1min",
        "--gpus",
        "l40s",
        "--fit",
        str(fit),
    )
    over = said["over_time"]
    assert code in {0, 11}
    assert said["rate_per_s"] == max(over["rates_per_s"]) == pytest.approx(8, rel=0.02)
    assert len(over["rates_per_s"]) == 30
    costs = [row["usd"] for row in over["policies"]]
    assert costs == sorted(costs)
    by_name = {row["name"]: row for row in over["policies"]}
    assert set(by_name) == {"static peak", "scheduled", "target utilisation", "target in flight"}
    assert (
        by_name["scheduled"]["n_replicas"][0]
        < max(by_name["scheduled"]["n_replicas"])
        == by_name["static peak"]["n_replicas"][0]
    )
    assert by_name["static peak"]["slo_met_fraction"] == 1.0
