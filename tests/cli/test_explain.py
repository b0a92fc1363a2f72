"""Does `inferometer explain` say first what takes the most time?"""

import html
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.records.test_device_trace import REAL, write_chrome
from tests.records.test_step_shares import ceilings

from inferometer.api.explain import explained_table, headline, launch_check
from inferometer.cli.main import app
from inferometer.errors import ModelError, RecordError, SpecError
from inferometer.perfmodel.roofline import exact
from inferometer.records import reading
from inferometer.records.store import write_run
from inferometer.report.views import Explained, TimePart

SMOLLM2 = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"


def explained(prompt_tokens, batch_size, seconds, *, phase="decode", label="a"):
    parts = tuple(
        TimePart(name=name, duration_s=duration_s) for name, duration_s in seconds.items()
    )
    measured = exact(sum(seconds.values()), method="a test")
    return Explained(
        run_label=label,
        phase=phase,
        prompt_tokens=prompt_tokens,
        batch_size=batch_size,
        measured_s=measured,
        parts=parts,
        limited_by="weights",
    )


def test_the_largest_part_of_the_smallest_and_of_the_largest_point_is_the_answer():
    rows = [
        explained(64, 8, {"launch": 0.01, "kv": 0.03}),
        explained(32, 1, {"launch": 0.03, "kv": 0.01}),
        explained(64, 1, {"launch": 0.02, "kv": 0.02}),
    ]
    assert (
        headline(rows)
        == "decode is mostly launch (75 % of 40 ms) at 32×1, kv (75 % of 40 ms) at 64×8"
    )
    assert headline(rows[:1]) == "decode is mostly kv (75 % of 40 ms) at 64×8"
    two = [*rows[:1], replace(rows[1], run_label="b")]
    assert (
        headline(two)
        == "a: decode is mostly kv (75 % of 40 ms) at 64×8; b: decode is mostly launch (75 % of 40"
        " ms) at 32×1"
    )


def test_rows_of_several_runs_name_their_run():
    rows = [explained(32, 1, {"launch": 0.03}, label=label) for label in ("eager", "compiled")]
    table = explained_table(rows)
    assert [(table.header[0], row[0]) for row in table.rows] == [
        ("run", "eager"),
        ("run", "compiled"),
    ]
    assert explained_table(rows[:1]).header[0] == "phase"


@pytest.mark.slow
def test_paired_rounds_lead_in_both_verbs_and_the_fitted_model_is_named_beside_them(tmp_path):
    """One said that weights take 67 % of a step, the other 45 %, and neither named the other."""
    run = replace(reading.read_run(SMOLLM2), ceilings=ceilings(0.02, 0.06, 0.01))
    write_run(tmp_path / "run", run)
    shown, told = (
        " ".join(CliRunner().invoke(app, [verb, str(tmp_path / "run"), "--verbose"]).stdout.split())
        for verb in ("show", "explain")
    )
    assert told.startswith(
        "decode of one sequence is mostly reading weights (66.7 % in 24 paired rounds); by the"
        " fitted model decode is mostly "
    )
    for text in (shown, told):
        assert "reading weights 66.7 %" in text
        assert "The fitted model says weights " in text


@pytest.mark.slow
def test_the_answer_stands_first_and_what_is_mostly_launches_is_a_pitfall():
    done = CliRunner().invoke(app, ["explain", str(SMOLLM2)])
    assert "software holds the device up" in " ".join(done.stdout.split())
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("decode is mostly launch (")


def test_a_profilers_trace_is_explained(tmp_path):
    trace = write_chrome(tmp_path / "trace.json.gz")
    done = CliRunner().invoke(app, ["explain", str(trace)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("NVIDIA A100 is busy 68.6 % of 430 µs")
    assert "idle: the host had waited for the device" in done.stdout
    done = CliRunner().invoke(app, ["explain", str(trace), "--json"])
    (view,) = json.loads(done.stdout)["traces"]
    assert view["devices"][0]["busy_s"] == pytest.approx(295e-6)
    checks = {one["name"]: one for one in view["checks"]}
    assert checks["synchronisation"]["finding"] == "found"
    assert checks["synchronisation"]["measured_ratio"] == pytest.approx(60 / 430)
    assert checks["launch_bound"]["measured_ratio"] == pytest.approx(45 / 430)
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["explain", str(trace), "--report", str(page)]).exit_code == 0
    assert "Where the device's time goes" in html.unescape(page.read_text())


def test_a_trace_of_the_host_alone_shows_no_pitfall_of_a_device():
    done = CliRunner().invoke(app, ["explain", str(REAL), "--json"])
    (view,) = json.loads(done.stdout)["traces"]
    assert {one["finding"] for one in view["checks"]} == {"not reported"}


def test_launches_are_a_pitfall_where_they_take_a_tenth_of_all_decode_time():
    slow = explained(32, 1, {"launch": 0.03, "kv": 0.01})
    prefill = explained(32, 1, {"launch": 9.0}, phase="prefill")
    large = explained(64, 8, {"launch": 0.03, "kv": 0.97})
    assert launch_check([slow, prefill]).measured_ratio == pytest.approx(0.75)
    assert launch_check([slow, prefill]).finding == "found"
    assert launch_check([slow, large]).finding == "ruled out"
    assert launch_check([explained(32, 1, {"kv": 1.0})]).finding == "not reported"


def test_launches_that_a_table_does_not_tell_from_weights_are_undecided(tmp_path):
    """The table of a run had launches of 20 % beside the run's 34 %, both named as a pitfall."""
    table = tmp_path / "made.csv"
    done = CliRunner().invoke(app, ["export", str(SMOLLM2), "--out", str(table)])
    assert done.exit_code == 0, done.output
    facts = ("--model", "smollm2-135m", "--dtype", "float32")
    answers = [
        json.loads(CliRunner().invoke(app, ["explain", str(path), *how, "--json"]).stdout)
        for path, how in ((SMOLLM2, ()), (table, facts))
    ]
    of_run, of_table = (answer["checks"][0] for answer in answers)
    assert (of_run["finding"], of_table["finding"]) == ("found", "undecided")
    assert of_table["low_ratio"] < 0.1 < of_run["measured_ratio"] < of_table["high_ratio"]
    assert [answer["without_ceilings"] for answer in answers] == [[], [str(table)]]
    shown = CliRunner().invoke(app, ["explain", str(table), *facts]).stdout
    assert "undecided whether software holds the device up" in " ".join(shown.split())
    assert "inferometer explain runs/NAME" in shown


def test_traces_and_runs_are_not_explained_together(tmp_path):
    trace = write_chrome(tmp_path / "trace.json.gz")
    done = CliRunner().invoke(app, ["explain", str(trace), str(SMOLLM2)])
    assert isinstance(done.exception, SpecError)
    assert done.exception.try_ == f"inferometer explain {trace}"


def test_a_fit_is_no_run_and_goes_to_those_who_take_it(tmp_path):
    fit = Path(__file__).parents[2] / "bench" / "results" / "h100_vllm" / "step_time.json"
    done = CliRunner().invoke(app, ["explain", str(fit)])
    assert isinstance(done.exception, SpecError)
    assert done.exception.what == "a fit of step times, no run"
    assert done.exception.try_ == f"inferometer predict MODEL --fit {fit}"


def test_text_that_is_no_table_goes_to_import(tmp_path):
    log = tmp_path / "mlperf_log_summary.txt"
    log.write_text("=====\nMLPerf Results Summary\n=====\nScenario : Offline\n")
    done = CliRunner().invoke(app, ["explain", str(log)])
    assert isinstance(done.exception, RecordError)
    assert done.exception.try_.endswith(f"inferometer import {log}")


def test_a_table_without_its_model_is_answered_with_the_flags_that_name_it(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("Prompt tokens,Batch,TTFT ms,TPOT ms\n128,1,21,24.0\n256,1,40,24.1\n")
    done = CliRunner().invoke(app, ["explain", str(table)])
    assert isinstance(done.exception, ModelError)
    assert "--model MODEL --dtype FORMAT" in done.exception.try_
