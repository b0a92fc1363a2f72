"""Are tokens where the parts of steps put them, and are gaps those between tokens of one request?"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.records.load_run import load_run

from inferometer.errors import RecordError
from inferometer.records.latencies import deliveries, delivery_gaps, token_gaps, token_times
from inferometer.records.types import ABSENT, StepPartTable


def run_of(step_index, request_index, n_delivered):
    """Three steps of 10 ns, the second one after a pause of 5."""
    n = len(step_index)
    parts = StepPartTable(
        step_index=np.array(step_index, np.int32),
        request_index=np.array(request_index, np.int32),
        slot=np.zeros(n, np.int32),
        kind=np.zeros(n, np.int8),
        n_computed_tokens=np.ones(n, np.int32),
        n_delivered_tokens=np.array(n_delivered, np.int32),
    )
    steps = SimpleNamespace(start_ns=np.array([0, 15, 25]), duration_ns=np.array([10, 10, 10]))
    return SimpleNamespace(steps=steps, parts=parts, manifest=SimpleNamespace(run_id="one"))


def test_each_token_comes_at_the_end_of_its_step():
    tokens = token_times(run_of([0, 0, 1, 1, 2], [4, 7, 4, 7, 7], [1, 0, 1, 1, 1]))
    assert tokens.request_index.tolist() == [4, 4, 7, 7]
    assert tokens.time_ns.tolist() == [10, 25, 25, 35]


def test_gaps_are_between_tokens_of_one_request():
    gaps = token_gaps(
        token_times(run_of([0, 0, 1, 1, 2, 2], [7, 4, 4, 7, 4, 7], [1, 1, 0, 1, 1, 1]))
    )
    assert gaps.request_index.tolist() == [4, 7, 7]
    assert gaps.gap_ns.tolist() == [25, 15, 10]


def test_tokens_delivered_together_have_no_gap():
    tokens = token_times(run_of([0, 1, 2], [3, 3, 3], [0, 0, 3]))
    assert tokens.time_ns.tolist() == [35, 35, 35]
    assert token_gaps(tokens).gap_ns.tolist() == [0, 0]


def test_a_run_without_parts_is_refused():
    with pytest.raises(RecordError, match="no parts of steps"):
        token_times(
            SimpleNamespace(
                chunks=None, steps=None, parts=None, manifest=SimpleNamespace(run_id="x")
            )
        )


def test_no_tokens():
    assert token_gaps(token_times(run_of([0], [1], [0]))).gap_ns.size == 0


def test_a_false_count_of_the_server_is_not_expanded():
    run = load_run(40, tokens=16)
    n_tokens = run.chunks.n_tokens.copy()
    n_tokens[15::16] = 12_000_000
    unknown = np.where(run.chunks.request_index == 3, ABSENT, n_tokens)
    claimed = run.requests._replace(output_tokens=np.full(40, 12_000_000, np.int32))
    given = deliveries(replace(run, requests=claimed, chunks=run.chunks._replace(n_tokens=unknown)))
    per_request = np.bincount(given.request_index, weights=given.n_tokens)
    assert per_request.tolist() == [16.0] * 40, "max_tokens was 16"
    assert delivery_gaps(given).per_token_s().size <= 40 * 16


def test_a_record_without_exchanges_that_claims_too_many_tokens_is_refused():
    run = load_run(40, tokens=16)
    claimed = run.chunks._replace(n_tokens=np.full(len(run.chunks.n_tokens), 12_000_000))
    with pytest.raises(RecordError, match=r"the answers have 7\.68e\+09 tokens"):
        deliveries(replace(run, exchanges=None, chunks=claimed))
