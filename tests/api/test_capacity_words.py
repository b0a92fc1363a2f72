"""What does an answer of `capacity` say of its interval, and what would narrow it?"""

import pytest

from inferometer.api.capacity import next_step_of
from inferometer.api.decision_pages import CapacityAnswer, CapacityRow, PacedCapacity, capacity_page


def level(step_times, located):
    row = CapacityRow(
        located_load=located,
        met_load=18.2,
        missed_load=20.6,
        is_located=True,
        is_resolved=False,
        why="the longest probes stayed undecided",
        weakest="tpot",
        probes=(),
    )
    return PacedCapacity(step_times=step_times, capacity=row, probe_s=1.0)


@pytest.mark.parametrize(
    ("ends", "has_fit", "narrows"),
    [
        ((13.3, 32.0), False, "--fit FILE"),
        ((13.3, 32.0), True, "a fit of more measurements"),
        ((19.9, 20.2), False, "a larger --requests"),
        ((), False, "a larger --requests"),
        ((None, None), False, "a larger --requests"),
    ],
)
def test_what_narrows_the_interval_is_what_makes_it_wide(ends, has_fit, narrows):
    levels = (level("likely", 20.1), *(level("draw", end) for end in ends))
    assert narrows in next_step_of(levels, None, has_fit=has_fit)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("draw", "likely 20.1 requests/s, nowhere to 32 in 2 draws of the step times: a table"),
        ("slow", "likely 20.1 requests/s, slow nowhere, slow 32 requests/s: a table"),
    ],
)
def test_the_unit_stands_behind_its_number(kind, words):
    answer = CapacityAnswer(
        model_id="m",
        workload_name="chat",
        objective="tpot:p95<50ms",
        unit="requests/s",
        is_resolved=False,
        is_located=True,
        levels=(level("likely", 20.1), level(kind, None), level(kind, 32.0)),
        engine="vLLM",
        n_replicas=1,
        router=None,
        step_times_from="a table",
        next_step=None,
    )
    (trust,) = (line for line in capacity_page(answer).lines if line.label == "TRUST")
    assert words in trust.text
