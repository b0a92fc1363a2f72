"""Does a workload's plan hold what was asked, and does a what-if change nothing else?

Tests at the level 0.001, seeds fixed.
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import NONE, RequestPlan
from inferometer.inputs.workload.reading import with_changes, workload_from_text
from inferometer.inputs.workload.replay import draw_workload

LEVEL = 1e-3
CHAT = """
n_requests = 3000
[arrivals]
kind = "open"
rate_per_s = 4
[[classes]]
name = "chat"
weight_ratio = 3
prompt_tokens = { kind = "lognormal", median = 300, sigma = 1 }
output_tokens = { kind = "lognormal", median = 100, sigma = 0.8 }
priority = 0
slo = "ttft p95 < 500ms"
patience_s = { kind = "exponential", mean = 20 }
[classes.sessions]
turns = { kind = "uniform", low = 1, high = 6 }
think_s = { kind = "exponential", mean = 10 }
max_context_tokens = 2500
[[classes]]
name = "summary"
weight_ratio = 1
prompt_tokens = { kind = "uniform", low = 1000, high = 4000 }
output_tokens = { kind = "exponential", mean = 200 }
correlation_ratio = 0.5
priority = 5
max_tokens = { kind = "cap", tokens = 256 }
[classes.system_prompts]
n_prompts = 4
popularity_exponent = 1.0
tokens = { kind = "uniform", low = 50, high = 500 }
[tenants]
n_tenants = 6
popularity_exponent = 0.5
"""
SPEC = workload_from_text(CHAT, where="here")


def plan_of(**changes):
    return draw_workload(with_changes(SPEC, changes, where="here")).plan


PLAN = plan_of()


def classes(**changes):
    """The classes, the first one changed."""
    first, second = with_changes(SPEC, {}, where="here").classes
    import msgspec

    return [msgspec.to_builtins(first) | changes, msgspec.to_builtins(second)]


def same(plan, other, *, but=()):
    for name in RequestPlan._fields:
        if name not in but:
            assert np.array_equal(getattr(plan, name), getattr(other, name)), name


def test_another_rate_changes_nothing_but_instants():
    fast = plan_of(arrivals={"rate_per_s": 40})
    same(PLAN, fast, but=("arrival_ns",))
    first = PLAN.follows == NONE
    assert np.all(np.abs(fast.arrival_ns[first] * 10 - PLAN.arrival_ns[first]) <= 6)


def test_another_process_changes_nothing_but_instants():
    same(PLAN, plan_of(arrivals={"process": "gamma", "burstiness_ratio": 0.2}), but=("arrival_ns",))


def test_longer_outputs_do_not_move_arrivals_or_prompts():
    single = [one | {"sessions": None} for one in classes()]
    plan = plan_of(classes=single)
    longer = plan_of(
        classes=[single[0] | {"output_tokens": {"kind": "constant", "value": 999}}, single[1]]
    )
    same(plan, longer, but=("output_tokens", "max_tokens"))
    is_chat = plan.class_index == 0
    assert np.all(longer.output_tokens[is_chat] == 999)
    assert np.array_equal(longer.output_tokens[~is_chat], plan.output_tokens[~is_chat])


def test_another_think_time_changes_nothing_else():
    sessions = classes()[0]["sessions"] | {"think_s": {"kind": "constant", "value": 1}}
    same(PLAN, plan_of(classes=classes(sessions=sessions)), but=("think_ns",))


def test_another_priority_or_patience_changes_nothing_else():
    same(
        PLAN,
        plan_of(classes=classes(priority=9, patience_s=None)),
        but=("priority", "abort_after_ns"),
    )


def test_another_seed_changes_everything():
    other = plan_of(seed=1)
    for name in (
        "arrival_ns",
        "prompt_tokens",
        "output_tokens",
        "class_index",
        "tenant_index",
        "abort_after_ns",
    ):
        assert not np.array_equal(getattr(PLAN, name), getattr(other, name)), name


@pytest.mark.slow
@given(st.integers(1, 3000), st.sampled_from(["open", "closed", "at_once"]))
def test_fewer_requests_are_the_first_ones(n, kind):
    arrivals = {"kind": kind} | (
        {"concurrency": 7, "think_s": {"kind": "exponential", "mean": 2}}
        if kind == "closed"
        else {}
    )
    whole, part = (plan_of(arrivals=arrivals, n_requests=count) for count in (3000, n))
    assert part.n_requests == n
    for name in RequestPlan._fields:
        assert np.array_equal(getattr(whole, name)[:n], getattr(part, name)), name


def test_a_duration_keeps_the_first_ones_too():
    part = plan_of(duration_s=60)
    assert part.arrival_ns.max() <= 60e9
    n = part.n_requests
    assert PLAN.arrival_ns[n] > 60e9
    assert np.array_equal(PLAN.prompt_tokens[:n], part.prompt_tokens)


def test_a_duration_alone_ends_a_workload():
    by_time = draw_workload(
        with_changes(SPEC, {"n_requests": None, "duration_s": 500}, where="here")
    ).plan
    firsts = by_time.follows == NONE
    assert by_time.arrival_ns[firsts].max() <= 500e9
    n_sessions = int(firsts.sum())
    expected = 500 * 4 / mean_turns()
    assert LEVEL < stats.poisson.cdf(n_sessions, expected) < 1 - LEVEL


def mean_turns():
    """3/4 of sessions have turns rounded from a uniform number of 1 to 6, 1/4 have one."""
    shares = np.array([0.5, 1, 1, 1, 1, 0.5]) / 5
    return 0.75 * (shares * np.arange(1, 7)).sum() + 0.25


def test_rate_counts_requests_of_sessions_too():
    """Without a context limit, sessions begin at the rate that makes the requests' rate the one asked for."""
    sessions = classes()[0]["sessions"] | {"max_context_tokens": None}
    plan = plan_of(classes=classes(sessions=sessions), n_requests=30_000)
    firsts = np.flatnonzero(plan.follows == NONE)
    n_sessions, span_s = len(firsts), plan.arrival_ns[firsts[-1]] / 1e9
    assert LEVEL < stats.gamma.cdf(span_s, n_sessions, scale=mean_turns() / 4) < 1 - LEVEL


def test_class_weights_count_sessions():
    firsts = PLAN.follows == NONE
    n_chat = int((PLAN.class_index[firsts] == 0).sum())
    assert stats.binomtest(n_chat, int(firsts.sum()), 0.75).pvalue > LEVEL
    assert np.array_equal(np.unique(PLAN.priority[PLAN.class_index == 1]), [5])


def test_turns_carry_on_what_was_said():
    later = np.flatnonzero(PLAN.follows != NONE)
    before = PLAN.follows[later]
    assert later.size > 500
    assert np.array_equal(before, later - 1)
    assert np.array_equal(PLAN.prefix_request[later], before)
    assert np.array_equal(
        PLAN.prefix_tokens[later], PLAN.prompt_tokens[before] + PLAN.output_tokens[before]
    )
    assert np.all(PLAN.prompt_tokens[later] > PLAN.prefix_tokens[later])
    assert np.all(PLAN.prompt_tokens[later] + PLAN.output_tokens[later] <= 2500)
    assert np.array_equal(PLAN.session_index[later], PLAN.session_index[before])
    assert np.array_equal(PLAN.tenant_index[later], PLAN.tenant_index[before])
    assert stats.kstest(PLAN.think_ns[later] / 1e9, "expon", args=(0, 10)).pvalue > LEVEL


def test_later_turns_may_have_their_own_length():
    sessions = classes()[0]["sessions"] | {"later_prompt_tokens": {"kind": "constant", "value": 3}}
    plan = plan_of(classes=classes(sessions=sessions))
    later = plan.follows != NONE
    assert np.all(plan.prompt_tokens[later] - plan.prefix_tokens[later] == 3)


def test_only_sessions_have_a_session():
    assert np.all((PLAN.session_index != NONE) == (PLAN.class_index == 0))


def test_system_prompts_are_shared_by_those_who_begin_with_them():
    mine = np.flatnonzero(PLAN.class_index == 1)
    owner = PLAN.prefix_request[mine]
    holders = mine[owner == NONE]
    assert len(holders) == 4
    assert np.all(np.isin(owner[owner != NONE], holders))
    shared = PLAN.prefix_tokens[mine[owner != NONE]]
    assert len(np.unique(shared)) == 4
    assert shared.min() >= 50
    groups = np.array([int((owner == holder).sum()) + 1 for holder in holders])
    shares = 1 / np.arange(1, 5)
    assert stats.chisquare(np.sort(groups)[::-1], shares / shares.sum() * len(mine)).pvalue > LEVEL


def test_a_cap_cuts_and_is_declared():
    mine = PLAN.class_index == 1
    assert np.all(PLAN.max_tokens[mine] == 256)
    assert PLAN.output_tokens[mine].max() == 256
    assert np.array_equal(PLAN.max_tokens[~mine], PLAN.output_tokens[~mine])
    double = plan_of(classes=classes(max_tokens={"kind": "multiple", "ratio": 2.5}))
    chat = double.class_index == 0
    assert np.array_equal(double.max_tokens[chat], np.ceil(double.output_tokens[chat] * 2.5))


def test_patience_is_drawn_for_those_who_have_some():
    patient = PLAN.abort_after_ns == NONE
    assert np.array_equal(patient, PLAN.class_index == 1)
    assert stats.kstest(PLAN.abort_after_ns[~patient] / 1e9, "expon", args=(0, 20)).pvalue > LEVEL


def test_tenants_follow_their_popularity():
    firsts = PLAN.follows == NONE
    counts = np.bincount(PLAN.tenant_index[firsts], minlength=6)
    shares = np.arange(1, 7) ** -0.5
    assert stats.chisquare(counts, shares / shares.sum() * counts.sum()).pvalue > LEVEL


@pytest.mark.parametrize("rho", [-0.8, 0.0, 0.3, 0.95])
def test_lengths_correlate_as_asked_and_keep_their_distributions(rho):
    one = {
        "name": "one",
        "prompt_tokens": {"kind": "lognormal", "median": 5000, "sigma": 1},
        "output_tokens": {"kind": "lognormal", "median": 3000, "sigma": 0.7},
        "correlation_ratio": rho,
    }
    plan = plan_of(classes=[one], n_requests=8000)
    found = np.corrcoef(np.log(plan.prompt_tokens), np.log(plan.output_tokens))[0, 1]
    assert abs(np.arctanh(found) - np.arctanh(rho)) * np.sqrt(8000 - 3) < stats.norm.ppf(
        1 - LEVEL / 2
    )
    assert stats.kstest(plan.output_tokens, stats.lognorm(0.7, scale=3000).cdf).pvalue > LEVEL


def test_a_closed_loop_has_one_request_of_each_user_at_a_time():
    arrivals = {
        "kind": "closed",
        "concurrency": 5,
        "think_s": {"kind": "exponential", "mean": 2},
        "start_over_s": 10,
    }
    plan = plan_of(arrivals=arrivals)
    firsts = np.flatnonzero(plan.follows == NONE)
    assert plan.arrival_ns[firsts].tolist() == [0, 2e9, 4e9, 6e9, 8e9]
    user = np.zeros(plan.n_requests, int)
    user[firsts] = np.arange(5)
    for row in np.flatnonzero(plan.follows != NONE):
        user[row] = user[plan.follows[row]]
    for k in range(5):
        chain = np.flatnonzero(user == k)
        assert np.array_equal(plan.follows[chain[1:]], chain[:-1])
    between = (plan.follows != NONE) & (plan.prefix_request != plan.follows)
    assert stats.kstest(plan.think_ns[between] / 1e9, "expon", args=(0, 2)).pvalue > LEVEL


def test_a_batch_waits_at_the_start():
    plan = plan_of(arrivals={"kind": "at_once"})
    assert set(plan.arrival_ns[plan.follows == NONE]) == {0}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"n_requests": None}, "no end"),
        (
            {"n_requests": None, "duration_s": 5, "arrivals": {"kind": "closed", "concurrency": 2}},
            "depends on the server",
        ),
        (
            {"duration_s": 5, "arrivals": {"kind": "closed", "concurrency": 2}},
            "depends on the server",
        ),
        ({"n_requests": None, "duration_s": 1e-6}, "no request comes"),
        (
            {"n_requests": None, "duration_s": 1e9, "arrivals": {"rate_per_s": 4000}},
            r"about 4e\+12 requests",
        ),
        (
            {
                "arrivals": {
                    "profile": {"kind": "ramp", "from_ratio": 1, "to_ratio": 0, "over_s": 10}
                }
            },
            r"only \d+ of 3000 requests ever come",
        ),
    ],
)
def test_workloads_without_end_or_requests_are_refused(changes, what):
    with pytest.raises(SpecError, match=what):
        plan_of(**changes)


def test_a_profile_that_brings_too_many_requests_is_refused(monkeypatch):
    monkeypatch.setattr("inferometer.inputs.workload.drawing.MAX_REQUESTS", 100_000)
    profile = {"kind": "ramp", "from_ratio": 1, "to_ratio": 2**31 - 1, "over_s": 5}
    with pytest.raises(SpecError, match="requests come within duration_s"):
        plan_of(n_requests=None, duration_s=10, arrivals={"profile": profile})


def test_names_travel_with_the_plan():
    drawn = draw_workload(SPEC)
    assert drawn.class_names == ("chat", "summary")
    assert drawn.class_slos == ("ttft p95 < 500ms", None)
    assert len(drawn.tenant_names) == 6
