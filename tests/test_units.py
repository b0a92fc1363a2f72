"""Are units read, written and refused as they should be?"""

import math

import pytest
from hypothesis import given, strategies as st

from inferometer import units
from inferometer.errors import SpecError


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("500ms", 0.5),
        ("2min", 120),
        ("2m", 120),
        ("1.5 s", 1.5),
        ("3us", 3e-6),
        ("3µs", 3e-6),
        (" 10ns ", 1e-8),
        ("1h", 3600),
        ("1e-3s", 1e-3),
    ],
)
def test_durations(text, duration_s):
    assert units.parse_duration_s(text) == pytest.approx(duration_s)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("0.5MiB", 2**19),
        ("7B", 7),
        ("2TiB", 2**41),
    ],
)
def test_sizes(text, size_bytes):
    found = units.parse_bytes(text)
    assert found == size_bytes
    assert isinstance(found, int)


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "five ms", "5 parsecs", "5GiB", "-5ms", "5ms 3", "nan s", "inf s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(SpecError) as caught:
        units.parse_duration_s(text, where="--slo")
    assert (caught.value.where, caught.value.try_, caught.value.exit_code) == (
        "--slo",
        "5s" if text == "5" else "500ms",
        2,
    )
    assert "ms" in caught.value.allowed


@pytest.mark.parametrize("text", ["80", "80 xib", "80Gb", "80 ms", "GiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(SpecError):
        units.parse_bytes(text)


def test_a_bare_number_is_told_that_it_has_no_unit():
    with pytest.raises(SpecError, match="'5' has no unit"):
        units.parse_duration_s("5")


@given(st.integers(-(2**61), 2**61))
def test_nanoseconds_survive_within_what_a_float_holds(duration_ns):
    there_and_back = units.ns_from_s(units.s_from_ns(duration_ns))
    assert abs(there_and_back - duration_ns) <= abs(duration_ns) * 2**-51


@given(st.integers(0, 2**50))
def test_exact_below_two_weeks(duration_ns):
    assert units.ns_from_s(units.s_from_ns(duration_ns)) == duration_ns


@given(st.floats(1e-9, 1e5), st.sampled_from(["ns", "us", "ms", "s", "min", "h"]))
def test_scaling_a_duration_scales_what_is_parsed(number, unit):
    assert units.parse_duration_s(f"{number!r}{unit}") == pytest.approx(
        number * units.parse_duration_s(f"1{unit}")
    )


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0 ms"),
        (2.5e-7, "250 ns"),
        (4.2e-5, "42 µs"),
        (0.0314, "31.4 ms"),
        (9.5, "9500 ms"),
        (12.5, "12.5 s"),
        (164, "2.73 min"),
        (300, "5 min"),
        (3590, "1 h 0 min"),
        (3700, "1 h 2 min"),
        (7200, "2 h 0 min"),
        (-0.0314, "-31.4 ms"),
        (float("inf"), "inf s"),
    ],
)
def test_durations_for_people(duration_s, text):
    assert units.format_duration(duration_s) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (36864, "36 KiB"),
        (3.375 * 2**30, "3.38 GiB"),
        (5 * 2**40, "5 TiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_sizes_for_people(size_bytes, text):
    assert units.format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("value_per_s", "text"),
    [
        (2e12, "2 TB/s"),
        (20.5e9, "20.5 GB/s"),
        (999, "999 B/s"),
        (3e15, "3 PB/s"),
        (3e18, "3000 PB/s"),
    ],
)
def test_rates_for_people(value_per_s, text):
    assert units.format_rate(value_per_s, "B/s") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (31.40, "31.4"),
        (1234.5, "1234"),
        (0.01234, "0.0123"),
        (1e6, "1e+06"),
        (0.0005, "0.0005"),
        (0.00012345, "0.000123"),
        (-5.678, "-5.68"),
    ],
)
def test_numbers_for_people(value, text):
    assert units.format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_what_is_no_number_is_not_dressed_up(value, text):
    assert units.format_number(value) == text


@given(st.floats(1e-3, 999_999))
def test_three_significant_digits_are_kept(value):
    assert float(units.format_number(value)) == pytest.approx(value, rel=0.0051)


def test_fractions_are_percent_only_for_people():
    assert units.format_fraction(0.82) == "82 %"
    assert units.format_fraction(1) == "100 %"


def test_suffixes_are_longest_first_so_that_the_right_one_matches():
    for i, suffix in enumerate(units.SUFFIXES):
        assert not any(suffix.endswith(earlier) for earlier in units.SUFFIXES[:i])


def test_a_quantity_of_many_digits_is_refused_at_once():
    with pytest.raises(SpecError, match="is not a duration") as caught:
        units.parse_duration_s("1" * 200_000)
    assert len(str(caught.value)) < 300


def test_a_unit_of_another_kind_is_named_as_it_was_written():
    with pytest.raises(SpecError, match="unit 'M' of '5M'"):
        units.parse_duration_s("5M")
