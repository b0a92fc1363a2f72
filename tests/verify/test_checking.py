"""Is a claim judged by both intervals, and is nothing proved by what was measured before, or is INVALID?"""

from dataclasses import replace

import pytest
from sealed_examples import AT, SEALED_UTC, estimate, measurement, seal

from inferometer.api.verify_view import answer_lines
from inferometer.errors import RecordError
from inferometer.verify.claims import (
    KNOWN_TO_A_BUCKET,
    LEAST_DOUBT_FRACTION,
    checked,
    outcome_of,
    spanned,
    verdict_of,
)
from inferometer.verify.ledger import append, read_ledger, score_of
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


@pytest.mark.parametrize(
    ("low", "high", "is_inside", "error", "verdict"),
    [
        (1.85, 2.3, True, 2.0 / 2.1 - 1, "held"),
        (0.0, 10.0, None, None, "undecided"),
        (2.05, 5.0, None, None, "undecided"),
        (2.5, 5.0, False, 2.0 / 2.5 - 1, "wrong"),
        (0.5, 1.0, False, 2.0 / 1.0 - 1, "wrong"),
        (2.5, float("inf"), False, 2.0 / 2.5 - 1, "wrong"),
        (1.0, float("inf"), None, None, "undecided"),
    ],
)
def test_of_a_bucket_the_edges_judge(low, high, is_inside, error, verdict):
    """Where in its bucket a percentile lies is not known: interpolating it decides nothing."""
    value = 2.1 if low < 2.1 < high else low
    seen = replace(estimate(value, low, high), method=KNOWN_TO_A_BUCKET)
    claim = Claim(at=AT, metric="ttft_p50_s", predicted=spanned(2.0, [1.8, 2.4]))
    found = outcome_of(claim, seen)
    assert (found.is_inside, found.verdict) == (is_inside, verdict)
    assert found.error_fraction == (None if error is None else pytest.approx(error))


def test_what_a_bucket_leaves_open_counts_neither_inside_nor_outside(tmp_path):
    path, sealed = tmp_path / "ledger.jsonl", seal()
    wide = replace(estimate(5.0, 1.0, 10.0), method=KNOWN_TO_A_BUCKET)
    made = check(sealed, measurement(wide))
    older = replace(
        made, outcomes=(replace(made.outcomes[0], is_inside=False, error_fraction=-0.6),)
    )
    append(path, at_utc=SEALED_UTC, add=lambda _: sealed)
    append(path, at_utc="2026-11-21T12:00:05+00:00", add=lambda _: older)
    score = score_of(read_ledger(path))
    (one,) = score.metrics
    assert (one.n_measured, one.n_known, one.n_inside, one.n_undecided) == (1, 0, 0, 1)
    assert (one.inside_fraction, one.median_error_fraction) == (None, None)
    assert answer_lines(score) == (
        "of 1 fitted predictions the server's buckets do not tell whether they lay inside",
    )


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
