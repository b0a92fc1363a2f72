"""Are repetitions judged by the probes around them, and views at steady speed told apart?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.repetitions import (
    judging_ceilings_per_s,
    probes_of,
    repetitions_of,
    steady_views,
)
from inferometer.records.types import CeilingTable, ProbeKind

NEAR, FAR = (SweepPoint(prompt_tokens=prompt, batch_size=1, gen_tokens=3) for prompt in (100, 200))


def test_no_probes_one_view(make_run):
    run = make_run({NEAR: ([0.1], [1.0])})
    assert len(steady_views(run)) == 1
    assert probes_of(None, ProbeKind.READ) is None
    assert np.isnan(judging_ceilings_per_s(repetitions_of(run)[0], None)).all()


def test_times_scale_with_the_speed_at_their_time(make_run, rows):
    run = make_run({NEAR: ([1.0], [2.0]), FAR: ([1.0], [2.0])})
    probes = [
        rows.probe(0, started_ns=ns, value_per_s=value)
        for ns, value in ((0, 10e9), (3_000_000_001, 30e9), (7_000_000_000, 30e9))
    ]
    run = replace(run, ceilings=tables.from_rows(CeilingTable, probes))
    measured, steady = steady_views(run)
    # The first repetition lies between 10 and 30 GB/s and is judged by the larger.
    assert [point.prefill_s.tolist() for point in measured] == [[1.0], [1.0]]
    assert [point.prefill_s.tolist() for point in steady] == [[1.0], [1.0]]
    slower = replace(run, ceilings=run.ceilings._replace(value_per_s=np.array([10e9, 10e9, 30e9])))
    _, steady = steady_views(slower)
    assert steady[0].prefill_s[0] / steady[1].prefill_s[0] == pytest.approx(10 / 30)
    assert steady[0].tpot_s[0] / steady[1].tpot_s[0] == pytest.approx(10 / 30)


def test_failed_probes_and_small_footprints_are_no_ceiling(rows):
    table = tables.from_rows(
        CeilingTable,
        [
            rows.probe(0, started_ns=0, value_per_s=np.nan),
            rows.probe(0, started_ns=1, value_per_s=90e9, footprint=2**20),
            rows.probe(0, started_ns=2, value_per_s=20e9),
        ],
    )
    assert probes_of(table, ProbeKind.READ).value_per_s.tolist() == [20e9]
    assert probes_of(table, ProbeKind.COPY) is None
