"""Rounding of weights and caches: the grids of the formats, and nothing else."""

import pytest
import torch

from inferometer.measure.engines.transformers_quality import (
    pruned_2_of_4,
    rounded_to_float8,
    rounded_to_integers,
)

GENERATOR = torch.Generator().manual_seed(5)
VALUES = torch.randn((64, 128), generator=GENERATOR)


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_have_as_many_levels_and_err_by_half_a_step(bits):
    rounded = rounded_to_integers(VALUES, bits=bits)
    step = VALUES.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((rounded - VALUES).abs() <= step / 2 * 1.0001).all()
    assert max(len(row.unique()) for row in rounded) <= 2**bits - 1
    assert torch.equal(rounded_to_integers(rounded, bits=bits).sign(), rounded.sign())


def test_zeros_stay_zeros():
    assert torch.equal(rounded_to_integers(torch.zeros(2, 4), bits=4), torch.zeros(2, 4))
    assert torch.equal(rounded_to_float8(torch.zeros(2, 4), 1.0), torch.zeros(2, 4))


def test_float8_keeps_four_bits_of_significance_and_saturates():
    rounded = rounded_to_float8(VALUES, 1.0)
    normal = VALUES.abs() > 2**-6
    assert ((rounded - VALUES).abs()[normal] <= VALUES.abs()[normal] / 16 * 1.0001).all()
    assert rounded_to_float8(torch.tensor([1000.0, -1000.0]), 1.0).tolist() == [448.0, -448.0]


def test_of_each_four_weights_the_two_largest_stay():
    weight = torch.tensor([[1.0, -4.0, 2.0, 3.0, 0.1, 0.2, -0.3, 0.0]])
    assert pruned_2_of_4(weight).tolist() == [
        [0.0, -4.0, 0.0, 3.0, 0.0, pytest.approx(0.2), pytest.approx(-0.3), 0.0]
    ]
    pruned = pruned_2_of_4(VALUES)
    assert (pruned.reshape(-1, 4) != 0).sum(-1).unique().tolist() == [2]
    odd = torch.randn((3, 7))
    assert torch.equal(pruned_2_of_4(odd), odd)
