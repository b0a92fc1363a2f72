"""Is a claim judged by both intervals, and is nothing proved by what was measured before, or is INVALID?"""

import pytest
from sealed_examples import AT, SEALED_UTC, estimate, measurement, seal

from inferometer.errors import RecordError
from inferometer.verify.claims import LEAST_DOUBT_FRACTION, checked, outcome_of, spanned, verdict_of
from inferometer.verify.seals import Claim, sha256_of


def check(sealed, one):
    return checked(sealed, sha256_of(sealed), SEALED_UTC, [one])


@pytest.mark.parametrize(
    ("measured", "is_inside", "verdict"),
    [
        (estimate(2.1, 2.0, 2.2), True, "held"),
        (estimate(2.1, 1.0, 9.0), True, "held"),
        (estimate(2.1), True, "undecided"),
        (estimate(2.5, 2.3, 2.6), False, "undecided"),
        (estimate(2.5), False, "undecided"),
        (estimate(2.5, 2.41, 2.6), False, "wrong"),
        (estimate(1.7, 1.6, 1.79), False, "wrong"),
    ],
)
def test_both_intervals_judge(measured, is_inside, verdict):
    found = check(seal(), measurement(measured)).outcomes[0]
    assert (found.is_inside, found.verdict) == (is_inside, verdict)
    assert found.error_fraction == pytest.approx(2.0 / measured.value - 1)


def test_an_endless_upper_end_is_no_interval_in_json_but_still_judges():
    found = outcome_of(
        Claim(at=AT, metric="ttft_p50_s", predicted=spanned(2.0, [1.8, 2.4])),
        estimate(9.0, 8.0, float("inf")),
    )
    assert found.verdict == "wrong"
    assert (found.measured.low, found.measured.high) == (None, None)


@pytest.mark.parametrize(
    ("promised", "seen", "verdict"),
    [("met", "met", "held"), ("missed", "missed", "held"), ("met", "missed", "wrong"), ("undecided", "met", "undecided"),
     ("met", "undecided", "undecided")],
)  # fmt: skip
def test_promises(promised, seen, verdict):
    assert (
        check(seal(promised=promised), measurement(estimate(2.0), promise=seen)).promises[0].verdict
        == verdict
    )


def test_an_invalid_measurement_is_recorded_and_proves_nothing():
    found = check(seal(), measurement(estimate(2.1, 2.0, 2.2), validity="INVALID"))
    assert (found.outcomes, found.promises) == ((), ())
    assert [one.validity for one in found.measured] == ["INVALID"]


@pytest.mark.parametrize(
    ("at_utc", "words"),
    [
        ("2026-11-21T11:59:59Z", "before its prediction was sealed"),
        ("unknown", "is unknown"),
        ("2026-11-22", "is unknown"),
    ],
)
def test_what_was_measured_before_or_nobody_knows_when_is_refused(at_utc, words):
    with pytest.raises(RecordError, match=words):
        check(seal(), measurement(estimate(2.0), at_utc=at_utc))


def test_a_seal_that_is_dated_after_the_ledger_counts_from_its_own_date():
    sealed = seal()
    with pytest.raises(RecordError, match="before its prediction"):
        checked(
            sealed,
            sha256_of(sealed),
            "2026-11-21T11:00:00+00:00",
            [measurement(estimate(2.0), at_utc="2026-11-21T11:30:00+00:00")],
        )


def test_claims_reach_over_both_ends_and_are_never_sharper_than_a_replay():
    claim = spanned(2.0, [2.0, 2.5])
    assert (claim.low, claim.high) == (2.0 * (1 - LEAST_DOUBT_FRACTION), 2.5)


def test_the_worst_verdict_is_that_of_all():
    assert verdict_of([]) == "open"
    assert verdict_of(["held", "undecided"]) == "undecided"
    assert verdict_of(["held", "open", "undecided"]) == "open"
    assert verdict_of(["wrong", "open"]) == "wrong"
    assert verdict_of(["wrong", "INVALID"]) == "INVALID"
