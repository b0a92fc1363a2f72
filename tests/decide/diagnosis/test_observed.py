"""Is each check found by its metric, ruled out by its number, and absent where the metric is?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.decide.diagnosis.observed import OutsideRow, checked
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import ModelError
from inferometer.simulate import step_cost
from inferometer.simulate.scheduler_config import SchedulerConfig

STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=20_100, enable_prefix_caching=True)
RATE, START_S, FOR_S = 8.0, 5.0, 10.0
PLAN = poisson(RATE, 110, seed=1, prompt=(200, 0.3), output=(20, 0.3))


def samples_of(config=CONFIG, plan=PLAN):
    return served_pages(config, STEPS, plan, start_s=START_S, for_s=FOR_S)[0]


def findings(samples):
    return {one.name: one for one in checked(observed_window(samples))}


def with_series(samples, name, labels, last, first=0.0):
    """The same samples with a series that goes from ``first`` to ``last``."""
    at_ns = np.unique(samples.scraped_ns)[[0, -1]]
    return samples._replace(
        scraped_ns=np.concatenate([samples.scraped_ns, at_ns]),
        name=np.concatenate([samples.name, [name] * 2]),
        labels=np.concatenate([samples.labels, [labels] * 2]),
        value=np.concatenate([samples.value, [first, last]]),
    )


def beside(samples, n_more_running):
    """The same samples beside those of another engine on the page, with more running requests."""
    assert (np.char.find(samples.labels.astype(str), 'engine="0"') >= 0).any()
    is_running = samples.name == "vllm:num_requests_running"
    other = samples._replace(
        labels=np.char.replace(samples.labels.astype(str), 'engine="0"', 'engine="1"'),
        value=samples.value + np.where(is_running, n_more_running, 0.0),
    )
    of_both = [np.concatenate(pair) for pair in zip(samples, other, strict=True)]
    return samples._make(of_both)


def test_few_scrapes_are_too_few_and_that_is_in_the_message():
    samples = samples_of()
    first_ns = np.unique(samples.scraped_ns)[:9]
    few = samples._make(column[samples.scraped_ns <= first_ns[-1]] for column in samples)
    with pytest.raises(ModelError, match="9 scrapes were answered, fewer than 12"):
        observed_window(few)


def test_a_healthy_server_has_no_finding_and_its_numbers_say_so():
    found = findings(samples_of())
    assert {one.finding for one in found.values()} == {"ruled out", "not reported"}
    assert found["preemption_thrash"].evidence == "0.00 preemptions a request"
    assert found["speculation_not_paying"].finding == "not reported"
    assert found["uneven_engines"].measured_ratio is None


def test_preemptions_are_found():
    plan = poisson(RATE, 110, seed=1, prompt=(200, 0.3), output=(60, 0.3))
    one = findings(samples_of(replace(CONFIG, num_blocks=90, max_model_len=900), plan))[
        "preemption_thrash"
    ]
    assert one.finding == "found"
    assert one.measured_ratio > 0.02


@pytest.mark.parametrize(
    ("check", "name", "labels"),
    [
        ("refused", "vllm:admission_rejections_total", 'reason="max_num_queued_reqs"'),
        ("aborted", "vllm:request_success_total", 'engine="1",finished_reason="abort"'),
        ("failed", "vllm:request_success_total", 'engine="1",finished_reason="error"'),
    ],
)
def test_lost_requests_are_found(check, name, labels):
    one = findings(with_series(samples_of(), name, labels, 20.0))[check]
    assert one.finding == "found"
    assert one.is_loss
    assert 0.1 < one.measured_ratio < 0.3


def test_a_draft_that_does_not_match_is_found_and_a_good_one_is_not():
    drafted = with_series(samples_of(), "vllm:spec_decode_num_drafts_total", "", 1000.0)
    name = "vllm:spec_decode_num_accepted_tokens_total"
    for accepted, finding in ((100.0, "found"), (1500.0, "ruled out")):
        one = findings(with_series(drafted, name, "", accepted))["speculation_not_paying"]
        assert one.finding == finding
        assert one.measured_ratio == 1 + accepted / 1000


def test_looking_for_drafts_that_never_come_does_not_pay():
    samples = samples_of()
    for name in ("drafts", "accepted_tokens"):
        samples = with_series(samples, f"vllm:spec_decode_num_{name}_total", "", 0.0)
    one = findings(samples)["speculation_not_paying"]
    assert (one.finding, one.measured_ratio) == ("found", 1.0)


FULL = replace(CONFIG, max_num_seqs=8)


def queued(policy, *, seed=3, rate=15.0, urgent=0.8, steps=STEPS):
    """A window in which requests wait; four of five are urgent."""
    plan = poisson(rate, round(rate * 60), seed=seed, prompt=(200, 0.3), output=(40, 0.5))
    rng = np.random.default_rng(seed)
    plan = plan._replace(priority=(rng.random(plan.n_requests) > urgent).astype(np.int32))
    config = replace(FULL, policy=policy)
    return served_pages(config, steps, plan, start_s=10.0, for_s=45.0)[0]


@pytest.mark.parametrize(("policy", "finding"), [("priority", "found"), ("fcfs", "ruled out")])
@pytest.mark.parametrize(("rate", "urgent"), [(16.0, 0.8), (24.0, 0.5)])
def test_an_order_by_priority_is_found_by_the_longest_and_the_shortest_waits(
    policy, finding, rate, urgent
):
    """The less urgent wait for what an order of arrival spreads over all, or they never end."""
    one = findings(queued(policy, rate=rate, urgent=urgent))["out_of_order"]
    assert one.finding == finding
    assert "--scheduling-policy fcfs" in one.change


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [12.0, 16.0, 24.0])
def test_no_order_of_arrival_is_taken_for_another(rate, seed):
    one = findings(queued("fcfs", seed=seed, rate=rate))["out_of_order"]
    assert one.finding != "found"


def test_requests_that_all_wait_for_nothing_are_in_order():
    """SGLang's histogram of times in the queue has a bucket of 0 seconds."""
    rare = poisson(2.0, 60, seed=1, prompt=(20, 0.1), output=(4, 0.1))
    samples = served_pages(CONFIG, STEPS, rare, start_s=1.0, for_s=20.0, names="sglang")[0]
    one = findings(samples)["out_of_order"]
    assert one.finding == "ruled out"
    assert one.measured_ratio < 0.1


def test_an_idle_server_and_uneven_engines_are_found():
    rare = poisson(3.5, 60, seed=1, prompt=(20, 0.1), output=(4, 0.1))
    assert findings(samples_of(plan=rare))["too_little_load"].finding == "found"
    one = findings(beside(samples_of(), n_more_running=60))["uneven_engines"]
    assert one.finding == "found"
    assert one.measured_ratio > 1.5


def test_deferred_requests_are_found():
    deferred = 'engine="1",reason="deferred"'
    name = "vllm:num_requests_waiting_by_reason"
    one = findings(with_series(samples_of(), name, deferred, 3.0, first=3.0))["deferred"]
    assert one.finding == "found"
    assert one.measured_ratio == pytest.approx(3.0)


def test_a_slow_front_end_is_found_by_the_time_that_neither_queue_nor_engine_has():
    samples = samples_of()
    assert findings(samples)["front_end_bound"].finding == "ruled out"
    is_whole = samples.name == "vllm:e2e_request_latency_seconds_sum"
    assert is_whole.any()
    slow = samples._replace(value=np.where(is_whole, 1.5 * samples.value, samples.value))
    one = findings(slow)["front_end_bound"]
    assert one.finding == "found"
    assert one.measured_ratio == pytest.approx(1 / 3, abs=0.02)
    is_queue = np.char.startswith(samples.name.astype(str), "vllm:request_queue_time")
    fewer = [column[~is_queue] for column in slow]
    assert findings(slow._make(fewer))["front_end_bound"].finding == "not reported"


def test_large_blocks_under_short_sequences_are_found():
    short = poisson(RATE, 110, seed=1, prompt=(20, 0.3), output=(8, 0.3))
    large = replace(CONFIG, block_size=256)
    one = findings(samples_of(large, short))["kv_fragmentation"]
    assert one.finding == "found"
    assert one.measured_ratio == pytest.approx(127.5 / (127.5 + 25), rel=0.05)
    assert findings(samples_of(large))["kv_fragmentation"].finding == "found"
    assert findings(samples_of(plan=short))["kv_fragmentation"].finding == "found"
    assert findings(samples_of())["kv_fragmentation"].finding == "ruled out"


def test_another_servers_names_show_the_same():
    plan = poisson(RATE, 110, seed=1, prompt=(200, 0.3), output=(60, 0.3))
    tight = replace(CONFIG, num_blocks=90, max_model_len=900)
    pages = [
        served_pages(tight, STEPS, plan, start_s=START_S, for_s=FOR_S, names=names)[0]
        for names in ("vllm", "sglang")
    ]
    windows = [observed_window(one) for one in pages]
    assert [one.summary.kind for one in windows] == ["vllm", "sglang"]
    ours, theirs = ({one.name: one for one in checked(window)} for window in windows)
    assert theirs["preemption_thrash"].measured_ratio == ours["preemption_thrash"].measured_ratio
    assert theirs["kv_fragmentation"].measured_ratio == pytest.approx(
        ours["kv_fragmentation"].measured_ratio, rel=0.05
    )
    assert theirs["front_end_bound"].finding == "not reported"  # it has no time of inference
    assert windows[1].prompt_lengths.seen.n == windows[0].prompt_lengths.seen.n
    assert windows[1].summary.time("ttft").mean_s == pytest.approx(
        windows[0].summary.time("ttft").mean_s
    )


def test_prompts_count_when_their_steps_compute_them():
    """SGLang's counter of prompts grows when requests end, 3 s later here; another one does with each step."""
    plan = poisson(RATE, 110, seed=2, prompt=(400, 0.8), output=(250, 0.1))
    samples = [
        served_pages(CONFIG, STEPS, plan, start_s=START_S, for_s=FOR_S, names=names)[0]
        for names in ("vllm", "sglang")
    ]
    is_other = samples[1].name != "sglang:realtime_tokens_total"
    samples.append(
        samples[1]._make(
            column[is_other] if len(column) == len(is_other) else column for column in samples[1]
        )
    )
    windows = [observed_window(one) for one in samples]
    ours, theirs, old = (np.diff(one.step_prompt_tokens) for one in windows)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.95
    assert np.corrcoef(ours, old)[0, 1] < 0.6
    assert np.abs(windows[0].n_steps - windows[1].n_steps).max() <= 1


def test_answers_that_are_held_back_after_their_first_token_are_found():
    window = observed_window(samples_of())
    soon = OutsideRow(latency="ttft", client_s=0.2, outside_s=0.01)
    for outside_s, finding in ((6.0, "found"), (1.0, "ruled out"), (None, "not reported")):
        late = OutsideRow(latency="e2e", client_s=8.0, outside_s=outside_s)
        found = {one.name: one for one in checked(window, (soon, late))}
        assert found["outside"].finding == finding
