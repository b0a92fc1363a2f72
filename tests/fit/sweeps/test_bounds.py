"""Does no fitted rate exceed the peak of the device that was named, and is it said where the data wanted more?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.fit.sweeps.regression import at_bounds
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_terms import NO_STAIRCASE, term_columns, work_columns
from inferometer.perfmodel.types import decode_shape, prefill_shape
from known_truths import CPU_TRUTH, PublishedRow

CARD = find_hardware("rtx_5070ti")
COMPILED = EngineSpec(mode="compiled", dtype="float16", device="cuda")
TRUTH = replace(
    CPU_TRUTH,
    launch_s=0.012,
    weight_bytes_per_s=0.75e12,
    kv_bytes_per_s=0.7e12,
    matmul_flop_per_s=50e12,
    floor_s=3e-3,
    attention_flop_per_s=5e12,
    per_sequence_s=1e-4,
    overlap_ratio=4.0,
    blend_ratio=2.0,
)
POINTS = [(prompt, batch) for batch in (1, 2, 4, 8, 16, 32) for prompt in (128, 512, 1024, 2048)]


@pytest.fixture
def table(published_run):
    """Somebody's table of Qwen2.5-3B with fused attention on such a card, as if all that was known were the mode."""

    def made(truth, mode):
        rng, rows = np.random.default_rng(1), list[PublishedRow]()
        for prompt, batch in POINTS:
            shapes = [
                prefill_shape(batch_size=batch, prompt_tokens=prompt),
                decode_shape(batch_size=batch, context_tokens=prompt + 16),
            ]
            work = work_columns(find_model("qwen2.5-3b"), COMPILED, shapes, kv_traffic_ratio=1.0)
            took = (
                term_columns(truth.vector(), NO_STAIRCASE, work).total_s
                * np.exp(0.01 * rng.standard_normal(2))
                * 1e3
            )
            rows.append(
                PublishedRow(
                    prompt_tokens=prompt,
                    batch_size=batch,
                    prefill_ms=float(took[0]),
                    step_ms=float(took[1]),
                    reserved_mib=6000,
                )
            )
        run = published_run(rows)
        plan = replace(run.manifest.plan, engine=replace(COMPILED, mode=mode))
        return replace(run, manifest=replace(run.manifest, plan=plan))

    return made


def estimates(model):
    return {entry.name: entry for entry in model.parameters}


@pytest.mark.slow
def test_no_rate_is_above_the_peak_of_the_named_device(table):
    """Steps of a card with seven times the bandwidth and three times the products."""
    run = table(replace(TRUTH, kv_bytes_per_s=6e12, matmul_flop_per_s=300e12), "compiled")
    model = fit_step_time([run], hardware=CARD)
    found, bandwidth = estimates(model), CARD.memory_bytes_per_s.value
    assert found["kv_bytes_per_s"].estimate.high == pytest.approx(bandwidth, rel=1e-3)
    assert found["weight_bytes_per_s"].estimate.high <= bandwidth * 1.001
    assert found["matmul_flop_per_s"].estimate.high == pytest.approx(
        CARD.peak_flop_per_s("float16").value, rel=1e-3
    )
    bound = {name for name, entry in found.items() if entry.informed_by == "bound"}
    assert bound == {"kv_bytes_per_s", "matmul_flop_per_s"}
    assert {name for one in at_bounds(model) for name in one.parameters} == bound
    assert (np.diag(model.covariance) > 0).all()
    assert estimates(fit_step_time([run]))["kv_bytes_per_s"].estimate.value > 2e12, (
        "without a device nothing bounds it"
    )


@pytest.mark.slow
def test_traffic_that_no_bandwidth_carries_is_not_assumed(table):
    """Eager attention's copies would need 13 TB/s of the card.

    It was no eager attention, and then nothing is at a bound.
    """
    model = fit_step_time([table(TRUTH, "eager")], hardware=CARD)
    kv = estimates(model)["kv_bytes_per_s"]
    assert model.kv_traffic_ratio == 1
    assert kv.estimate.low < 0.7e12 < kv.estimate.high < CARD.memory_bytes_per_s.value
    assert [one.why.partition(",")[0] for one in at_bounds(model)] == [
        "19 bytes for each byte of KV cache"
    ]
    assert not at_bounds(fit_step_time([table(TRUTH, "compiled")], hardware=CARD))
