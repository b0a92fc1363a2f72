"""Weights in 8 and 4 bits: the kernels multiply what the grids of `quality` round to."""

import pytest
import torch
from torch.nn import Linear

from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.engines.protocol import random_prompts
from inferometer.measure.engines.transformers_engine import open_engine
from inferometer.measure.engines.transformers_loading import GROUP_SIZE, PackedLinear
from inferometer.measure.engines.transformers_quality import rounded_to_integers

POINT = SweepPoint(prompt_tokens=9, batch_size=3, gen_tokens=6)


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("int4", 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_rounded_weights(quantization, bits, dtype, has_bias):
    torch.manual_seed(7)
    linear = Linear(2 * GROUP_SIZE, 64, bias=has_bias, dtype=dtype)
    x = torch.randn(2, 3, 2 * GROUP_SIZE, dtype=dtype)
    columns = GROUP_SIZE if bits == 4 else 2 * GROUP_SIZE
    weight = linear.weight.detach().float()
    rounded = rounded_to_integers(weight.reshape(-1, columns), bits=bits).reshape(weight.shape)
    expected = x.float() @ rounded.T
    expected = expected + linear.bias.float() if has_bias else expected
    with torch.inference_mode():
        found = PackedLinear(linear, quantization)(x)
    assert found.dtype == dtype
    far = (found.float() - expected).abs().max() / expected.abs().max()
    assert far < (1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize(("quantization", "weight_bytes"), [("int8", 1), ("int4", 0.5)])
def test_a_packed_model_holds_fewer_bytes_of_as_many_weights(tiny, quantization, weight_bytes):
    spec = EngineSpec(load_format="dummy", quantization=quantization)
    plain, packed = (open_engine(one, tiny) for one in (EngineSpec(load_format="dummy"), spec))
    before, after = plain.facts(), packed.facts()
    assert after.n_parameters == before.n_parameters
    saved = before.weight_bytes - after.weight_bytes
    n_linear = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
    assert 0.8 * n_linear * (4 - weight_bytes) < saved < n_linear * (4 - weight_bytes)
    prompts = random_prompts(POINT, vocab_size=1000, seed=3, repetition=0)
    assert [len(ids) for ids in packed.run(prompts, 6).output_ids] == [6, 6, 6]
    assert packed.paired_steps() == ()
