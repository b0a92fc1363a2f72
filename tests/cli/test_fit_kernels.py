"""Do tables of kernels, alone and with a published run of requests, become fits by commands?"""

import json
from pathlib import Path

import pytest
from command_line import check_refused, run

SHARED = Path(__file__).parents[3] / "shared" / "data"
KERNELS, RUNS = SHARED / "aiconfigurator-kernels", SHARED / "llmservingsim-vllm-bench"

pytestmark = pytest.mark.skipif(
    not (RUNS.is_dir() and KERNELS.is_dir()), reason="the published runs are not on this machine"
)


@pytest.mark.slow
def test_kernels_become_a_fit_that_says_that_no_step_was_measured(tmp_path):
    fitted = run(
        "fit",
        KERNELS / "h100_sxm",
        "--model",
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
        "--out",
        "k.json",
        folder=tmp_path,
    )
    assert fitted.returncode == 0, fitted.stderr
    assert "vllm 0.24.0, bfloat16, 1 x NVIDIA H100" in fitted.stdout
    said = run("predict", "llama-3.1-8b", "--fit", "k.json", folder=tmp_path).stdout
    assert "TRUST  steps composed of kernels that were timed alone" in said
    check_refused(
        run("fit", KERNELS / "h100_sxm", "--model", "llama-3.1-8b", folder=tmp_path),
        2,
        "--hardware",
    )
    check_refused(
        run("fit", KERNELS / "h100_sxm", "--hardware", "h100_sxm", folder=tmp_path), 2, "--model"
    )
    half = ("--model", "llama-3.1-8b", "--dtype", "float16", "--hardware", "h100_sxm")
    check_refused(
        run("fit", KERNELS / "h100_sxm", *half, folder=tmp_path),
        2,
        "kernels in float16",
        "bfloat16",
    )


def test_a_published_run_names_the_way(tmp_path):
    folder = RUNS / "rtxpro6000_llama-3.1-8b_tp1"
    check_refused(
        run("fit", folder, "--hardware", "rtx_pro_6000_server", folder=tmp_path),
        2,
        "--kernels",
        "inferometer import",
    )
    check_refused(
        run("fit", tmp_path, "--kernels", KERNELS / "h100_sxm", folder=tmp_path),
        2,
        "no published run",
        "requests.csv",
    )


@pytest.mark.slow
def test_the_table_of_the_readme_is_made_by_a_command(tmp_path):
    """The second half of the requests from the first: within 0.8 % in 12 statistics."""
    folder, workload = (
        RUNS / "rtxpro6000_llama-3.1-8b_tp1",
        RUNS / "workload_sharegpt-llama-3.1-8b-300-sps10.jsonl",
    )
    asked = (
        "--kernels",
        KERNELS / "rtx_pro_6000_server",
        "--hardware",
        "rtx_pro_6000_server",
        "--workload",
        workload,
    )
    fitted = run("fit", folder, *asked, "--out", "served.json", "--json", folder=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    rows = json.loads(fitted.stdout)["held_out"]
    errors = [row["simulated_s"] / row["measured_s"] - 1 for row in rows]
    assert len(errors) == 12
    assert max(map(abs, errors)) < 0.02
    told = run(
        "simulate",
        "llama-3.1-8b",
        "--fit",
        "served.json",
        "--rate",
        5,
        "--requests",
        50,
        "--json",
        folder=tmp_path,
    )
    assert json.loads(told.stdout)["deployment"]["hardware"].startswith("NVIDIA RTX PRO 6000")


def test_statistics_of_rates_lead_to_a_fit_and_not_in_a_circle(tmp_path):
    stages = SHARED / "inference-perf-kubecon25" / "stages.csv"
    if not stages.is_file():
        pytest.skip("the published rate sweep is not on this machine")
    check_refused(
        run("import", stages, "--out", "runs", folder=tmp_path),
        4,
        "no requests",
        f"without --out: inferometer import {stages}",
    )
    check_refused(
        run("fit", stages, folder=tmp_path),
        2,
        "statistics of rates",
        "inferometer fit",
        "--kernels",
    )
    asked = (
        "fit",
        stages,
        "--model",
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
        "--kernels",
        KERNELS / "h100_sxm",
    )
    check_refused(
        run(*asked, folder=tmp_path), 2, "several series", "vllm+v0_engine", "--series vllm"
    )
    check_refused(run(*asked, "--series", "other", folder=tmp_path), 2, "no series 'other'")
