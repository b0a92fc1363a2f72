"""Does a sizing say where its time limit left out what may be cheaper, and pick what was decided?"""

from types import SimpleNamespace

import pytest

from inferometer.api.sizing_answer import pick_of
from inferometer.api.sizing_cautions import not_the_fewest, out_of_time
from inferometer.decide.sizing_types import Done, Searched


def one(usd_per_hour, least_devices, name="A device"):
    offer = SimpleNamespace(usd_per_hour=usd_per_hour, hardware=SimpleNamespace(name=name))
    return Searched(
        SimpleNamespace(offer=offer), None, "", 0, is_examined=False, least_devices=least_devices
    )


@pytest.mark.parametrize(
    ("left_out", "is_named"),
    [
        (one(2.0, 4), True),  # 8 $/h at least, of a pick of 10 $/h
        (one(2.0, 5), False),
        (one(2.0, None), False),  # examined
        (one(None, 1), False),  # devices without a price are ranked last
    ],
)
def test_kinds_that_may_be_cheaper_are_named(left_out, is_named):
    pick = SimpleNamespace(usd_per_hour=10.0, n_devices=4)
    cautions = out_of_time(pick, [Done(None, (left_out, one(9.0, 9, "Another")))])
    assert [caution.code for caution in cautions] == ["OUT_OF_TIME"] * is_named
    assert all("1 of 2 kinds" in caution.text for caution in cautions)
    assert not any("Another" in caution.text for caution in cautions)


def test_without_prices_the_number_of_devices_decides():
    pick = SimpleNamespace(usd_per_hour=None, n_devices=4)
    assert out_of_time(pick, [Done(None, (one(None, 3),))])
    assert not out_of_time(pick, [Done(None, (one(None, 4),))])


def test_nothing_is_cheaper_than_no_pick():
    assert out_of_time(None, [Done(None, (one(2.0, 4),))]) == ()


@pytest.mark.parametrize(
    ("n_fixed", "verdict", "is_named"),
    [(None, "met", True), (None, "undecided", False), (None, "missed", False), (7, "met", False)],
)
def test_a_number_that_is_not_shown_to_be_the_fewest_is_named_so(n_fixed, verdict, is_named):
    question = SimpleNamespace(fleets=SimpleNamespace(n_replicas=n_fixed))
    without_one = SimpleNamespace(n_replicas=6, verdict=verdict)
    pick = SimpleNamespace(n_replicas=7, without_one=without_one)
    cautions = not_the_fewest(question, pick)
    assert [caution.code for caution in cautions] == ["NOT_THE_FEWEST"] * is_named
    assert all("at 7: 6 meet the SLO too" in caution.text for caution in cautions)
    assert not_the_fewest(question, SimpleNamespace(n_replicas=1, without_one=None)) == ()


def test_what_was_shown_to_meet_is_picked_before_what_noise_leaves_open():
    cheap, dear = (
        SimpleNamespace(
            sized_at=SimpleNamespace(served=SimpleNamespace(verdict=verdict)),
            usd_per_hour=usd_per_hour,
            n_devices=1,
        )
        for verdict, usd_per_hour in (("undecided", 1.0), ("met", 2.0))
    )
    assert pick_of([Done(cheap, ()), Done(dear, ())]) is dear
    assert pick_of([Done(cheap, ())]) is cheap
