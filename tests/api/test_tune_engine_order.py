"""Does the order of steps find the best of options that act on one another?"""

import hashlib
import json
import math
from dataclasses import replace

import msgspec
import pytest

from inferometer.api import tune_engine
from inferometer.api.server import Server
from inferometer.api.tune_engine_pairs import Version
from inferometer.api.tune_paired import PairsFound
from inferometer.api.tune_subject import Wanted
from inferometer.decide.tuning.engine_steps import quality_options
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.inputs.config_writing import config_from_model
from inferometer.stats.estimate import Estimate

MEASURED = {
    ("float32", None): 105.7,
    ("float32", "int8"): 167.5,
    ("float32", "int4"): 248.8,
    ("bfloat16", None): 140.8,
    ("bfloat16", "int8"): 224.9,
    ("bfloat16", "int4"): 232.4,
}
"""Tokens/s of OpenVINO 2026.4 on two cores of a Xeon with AMX, 8 layers of SmolLM2-135M."""
PACKED_NEEDS_BFLOAT16 = MEASURED | {
    ("float32", "int8"): 90.0,
    ("float32", "int4"): 80.0,
    ("bfloat16", "int4"): 200.0,
}
"""Kernels for packed weights that exist for one arithmetic only."""
NEITHER_ALONE = {
    ("float32", None): 98.8,
    ("float32", "int8"): 49.8,
    ("float32", "int4"): 32.5,
    ("bfloat16", None): 99.9,
    ("bfloat16", "int8"): 169.3,
    ("bfloat16", "int4"): 134.6,
}
"""Those of transformers 5.23 there, two layers, but for bfloat16 alone, whose gain is within noise."""


@pytest.fixture
def job(tmp_path):
    model = replace(find_model("smollm2-135m"), n_layers=2)
    (tmp_path / "config.json").write_text(json.dumps(config_from_model(model)))
    rest = tune_engine.EngineRemainder(
        server=Server(model=str(tmp_path), dtype="float32"),
        wanted=Wanted("throughput", None, 0.02),
        steps="weight_precision,compute_precision",
        n_most=4,
        seed=0,
        out=tmp_path / "tuned",
    )
    tuning = tune_engine.EngineTuning(engine="transformers", load_format="dummy")
    return tune_engine.job_of(tuning, rest)


def ended_with(job, speeds, monkeypatch):
    """What the tuning ends with where pairs show these speeds; they are no part of the order."""

    def compared(runs, engines, pairs):
        old, new = (speeds[one.dtype, one.quantization] for one in pairs.specs)
        gain = Estimate(
            value=new / old - 1,
            low=new / old - 1,
            high=new / old - 1,
            confidence_fraction=0.9,
            n_samples=3,
            method="",
        )
        logs = (math.log(new / old),) * 3
        ending = "keep" if new / old > 1 + runs.least_gain_ratio else "drop"
        return PairsFound(ending=ending, gain=gain, before=(), after=(), log_ratios=logs, n_loads=1)

    monkeypatch.setattr(tune_engine, "compared", compared)
    job.runs.folder.mkdir(exist_ok=True)
    (job.runs.folder / "engine.json").write_bytes(msgspec.json.encode(Version("", "", 0.0)))
    return tune_engine.measured(job)


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        (MEASURED, ("float32", "int4")),
        (PACKED_NEEDS_BFLOAT16, ("bfloat16", "int8")),
        (NEITHER_ALONE, ("bfloat16", "int8")),
    ],
)
def test_the_best_of_weights_and_arithmetic_is_found(job, speeds, best, monkeypatch):
    done = ended_with(job, speeds, monkeypatch)
    assert (done.spec.dtype, done.spec.quantization) == best
    assert speeds[best] == max(speeds.values())


def test_weights_are_looked_at_again_only_after_another_arithmetic(job, monkeypatch):
    again = ended_with(job, PACKED_NEEDS_BFLOAT16, monkeypatch)
    names = [(one.name, one.change, one.decision) for one in again.steps]
    assert names == [
        ("weight_precision", "--quantization int8", "drop"),
        ("weight_precision", "--quantization int4", "drop"),
        ("compute_precision", "--dtype bfloat16", "keep"),
        ("weight_precision", "--quantization int8", "keep"),
        ("weight_precision", "--quantization int4", "drop"),
    ]


@pytest.mark.parametrize(
    ("int8", "int4", "best", "decisions"),
    [
        ((1.0, 1.004), (1.02, 1.04), ("float32", "int8"), ["keep", "drop"]),
        ((1.0, 1.004), (1.0, 1.005), ("float32", "int4"), ["keep", "keep"]),
        ((1.0, 1.02), (1.0, 1.02), ("float32", None), ["check quality", "check quality"]),
    ],
)
def test_lossy_changes_are_taken_as_quality_decides(job, int8, int4, best, decisions, monkeypatch):
    """What `inferometer quality` measured is read again from the folder."""
    real = replace(
        job,
        spec=replace(job.spec, load_format="auto"),
        named=frozenset(),
        quality_margin_fraction=0.01,
    )
    real = replace(real, steps=tuple(one for one in job.steps if one.name == "weight_precision"))
    job.runs.folder.mkdir()
    for name, (low, high) in {"int8": int8, "int4": int4}.items():
        options = quality_options(replace(job.spec, quantization=name), "quantization")
        ratio = Estimate(
            value=(low + high) / 2,
            low=low,
            high=high,
            confidence_fraction=0.9,
            n_samples=99,
            method="",
        )
        digest = hashlib.sha256(msgspec.json.encode(options)).hexdigest()[:8]
        (job.runs.folder / f"quality-{digest}.json").write_bytes(msgspec.json.encode(ratio))
    done = ended_with(real, MEASURED, monkeypatch)
    assert (done.spec.dtype, done.spec.quantization) == best
    assert [one.decision for one in done.steps] == decisions
    assert all("perplexity" in one.why for one in done.steps)
    assert len(done.lossy) == decisions.count("check quality")


def test_random_weights_have_no_quality_to_check(tmp_path):
    with pytest.raises(SpecError, match="random weights have no quality"):
        tune_engine.job_of(
            tune_engine.EngineTuning(load_format="dummy", quality_margin=0.01),
            tune_engine.EngineRemainder(
                Server(model="smollm2-135m"), Wanted("throughput", None, 0.02), None, 4, 0, tmp_path
            ),
        )
