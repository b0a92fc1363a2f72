"""Are prices read with their source and date, and broken files refused?"""

import pytest

from inferometer.errors import SpecError
from inferometer.spec import catalog
from inferometer.spec.prices import price_of, read_prices

GOOD = "source: our contract\ndate_utc: 2026-11-01\nusd_per_hour:\n  h100_sxm: 2.49\n  l40s: 1\n"


def test_a_price_keeps_its_source_and_date(tmp_path):
    (tmp_path / "prices.yaml").write_text(GOOD)
    price = read_prices(tmp_path / "prices.yaml")["h100_sxm"]
    assert (price.usd_per_hour, price.basis, price.date_utc) == (2.49, "our contract", "2026-11-01")
    assert price.source.where == "prices.yaml: our contract"


def test_a_file_rules_over_the_catalogue_and_absent_is_not_free(tmp_path):
    (tmp_path / "prices.yaml").write_text(GOOD)
    prices = read_prices(tmp_path / "prices.yaml")
    assert price_of(catalog.find_hardware("h200_sxm"), prices) is None
    assert price_of(catalog.find_hardware("h200_sxm"), None) is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("2.49", "-1"), r"a price of -1 \$ per hour for h100_sxm"),
        (GOOD.replace("h100_sxm", "h1000"), "does not know the hardware 'h1000'"),
        (GOOD.replace("source: our contract\n", ""), "source"),
        (GOOD + "currency: eur\n", "currency"),
        ("- [", "no YAML"),
        (None, "cannot be read"),
    ],
)
def test_broken_files(text, words, tmp_path):
    path = tmp_path / "prices.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_prices(path)
