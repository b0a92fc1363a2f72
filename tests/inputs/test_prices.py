"""Are prices read with their source and date, and broken files refused?"""

import pytest

from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.inputs.prices import read_prices, rents_of

GOOD = "source: our contract\ndate_utc: 2026-11-01\nusd_per_hour:\n  h100_sxm: 2.49\n  l40s: 1\n"


def test_a_price_keeps_its_source_and_date(tmp_path):
    (tmp_path / "prices.yaml").write_text(GOOD)
    price = read_prices(tmp_path / "prices.yaml").rented["h100_sxm"]
    assert (price.usd_per_hour, price.basis, price.date_utc) == (2.49, "our contract", "2026-11-01")
    assert price.source.where == "prices.yaml: our contract"


def test_a_file_rules_over_the_catalogue_and_absent_is_not_free(tmp_path):
    (tmp_path / "prices.yaml").write_text(GOOD)
    prices = read_prices(tmp_path / "prices.yaml")
    assert rents_of([catalog.find_hardware("h200_sxm")], prices) == [None]
    assert rents_of([catalog.find_hardware("h200_sxm")], None) != [None]


OWNED = (
    GOOD + "owned: {h100_sxm: {price_usd: 35064, n_years: 4}}\npower: {usd_per_kwh: 0.1, pue_ratio:"
    " 1.5}\nused_fraction: 0.5\n"
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (GOOD.replace("l40s", "l4s0"), "usd_per_hour"),
        (OWNED.replace("owned: {h100_sxm", "owned: {h1000"), "owned"),
    ],
)
def test_a_device_that_nobody_knows_is_named_with_its_key(text, key, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match="does not know") as refused:
        read_prices(path)
    assert refused.value.where == f"{path}: {key}"


def test_a_bought_device_costs_capital_and_power(tmp_path):
    """35,064 $ over 4 years of 8,766 h: 1 $/h, twice that where half of them are used.

    700 W at 0.1 $/kWh and PUE 1.5: 0.105 $/h.
    """
    (tmp_path / "prices.yaml").write_text(OWNED)
    owned = read_prices(tmp_path / "prices.yaml").owned["h100_sxm"]
    assert owned.usd_per_hour == pytest.approx(2.105)
    assert owned.break_even_fraction(2.105) == pytest.approx(0.5)
    assert owned.break_even_fraction(0.9) is None
    assert owned.break_even_fraction(0.1) is None
    assert "700 W" in owned.basis


def test_prices_of_tokens_elsewhere(tmp_path):
    api = "api: {one: {input_usd_per_million_tokens: 0.2, output_usd_per_million_tokens: 0.6}}\n"
    (tmp_path / "prices.yaml").write_text(GOOD + api)
    (one,) = read_prices(tmp_path / "prices.yaml").apis
    assert (
        one.name,
        one.input_usd_per_million_tokens,
        one.output_usd_per_million_tokens,
        one.date_utc,
    ) == ("one", 0.2, 0.6, "2026-11-01")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OWNED.replace("power: {usd_per_kwh: 0.1, pue_ratio: 1.5}\n", ""), "the price of power"),
        (OWNED.replace("n_years: 4", "n_years: 0"), "n_years"),
        (OWNED.replace("used_fraction: 0.5", "used_fraction: 1.5"), "used_fraction"),
        ("source: us\ndate_utc: 2026\n", "without a price"),
        (GOOD.replace("2026-11-01", "2026-13-01-01"), "date_utc"),
        (GOOD.replace("2.49", "-1"), r"a price of -1 \$ per hour for h100_sxm"),
        (GOOD.replace("2.49", '"2,49"'), "usd_per_hour.h100_sxm = '2,49' is no number"),
        (GOOD.replace("h100_sxm", "h1000"), "does not know the hardware 'h1000'"),
        (GOOD.replace("source: our contract\n", ""), "source"),
        (GOOD + "currency: eur\n", "currency"),
        ("- [", "the price list is damaged"),
        ("a: &a [1]\nb: *a", "an alias"),
        ("[" * 1000, "nested more than 64 deep"),
        (GOOD.replace("2.49", ".nan"), "usd_per_hour.h100_sxm = nan"),
        (GOOD.replace("2026-11-01", "2026-13-01"), "month must be in"),
        (None, "cannot be read"),
    ],
)
def test_broken_files(text, words, tmp_path):
    path = tmp_path / "prices.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_prices(path)


@pytest.mark.parametrize(
    "text",
    [
        "h100_sxm: 2.0",
        "usd_per_hour: {h100_sxm: 2.0}",
        "usd_per_hour: {h100_sxm: 2.0, basis: spot}",
    ],
)
def test_a_list_in_another_shape_is_answered_with_one_to_copy(text, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_prices(path)
    assert "usd_per_hour: {h100_sxm: 2.49}" in caught.value.try_
