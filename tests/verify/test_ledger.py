"""Does the ledger keep what was written, and name the line that was changed?"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sealed_examples import AT, LATER_UTC, SEALED_UTC, estimate, measurement, seal

from inferometer.api.verify_view import answer_lines, ledger_markdown
from inferometer.errors import RecordError, SpecError
from inferometer.verify.claims import REPLAYED, Attempt
from inferometer.verify.ledger import (
    anchor_of,
    append,
    check_of,
    read_ledger,
    refuse_future,
    refuse_without,
    score_of,
)
from inferometer.verify.seals import FileSum, evidence_of, refuse_changed, sha256_of

SEAL = seal()
SHA256 = sha256_of(SEAL)


def record(path, one, sha256=SHA256):
    return append(path, at_utc=LATER_UTC, add=lambda entries: check_of(entries, sha256, [one]))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append(path, at_utc=SEALED_UTC, add=lambda _: SEAL)
    record(path, measurement(estimate(2.1, 2.0, 2.2), run_id="bad", validity="INVALID"))
    record(path, measurement(estimate(2.6, 2.5, 2.7)))
    return path


def test_it_reads_back_and_says_how_right_it_was(path):
    entries = read_ledger(path)
    assert [entry.number for entry in entries] == [0, 1, 2]
    experiment = score_of(entries).experiments[0]
    assert experiment.seal == SEAL
    assert experiment.verdict == "wrong"
    assert [(one.run_id, one.validity) for one in experiment.measured] == [
        ("bad", "INVALID"),
        ("a", "VALID"),
    ]
    (total,) = score_of(entries).totals
    assert (total.n_measured, total.n_inside, total.n_wrong, total.median_error_fraction) == (
        1,
        0,
        1,
        pytest.approx(1 - 2 / 2.6),
    )


def test_what_was_never_measured_stays_open(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append(path, at_utc=SEALED_UTC, add=lambda _: SEAL)
    assert score_of(read_ledger(path)).n_open == 2, "a latency and a verdict"
    record(path, measurement(estimate(2.0), validity="INVALID"))
    score = score_of(read_ledger(path))
    assert (score.n_open, score.totals, score.experiments[0].verdict) == (2, (), "INVALID")
    assert score.experiments[0].open_questions == (AT,)


def test_a_verdict_on_an_slo_is_a_prediction_that_may_be_open(tmp_path):
    """The count in the answer and the rows of the table count the same predictions."""
    path = tmp_path / "ledger.jsonl"
    append(path, at_utc=SEALED_UTC, add=lambda _: SEAL)
    score = score_of(read_ledger(path))
    assert (score.n_claims, score.n_open) == (2, 2)
    (line,) = answer_lines(score)
    assert line.startswith("2 of 2 sealed predictions are open")
    assert ledger_markdown(score).splitlines()[-1].split(" | ")[6] == "2"


def test_the_first_valid_measurement_counts(path):
    with pytest.raises(RecordError, match="answered before, by run a"):
        record(path, measurement(estimate(2.0, 1.9, 2.1), run_id="another"))
    assert record(path, measurement(estimate(2.6, 2.5, 2.7))) is None
    assert len(read_ledger(path)) == 3


def test_an_unknown_seal_is_not_checked(path):
    with pytest.raises(RecordError, match="not in the ledger"):
        record(path, measurement(estimate(2.0)), sha256="0")


@pytest.mark.parametrize(
    ("tamper", "line"),
    [
        (lambda lines: [lines[0].replace(b'"value":2.0', b'"value":2.6'), *lines[1:]], 1),
        (lambda lines: [lines[0], lines[1].replace(b"INVALID", b"VALID"), lines[2]], 2),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [*lines, lines[2]], 4),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [*lines[:2], lines[2].replace(b'"at_utc"', b' "at_utc"')], 3),
        (lambda lines: [*lines, b"{}"], 4),
        (lambda lines: [*lines, b"\xff"], 4),
    ],
)
def test_tampering_is_named_and_nothing_is_added_after_it(path, tamper, line):
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(tamper(lines)) + b"\n")
    before = path.read_bytes()
    with pytest.raises(RecordError, match=f"line {line} of the ledger cannot be trusted"):
        read_ledger(path)
    with pytest.raises(RecordError, match=f"line {line} "):
        record(path, measurement(estimate(2.0)))
    assert path.read_bytes() == before


def test_writers_wait_for_one_another(tmp_path):
    """Four at once, ten entries each: none is lost, and the chain holds."""
    path = tmp_path / "ledger.jsonl"

    def write_ten(name):
        for i in range(10):
            append(
                path, at_utc=SEALED_UTC, add=lambda _, i=i: replace(SEAL, experiment=f"{name}{i}")
            )

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write_ten, "abcd"))
    experiments = [entry.seal.experiment for entry in read_ledger(path)]
    assert sorted(experiments) == sorted(f"{name}{i}" for name in "abcd" for i in range(10))


def forged(path: Path, other: Path, *, promised: str) -> None:
    """The same chain written anew by its owner, with another prediction: every sum in it is right."""
    made = seal(promised=promised)
    append(other, at_utc=SEALED_UTC, add=lambda _: made)
    for entry in read_ledger(path)[1:]:
        check = replace(entry.check, seal_sha256=sha256_of(made))
        append(other, at_utc=entry.at_utc, add=lambda _, check=check: check)
    path.write_bytes(other.read_bytes())


def test_an_anchor_shows_a_chain_that_was_written_anew_or_cut(path, tmp_path):
    whole = path.read_bytes()
    anchor = anchor_of(read_ledger(path))
    assert anchor == f"3:{read_ledger(path)[-1].sha256}"
    refuse_without(read_ledger(path), anchor, where="l")
    append(
        path, at_utc=LATER_UTC, add=lambda _: Attempt(seal_sha256=SHA256, at=AT, folder="load-00")
    )
    refuse_without(read_ledger(path), anchor, where="l")
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(
        RecordError, match="has 2 lines and had 3 when it was anchored: its end was cut off"
    ):
        refuse_without(read_ledger(path), anchor, where="l")
    path.write_bytes(whole)
    forged(path, tmp_path / "other.jsonl", promised="missed")
    assert len(read_ledger(path)) == 3, "the chain alone cannot show it"
    with pytest.raises(RecordError, match="written anew"):
        refuse_without(read_ledger(path), anchor, where="l")


@pytest.mark.parametrize(
    "anchor", ["", "3", "x:" + "0" * 64, "3:abc", "0:" + "1" * 64, "-1:" + "0" * 64]
)
def test_what_is_no_anchor_is_refused(path, anchor):
    with pytest.raises((SpecError, RecordError)):
        refuse_without(read_ledger(path), anchor, where="l")


def test_dates_in_the_future_or_out_of_order_are_refused(path, tmp_path):
    refuse_future(read_ledger(path), now_utc=LATER_UTC, where="l")
    with pytest.raises(
        RecordError,
        match="line 1 of the ledger is dated 2026-11-21T12:00:00\\+00:00, which is in the future",
    ):
        refuse_future(read_ledger(path), now_utc="2026-11-21T11:00:00+00:00", where="l")
    with pytest.raises(RecordError, match="in the future"):
        append(path, at_utc="2026-11-21T11:00:00+00:00", add=lambda _: SEAL)
    late = tmp_path / "late.jsonl"
    append(late, at_utc=SEALED_UTC, add=lambda _: SEAL)
    with pytest.raises(
        RecordError, match="was measured at 2027-01-01T00:00:00\\+00:00, which is in the future"
    ):
        record(late, measurement(estimate(2.0), at_utc="2027-01-01T00:00:00+00:00"))
    with pytest.raises(RecordError, match="the predictions are dated"):
        append(
            late,
            at_utc=LATER_UTC,
            add=lambda _: replace(SEAL, sealed_utc="2026-12-21T12:00:00+00:00"),
        )


def test_an_attempt_without_a_run_stays_visible(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append(path, at_utc=SEALED_UTC, add=lambda _: SEAL)
    attempt = Attempt(seal_sha256=SHA256, at=AT, folder="load-00")
    for _ in range(2):
        append(path, at_utc=SEALED_UTC, add=lambda _: attempt)
    replayed = measurement(estimate(2.0, 1.9, 2.1))
    record(path, replace(replayed, measured=replace(replayed.measured, asked_as=REPLAYED)))
    (experiment,) = score_of(read_ledger(path)).experiments
    assert (len(experiment.attempts), experiment.n_broken_off) == (2, 1)


def test_lines_of_an_older_version_are_what_they_were(tmp_path):
    """The ledger of this repository was begun without attempts and evidence; new lines go on after them."""
    ours = Path(__file__).parents[2] / "ledger" / "ledger.jsonl"
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(ours.read_bytes())
    n_lines = len(read_ledger(path))
    assert b'"attempt"' not in ours.read_bytes().splitlines()[0]
    append(
        path,
        at_utc="2027-11-21T12:00:01+00:00",
        add=lambda _: Attempt(seal_sha256="", at=AT, folder="f"),
    )
    assert path.read_bytes().startswith(ours.read_bytes())
    assert len(read_ledger(path)) == n_lines + 1


def test_a_run_is_known_by_its_files(tmp_path):
    (tmp_path / "raw").mkdir()
    for name in ("manifest.json", "SHA256SUMS", "raw/session-000-process-00.raw"):
        (tmp_path / name).write_text(name)
    stored = evidence_of(tmp_path)
    assert [one.name for one in stored] == [
        "manifest.json",
        "SHA256SUMS",
        "raw/session-000-process-00.raw",
    ]
    refuse_changed(tmp_path, stored, run_id="a")
    (tmp_path / "manifest.json").write_text("edited")
    with pytest.raises(RecordError, match=r"manifest.json of run a changed since"):
        refuse_changed(tmp_path, stored, run_id="a")
    (tmp_path / "raw" / "session-000-process-00.raw").unlink()
    with pytest.raises(
        RecordError, match=r"manifest.json, raw/session-000-process-00.raw of run a"
    ):
        refuse_changed(tmp_path, stored, run_id="a")


def test_the_same_raw_log_is_no_second_measurement(tmp_path):
    path = tmp_path / "ledger.jsonl"
    raw = (FileSum(name="raw/session-000-process-00.raw", sha256="1"),)
    other = replace(SEAL, experiment="y")
    for one in (SEAL, other):
        append(path, at_utc=SEALED_UTC, add=lambda _, one=one: one)

    def with_log(run_id):
        found = measurement(estimate(2.0, 1.9, 2.1), run_id=run_id)
        return replace(found, measured=replace(found.measured, evidence=raw))

    record(path, with_log("a"))
    with pytest.raises(RecordError, match="run b has a raw log of run a"):
        record(path, with_log("b"), sha256=sha256_of(other))
    assert record(path, with_log("a"), sha256=sha256_of(other)) is not None, (
        "one run may answer two predictions that were sealed before it"
    )
