"""Are MBU, MFU, cost and energy the formulas of the requirements?"""

import pytest

from inferometer.perfmodel.roofline import (
    exact,
    joule_per_million_tokens,
    mbu_fraction,
    mfu_fraction,
    usd_per_million_tokens,
)
from inferometer.perfmodel.types import StepWork
from inferometer.stats.estimate import Estimate

WORK = StepWork(
    matmul_flop=6.0,
    attention_flop=3.0,
    logits_flop=1.0,
    weight_bytes=14e9,
    kv_read_bytes=0.0,
    kv_write_bytes=5.0,
    activation_bytes=7.0,
    link_bytes=0.0,
    n_link_messages=0,
)


def measured(value, low, high):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.95, n_samples=7, method="median"
    )


def test_a_7b_model_at_14_ms_moves_1_tb_per_s_which_is_half_of_2():
    used = mbu_fraction(measured(14e-3, 13e-3, 15e-3), WORK, exact(2e12))
    assert used.value == pytest.approx(0.5)
    assert used.low < 0.5 < used.high
    assert used.n_samples == 7


def test_mbu_counts_weights_and_cache_read_and_mfu_all_flop():
    work = StepWork(
        **{name: getattr(WORK, name) for name in StepWork.__slots__} | {"kv_read_bytes": 14e9}
    )
    assert mbu_fraction(exact(1.0), work, exact(28e9)).value == 1
    assert mfu_fraction(exact(2.0), WORK, exact(10.0)).value == 0.5


def test_no_interval_in_no_interval_out():
    assert mbu_fraction(exact(14e-3), WORK, exact(2e12)).low is None


def test_doubts_of_time_and_ceiling_add_up():
    time_only = mbu_fraction(measured(1.0, 0.9, 1.1), WORK, exact(1e12))
    both = mbu_fraction(measured(1.0, 0.9, 1.1), WORK, measured(1e12, 0.9e12, 1.1e12))
    assert both.high - both.low > time_only.high - time_only.low


def test_cost_and_energy():
    rate = measured(1000.0, 800.0, 1250.0)
    cost = usd_per_million_tokens(rate, usd_per_hour=3.6)
    assert (cost.low, cost.value, cost.high) == pytest.approx((0.8, 1.0, 1.25))
    energy = joule_per_million_tokens(rate, power_watt=700)
    assert (energy.low, energy.value, energy.high) == pytest.approx(
        (700e6 / 1250, 700e3, 700e6 / 800)
    )
