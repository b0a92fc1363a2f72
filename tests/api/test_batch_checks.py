"""Are padded batches and wide windows found in a simulation, and is nothing of others?"""

import numpy as np
import pytest

import inferometer as im
from inferometer.api.simulated_record import padded_fraction
from inferometer.records.types import ABSENT, RequestTable, VisitTable


def table(admitted_ns, prompts, outputs, finished_ns=None):
    n = len(admitted_ns)
    columns = {name: np.zeros(n, dtype=np.int64) for name in RequestTable._fields}
    columns |= {
        "admitted_ns": np.array(admitted_ns),
        "finished_ns": np.full(n, 9) if finished_ns is None else np.array(finished_ns),
        "prompt_tokens": np.array(prompts),
        "output_tokens": np.array(outputs),
        "request_index": np.arange(n),
    }
    return RequestTable(**columns)


def visits(replicas):
    n = len(replicas)
    zeros = np.zeros(n, dtype=np.int64)
    return VisitTable(np.arange(n), np.array(replicas), zeros, zeros)


def test_padding_is_what_the_longest_of_a_batch_asks_of_the_others():
    # A batch of 10+20 and 30+40 tokens computes 2 (30 + 40) rows for 100 that are wanted.
    assert padded_fraction(table([5, 5], [10, 30], [20, 40]), None) == pytest.approx(1 - 100 / 140)


def test_batches_of_other_instants_or_replicas_pad_one_another_not():
    assert padded_fraction(table([5, 6], [10, 30], [20, 40]), None) == 0
    assert padded_fraction(table([5, 5], [10, 30], [20, 40]), visits([0, 1])) == 0


def test_requests_of_a_closed_loop_are_in_another_order_than_their_visits():
    """They stand as they were sent: a simulation of users of two replicas ended in an IndexError."""
    crossed = table([5, 5, 5], [10, 30, 10], [20, 40, 20])._replace(
        request_index=np.array([2, 0, 1])
    )
    # Requests 1 and 2, of one length, are one replica's; request 0 is alone at the other.
    assert padded_fraction(crossed, visits([1, 0, 0])) == 0
    assert padded_fraction(crossed, visits([0, 1, 0])) > 0
    answer = im.simulate(
        "smollm2-135m", hardware="l4", concurrency=3, requests=50, policy="static", replicas=2
    )
    assert answer.checks


def test_requests_that_are_not_done_tell_nothing():
    assert padded_fraction(table([5, ABSENT], [10, 30], [20, 40], [9, ABSENT]), None) == 0
    assert padded_fraction(table([ABSENT], [10], [0], [ABSENT]), None) is None


def simulated(**options):
    return im.simulate(
        "smollm2-135m", hardware="l4", rate=5, requests=100, workload="chat", **options
    )


def test_static_batches_of_chat_are_padded_and_continuous_ones_have_no_such_check():
    (padding,) = simulated(policy="static").checks
    assert (padding.name, padding.finding) == ("padding", "found")
    assert "padded" in str(simulated(policy="static"))
    assert simulated().checks == ()


def test_static_batches_of_equal_requests_are_not_padded():
    answer = im.simulate(
        "smollm2-135m", hardware="l4", rate=5, requests=50, workload="64x32", policy="static"
    )
    assert [(one.name, one.finding) for one in answer.checks] == [("padding", "ruled out")]


def test_a_window_of_two_seconds_is_too_wide_and_one_of_a_millisecond_is_not(tmp_path):
    found = {}
    for window_s in (2.0, 0.001):
        gate = tmp_path / "gate.toml"
        gate.write_text(f"[[classes]]\nname = '*'\nwindow_s = {window_s}\nwindow_size = 64\n")
        (check,) = simulated(gate=gate).checks
        assert check.name == "wide_window"
        found[window_s] = check.finding
    assert found == {2.0: "found", 0.001: "ruled out"}
