"""Does a class that fans out become planners, subtasks that follow them, and syntheses that wait for all?"""

import msgspec
import numpy as np
import pytest

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import NONE
from inferometer.inputs.workload.reading import with_changes, workload_from_text
from inferometer.inputs.workload.replay import draw_workload

SPEC = workload_from_text(
    """
n_requests = 4000
[arrivals]
kind = "open"
rate_per_s = 4
[[classes]]
name = "agent"
weight_ratio = 2
prompt_tokens = { kind = "lognormal", median = 300, sigma = 1 }
output_tokens = { kind = "uniform", low = 50, high = 150 }
patience_s = { kind = "constant", value = 60 }
system_prompts = { tokens = { kind = "constant", value = 700 } }
[classes.fan_out]
subtasks = { kind = "uniform", low = 1, high = 6 }
prompt_tokens = { kind = "uniform", low = 20, high = 90 }
output_tokens = { kind = "exponential", mean = 200 }
[[classes]]
name = "chat"
weight_ratio = 1
prompt_tokens = { kind = "uniform", low = 100, high = 400 }
output_tokens = { kind = "exponential", mean = 200 }
sessions = { turns = { kind = "uniform", low = 1, high = 4 }, think_s = { kind = "exponential", mean = 10 } }
""",
    where="here",
)
SESSIONS = {
    "turns": {"kind": "constant", "value": 3},
    "think_s": {"kind": "constant", "value": 20},
}


def plan_of(*, fan_out=None, n_requests=4000, arrivals=None, **of_class):
    agent, chat = with_changes(SPEC, {}, where="here").classes
    first = msgspec.to_builtins(agent) | of_class
    first["fan_out"] = first["fan_out"] | (fan_out or {})
    changes = {"classes": [first, msgspec.to_builtins(chat)], "n_requests": n_requests}
    if arrivals is not None:
        changes["arrivals"] = arrivals
    return draw_workload(with_changes(SPEC, changes, where="here")).plan


def workflows_of(plan):
    """Planner, subtasks and synthesis of each workflow that was not cut off."""
    found = []
    for synthesis in np.unique(plan.joins[plan.joins != NONE]).tolist():
        planner = int(plan.follows[synthesis])
        subtasks = np.flatnonzero(plan.joins == synthesis)
        assert (plan.follows[subtasks] == planner).all()
        found.append((planner, subtasks, synthesis))
    return found


def held(plan, row):
    return plan.prompt_tokens[row] + plan.output_tokens[row]


def test_a_synthesis_waits_for_all_subtasks_and_its_prompt_has_their_answers():
    plan = plan_of()
    workflows = workflows_of(plan)
    assert len(workflows) > 500
    for planner, subtasks, synthesis in workflows:
        assert plan.class_index[planner] == 0
        assert subtasks.tolist() == list(range(planner + 1, synthesis))
        assert (plan.prefix_request[[*subtasks, synthesis]] == planner).all()
        assert (plan.prefix_tokens[[*subtasks, synthesis]] == held(plan, planner)).all()
        new = plan.prompt_tokens[subtasks] - held(plan, planner)
        assert ((new >= 20) & (new <= 90)).all()
        answers = plan.output_tokens[subtasks].sum()
        assert plan.prompt_tokens[synthesis] == held(plan, planner) + answers
    n_subtasks = [len(subtasks) for _, subtasks, _ in workflows]
    assert set(n_subtasks) == {1, 2, 3, 4, 5, 6}
    parts = plan.class_index == 0
    assert (plan.abort_after_ns[parts] == 60 * 10**9).all()
    assert (plan.think_ns[parts & (plan.follows != NONE)] == 0).all()


def test_the_rate_counts_all_requests():
    plan = plan_of(n_requests=20_000)
    span_s = plan.arrival_ns.max() / 1e9
    assert plan.n_requests / span_s == pytest.approx(4, rel=0.05)


def test_fan_outs_change_nothing_of_the_class_beside_them():
    plan, more = plan_of(), plan_of(fan_out={"subtasks": {"kind": "constant", "value": 9}})
    for name in ("prompt_tokens", "output_tokens", "think_ns"):
        one, other = (getattr(each, name)[each.class_index == 1] for each in (plan, more))
        n = min(len(one), len(other))
        assert n > 100
        assert np.array_equal(one[:n], other[:n])


def test_subtasks_that_share_nothing_have_prompts_of_their_own():
    plan = plan_of(fan_out={"shares_prefix": False})
    for planner, subtasks, synthesis in workflows_of(plan):
        assert (plan.prefix_request[subtasks] == NONE).all()
        assert (plan.prompt_tokens[subtasks] <= 90).all()
        assert plan.prefix_request[synthesis] == planner


def test_a_synthesis_has_lengths_and_pauses_of_its_own():
    own = {
        "synthesis_prompt_tokens": {"kind": "constant", "value": 33},
        "synthesis_output_tokens": {"kind": "constant", "value": 44},
        "think_s": {"kind": "constant", "value": 2},
    }
    plan = plan_of(fan_out=own)
    for planner, subtasks, synthesis in workflows_of(plan):
        assert plan.prompt_tokens[synthesis] == held(plan, planner) + 33
        assert plan.output_tokens[synthesis] == 44
        assert (plan.think_ns[[*subtasks, synthesis]] == 2 * 10**9).all()


def test_a_next_turn_goes_on_from_the_synthesis():
    plan = plan_of(sessions=SESSIONS)
    n_later = 0
    for planner, _, _ in workflows_of(plan):
        before = int(plan.follows[planner])
        if before == NONE:
            continue
        n_later += 1
        assert before in set(plan.joins.tolist()), "a synthesis"
        assert plan.think_ns[planner] == 20 * 10**9
        assert plan.prefix_request[planner] == before
        assert plan.prefix_tokens[planner] == held(plan, before)
        assert plan.prompt_tokens[planner] > held(plan, before)
        assert plan.session_index[planner] == plan.session_index[before]
    assert n_later > 100


def test_a_turn_that_is_too_long_ends_its_session_whichever_of_its_requests_is():
    most = 3000
    plan = plan_of(sessions=SESSIONS | {"max_context_tokens": most})
    is_agent = plan.class_index == 0
    rows = np.flatnonzero(is_agent)
    first_turns = set()
    for planner, subtasks, synthesis in workflows_of(plan):
        if plan.follows[planner] == NONE:
            first_turns |= {planner, *subtasks.tolist(), synthesis}
    complete = {row for one in workflows_of(plan) for row in (one[0], *one[1].tolist(), one[2])}
    later = [row for row in rows.tolist() if row in complete and row not in first_turns]
    assert later
    assert all(held(plan, row) <= most for row in later)
    assert len(later) < len(first_turns), "most sessions end early"


def test_a_cut_leaves_nobody_to_wait_for_who_is_left_out():
    for n_requests in range(1, 12):
        plan = plan_of(n_requests=n_requests)
        assert plan.n_requests == n_requests
        assert (plan.joins < n_requests).all()


def test_a_user_of_a_closed_loop_waits_for_the_synthesis():
    plan = plan_of(arrivals={"kind": "closed", "concurrency": 3})
    syntheses = set(plan.joins.tolist())
    planners = [planner for planner, _, _ in workflows_of(plan)]
    later = [row for row in planners if plan.follows[row] != NONE]
    assert len(later) == len(planners) - int((plan.follows[planners] == NONE).sum())
    agents_before = [row for row in later if plan.class_index[plan.follows[row]] == 0]
    assert agents_before
    assert all(int(plan.follows[row]) in syntheses for row in agents_before)


def test_an_unknown_key_is_refused_by_its_name():
    with pytest.raises(SpecError, match="beams"):
        plan_of(fan_out={"beams": 3})
