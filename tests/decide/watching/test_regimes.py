"""Are changes of regime found within 30 s, and how often is there an alarm when nothing changed?"""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.decide.watching.simulated_series import (
    DAY_S,
    ROOMY,
    STEPS,
    daily_traffic,
    intervals,
    poisson,
    seen_late,
)

from inferometer.decide.watching.drift import N_LEARNED, Block, Chart, ShareModel
from inferometer.decide.watching.intervals import Interval
from inferometer.decide.watching.regimes import Regimes, part_means, time_to_breach
from inferometer.perfmodel.steptime_terms import slowed
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica

LEARNED_S = 600.0


def changes_of(series):
    regimes = Regimes()
    return [change for interval in series for change in regimes.take(interval)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate_per_s", "seed"), [(0.9, 3), pytest.param(0.3, 2, marks=pytest.mark.long)]
)
def test_two_days_in_which_nothing_changes_have_no_alarm(rate_per_s, seed):
    plan = daily_traffic(rate_per_s, 2 * DAY_S, seed)
    series = list(intervals(plan, 2 * DAY_S, seed))
    for seen in (series, seen_late(series, seed)):
        assert [one for one in changes_of(seen) if one.condition != "idle"] == []


def joined(before, after, at_s):
    """The first series up to an instant, the second one after it."""
    yield from (one for one in before if one.at_s <= at_s)
    yield from (one for one in after if one.at_s > at_s)


@pytest.mark.parametrize(
    ("factor", "name"), [(1.3, "slower"), (1 / 1.3, "faster"), (1.8, "slower")]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_steps_that_take_longer_are_found_though_the_batch_grows_with_them(factor, name, seed):
    plan, for_s = daily_traffic(0.9, LEARNED_S + 300, seed, swing=0.0), LEARNED_S + 300
    series = joined(
        intervals(plan, for_s, seed),
        intervals(plan, for_s, seed + 100, steps=slowed(STEPS, factor)),
        LEARNED_S,
    )
    first = next(one for one in changes_of(series) if one.condition != "idle")
    assert (first.condition, first.has_begun) == (name, True)
    assert LEARNED_S < first.at_s <= LEARNED_S + 30
    assert LEARNED_S - 15 < first.since_s <= first.at_s
    # an alarm knows a few seconds of the new pace, and those just before it
    assert 0.4 < first.residual_ratio / math.log(factor) < 1.6


QUEUES = {
    "batch": (1.2, {"max_num_seqs": 6}, {"max_num_seqs_full", "overloaded"}, "kv_full"),
    "cache": (4.0, {"num_blocks": 1400, "max_num_seqs": 256}, {"kv_full", "preempting"}, "slower"),
}


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_full_is_found_whenever_somebody_looks(name, seed):
    rate_per_s, config, wanted, never = QUEUES[name]
    plan, for_s = daily_traffic(rate_per_s, 600, seed, swing=0.0), 400
    series = list(intervals(plan, for_s, seed, config=replace(ROOMY, **config)))
    for seen in (series, seen_late(series, seed)):
        found = {one.condition for one in changes_of(seen) if one.has_begun}
        assert wanted <= found
        assert never not in found


USERS = 16


def batches_that_end_together(place, at_s):
    """Users ask all at once when the last of them has his answer: at most looks nobody waits."""
    return USUAL._replace(
        at_s=at_s, running=6.0, waiting=float(10 * (place % 2)), queued_s=USERS * 2.0, took_s=3.0
    )


def test_of_few_looks_what_the_requests_waited_decides():
    queue = [batches_that_end_together(place, 3.0 * place) for place in range(1, 12)]
    begun = {one.condition: one.at_s for one in changes_of(queue) if one.has_begun}
    assert set(begun) == {"max_num_seqs_full"}
    assert begun["max_num_seqs_full"] <= 30
    none = [one._replace(queued_s=0.0) for one in queue]
    assert changes_of(none) == []


def test_looks_count_by_their_time():
    # Three late looks see a queue; between them the watcher catches up, and sees none each time.
    late = [
        USUAL._replace(at_s=5.0 * place + after, took_s=took_s, waiting=waiting)
        for place in range(1, 6)
        for after, took_s, waiting in ((0.0, 4.6, 3.0), (0.4, 0.4, 0.0))
    ]
    assert [one.condition for one in changes_of(late)] == ["max_num_seqs_full"]


def test_an_alarm_ends_when_the_server_is_as_it_was():
    chart = Chart(ShareModel(), {-1: "cache_hits_lost"}, allowance_ratio=0.05, threshold_ratio=0.25)
    shares = [0.5] * N_LEARNED + [0.5, 0.1, 0.1, 0.1, 0.1, *[0.5] * 6]
    alarms = [chart.take(5.0 * i, Block(share, (1.0,))) for i, share in enumerate(shares)]
    begun, ended = (one for one in alarms if one is not None)
    assert begun.is_on
    assert begun.since_s == 5.0 * (N_LEARNED + 1)
    assert not ended.is_on
    assert ended.since_s > begun.since_s


USUAL = Interval(
    at_s=0.0, took_s=1.0, running=4.0, waiting=0.0, kv_usage=0.3, kv_held_tokens=1000.0,
    n_finished=4.0, n_preempted=0.0, n_prompts=4.0, prompt_tokens=2000.0, hit_tokens=1600.0,
    queried_tokens=2000.0, output_tokens=200.0, n_steps=50.0, n_gaps=196.0, gaps_s=3.92,
    draft_tokens=600.0, accepted_tokens=480.0,
)  # fmt: skip
NOTHING = dict.fromkeys(
    ("running", "n_prompts", "prompt_tokens", "queried_tokens", "output_tokens", "n_gaps"), 0.0
)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cache_hits_lost", {"hit_tokens": 0.0}),
        ("acceptance_dropped", {"accepted_tokens": 240.0}),
        ("slower", {"gaps_s": 1.3 * 3.92}),
        ("faster", {"gaps_s": 3.92 / 1.3}),
        ("idle", NOTHING),
        ("restarted", {"is_restarted": True}),
    ],
)
def test_what_changes_at_100_s_is_found_alone_within_30_s(name, changes):
    series = [
        USUAL._replace(at_s=float(second), **(changes if second > 100 else {}))
        for second in range(1, 131)
    ]
    found = {(one.condition, one.has_begun) for one in changes_of(series)}
    assert found == {(name, True)}


@pytest.mark.parametrize(("gap", "is_found"), [(5, True), (3, False)])
def test_a_queue_that_a_scrape_misses_now_and_then_is_a_queue(gap, is_found):
    # A batch that ends together leaves nobody waiting until its users ask again.
    series = [
        USUAL._replace(at_s=float(second), waiting=float(second % gap != 0))
        for second in range(1, 31)
    ]
    found = {one.condition for one in changes_of(series) if one.has_begun}
    assert ("max_num_seqs_full" in found) == is_found


def test_a_server_that_does_not_answer_and_answers_again():
    regimes = Regimes()
    assert regimes.take(USUAL) == ()
    misses = [regimes.miss(float(second)) for second in range(1, 10)]
    ((lost,),) = [one for one in misses if one]
    assert (lost.at_s, lost.condition, lost.has_begun) == (3.0, "unreachable", True)
    (back,) = regimes.take(USUAL._replace(at_s=10.0))
    assert (back.condition, back.has_begun) == ("unreachable", False)


def test_pages_of_several_servers_are_named_once_until_one_answers():
    regimes = Regimes()
    assert regimes.take(USUAL) == ()
    (found,) = (one for second in range(1, 10) for one in regimes.mix(float(second)))
    assert (found.at_s, found.condition, found.has_begun) == (1.0, "several_servers", True)
    (back,) = regimes.take(USUAL._replace(at_s=10.0))
    assert (back.condition, back.has_begun) == ("several_servers", False)


GROWING_S, SEEN_S = 700, 60


def first_tokens_of_a_growing_queue(rate_per_s, seed):
    """Seconds, and the TTFT of the requests whose first token came then."""
    plan = poisson(rate_per_s, round(rate_per_s * GROWING_S), seed, prompt=(300, 0.8))
    few = lone_replica(replace(ROOMY, max_num_seqs=6), STEPS)
    requests = run.run(few, plan, until_ns=GROWING_S * 10**9).requests
    came = np.argsort(requests.first_token_ns)
    came = came[requests.first_token_ns[came] >= 0]
    ttft_ns = requests.first_token_ns - requests.intended_send_ns
    return requests.first_token_ns[came] / 1e9, ttft_ns[came] / 1e9


def p95_s(at_s, ttft_s, until_s):
    first, last = np.searchsorted(at_s, [until_s - SEEN_S, until_s], side="right")
    return float(np.quantile(ttft_s[first:last], 0.95))


def seen_and_true(at_s, ttft_s, now_s, limit_ratio):
    """What is said at ``now_s`` of a limit, and how long it did take to be missed."""
    seconds = np.arange(now_s - SEEN_S, now_s + 1.0)
    n = np.searchsorted(at_s, seconds)
    totals_s = np.concatenate([[0.0], np.cumsum(ttft_s)])[n]
    percentile_s = p95_s(at_s, ttft_s, now_s)
    limit_s = percentile_s * limit_ratio
    said = time_to_breach(*part_means(seconds, n.astype(float), totals_s), percentile_s, limit_s)
    later = range(now_s, GROWING_S)
    missed = (at - now_s for at in later if p95_s(at_s, ttft_s, at) > limit_s)
    return said, next(missed, None)


def test_a_growing_queue_misses_its_limit_when_it_is_said_to():
    cases = [
        seen_and_true(*first_tokens_of_a_growing_queue(rate_per_s, seed), now_s, 1.5)
        for rate_per_s in (1.0, 2.0)
        for seed in range(6)
        for now_s in (120, 240)
    ]
    known = [(said, true_s) for said, true_s in cases if said is not None and true_s is not None]
    inside = [said.soonest_s <= true_s <= said.latest_s for said, true_s in known]
    assert len(known) >= 21
    assert 0.85 <= np.mean(inside) <= 1.0
    widths = [said.latest_s / said.soonest_s for said, _ in known]
    assert np.median(widths) < 3
