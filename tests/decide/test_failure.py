"""What becomes of requests when a replica dies: are they sent again, do others wait, is it as before in the end?"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from inferometer.decide import failure
from inferometer.decide.candidates import Grid, Offer, candidates_of
from inferometer.decide.failure import failure_of
from inferometer.decide.sizing import size_device
from inferometer.decide.sizing_types import SizingQuestion, Task
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.simulate import hooks

START_UP_S = 60.0
_SAME = {"kind": "constant", "value": 100}
_TALK = {
    "name": "talk",
    "prompt_tokens": _SAME,
    "output_tokens": _SAME,
    "sessions": {"turns": {"kind": "constant", "value": 3}, "think_s": _SAME},
}


@pytest.fixture(scope="module")
def question():
    objective = parse_objective("ttft:p95<1s, tpot:p95<100ms")
    return SizingQuestion(
        spec=resolve_workload("chat"), offered_load=12.0, objective=objective, n_requests=300
    )


@pytest.fixture(scope="module")
def kind(question):
    """Several replicas of an L40S."""
    grid = Grid(tensor_parallel_sizes=(1,), max_num_seqs=(64,), max_num_batched_tokens=(2048,))
    return size_device(
        Task(
            question,
            candidates_of(
                catalog.find_model("llama-3.1-8b"),
                [Offer(hardware=catalog.find_hardware("l40s"), price=None)],
                grid,
            ).possible,
        )
    ).best


def replicas(n_replicas, block_size):
    deployment = SimpleNamespace(config=SimpleNamespace(block_size=block_size))
    return SimpleNamespace(n_replicas=n_replicas, candidate=SimpleNamespace(deployment=deployment))


def test_what_no_memory_holds_is_not_simulated(question, monkeypatch):
    """30 replicas of SGLang, whose pages are of one token, took 12 GB and 27 s before the first step."""
    monkeypatch.setattr(failure, "_simulated", lambda *_given: "simulated")
    found = failure_of(question, replicas(30, block_size=1), START_UP_S)
    assert found.outcome is None
    assert "KV blocks of 30 replicas are more than one simulation holds" in found.why_not
    assert failure_of(question, replicas(30, block_size=16), START_UP_S).outcome == "simulated"


def test_a_failure_ends_in_time(question, monkeypatch):
    """Requests of a quarter of an hour were simulated twice, however long that took."""

    class Clock:
        left_s = 10.0

        def __call__(self):
            return self.left_s

    clock = Clock()

    def simulated(*_given):
        hooks.check_poll()
        clock.left_s -= 5.0
        hooks.check_poll()

    monkeypatch.setattr(failure, "_simulated", simulated)
    several = replicas(3, block_size=16)
    found = failure_of(replace(question, time_limit=lambda: clock), several, START_UP_S)
    assert found.outcome is None
    assert found.why_not == "5,040 requests take longer than the time limit (--time-limit)"


@pytest.mark.slow
def test_as_few_as_will_do_miss_the_promise_when_one_dies(question, kind):
    seen = failure_of(question, kind, START_UP_S).outcome
    in_one = kind.sized_at.served.in_flight_load
    assert 0 < seen.n_cut_off < 4 * in_one
    assert seen.n_until_started == pytest.approx(12.0 * START_UP_S + seen.n_cut_off, rel=0.15)
    assert seen.good.value < seen.good_otherwise.value - 0.02
    assert seen.slo_met_again_s is None or seen.slo_met_again_s > 0


@pytest.mark.slow
def test_the_more_are_left_the_less_it_is_felt(question, kind):
    few, more, many = (
        failure_of(question, replace(kind, n_replicas=kind.n_replicas + n), START_UP_S).outcome
        for n in (0, 1, 6)
    )
    assert few.good.value < more.good.value < many.good.value
    assert many.slo_met_again_s <= many.window_s, "who is cut off alone is late"
    assert many.good_otherwise.value - many.good.value == pytest.approx(
        many.n_cut_off / many.n_until_started, abs=0.01
    )


@pytest.mark.slow
def test_what_cannot_be_told_is_not(question, kind):
    assert failure_of(question, replace(kind, n_replicas=1), START_UP_S) == (None, None)
    sessions = with_changes(question.spec, {"classes": [_TALK]}, where="a test")
    assert failure_of(replace(question, spec=sessions), kind, START_UP_S) == (
        None,
        "requests of its traffic follow one another",
    )
    crowd = replace(kind, n_replicas=10**6)
    assert "more than one simulation routes" in failure_of(question, crowd, START_UP_S).why_not
