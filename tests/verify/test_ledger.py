"""Does the ledger keep what was written, and name the line that was changed?"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sealed_examples import AT, LATER_UTC, SEALED_UTC, estimate, measurement, seal

from inferometer.errors import RecordError
from inferometer.verify.ledger import append, read_ledger
from inferometer.verify.score import check_of, score_of
from inferometer.verify.seals import sha256_of

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
    assert [(one.run_id, one.validity) for one in experiment.measured] == [("bad", "INVALID"), ("a", "VALID")]
    (total,) = score_of(entries).totals
    assert (total.n_measured, total.n_inside, total.n_wrong, total.median_error_fraction) == (1, 0, 1, pytest.approx(1 - 2 / 2.6))


def test_what_was_never_measured_stays_open(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append(path, at_utc=SEALED_UTC, add=lambda _: SEAL)
    assert score_of(read_ledger(path)).n_open == 1
    record(path, measurement(estimate(2.0), validity="INVALID"))
    score = score_of(read_ledger(path))
    assert (score.n_open, score.totals, score.experiments[0].verdict) == (1, (), "INVALID")
    assert score.experiments[0].open_questions == (AT,)


def test_the_first_valid_measurement_counts(path):
    with pytest.raises(RecordError, match="answered before, by run a"):
        record(path, measurement(estimate(2.0, 1.9, 2.1), run_id="another"))
    assert record(path, measurement(estimate(2.6, 2.5, 2.7))) is None
    assert len(read_ledger(path)) == 3


def test_an_unknown_seal_is_not_checked(path):
    with pytest.raises(RecordError, match="does not know"):
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
            append(path, at_utc=SEALED_UTC, add=lambda _, i=i: replace(SEAL, experiment=f"{name}{i}"))

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write_ten, "abcd"))
    experiments = [entry.seal.experiment for entry in read_ledger(path)]
    assert sorted(experiments) == sorted(f"{name}{i}" for name in "abcd" for i in range(10))
