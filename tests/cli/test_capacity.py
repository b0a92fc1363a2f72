"""Does `inferometer capacity` ask replicas behind a router together?"""

import json
import math
import re

import pytest
from click.testing import CliRunner

from inferometer.cli.main import app
from inferometer.errors import SpecError, TooLargeError

SLO = "ttft:p95<1s"
QUESTION = (
    "llama-3.1-8b",
    "--hardware",
    "l40s",
    "--probe-requests",
    "200",
    "--requests",
    "2000",
    "--resolution",
    "0.2",
    "--datasheet",
)


def capacity(*flags, slo=SLO):
    done = CliRunner().invoke(app, ["capacity", *QUESTION, "--slo", slo, *flags])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_replicas_behind_a_router_carry_together_what_pooling_gives_them():
    one, dealt, pooled = (
        json.loads(capacity("--json", *flags))
        for flags in ((), ("--replicas", "3", "--router", "random"), ("--replicas", "3"))
    )
    assert (one["n_replicas"], one["router"]) == (1, None)
    assert (pooled["n_replicas"], pooled["router"]) == (3, "least-loaded")
    located = [said["levels"][0]["capacity"]["located_load"] for said in (one, dealt, pooled)]
    assert located[1] > located[0]
    assert located[2] > 1.05 * located[1], "the least loaded is better than chance"


@pytest.mark.parametrize("load", [("--rate", "5"), ("--concurrency", "20")])
def test_sixty_replicas_carry_what_eight_do_for_each(load):
    """All of them in one probe, however long, would be one burst on each that no load overtaxes."""
    eight, sixty = (
        json.loads(capacity("--json", *load, "--replicas", n_replicas, slo="tpot:p95<60ms"))
        for n_replicas in ("8", "60")
    )
    located = [answer["levels"][0]["capacity"]["located_load"] for answer in (eight, sixty)]
    assert located[1] / 60 == pytest.approx(located[0] / 8, rel=0.15)
    assert (eight["n_simulated"], sixty["n_simulated"]) == (None, 8)


@pytest.mark.slow
def test_the_terminal_says_what_each_carries():
    text = " ".join(capacity("--replicas", "2").split())
    assert "llama-3.1-8b, 2 replicas, chat: up to " in text
    assert "of 2 behind a least-loaded router, simulated together" in text


@pytest.mark.slow
def test_the_capacity_is_located_and_noise_is_an_interval_around_it():
    """The old search left a third between the loads that it showed, and called that undecided."""
    found = json.loads(
        capacity("--json", "--resolution", "0.03", "--seed", "7", "--requests", "16000")
    )["levels"][0]["capacity"]
    assert found["is_located"]
    assert found["met_load"] <= found["located_load"] <= found["missed_load"]
    assert found["missed_load"] < 1.2 * found["met_load"]


SMALL = ("capacity", "llama-3.1-8b", "--hardware", "l40s", "--datasheet", "--slo", "ttft:p95<1s")


@pytest.mark.slow
def test_so_few_requests_that_they_are_one_burst_are_more_in_a_probe():
    """Of 40 requests, which were over before a queue built up, 1126 a second were located."""
    flags = ("--workload", "128x50", "--resolution", "0.2", "--json")
    loads = list[float]()
    for n_requests in ("40", "2000"):
        done = CliRunner().invoke(app, [*SMALL, *flags, "--requests", n_requests])
        said = json.loads(done.stdout)
        found = said["levels"][0]["capacity"]
        assert done.exit_code == 0
        assert found["met_load"] <= found["located_load"] <= (found["missed_load"] or math.inf)
        loads.append(found["located_load"])
        is_longer = any(one["code"] == "ONE_BURST" for one in said["cautions"])
        assert is_longer == (n_requests == "40")
    assert loads[0] == pytest.approx(loads[1], rel=0.1)


def test_a_duration_ends_no_probe_and_the_answer_says_so():
    flags = ("--concurrency", "4", "--for", "60s", "--resolution", "0.5", "--requests", "100")
    done = CliRunner().invoke(app, [*SMALL, *flags, "--workload", "128x8", "--json"])
    texts = [one["text"] for one in json.loads(done.stdout)["cautions"]]
    assert "--for 60 s ends no probe: the load is one that goes on" in texts


def test_a_trace_of_one_burst_is_undecided_and_a_longer_one_is_wanted(tmp_path):
    path = tmp_path / "log.csv"
    rows = "".join(f"{2 * i},500,{20 + i}\n" for i in range(40))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    done = CliRunner().invoke(app, [*SMALL, "--workload", str(path)])
    text = " ".join(done.stdout.split())
    assert done.exit_code == 11
    assert "no load was shown to meet" in text
    assert "? 40 requests are one burst" in text
    assert "NEXT a longer trace, of 1,000 requests or more" in text


def test_prompts_that_the_model_does_not_take_are_the_first_reason():
    done = CliRunner().invoke(
        app,
        [
            "capacity",
            "phi-3-mini-4k",
            "--hardware",
            "mi300x",
            "--workload",
            "batch",
            "--slo",
            "ttft:p95<5s",
        ],
    )
    assert isinstance(done.exception, SpecError)
    assert "prompts are too long for every replica" in done.exception.what


def test_an_slo_that_a_lone_request_misses_is_missed_at_once_with_what_would_meet_it():
    done = CliRunner().invoke(
        app,
        [
            "capacity",
            "phi-4-mini",
            "--hardware",
            "l40s",
            "--datasheet",
            "--workload",
            "long-context",
            "--slo",
            "ttft:p95<500ms",
        ],
    )
    text = " ".join(done.stdout.split())
    assert done.exit_code == 10
    assert "even a lone request misses the SLO: ttft:p95<500ms: 1881 ms or more" in text
    assert "NEXT limits at least 3.95 times as long" in text
    assert "no traffic simulated" in text
    assert "0 ns" not in text


def test_a_model_that_does_not_fit_names_the_smallest_tp_that_fits():
    done = CliRunner().invoke(
        app, ["capacity", "llama-3.1-70b", "--hardware", "h100_sxm", "--slo", "ttft:p95<1s"]
    )
    assert isinstance(done.exception, TooLargeError)
    assert (done.exception.exit_code, done.exception.try_) == (6, "--tp 2, the smallest that fits")
    predicted = CliRunner().invoke(app, ["predict", "llama-3.1-70b", "--hardware", "h100_sxm"])
    assert predicted.exit_code == 6
    next_ = "NEXT   --tp 2, the smallest that fits; or --quantization float8 on these devices"
    assert next_ in " ".join(predicted.stdout.split()).replace("NEXT --tp", "NEXT   --tp")


@pytest.mark.parametrize(
    ("model", "device", "flags", "fits"),
    [
        ("qwen3-32b", "rtx_4090", [], "int4"),
        ("llama-3.1-70b", "a100_80gb_sxm", [], "int8"),
        ("llama-3.1-70b", "h100_sxm", ["--quantization", "float8", "--batch", "32"], "int4"),
        ("llama-3.1-405b", "rtx_4090", [], None),
        ("llama-3.1-8b", "h100_sxm", [], None),
    ],
)
def test_a_model_that_does_not_fit_names_the_most_bits_that_do(model, device, flags, fits):
    def answered(*words):
        done = CliRunner().invoke(
            app, ["predict", model, "--hardware", device, "--datasheet", "--json", *words]
        )
        return json.loads(done.stdout)

    assert answered(*flags)["fitting_quantization"] == fits
    if fits is not None:
        fitting = answered(*flags, "--quantization", fits)
        assert fitting["datasheet"]["sizes"]["largest_batch_size"] >= 1
        assert fitting["fitting_quantization"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--order", "shortest-remaining"),
        ("--prefill-replicas", "1", "--replicas", "2", "--kv-link", "50GB/s"),
        ("--replicas", "2", "--router", "prefix-affine", "--prefix-threshold", "0.5"),
    ],
    ids=["gate", "prefill replicas", "router"],
)
def test_whole_fleets_are_asked_as_they_are_simulated(flags):
    found = json.loads(capacity("--json", *flags))["levels"][0]["capacity"]
    assert found["located_load"] > 0
    assert found["is_located"]


@pytest.mark.slow
def test_the_interval_holds_the_capacity_at_all_step_times():
    said = json.loads(capacity("--json", "--requests", "4000"))
    loads = [level["capacity"]["located_load"] for level in said["levels"]]
    assert min(loads) < loads[0] < max(loads)
    shown = capacity("--requests", "4000")
    low, high = re.search(r"capacity\s+\S+ requests/s \[(\S+), (\S+)\]", shown).groups()
    assert float(low) <= min(loads) * 1.01
    assert float(high) >= max(loads) * 0.99
