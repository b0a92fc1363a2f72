"""Are launches, weights and work told apart by steps of two widths, also beside noise, and left open where it is open?"""

import numpy as np
import pytest

from inferometer.records.summaries import limit_sentence, step_shares
from inferometer.records.tables import from_rows
from inferometer.records.types import SEQUENCES_OF_STEP, CeilingTable

FULL_BYTES, NARROW_BYTES = 500 * 2**20, 5 * 2**20
PHI = NARROW_BYTES / FULL_BYTES


def ceilings(
    launch_s, weights_s, work_s, *, n_rounds=24, noise=0.0, seed=0, kinds=3, more_rows_s=0.0
):
    """Rounds of a machine whose steps take this long; noise only ever adds.

    ``more_rows_s`` is what products of more than one row take besides, however many they are.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i_round in range(n_rounds):
        for kind, n in list(SEQUENCES_OF_STEP.items())[:kinds]:
            for size_bytes, share in ((FULL_BYTES, 1.0), (NARROW_BYTES, PHI)):
                step_s = launch_s + share * (weights_s + n * work_s + (n > 1) * more_rows_s)
                step_s *= 1 + noise * rng.exponential()
                rows.append(
                    {
                        "point_index": -1,
                        "repetition": -1,
                        "started_ns": i_round,
                        "kind": kind,
                        "dtype": "",
                        "footprint_bytes": size_bytes,
                        "value_per_s": 1 / step_s,
                    }
                )
    return from_rows(CeilingTable, rows)


@pytest.mark.parametrize(
    ("times_s", "limit"),
    [
        ((0.02, 0.06, 0.01), "weight bandwidth"),
        ((0.06, 0.02, 0.01), "launch overhead"),
        ((0.01, 0.02, 0.06), "compute"),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_the_largest_part_is_named(times_s, limit, noise):
    shares = step_shares(ceilings(*times_s, noise=noise))
    assert shares.limited_by == limit
    assert shares.parts[0].cause == limit
    assert sum(part.fraction.value for part in shares.parts) == pytest.approx(1)
    if not noise:
        found = {part.cause: part.fraction.value for part in shares.parts}
        true = np.array(times_s) / sum(times_s)
        assert [
            found[cause] for cause in ("launch overhead", "weight bandwidth", "compute")
        ] == pytest.approx(true.tolist(), abs=1e-6)


def test_a_kernel_of_one_row_is_no_work_of_the_sequences():
    shares = step_shares(ceilings(0.02, 0.06, 0.001, more_rows_s=0.05))
    assert shares.parts[0].cause == "weight bandwidth"
    assert shares.parts[0].fraction.value == pytest.approx(0.06 / 0.081)


def test_records_without_the_largest_batch_are_read_as_before():
    shares = step_shares(ceilings(0.02, 0.06, 0.01, kinds=2))
    assert shares.parts[0].fraction.value == pytest.approx(0.06 / 0.09)
    assert step_shares(ceilings(0.02, 0.06, 0.01, kinds=1)) is None


def test_intervals_hold_the_truth_of_noisy_rounds_mostly():
    true, n_held = 0.06 / 0.09, 0
    for seed in range(40):
        shares = step_shares(ceilings(0.02, 0.06, 0.01, noise=0.2, seed=seed))
        (weights,) = [p.fraction for p in shares.parts if p.cause == "weight bandwidth"]
        n_held += weights.low <= true <= weights.high
    assert n_held >= 34


def test_equal_parts_are_not_decided():
    n_decided = sum(
        step_shares(ceilings(0.04, 0.04, 0.01, noise=0.4, seed=seed)).limited_by is not None
        for seed in range(40)
    )
    assert n_decided <= 6


def test_too_few_rounds_or_other_probes_say_nothing():
    assert step_shares(None) is None
    assert step_shares(ceilings(0.02, 0.06, 0.01, n_rounds=3)) is None
    table = ceilings(0.02, 0.06, 0.01)
    assert step_shares(table._replace(kind=np.zeros_like(table.kind))) is None


def test_the_sentence_can_be_repeated_and_says_what_would_decide():
    decided = limit_sentence(step_shares(ceilings(0.02, 0.06, 0.01)))
    assert "the limit is weight bandwidth: each token reads all 500 MiB of weights" in decided
    assert "half the bytes would make it 1.5x as fast" in decided
    launches = limit_sentence(step_shares(ceilings(0.06, 0.02, 0.01)))
    assert "faster memory does not" in launches
    compute = limit_sentence(step_shares(ceilings(0.01, 0.02, 0.06)))
    assert "grows with each sequence" in compute
    is_open = limit_sentence(step_shares(ceilings(0.04, 0.04, 0.01, noise=0.4)))
    assert "undecided" in is_open
    assert "four times the rounds" in is_open
