"""Is a server's limit found in its metrics alone, and is what is said of the change true?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages
from tests.records.server_pages import page, samples_of

from inferometer.api import diagnosis
from inferometer.api.diagnose_page import diagnose_page
from inferometer.api.diagnose_probe import Probe
from inferometer.api.diagnose_source import Source
from inferometer.decide.diagnosis.rebuilding import rebuilt_servers
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import ModelError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.perfmodel.steptime_terms import slowed
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

START_S, FOR_S, RATE = 15.0, 20.0, 12.0
STEPS = datasheet_levels(
    find_model("llama-3.1-8b"), EngineSpec(dtype="bfloat16"), find_hardware("h100_sxm")
).likely
ROOMY = SchedulerConfig(
    num_blocks=20_000,
    max_model_len=20_100,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    enable_prefix_caching=True,
)
PLAN = poisson(RATE, round(RATE * (START_S + FOR_S)), seed=1)


def diagnosed(config, plan=PLAN, slo=None):
    samples, _ = served_pages(config, STEPS, plan, start_s=START_S, for_s=FOR_S)
    window = observed_window(samples)
    agreement = rebuilt_servers(window, {})
    agreement.check()
    objective = None if slo is None else parse_objective(slo)
    return diagnosis.answer_of(
        "http://127.0.0.1:8000", Source(window=window), agreement, objective, {}
    ).answer


def p95_ttft_s(config, plan=PLAN):
    table = run.run(lone_replica(config, STEPS), plan, record_steps=False).requests
    rows = table.intended_send_ns >= (START_S + 0.15 * FOR_S) * 1e9
    return float(np.quantile((table.first_token_ns - table.intended_send_ns)[rows] / 1e9, 0.95))


@pytest.fixture(scope="module")
def of_full_batch():
    return diagnosed(replace(ROOMY, max_num_seqs=16))


@pytest.mark.slow
def test_a_full_batch_is_named_and_the_advice_is_true(of_full_batch):
    assert (of_full_batch.finding, of_full_batch.cause) == ("limited", "max_num_seqs")
    cause, limit = of_full_batch.causes[0], of_full_batch.limits[0]
    assert (limit.name, limit.low, limit.high) == ("max_num_seqs", 16, 16)
    batch = int(cause.change.split()[1])
    then_s = p95_ttft_s(replace(ROOMY, max_num_seqs=batch))
    assert then_s < 0.3 * p95_ttft_s(replace(ROOMY, max_num_seqs=16))
    assert cause.predicted_s[0].low <= then_s <= cause.predicted_s[0].high


@pytest.mark.slow
def test_the_page_says_what_limits_and_what_would_not_help(of_full_batch):
    page = diagnose_page(of_full_batch)
    assert page.title.startswith("http://127.0.0.1:8000 is limited by max_num_seqs")
    said = " ".join(line.text for line in page.lines)
    assert "would not help: kv_cache" in said
    assert "0 preemptions" in said
    assert page.lines[-1].command == "inferometer diagnose http://127.0.0.1:8000"


def with_cost(answer, name, low_s, value_s, high_s):
    cost = replace(answer.causes[0].shares_s[0], low=low_s, value=value_s, high=high_s)
    return replace(
        answer,
        causes=tuple(
            replace(one, shares_s=(cost, *one.shares_s[1:])) if one.name == name else one
            for one in answer.causes
        ),
    )


@pytest.mark.slow
def test_rows_hold_what_each_cause_costs(of_full_batch):
    first, *_ = of_full_batch.rows()
    cost_s = of_full_batch.causes[0].shares_s[0]
    assert first["name"] == "max_num_seqs"
    assert (first["ttft:p95.share_s.value"], first["ttft:p95.share_s.low"]) == (
        cost_s.value,
        cost_s.low,
    )
    assert "tpot:p95.predicted_s.high" in of_full_batch.to_csv().splitlines()[0]


@pytest.mark.slow
def test_a_setting_that_may_help_is_not_ruled_out(of_full_batch):
    now_s = of_full_batch.latencies[0].simulated_s.value
    open_one = with_cost(
        of_full_batch, "small_step_budget", -0.4 * now_s, -0.1 * now_s, 0.4 * now_s
    )
    for answer, is_open in ((open_one, True), (of_full_batch, False)):
        page = diagnose_page(answer)
        (why,) = (line.text for line in page.lines if line.label == "WHY")
        ruled_out = why.partition(";")[0]
        assert ruled_out.startswith("would not help: ")
        assert ("small_step_budget" not in ruled_out) == is_open
        assert ("small_step_budget (-" in why.partition("may help or not: ")[2]) == is_open
        change = next(row[-1] for row in page.table.rows if row[0] == "small_step_budget")
        assert (change != "would not help") == is_open


@pytest.mark.slow
def test_latencies_that_no_simulated_server_has_are_a_caution():
    """The longest waits of an order by priority, which metrics do not show."""
    samples, _ = served_pages(
        replace(ROOMY, max_num_seqs=16), STEPS, PLAN, start_s=START_S, for_s=FOR_S
    )
    window = observed_window(samples)
    ttft = window.spreads["ttft"]
    agreement = rebuilt_servers(window, {})
    counts = np.where(ttft.edges >= 600, ttft.counts.sum(), 0.0)
    counts[-1] = 0.0
    late = ttft._replace(counts=counts)
    for seen, n_cautions in ((ttft, 0), (late, 1)):
        of = replace(window, spreads={**window.spreads, "ttft": seen})
        answer = diagnosis.answer_of("s", Source(window=of), agreement, None, {}).answer
        assert len(answer.cautions) == n_cautions


@pytest.mark.slow
def test_what_decides_an_open_step_budget_is_a_probe(of_full_batch):
    now_s = of_full_batch.latencies[0].simulated_s.value
    answer = with_cost(of_full_batch, "small_step_budget", -0.4 * now_s, -0.1 * now_s, 0.4 * now_s)
    answer = replace(answer, finding="undecided", cause="overload")
    budget = answer.limits[1]
    for limit, word in (
        (replace(budget, low=64, high=512), "--probe"),
        (replace(budget, low=64, high=64), "5min"),
    ):
        shown = diagnose_page(replace(answer, limits=(limit,))).lines[-1]
        assert word in shown.command
    probe = Probe(
        n_requests=42,
        most_tokens=9918,
        idle_ttft_s=None,
        max_num_seqs=None,
        least_budget_tokens=None,
        most_budget_tokens=None,
    )
    probed = diagnose_page(
        replace(answer, limits=(replace(budget, low=64, high=512),), probe=probe)
    )
    assert "start command" in probed.lines[-1].text


@pytest.mark.slow
def test_a_healthy_server_with_a_limit_is_not_without_one(of_full_batch):
    healthy = replace(of_full_batch, finding="healthy", cause=None, check=None)
    assert "is healthy: max_num_seqs costs " in diagnose_page(healthy).title
    for low_s, value_s, high_s, words in (
        (-9.0, 1.0, 9.0, "no setting surely costs a tenth of TTFT p95"),
        (0.0, 0.0, 0.0, "no setting costs a tenth of TTFT p95"),
    ):
        answer = healthy
        for one in healthy.causes:
            answer = with_cost(answer, one.name, low_s, value_s, high_s)
        assert diagnose_page(answer).title.endswith(words)


@pytest.mark.slow
def test_a_small_kv_cache_is_named():
    config = replace(ROOMY, num_blocks=1400)
    answer = diagnosed(config)
    assert (answer.finding, answer.cause) == ("limited", "kv_cache")
    assert answer.n_preemptions > 0


@pytest.mark.slow
def test_a_small_step_budget_is_named_and_identified():
    answer = diagnosed(replace(ROOMY, max_num_seqs=128, max_num_batched_tokens=256))
    assert (answer.finding, answer.cause) == ("limited", "small_step_budget")
    budget = answer.limits[1]
    assert budget.low <= 256 <= budget.high < 1024


@pytest.mark.slow
def test_a_healthy_server_is_called_healthy():
    answer = diagnosed(ROOMY, slo="ttft:p95<1s, tpot:p95<50ms")
    assert (answer.finding, answer.cause, answer.slo_verdict) == ("healthy", None, "met")
    assert "is healthy, ttft:p95<1000ms, tpot:p95<50ms is met" in diagnose_page(answer).title


@pytest.mark.slow
def test_long_prompts_are_named_and_the_advice_is_true():
    plan = poisson(6, 6 * 75, seed=5)
    prompts = plan.prompt_tokens.copy()
    prompts[np.random.default_rng(5).random(len(prompts)) < 0.03] = 12_000
    plan = plan._replace(prompt_tokens=prompts)
    slow = slowed(STEPS, 1.3)
    samples, _ = served_pages(ROOMY, slow, plan, start_s=START_S, for_s=60)
    window = observed_window(samples)
    answer = diagnosis.answer_of(
        "s", Source(window=window), rebuilt_servers(window, {}), None, {}
    ).answer
    assert (answer.finding, answer.cause) == ("limited", "long_prompts")


@pytest.mark.slow
@pytest.mark.parametrize(("alike", "finding"), [(None, "undecided"), (0.9, "limited")])
def test_a_prefix_cache_that_is_off_is_to_blame_only_where_prompts_are_known_to_be_alike(
    alike, finding
):
    config = replace(ROOMY, enable_prefix_caching=False)
    samples, _ = served_pages(config, slowed(STEPS, 1.8), PLAN, start_s=START_S, for_s=FOR_S)
    window = replace(observed_window(samples), alike_fraction=alike)
    found = diagnosis.answer_of("s", Source(window=window), rebuilt_servers(window, {}), None, {})
    answer = found.answer
    assert (answer.finding, answer.cause) == (finding, "prefix_cache")
    assert (found.advised is None) == (finding == "undecided")
    cost_s = answer.causes[0].shares_s[0]
    assert (cost_s.low == 0) == (finding == "undecided")
    words = " ".join(line.text for line in diagnose_page(answer).lines)
    assert ("with prefix caching on they do" in words) == (finding == "undecided")


@pytest.mark.slow
def test_a_closed_loop_is_seen():
    plan = poisson(RATE, 700, seed=2, users=24)
    answer = diagnosed(replace(ROOMY, max_num_seqs=8), plan)
    assert answer.is_closed_loop
    assert answer.cause == "max_num_seqs"
    assert all(np.isfinite(share.value) for row in answer.causes for share in row.shares_s)


def test_a_gauge_that_goes_away_is_not_zero():
    samples, _ = served_pages(ROOMY, STEPS, PLAN, start_s=START_S, for_s=FOR_S)
    is_running = samples.name == "vllm:num_requests_running"
    assert is_running.sum() > 3
    value = samples.value.copy()
    value[np.flatnonzero(is_running)[3]] = np.nan
    with pytest.raises(ModelError, match="how many requests are in the batch"):
        observed_window(samples._replace(value=value))


@pytest.mark.parametrize(
    ("starts", "what", "remedy"),
    [((1, 1, 2, 2), "started anew", "the same command"), ((1, 2, 1), "several", "its own port")],
)
def test_a_restart_is_not_servers_that_answer_in_turn(starts, what, remedy):
    pages = (page("vllm-0.32-after").replace("1.79527926839e+09", str(one)) for one in starts)
    with pytest.raises(ModelError, match=what) as caught:
        observed_window(samples_of(*pages))
    assert remedy in caught.value.try_


def test_too_few_requests_are_said():
    plan = poisson(0.2, 12, seed=1)
    samples, _ = served_pages(ROOMY, STEPS, plan, start_s=START_S, for_s=FOR_S)
    with pytest.raises(ModelError, match=f"requests ended in {FOR_S:g} s"):
        observed_window(samples)
