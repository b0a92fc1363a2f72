"""Are runs compared with the run as the unit, never different by accident, and undecided where that is so?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from tests.records.load_run import load_plan

from inferometer.errors import SpecError
from inferometer.records.reading import read_run
from inferometer.records.run_comparison import ComparisonRule, compare_runs
from inferometer.records.unlike_loads import unlike_loads, unlike_origins
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import simulated_run
from inferometer.simulate.step_cost import linear_cost

FIXTURES = Path(__file__).parent / "fixtures"
CONFIG = SchedulerConfig(
    num_blocks=2000, max_model_len=2048, max_num_seqs=16, enable_prefix_caching=False
)


def run_of(seed, *, launch_s=8e-3, n_requests=400, gap_s=0.2, most_prompt=200, most_output=100):
    rng = np.random.default_rng(seed)
    arrival_ns = np.cumsum(rng.exponential(gap_s * 1e9, n_requests)).astype(np.int64)
    requests = demand(
        arrival_ns,
        rng.integers(20, most_prompt, n_requests),
        rng.integers(2, most_output, n_requests),
    )
    cost = linear_cost(
        launch_s=launch_s, per_row_s=40e-6, per_request_s=100e-6, per_context_token_s=0.5e-6
    )
    return simulated_run(
        simulate(requests, CONFIG, cost),
        CONFIG,
        run_id=str(seed),
        created_utc="",
        command=(),
        tool_version="0",
    )


def runs_of(seeds, **how):
    return tuple(run_of(seed, **how) for seed in seeds)


def test_a_slower_engine_is_found_and_by_how_much():
    said = compare_runs(
        runs_of(range(5)),
        runs_of(range(5, 10), launch_s=9.6e-3),
        ComparisonRule(metric="tpot_p50_s"),
    )
    assert said.answer.verdict == "worse"
    assert said.answer.ratio.low < 1.2 < said.answer.ratio.high * 1.05
    assert (said.n_old, said.n_new, said.replicate) == (5, 5, "run")
    assert {one.metric for one in said.others} >= {"ttft_p50_s", "output_tokens_per_s"}


def sent_to(runs, url, model="m"):
    """The same runs, as load tests of this server."""
    load = load_plan(url=url, served_model=model)
    return tuple(replace(run, manifest=replace(run.manifest, load=load)) for run in runs)


@pytest.mark.parametrize(
    ("launch_s", "url", "model", "is_found"),
    [
        (12e-3, "http://b", "m", True),
        (12e-3, "http://a", "m", False),
        (12e-3, "http://b", "other", False),
        (8.2e-3, "http://b", "m", False),
    ],
)
def test_unlike_providers_of_one_model_are_found(launch_s, url, model, is_found):
    said = compare_runs(
        sent_to(runs_of(range(6)), "http://a"),
        sent_to(runs_of(range(6), launch_s=launch_s), url, model),
        ComparisonRule(is_paired=True),
    )
    found = [one for one in said.cautions if one.code == "UNLIKE_PROVIDERS"]
    assert bool(found) == is_found
    assert not found or "is at least 1." in found[0].text


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ({}, None),
        ({"launch_s": 12e-3}, None),
        ({"most_prompt": 400}, "prompts of 108 against 207 tokens in the mean"),
        ({"most_output": 50}, "answers of 50.8 against 25.3 tokens in the mean"),
        ({"gap_s": 0.1}, "4.88 requests/s against 10.1 requests/s"),
    ],
)
def test_unlike_requests_are_compared_with_a_caution_that_names_what_is_unlike(how, names):
    said = compare_runs(runs_of(range(4)), runs_of(range(4, 8), **how), ComparisonRule())
    found = [one.text for one in said.cautions if one.code == "UNLIKE_LOADS"]
    assert [one.rpartition(": ")[2] for one in found] == [names] * (names is not None)


def test_a_simulated_side_is_no_measured_one():
    simulated, measured = runs_of(range(4)), runs_of(range(4))
    measured = tuple(
        replace(run, manifest=replace(run.manifest, origin="measured")) for run in measured
    )
    said = compare_runs(simulated, measured, ComparisonRule())
    assert [one.code for one in said.cautions] == ["UNLIKE_ORIGINS"]
    assert said.cautions[0].text.startswith("A is simulated, B is measured")
    assert not list(unlike_origins(measured, measured))
    simulated = [
        replace(run, manifest=replace(run.manifest, origin="simulated")) for run in measured
    ]
    (both,) = unlike_origins(simulated, simulated)
    assert "inferometer simulate MODEL --tp 1,2" in both.remedy
    published = tuple(
        replace(run, manifest=replace(run.manifest, origin="published")) for run in measured
    )
    (imported,) = unlike_origins(measured, published)
    assert "may come from the measurement" in imported.text
    assert "verify" not in imported.remedy


def test_providers_are_not_unlike_where_their_requests_are():
    slower = runs_of(range(4), launch_s=12e-3, most_prompt=400)
    said = compare_runs(
        sent_to(runs_of(range(4)), "http://a"), sent_to(slower, "http://b"), ComparisonRule()
    )
    assert [one.code for one in said.cautions] == ["BOTH_SIMULATED", "UNLIKE_LOADS"]


def closed_run(n_users, *, service_ns, n_requests=200):
    """Each user sends when the answer before is there; answers take as long as the server needs."""
    sent_ns = np.repeat(np.arange(n_requests // n_users) * service_ns, n_users)
    run = run_of(0, n_requests=len(sent_ns))
    requests = run.requests._replace(
        intended_send_ns=sent_ns, finished_ns=sent_ns + service_ns, output_tokens=sent_ns * 0 + 9
    )
    return replace(run, requests=requests)


@pytest.mark.parametrize(
    ("n_users", "names"),
    [(4, []), (8, ["4 at once (closed loop) against 8 at once (closed loop)"])],
)
def test_the_rate_of_a_closed_loop_is_the_servers_and_its_users_are_the_load(n_users, names):
    old, new = closed_run(4, service_ns=10**9), closed_run(n_users, service_ns=10**8)
    found = unlike_loads([old], [new])
    assert [one.text.rpartition(": ")[2] for one in found] == names


def test_the_same_engine_is_equivalent_within_a_margin_and_not_different():
    said = compare_runs(
        runs_of(range(6)),
        runs_of(range(6, 12)),
        ComparisonRule(metric="tpot_p50_s", margin_ratio=0.05),
    )
    assert said.answer.verdict == "equivalent"
    assert all(one.verdict in {"equivalent", "undecided"} for one in said.others)


@pytest.mark.slow
def test_false_alarms_over_all_metrics_together():
    """60 comparisons of 5 with 5 runs of one configuration.

    An alarm of any of the other metrics in at most 5 % of them.
    """
    pool = [run_of(seed, n_requests=80) for seed in range(40)]
    rng = np.random.default_rng(1)
    n_alarms = 0
    for _ in range(60):
        picked = rng.permutation(len(pool))[:10]
        said = compare_runs(
            [pool[i] for i in picked[:5]],
            [pool[i] for i in picked[5:]],
            ComparisonRule(margin_ratio=1e-9),
        )
        n_alarms += any(one.verdict in {"better", "worse"} for one in said.others)
    assert scipy.stats.binomtest(n_alarms, 60).proportion_ci(0.99).low <= 0.05


def test_one_run_each_says_nothing():
    said = compare_runs(runs_of([1]), runs_of([2], launch_s=0.012), ComparisonRule())
    assert said.answer.verdict == "undecided"
    assert "one run says nothing" in said.answer.why
    assert [caution.code for caution in said.cautions] == ["BOTH_SIMULATED", "FEW_RUNS"]


def test_a_percentile_of_too_few_requests_is_not_compared():
    said = compare_runs(
        runs_of(range(4), n_requests=20),
        runs_of(range(4, 8), n_requests=20),
        ComparisonRule(metric="ttft_p99_s"),
    )
    assert said.answer.old is None
    assert said.answer.verdict == "undecided"


def test_short_runs_have_a_number_on_both_sides_or_on_none():
    """Whether a run's own interval is open, which hangs on its luck, leaves no run out.

    How many requests it has does, and that is said.
    """
    olds, news = (
        runs_of(range(3), n_requests=80, gap_s=0.02),
        runs_of(range(3, 6), n_requests=80, gap_s=0.02),
    )
    said = compare_runs(olds, news, ComparisonRule())
    for one in (said.answer, *said.others):
        assert (one.old is None) == (one.new is None), one.metric
        assert one.old is None or one.old.n_samples == 3, "no run was left out"
    missing = {one.metric: one.why for one in said.others if one.old is None}
    assert set(missing) == {"ttft_p99_s"}
    assert missing["ttft_p99_s"].startswith(
        "no run of A and B has this number: it takes 368 requests"
    )
    short = compare_runs(
        runs_of([1], n_requests=400),
        runs_of([2], n_requests=200),
        ComparisonRule(metric="ttft_p99_s"),
    )
    assert short.answer.why.startswith("no run of B has this number")


def test_pairs_see_what_shared_luck_hides():
    """Each pair has its own machine speed."""
    speeds = np.exp(np.random.default_rng(2).normal(0, 0.4, 6))
    old = tuple(run_of(i, launch_s=8e-3 * speed) for i, speed in enumerate(speeds))
    new = tuple(run_of(i, launch_s=8.8e-3 * speed) for i, speed in enumerate(speeds))
    rule = ComparisonRule(metric="tpot_p50_s")
    assert compare_runs(old, new, rule).answer.verdict == "undecided"
    assert compare_runs(old, new, replace(rule, is_paired=True)).answer.verdict == "worse"


def test_two_sweeps_are_compared_by_their_repetitions():
    sweep = read_run(FIXTURES / "version_1")
    slower = replace(
        sweep,
        sweep=sweep.sweep._replace(
            decode_ns=(sweep.sweep.decode_ns * 2), prefill_ns=sweep.sweep.prefill_ns
        ),
        steps=None,
    )
    same = compare_runs([replace(sweep, steps=None)], [slower], ComparisonRule())
    assert same.replicate == "repetition"
    assert same.answer.ratio.value == pytest.approx(2, rel=1e-6)
    assert [caution.code for caution in same.cautions] == ["ONE_RUN_EACH"]
    assert any(one.metric.startswith("prefill_s at prompt") for one in same.others)


def test_manifests_say_what_else_is_different():
    old = run_of(1)
    new = replace(old, manifest=replace(old.manifest, tool_version="1"))
    assert [
        (one.what, one.old, one.new)
        for one in compare_runs([old], [new], ComparisonRule()).differences
    ] == [("tool_version", "0", "1")]


@pytest.mark.parametrize(
    ("old", "new", "rule", "words"),
    [
        ((1,), (), {}, "a side has no run"),
        ((1,), (2,), {"metric": "speed"}, "there is no metric 'speed'"),
        ((1, 2), (3,), {"is_paired": True}, "2 runs against 1 make no pairs"),
    ],
)
def test_impossible_comparisons(old, new, rule, words):
    with pytest.raises(SpecError, match=words):
        compare_runs(runs_of(old, n_requests=5), runs_of(new, n_requests=5), ComparisonRule(**rule))


def test_points_of_a_sweep_are_named_by_one_of_them():
    sweep = [read_run(FIXTURES / "version_1")]
    with pytest.raises(SpecError) as refused:
        compare_runs(sweep, sweep, ComparisonRule(metric="decode"))
    assert refused.value.allowed.count(" at prompt ") == 1
    assert refused.value.try_ == "--metric 'decode_step_s of all points'"


def test_sweeps_are_not_compared_with_requests():
    with pytest.raises(SpecError, match="sweeps cannot be compared"):
        compare_runs(
            [read_run(FIXTURES / "version_1")], runs_of([1], n_requests=5), ComparisonRule()
        )


def test_points_of_equal_tokens_carry_intervals_where_there_are_repetitions():
    run = read_run(FIXTURES / "version_1")
    found = compare_runs([run], [run], ComparisonRule(has_equal_tokens=True))
    assert found.replicate == "repetition"
    (pair,) = found.equal_tokens
    assert pair.text == "128 prompt tokens (64 x 2 / 128 x 1)"
    one = found.answer
    assert one.ratio is not None
    assert one.ratio.low < one.ratio.value < one.ratio.high
