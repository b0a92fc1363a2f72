"""Does a published table become step times that other verbs take, and is it said which of its rows are meant?"""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import check_refused, run

from inferometer.fit.published.loads import published_loads
from inferometer.fit.published.posterior import simulated
from inferometer.perfmodel.scenario import LIKELY
from inferometer.perfmodel.steptime import load_step_time_model
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.records.imports.inferencex import read_inferencex

VLLM_BENCH = (
    Path(__file__).parents[1] / "records" / "imports" / "results" / "vllm-bench-summary.json"
)

LLAMA_BENCH = Path(__file__).parents[2] / "bench" / "mutated_examples" / "llama_bench.jsonl"


def row(hardware, concurrency, ttft_s=1.0, tpot_s=1.0):
    told = {
        "hw": hardware,
        "model": "meta-llama/Llama-3.1-8B",
        "framework": "vllm",
        "precision": "bf16",
        "tp": 1,
        "conc": concurrency,
    }
    rates = dict.fromkeys(("tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu"), 100.0)
    return told | rates | {"isl": 300, "osl": 50, "median_ttft": ttft_s, "median_tpot": tpot_s}


@pytest.fixture
def table(tmp_path):
    """Four loads on each of two devices, as their datasheets let expect."""
    path = tmp_path / "agg_made.json"
    path.write_text(
        json.dumps(
            [
                row(hardware, concurrency)
                for hardware in ("h100", "h200")
                for concurrency in (1, 4, 16, 64)
            ]
        )
    )
    rows = []
    for load in published_loads(read_inferencex(path)).loads:
        steps = simulated(load)
        model = datasheet_step_time(load.model, load.engine, load.hardware, LIKELY)
        seen = steps.schedule.seen(
            model.terms(steps.work).total_s[None], np.full(1, 5e-3), "median"
        )
        rows.append(
            row(
                load.hardware.hardware_id,
                load.load.concurrency,
                float(seen.ttft_s[0]),
                float(seen.tpot_s[0]),
            )
        )
    path.write_text(json.dumps(rows))
    return path


def test_its_rows_become_a_model_that_is_simulated_with(table, tmp_path):
    outcome = run("fit", table, "--hardware", "h200_sxm", "--out", "made.json", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "4 published loads" in outcome.stderr
    model = load_step_time_model(tmp_path / "made.json")
    assert model.trained_on.hardware == "NVIDIA H200 SXM 141GB (vllm)"
    assert {error.n_points for error in model.held_out} == {4}
    assert model.front_end_s is not None
    said = " ".join(outcome.stdout.split())
    assert said.startswith(
        "llama-3.1-8b on NVIDIA H200 SXM 141GB (vllm): a decode step at batch 16 takes "
    )
    assert "TRUST error on points held out: " in said
    assert "a prefill of 301 tokens" in said
    assert "NEXT" in outcome.stdout
    asked = (
        "--fit",
        "made.json",
        "--hardware",
        "h200_sxm",
        "--concurrency",
        16,
        "--requests",
        100,
        "--json",
    )
    simulated_run = run("simulate", "llama-3.1-8b", *asked, folder=tmp_path)
    assert simulated_run.returncode == 0, simulated_run.stderr
    other = run(
        "fit",
        table,
        "--hardware",
        "h200_sxm",
        "--tp",
        2,
        "--out",
        "two.json",
        "--json",
        folder=tmp_path,
    )
    assert json.loads(other.stdout)["model"]["engine"]["tensor_parallel_size"] == 2


def test_a_device_without_rows_is_told_by_others(table, tmp_path):
    outcome = run("fit", table, "--hardware", "b200_sxm", "--out", "other.json", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    model = load_step_time_model(tmp_path / "other.json")
    assert (
        model.trained_on.hardware
        == "NVIDIA B200 SXM (HGX/DGX) (vllm, based on NVIDIA H100 SXM5 80GB, NVIDIA H200 SXM 141GB)"
    )


def test_the_same_points_as_lines(table, tmp_path):
    rows = json.loads(table.read_text())
    lines = [",".join(rows[0]), *(",".join(str(value) for value in one.values()) for one in rows)]
    (tmp_path / "points.csv").write_text("\n".join(lines))
    asked = ("--model", "llama-3.1-8b", "--hardware", "h200_sxm", "--json")
    of_lines, of_objects = (
        json.loads(run("fit", name, *asked, folder=tmp_path).stdout)
        for name in ("points.csv", table)
    )
    assert of_lines["model"]["parameters"] == of_objects["model"]["parameters"]


def test_somebodys_own_table_needs_only_latencies_by_concurrency(table, tmp_path):
    rows = [one for one in json.loads(table.read_text()) if one["hw"] == "h200_sxm"]
    lines = ["Users;ISL;OSL;P50 TTFT (ms);P50 TPOT (ms)"] + [
        f"{one['conc']};{one['isl']};{one['osl']};{one['median_ttft'] * 1e3};"
        f"{one['median_tpot'] * 1e3}"
        for one in rows
    ]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    asked = ("--model", "llama-3.1-8b", "--hardware", "h200_sxm", "--json")
    mine, published = (
        json.loads(run("fit", name, *asked, folder=tmp_path).stdout) for name in ("mine.csv", table)
    )
    assert mine["model"]["parameters"] == [
        {
            name: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            for name, value in one.items()
        }
        for one in published["model"]["parameters"]
    ]
    check_refused(
        run("fit", "mine.csv", "--hardware", "h200_sxm", folder=tmp_path), 2, "--model llama-3.1-8b"
    )
    check_refused(
        run("explain", "mine.csv", folder=tmp_path), 2, "inferometer fit mine.csv --out server.json"
    )


def test_files_of_a_bench_at_several_concurrencies_are_rows(table, tmp_path):
    """vLLM's bench without --save-detailed, one file for each --max-concurrency."""
    rows = [one for one in json.loads(table.read_text()) if one["hw"] == "h200_sxm"]
    bench = json.loads(VLLM_BENCH.read_text())
    names = [f"{one['conc']}.json" for one in rows]
    for name, one in zip(names, rows, strict=True):
        told = {
            "model_id": one["model"],
            "request_rate": "inf",
            "max_concurrency": one["conc"],
            "completed": 10,
            "total_input_tokens": 10 * one["isl"],
            "total_output_tokens": 10 * one["osl"],
            "median_ttft_ms": one["median_ttft"] * 1e3,
            "median_tpot_ms": one["median_tpot"] * 1e3,
        }
        (tmp_path / name).write_text(json.dumps(bench | told))
    asked = ("--hardware", "h200_sxm", "--json")
    mine, published = (
        json.loads(run("fit", *files, *asked, folder=tmp_path).stdout) for files in (names, [table])
    )
    assert mine["model"]["parameters"] == [
        {
            name: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            for name, value in one.items()
        }
        for one in published["model"]["parameters"]
    ]
    check_refused(run("fit", *names, folder=tmp_path), 2, "--hardware h100")
    check_refused(
        run("explain", names[0], folder=tmp_path),
        2,
        "JSON that is no table of a sweep",
        f"inferometer import {names[0]}",
    )


def test_several_kinds_of_rows_are_named(table, tmp_path):
    check_refused(
        run("fit", table, folder=tmp_path),
        2,
        "several kinds",
        "--hardware h100_sxm",
        "--hardware h200_sxm",
        "(4 rows)",
    )
    check_refused(
        run("fit", table, "--framework", "sglang", folder=tmp_path),
        2,
        "no such rows",
        "--framework vllm",
    )
    check_refused(
        run("fit", table, "--model", "qwen3-32b", folder=tmp_path),
        2,
        "no such rows",
        "--model llama-3.1-8b",
    )


def test_rows_that_cannot_be_simulated_are_counted(table, tmp_path):
    rows = json.loads(table.read_text())
    failed = [one | {"median_tpot": None} for one in rows[:2]]
    (tmp_path / "failed.json").write_text(json.dumps([*failed, rows[2] | {"disagg": True}]))
    check_refused(
        run("fit", "failed.json", folder=tmp_path),
        2,
        "no row can be simulated",
        "2 no latencies",
        "1 prefill and decode apart",
    )
    (tmp_path / "few.json").write_text(json.dumps([*failed, *rows[2:4]]))
    check_refused(run("fit", "few.json", folder=tmp_path), 5, "2 loads")
    (tmp_path / "lacking.json").write_text(
        json.dumps([{name: value for name, value in rows[0].items() if name != "conc"}])
    )
    check_refused(run("fit", "lacking.json", folder=tmp_path), 4, "conc")
    (tmp_path / "lacking.csv").write_text("backend,model_path,system\nvllm,some,h100_sxm\n")
    check_refused(
        run("fit", "lacking.csv", "--model", "llama-3.1-8b", folder=tmp_path),
        4,
        "concurrency",
        "tpot_ms",
    )


def test_a_file_without_points_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    check_refused(run("fit", "other.json", folder=tmp_path), 4, "no known format")


def test_json_of_llama_bench_is_a_table_of_a_sweep(tmp_path):
    """`-o json` is a list in one file, `-o jsonl` a line each: both are fitted."""
    lines = LLAMA_BENCH.read_text().splitlines()
    (tmp_path / "one.json").write_text(f"[{','.join(line for line in lines if line.strip())}]")
    (tmp_path / "one.jsonl").write_text("\n".join(lines))
    asked = ("--model", "llama-3.1-8b", "--dtype", "float16", "--json")
    of_list, of_lines = (
        run("fit", name, *asked, folder=tmp_path) for name in ("one.json", "one.jsonl")
    )
    assert of_list.returncode == 0, of_list.stderr
    same = [json.loads(one.stdout)["model"]["parameters"] for one in (of_list, of_lines)]
    assert same[0] == same[1]
