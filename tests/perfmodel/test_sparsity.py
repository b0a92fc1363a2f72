"""Does 2:4 sparsity save what its format saves, and how near does that come to what was measured?"""

import pytest

from inferometer.perfmodel.scenario import Scenario
from inferometer.perfmodel.sparsity import sparse_stored_ratio, sparse_work
from inferometer.perfmodel.types import decode_shape
from inferometer.perfmodel.weights import linears
from inferometer.perfmodel.whatif import what_if, with_sparsity
from inferometer.perfmodel.work import step_work
from inferometer.spec.catalog import find_hardware, find_model
from inferometer.spec.types import EngineSpec


def test_two_bits_for_each_kept_weight():
    assert sparse_stored_ratio(EngineSpec(dtype="float16")) == (2 * 16 + 2 * 2) / (4 * 16)
    assert sparse_stored_ratio(EngineSpec(dtype="float16", quantization="float8")) == pytest.approx((2 * 8 + 2 * 2) / (4 * 8), rel=1e-3)


def test_only_the_matrices_of_the_layers_shrink():
    model, engine = find_model("llama-2-7b"), EngineSpec(dtype="float16")
    shape = decode_shape(batch_size=4, context_tokens=100)
    plain = step_work(model, engine, shape)
    sparse = sparse_work(plain, model, engine, n_rows=shape.n_rows)
    in_layers = 2 * sum(part.n_weights for part in linears(model))
    assert plain.weight_bytes - sparse.weight_bytes == pytest.approx(0.4375 * in_layers, rel=1e-3)
    assert sparse.matmul_flop == plain.matmul_flop / 2
    assert (sparse.logits_flop, sparse.kv_read_bytes, sparse.attention_flop) == (
        plain.logits_flop,
        plain.kv_read_bytes,
        plain.attention_flop,
    )


@pytest.mark.parametrize(("batch_size", "measured_ratio", "within_fraction"), [(32, 1.62, 0.05), (64, 1.52, 0.02), (128, 1.35, 0.1)])
def test_gain_on_llama_70b_float8_as_published(batch_size, measured_ratio, within_fraction):
    """Published for Llama-2-70B in float8 on H100; lengths are not given, 128 + 128 is assumed here."""
    assert abs(gain(batch_size) / measured_ratio - 1) < within_fraction


def test_where_compute_limits_the_promise_is_not_kept():
    """At batch 896 1.30 was measured; the promise of twice the FLOP/s is 2: this model does not know sparse kernels."""
    assert gain(896) == pytest.approx(1.99, abs=0.02)


def gain(batch_size):
    scenario = Scenario(
        model=find_model("llama-2-70b"),
        engine=EngineSpec(engine="vllm", dtype="float16", quantization="float8"),
        hardware=find_hardware("h100_sxm"),
        batch_size=batch_size,
        prompt_tokens=128,
        output_tokens=128,
    )
    return what_if(scenario, with_sparsity(scenario)).tpot_gain_ratio.value
