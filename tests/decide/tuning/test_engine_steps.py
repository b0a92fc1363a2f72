"""Which options does each step try on which device, and which of them share a load?"""

from dataclasses import replace

import pytest

from inferometer.decide.tuning.engine_steps import (
    ENGINE_STEPS,
    quality_words,
    shares_load,
    tries_of,
)
from inferometer.inputs.types import EngineSpec

CPU = EngineSpec(n_threads=2)
GPU = EngineSpec(device="cuda", dtype="bfloat16")


def tried(now, stored=None):
    """Step -> its changes, or why there are none."""
    found = {step.name: tries_of(step, now, stored) for step in ENGINE_STEPS}
    return {
        name: tries if isinstance(tries, str) else [one.words for one in tries]
        for name, tries in found.items()
    }


def test_a_gpu_has_no_steps_of_a_cpu_and_says_why():
    found = tried(GPU)
    assert found["graphs_and_host"] == ["--mode static", "--mode compiled"]
    assert found["kernels"] == ["--attn eager"]
    assert found["threads"] == "cuda computes: threads of the CPU are no option of it"
    assert found["compute_precision"] == "bfloat16 already"
    assert "those of a CPU" in found["weight_precision"]
    assert tried(replace(GPU, dtype="float32"))["compute_precision"] == ["--dtype bfloat16"]
    assert "--tp 1" in tried(replace(CPU, tensor_parallel_size=2))["weight_precision"]


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, ["--quantization int8", "--quantization int4"]),
        ("bfloat16", ["--quantization int8", "--quantization int4"]),
        ("int4", "the file's weights are in int4 and stay so: another file is another MODEL"),
    ],
)
def test_openvino_packs_plain_weights_alone(stored, expected):
    now = replace(CPU, engine="openvino")
    assert tried(now, stored)["weight_precision"] == expected
    assert tried(CPU, stored)["weight_precision"] == ["--quantization int8", "--quantization int4"]


@pytest.mark.parametrize(
    ("one", "other", "shares"),
    [
        ({}, {"mode": "static"}, True),
        ({}, {"mode": "compiled"}, True),
        ({}, {"n_threads": 1}, True),
        ({"mode": "compiled"}, {"mode": "compiled", "n_threads": 1}, False),
        ({}, {"attention": "eager"}, False),
        ({}, {"dtype": "bfloat16"}, False),
        ({}, {"quantization": "int8"}, False),
        ({"engine": "openvino"}, {"engine": "openvino", "n_threads": 1}, False),
        ({"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "mode": "static"}, False),
    ],
)
def test_what_changes_without_a_load_shares_one(one, other, shares):
    assert shares_load(replace(CPU, **one), replace(CPU, **other)) == shares


def test_the_quality_command_runs_where_the_model_does():
    changed = replace(GPU, dtype="float16")
    words = quality_words("m", changed, "dtype")
    assert words == ["m", "--other-dtype", "float16", "--device", "cuda"]
    packed = replace(CPU, engine="openvino", quantization="int4")
    words = quality_words("m", packed, "quantization")
    assert words == ["m", "--engine", "openvino", "--quantization", "int4"]
