"""Each rule speaks where its condition holds, and is silent where it does not."""

import numpy as np
import pytest

from inferometer.records.curves import Curve, cheapest, growth, jumps, knee, peak, share

X = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def _curve(y: list[float] | np.ndarray) -> Curve:
    return Curve(X, tuple(float(value) for value in y), "batch", "TPOT")


@pytest.mark.parametrize(
    ("power", "law"),
    [
        (0.5, "less than linear"),
        (1.0, "(linear)"),
        (1.5, "more than linear"),
        (-1.0, "in proportion"),
        (-0.5, "less than in proportion"),
    ],
)
def test_a_power_law_is_named_by_its_exponent(power: float, law: str) -> None:
    found = growth(_curve(3 * np.asarray(X) ** power))
    assert found is not None
    assert f"^{power:.2f}" in found.sentence
    assert law in found.sentence
    assert ("grows" if power > 0 else "falls") in found.sentence


def test_a_curve_that_bends_has_two_exponents() -> None:
    found = growth(_curve([1, 1, 1, 2, 4, 8]))
    assert found is not None
    assert "then ^1.00 (linear)" in found.sentence


def test_flat_is_said_of_what_moves_less_than_a_tenth_and_of_nothing_else() -> None:
    flat, risen = growth(_curve([7, 7.1, 7.2, 7.1, 7.3, 7.6])), growth(_curve([7, 7, 7, 7, 7, 7.8]))
    assert flat is not None
    assert risen is not None
    assert (flat.code, risen.code) == ("FLAT", "GROWTH")
    assert "9%" in flat.sentence


def test_two_points_or_a_short_range_carry_no_law() -> None:
    assert growth(Curve((1.0, 8.0), (1.0, 2.0), "batch", "TPOT")) is None
    assert growth(Curve((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), "batch", "TPOT")) is None
    assert knee(Curve((1.0, 8.0), (1.0, 2.0), "batch", "throughput")) is None


def test_the_knee_is_where_doublings_stop_to_pay_for_good() -> None:
    found = knee(_curve([100, 195, 380, 500, 560, 570]))
    assert found is not None
    assert "From batch 4 on" in found.sentence
    assert "from 16 on less than 1.05x: a plateau" in found.sentence


def test_a_dip_before_the_end_is_no_knee() -> None:
    found = knee(_curve([100, 120, 230, 450, 880, 1700]))
    assert found is not None
    assert found.sentence.startswith("No knee")


def test_gains_between_points_that_are_no_doubling_apart_count_per_doubling() -> None:
    found = knee(Curve((1.0, 4.0, 16.0), (100.0, 390.0, 1500.0), "batch", "throughput"))
    assert found is not None
    assert found.sentence.startswith("No knee")


def test_a_peak_is_inside_and_a_plateau_is_none() -> None:
    found = peak(_curve([1, 2, 4, 5, 3, 2]))
    assert found is not None
    assert "highest at batch 8" in found.sentence
    assert peak(_curve([1, 2, 4, 5, 5, 4.9])) is None


def test_the_share_of_a_phase_passes_one_half() -> None:
    found = share(_curve([0.1, 0.2, 0.4, 0.55, 0.7, 0.8]))
    assert found is not None
    assert "passes one half by 8" in found.sentence
    steady = share(_curve([0.1, 0.1, 0.1, 0.2, 0.2, 0.2]))
    assert steady is not None
    assert "one half" not in steady.sentence


def test_only_a_jump_is_called_one() -> None:
    found = jumps(_curve([1, 1.1, 1.2, 3.6, 3.7, 3.8]))
    assert found is not None
    assert "3.0x between batch 4 and 8" in found.sentence
    assert jumps(_curve([1, 1.5, 2.2, 3.2, 4.7, 6.9])) is None


def test_where_a_unit_is_cheapest():
    fixed = Curve((1.0, 2.0, 4.0, 8.0), (10.0, 5.0, 4.0, 6.0), "prompt", "a token's time")
    found = cheapest(fixed)
    assert "least at prompt 4 (2.5x less than at 1)" in found.sentence
    assert "longer makes it no cheaper (1.5x at 8)" in found.sentence
    falling = cheapest(fixed._replace(y=(8.0, 4.0, 2.0, 1.0)))
    assert "falls all the way" in falling.sentence
    assert cheapest(fixed._replace(x=(1.0, 2.0, 3.0, 3.5))) is None, "too short to say"
