"""Are beam searches the requests that vLLM's server makes of them, and whom does each wait for?"""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import NONE, block_contents, first_requests, request_plan
from inferometer.inputs.workload.reading import with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.simulate.run import demand_of

US = 1000


def spec_of(*, width=3, tokens=5, n_requests=20, **changes):
    one = {
        "name": "search",
        "prompt_tokens": {"kind": "uniform", "low": 20, "high": 90},
        "output_tokens": {"kind": "constant", "value": tokens},
        "beams": {"width": width, "think_s": 5e-6, "apart_s": 2e-6},
    }
    spec = {"n_requests": n_requests, "classes": [one | changes]}
    return msgspec.convert(spec, WorkloadSpec)


def drawn(spec):
    return draw_workload(spec, has_beams=True).plan


def awaited(plan, row):
    """Whose ends does it wait for?"""
    lead = row if plan.accompanies[row] == NONE else plan.accompanies[row]
    return {int(plan.follows[row]), *np.flatnonzero(plan.joins == lead).tolist()} - {NONE}


def steps_of(plan):
    """The rows of each step, search after search, by the lengths of the prompts alone."""
    roots = np.flatnonzero(plan.follows == NONE).tolist()
    for root, end in zip(roots, [*roots[1:], plan.n_requests], strict=True):
        step = plan.prompt_tokens[root:end] - plan.prompt_tokens[root]
        yield [root + np.flatnonzero(step == k) for k in range(int(step.max()) + 1)]


@given(width=st.integers(2, 6), tokens=st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_each_token_is_a_request_for_each_beam_that_waits_for_all_before(width, tokens):
    plan = drawn(spec_of(width=width, tokens=tokens))
    assert (plan.output_tokens == 1).all()
    assert (plan.max_tokens == 1).all()
    searches = list(steps_of(plan))
    assert len(searches) == 20
    for steps in searches:
        assert [len(rows) for rows in steps] == [1] + [width] * (tokens - 1)
        assert awaited(plan, steps[0][0]) == set()
        for before, rows in pairwise(steps):
            for beam, row in enumerate(rows.tolist()):
                assert awaited(plan, row) == set(before.tolist())
                assert plan.think_ns[row] == (5 + 2 * beam) * US


@given(width=st.integers(2, 6), block_size=st.sampled_from([1, 4, 16]))
@settings(max_examples=20, deadline=None)
def test_a_beam_holds_the_tokens_of_one_before_it_and_no_two_hold_the_same(width, block_size):
    plan = drawn(spec_of(width=width, tokens=9))
    contents = block_contents(plan, block_size)
    parents = []
    for steps in steps_of(plan):
        for before, rows in pairwise(steps):
            assert set(plan.prefix_request[rows]) <= set(before.tolist())
            for row in rows:
                parent, n_said = plan.prefix_request[row], plan.prompt_tokens[row] - 1
                assert n_said == plan.prompt_tokens[parent]
                mine, its = (contents.ids[contents.start[one] :] for one in (row, parent))
                n_blocks = n_said // block_size
                assert np.array_equal(mine[:n_blocks], its[:n_blocks])
            if (n_tokens := int(plan.prompt_tokens[rows[0]])) % block_size == 0:
                last = contents.ids[contents.start[rows] + n_tokens // block_size - 1]
                assert len(set(last.tolist())) == width, "each ends with a token of its own"
            if len(before) > 1:
                parents += (plan.prefix_request[rows] - before[0]).tolist()
    counts = np.bincount(parents, minlength=width)
    expected = len(parents) / width
    assert abs(counts - expected).max() < 6 * expected**0.5, "any of them alike"


def test_it_never_ends_before_max_tokens():
    plan = drawn(spec_of(tokens=4, max_tokens={"kind": "cap", "tokens": 6}, n_requests=1))
    assert plan.n_requests == 1 + 3 * 5


def test_the_next_turn_waits_for_all_beams_and_goes_on_from_the_first():
    turns = {"kind": "constant", "value": 2}
    sessions = {"turns": turns, "think_s": {"kind": "constant", "value": 1}}
    later = {"later_prompt_tokens": {"kind": "constant", "value": 7}}
    plan = drawn(spec_of(sessions=sessions | later, n_requests=2))
    second = 1 + 3 * 4
    assert plan.n_requests == 2 * second
    assert awaited(plan, second) == {second - 3, second - 2, second - 1}
    assert plan.think_ns[second] == 10**9
    assert plan.prompt_tokens[second] == plan.prompt_tokens[0] + 5 + 7
    assert (plan.prefix_request[second], plan.prefix_tokens[second]) == (
        second - 3,
        plan.prompt_tokens[0] + 5,
    )


def test_users_send_the_next_search_when_all_beams_have_ended():
    arrivals = {"kind": "closed", "concurrency": 1}
    plan = drawn(with_changes(spec_of(n_requests=3), {"arrivals": arrivals}, where="here"))
    n_rows = plan.n_requests // 3
    for root in (n_rows, 2 * n_rows):
        assert awaited(plan, root) == {root - 3, root - 2, root - 1}


def test_other_classes_stay_as_they_are():
    plain = {
        "name": "plain",
        "prompt_tokens": {"kind": "constant", "value": 30},
        "output_tokens": {"kind": "constant", "value": 8},
    }
    spec = msgspec.structs.replace(
        spec_of(n_requests=60),
        classes=(*spec_of().classes, msgspec.convert(plain, type(spec_of().classes[0]))),
    )
    plan = drawn(spec)
    is_plain = plan.class_index == 1
    assert (plan.output_tokens[is_plain] == 8).all()
    assert (plan.follows[is_plain] == NONE).all()
    n_searches = 60 - int(is_plain.sum())
    assert n_searches > 10
    assert plan.n_requests == int(is_plain.sum()) + 13 * n_searches


def test_more_requests_are_the_same_ones_and_some_more():
    few, more = drawn(spec_of(n_requests=5)), drawn(spec_of(n_requests=9))
    for name in few._fields:
        assert np.array_equal(getattr(few, name), getattr(more, name)[: few.n_requests]), name


def test_what_sends_no_beams_refuses_them():
    with pytest.raises(SpecError, match="class 'search' has beams") as refused:
        draw_workload(spec_of())
    assert "simulate" in str(refused.value)
    fan_out = {
        "subtasks": {"kind": "constant", "value": 2},
        "prompt_tokens": {"kind": "constant", "value": 2},
        "output_tokens": {"kind": "constant", "value": 2},
    }
    with pytest.raises(msgspec.ValidationError, match="neither fan_out nor patience_s"):
        spec_of(fan_out=fan_out)
    with pytest.raises(SpecError, match="requests of one token for 90 beam searches"):
        drawn(spec_of(n_requests=90, tokens=2_000_000))


@pytest.mark.parametrize("n_requests", [1, 3, 14, 15, 101])
def test_a_probe_that_ends_within_a_search_sends_its_first_requests(n_requests):
    """As a search for loads takes them, the plan cut anywhere is one that can be sent, and each waits as before."""
    plan = drawn(spec_of())
    cut = first_requests(plan, n_requests)
    checked = request_plan("the cut plan", "request {}".format, **cut._asdict())
    assert checked.n_requests == demand_of(checked, 16).n_requests == n_requests
    for row in range(n_requests):
        assert awaited(checked, row) == awaited(plan, row)
