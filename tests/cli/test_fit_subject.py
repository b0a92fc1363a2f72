"""Does a fit answer only for what it is a fit of, in every verb that takes one?"""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from command_line import check_refused, run
from server_files import server_fit

from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.perfmodel.steptime_limits import PhaseUncertainty
from inferometer.perfmodel.types import NOTHING_STATED, subject_of
from inferometer.records.reading import read_run

SMOLLM2 = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"
TRAFFIC = ("--rate", "2", "--requests", "50")
VERBS = {
    "predict": ("predict", "llama-3.1-8b"),
    "simulate": ("simulate", "llama-3.1-8b", *TRAFFIC),
    "capacity": ("capacity", "llama-3.1-8b", "--rate", "2", "--slo", "ttft:p95<4s"),
    "emulate": ("emulate", "llama-3.1-8b", "--port", "0", "--for", "10ms"),
}
OTHERS = {
    "device": ("--hardware", "a100_80gb_sxm"),
    "dtype": ("--dtype", "float16"),
    "kv_dtype": ("--kv-dtype", "float8"),
    "quantization": ("--quantization", "int8"),
    "tp": ("--tp", "2"),
}


def gpu_fit(engine: str | None = "vllm"):
    """A fit of Llama 3.1 8B on one L40S: its datasheet's steps, known within 3 %."""
    spec, l40s = (
        EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda"),
        find_hardware("l40s"),
    )
    model = datasheet_step_time(find_model("llama-3.1-8b"), spec, l40s)
    return replace(
        model,
        parameters=tuple(replace(one, informed_by="data") for one in model.parameters),
        uncertainties=tuple(
            PhaseUncertainty(phase=phase, spread_ratio=0.02) for phase in ("prefill", "decode")
        ),
        trained_on=replace(model.trained_on, n_observations=20),
        subject=subject_of(spec, l40s, device=None, name=engine, version="0.32.0"),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subjects")
    gpu_fit().save(folder / "fit.json")
    return folder


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("verb", VERBS)
def test_what_was_not_fitted_is_refused(verb, other, folder):
    flag, value = OTHERS[other]
    refused = run(*VERBS[verb], "--fit", "fit.json", flag, value, folder=folder)
    check_refused(refused, 2, "the fit is of the", f"--fit fit.json, {flag}", "without " + flag)
    assert "--transfer" in refused.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_another_model_is_refused(verb, folder):
    verb_, _, *rest = VERBS[verb]
    check_refused(
        run(verb_, "smollm2-135m", *rest, "--fit", "fit.json", folder=folder),
        2,
        "llama-3.1-8b, not of smollm2-135m",
        "--transfer",
    )


def test_another_engine_is_refused(folder):
    question = ("simulate", "llama-3.1-8b", *TRAFFIC, "--fit", "fit.json")
    check_refused(
        run(*question, "--policy", "sglang", folder=folder), 2, "the engine vllm, not of sglang"
    )
    size = (
        "size",
        "llama-3.1-8b",
        "--rate",
        "1",
        "--slo",
        "ttft:p95<4s",
        "--gpus",
        "l40s",
        "--fit",
        "fit.json",
    )
    check_refused(
        run(*size, "--engine", "sglang", folder=folder),
        2,
        "the engine vllm, not of sglang",
        "without --engine",
    )
    check_refused(run(*size, "--dtype", "float16", folder=folder), 2, "bfloat16, not of float16")
    check_refused(
        run(*size, "--tp", "2,4", folder=folder), 2, "the number of devices 1, not of 2,4"
    )
    check_refused(
        run(*size[:-4], "--gpus", "a100_80gb_sxm", "--fit", "fit.json", folder=folder),
        2,
        "the device l40s, not of a100_80gb_sxm",
    )


def test_device_and_formats_are_those_of_the_fit(folder):
    answer = json.loads(
        run("predict", "llama-3.1-8b", "--fit", "fit.json", "--json", folder=folder).stdout
    )
    scenario = answer["datasheet"]["scenario"]
    assert (scenario["hardware"]["hardware_id"], scenario["engine"]["dtype"]) == (
        "l40s",
        "bfloat16",
    )
    assert answer["fitted"]["reservations"] == []
    deployed = json.loads(
        run(
            "simulate", "llama-3.1-8b", *TRAFFIC, "--fit", "fit.json", "--json", folder=folder
        ).stdout
    )
    assert deployed["deployment"]["hardware"] == "NVIDIA L40S"
    assert "FIT_SUBJECT" not in [caution["code"] for caution in deployed["cautions"]]


@pytest.mark.slow
def test_a_transfer_is_asked_for_by_name_and_said(folder):
    asked = ("--fit", "fit.json", "--hardware", "a100_80gb_sxm", "--transfer")
    text = run("predict", "llama-3.1-8b", *asked, folder=folder).stdout
    trust = next(line for line in text.splitlines() if line.startswith("TRUST"))
    assert "transferred from 1 x NVIDIA L40S" in trust
    own, other = (
        json.loads(run("predict", "llama-3.1-8b", *flags, "--json", folder=folder).stdout)[
            "fitted"
        ]["tpot_s"]
        for flags in (asked[:2], asked)
    )
    assert other["value"] < own["value"], "an A100 has 2.4 times the bandwidth of an L40S"
    assert other["high"] / other["low"] > own["high"] / own["low"], (
        "another device is less well known"
    )
    for verb in ("simulate", "capacity"):
        flags = ("--probe-requests", "200", "--requests", "1000") if verb == "capacity" else ()
        said = " ".join(run(*VERBS[verb], *flags, *asked, folder=folder).stdout.split())
        assert "transferred from 1 x NVIDIA L40S to NVIDIA A100 80GB SXM4" in said, verb
    size = (
        "size",
        "llama-3.1-8b",
        "--rate",
        "1",
        "--slo",
        "ttft:p95<9s",
        "--gpus",
        "a100_80gb_sxm",
        "--probe-requests",
        "100",
        "--jobs",
        "1",
    )
    flags = (
        "--fit",
        "a100_80gb_sxm=fit.json",
        "--transfer",
        "--max-num-seqs",
        "64",
        "--max-num-batched-tokens",
        "2048",
        "--json",
    )
    cautions = json.loads(run(*size, *flags, folder=folder).stdout)["cautions"]
    assert "transferred from 1 x NVIDIA L40S" in next(
        one["text"] for one in cautions if one["code"] == "FIT_SUBJECT"
    )


# What else differs, and what the answer says was measured.
CHANGES = {
    ("predict", "llama-3.1-70b", "--tp", "4", "--quantization", "int4"): (
        "llama-3.1-8b in bfloat16 on 1 x NVIDIA L40S",
        "4 x NVIDIA L40S for this model",
    ),
    ("predict", "llama-3.1-8b", "--dtype", "float8"): ("in bfloat16 on 1 x NVIDIA L40S",),
    ("simulate", "qwen3-8b", *TRAFFIC, "--policy", "sglang"): ("llama-3.1-8b by vllm on",),
    ("capacity", "qwen3-8b", "--rate", "2", "--slo", "ttft:p95<4s"): ("llama-3.1-8b on 1 x",),
}


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(one, marks=pytest.mark.slow if one[0] == "capacity" else (), id=" ".join(one))
        for one in CHANGES
    ],
)
def test_a_fit_tells_of_another_model_format_or_engine_where_it_is_asked_to(question, folder):
    wanted = CHANGES[question]
    transfer = (*question, "--fit", "fit.json", "--transfer", "--json")
    answer = run(*transfer, folder=folder)
    assert answer.returncode in {0, 10, 11}, answer.stderr
    for words in wanted:
        assert words in answer.stdout


def test_what_cannot_be_transferred(folder):
    transfer = ("--fit", "fit.json", "--transfer")
    check_refused(
        run("predict", "llama-3.1-8b", *transfer, "--ep", folder=folder),
        2,
        "--ep changes the steps",
    )
    for verb in ("predict", "simulate"):
        check_refused(
            run(*VERBS[verb], "--hardware", "l4", "--transfer", folder=folder),
            2,
            "nothing to transfer",
            "--fit",
        )


def test_the_engine_of_a_fit_is_whose_rules_are_simulated(folder):
    gpu_fit("sglang").save(folder / "sglang.json")
    question = ("simulate", "llama-3.1-8b", *TRAFFIC, "--fit", "sglang.json", "--json")
    assert "SGLang" in json.loads(run(*question, folder=folder).stdout)["deployment"]["engine"]


@pytest.mark.slow
def test_a_recorded_sweep_says_what_it_is_of(folder):
    """Of a processor that no catalogue has: its device is what was probed beside the sweep.

    VLLM's rules on its steps are a caution.
    """
    fit_step_time([read_run(SMOLLM2)]).save(folder / "cpu.json")
    question = (
        "simulate",
        "smollm2-135m",
        "--fit",
        "cpu.json",
        "--rate",
        "0.2",
        "--requests",
        "50",
        "--max-num-seqs",
        "8",
    )
    answer = json.loads(run(*question, "--json", folder=folder).stdout)
    assert answer["deployment"]["hardware"] == "Intel(R) Xeon(R) Processor"
    assert "step times are those of transformers, the scheduler is that of vllm" in " ".join(
        one["text"] for one in answer["cautions"]
    )
    check_refused(
        run(*question, "--hardware", "h100_sxm", folder=folder),
        2,
        "Intel(R) Xeon(R) Processor, not of h100_sxm",
    )
    check_refused(
        run(*question, "--hardware", "h100_sxm", "--transfer", folder=folder),
        5,
        "cannot be transferred",
        "between GPUs",
    )


def test_a_file_from_before_subjects_is_read_and_not_certified(folder):
    old = msgspec.to_builtins(gpu_fit())
    del old["subject"]
    (folder / "old.json").write_bytes(msgspec.json.encode(old))
    text = run("predict", "llama-3.1-8b", "--fit", "old.json", folder=folder).stdout
    assert "TRUST  the fit does not state its engine" in text
    check_refused(
        run(
            "predict", "llama-3.1-8b", "--fit", "old.json", "--hardware", "h100_sxm", folder=folder
        ),
        2,
        "not of h100_sxm",
    )
    old["trained_on"]["hardware"] = None
    (folder / "older.json").write_bytes(msgspec.json.encode(old))
    text = run(
        "predict", "llama-3.1-8b", "--fit", "older.json", "--hardware", "h100_sxm", folder=folder
    ).stdout
    assert "TRUST  the fit does not state its device, engine" in text
    check_refused(
        run("predict", "llama-3.1-8b", "--fit", "older.json", folder=folder),
        2,
        "does not name the device",
    )


def test_a_fitted_server_is_one_of_its_device(folder):
    stated = replace(
        NOTHING_STATED,
        hardware_id="l4",
        device="NVIDIA L4",
        dtype="bfloat16",
        tensor_parallel_size=1,
    )
    replace(server_fit(), subject=stated).save(folder / "server.json")
    question = ("simulate", "hidden", "--fit", "server.json", "--rate", "0.5", "--requests", "40")
    check_refused(
        run(*question, "--hardware", "h100_sxm", folder=folder), 2, "the device l4, not of h100_sxm"
    )
    check_refused(
        run(*question, "--hardware", "h100_sxm", "--transfer", folder=folder),
        5,
        "cannot be transferred",
    )
    check_refused(
        run(*question, "--tp", "2", folder=folder), 2, "the number of devices 1, not of 2"
    )
    answer = json.loads(run(*question, "--dtype", "bfloat16", "--json", folder=folder).stdout)
    assert answer["deployment"]["hardware"] == "NVIDIA L4"


def test_runs_of_requests_are_sent_to_the_verb_that_takes_them(folder):
    run(
        "simulate", "smollm2-135m", "--hardware", "l4", *TRAFFIC, "--out", "requests", folder=folder
    )
    check_refused(run("fit", "requests", folder=folder), 2, "inferometer fit --load requests")
    check_refused(run("explain", "requests", folder=folder), 2, "inferometer show requests")


@pytest.mark.slow
def test_a_fit_is_written_into_a_folder_that_is_made(folder):
    assert run("fit", SMOLLM2, "--out", "new/folder/fit.json", folder=folder).returncode == 0
    assert (folder / "new" / "folder" / "fit.json").is_file()


def test_what_is_not_stated_is_named_once():
    assert NOTHING_STATED.text == "engine not stated, format not stated, device not stated"
    assert replace(NOTHING_STATED, tensor_parallel_size=2).text.endswith(
        ", 2 x a device not stated"
    )
    assert replace(NOTHING_STATED, device="NVIDIA L4").text.endswith(", ? x NVIDIA L4")
