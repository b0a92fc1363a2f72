"""A server that counts no requests: do the clients of a load test stand in for its metrics?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import clients_of, poisson, served_pages
from tests.decide.diagnosis.test_diagnosis import ROOMY, START_S, STEPS
from tests.decide.diagnosis.test_overload import OVERLOADED, rebuilt_of

from inferometer.api import diagnosis
from inferometer.api.diagnose_source import Source, StatedLimit
from inferometer.decide.diagnosis.missing_counts import client_counts
from inferometer.decide.diagnosis.rebuilding import Agreement, Fitted, mean_waiting, rebuilt_servers
from inferometer.decide.diagnosis.traffic import drawn_requests, fresh_requests
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import ModelError
from inferometer.records.types import ABSENT, RequestStatus, RequestTable

PLAN = poisson(12.0, 420, seed=1)
FEW = replace(ROOMY, max_num_seqs=8)


@pytest.fixture(scope="module")
def served():
    return served_pages(FEW, STEPS, PLAN, start_s=START_S, for_s=20.0, names="llama.cpp")


def test_they_count_what_vllm_would_have_counted(served):
    samples, done = served
    found = observed_window(samples, clients_of(done, start_s=START_S))
    pages, _ = served_pages(FEW, STEPS, PLAN, start_s=START_S, for_s=20.0)
    true = observed_window(pages)
    assert found.finished.tolist() == true.finished.tolist()
    assert np.abs(found.first_tokens - true.first_tokens).max() <= 1
    for name in ("prompt_tokens", "output_tokens"):
        seen, counted = (getattr(one, name)[-1] for one in (found, true))
        assert seen == pytest.approx(counted, rel=0.03), name
    assert found.n_steps[-1] == pytest.approx(true.n_steps[-1], abs=2)
    assert found.summary.time("ttft").mean_s == pytest.approx(true.summary.time("ttft").mean_s)
    assert found.prompt_lengths.seen.total == true.prompt_lengths.seen.total
    assert found.busy_s[-1] == pytest.approx(20.0, rel=0.02)


def test_each_request_is_known(served):
    samples, done = served
    window = observed_window(samples, clients_of(done, start_s=START_S))
    plan, before_s = drawn_requests(window, np.random.default_rng(1))
    assert plan.prompt_tokens.tolist() == PLAN.prompt_tokens.tolist()
    assert plan.output_tokens.tolist() == PLAN.output_tokens.tolist()
    assert before_s == pytest.approx(START_S, rel=0.1)


@pytest.mark.slow
def test_too_few_slots_are_named_with_llama_cpp_s_flag(served):
    samples, done = served
    window = observed_window(samples, clients_of(done, start_s=START_S))
    stated = {"max_num_seqs": StatedLimit(8, "server")}
    agreement = rebuilt_servers(window, {"max_num_seqs": 8})
    agreement.check()
    answer = diagnosis.answer_of("RUN", Source(window=window), agreement, None, stated).answer
    assert (answer.finding, answer.cause) == ("limited", "max_num_seqs")
    row = next(one for one in answer.causes if one.name == "max_num_seqs")
    assert row.change.startswith("--parallel ")


def test_a_request_holds_a_slot_before_its_prompt_s_turn(served):
    """Its gauges show nobody waiting: the simulated servers show it."""
    plan = poisson(40.0, 1400, seed=4)
    samples, done = served_pages(
        OVERLOADED, STEPS, plan, start_s=START_S, for_s=20.0, names="llama.cpp"
    )
    window = observed_window(samples, clients_of(done, start_s=START_S))
    assert window.mean_waiting == 0
    true = rebuilt_of(OVERLOADED, plan)
    agreement = Agreement((Fitted(true, true.simulation(), {}, 0.0),), {})
    assert mean_waiting(window, agreement) > 1
    few = observed_window(served[0], clients_of(served[1], start_s=START_S))
    assert few.mean_waiting > 10


def test_another_load_test_begins_with_an_empty_server_too(served):
    samples, done = served
    window = observed_window(samples, clients_of(done, start_s=START_S))
    plan, before_s = fresh_requests(window, np.random.default_rng(1))
    assert before_s == pytest.approx(START_S, abs=1.0)
    assert plan.n_requests == pytest.approx(12.0 * (START_S + 20.0), rel=0.2)


def test_without_clients_it_is_refused_with_the_load_test_that_has_them(served):
    with pytest.raises(ModelError, match="does not report how many requests ended") as caught:
        observed_window(served[0])
    assert "inferometer diagnose RUN" in caught.value.try_


def test_clients_of_which_none_was_answered_are_too_few(served):
    samples, done = served
    clients = clients_of(done, start_s=START_S)
    failed = clients._replace(status=np.full_like(clients.status, RequestStatus.FAILED))
    with pytest.raises(ModelError, match="0 requests ended"):
        observed_window(samples, failed)


def test_an_answer_counts_as_it_comes_and_who_failed_does_not():
    """By hand: two answers of 5 tokens, one that failed, scraped every second."""
    zeros = np.zeros(3, dtype=np.int32)
    table = RequestTable(
        *[np.array([0, 500, 600]) * 10**6] * 2,
        admitted_ns=np.full(3, ABSENT),
        first_token_ns=np.array([10**9, 1500 * 10**6, ABSENT]),
        finished_ns=np.array([3000, 2500, 700]) * 10**6,
        prompt_tokens=np.array([10, 20, 30], dtype=np.int32),
        cached_tokens=zeros,
        output_tokens=np.array([5, 5, 0], dtype=np.int32),
        n_preemptions=zeros,
        status=np.array([RequestStatus.LENGTH, RequestStatus.STOPPED, RequestStatus.FAILED]),
        priority=zeros,
        class_index=zeros,
        request_index=np.arange(3, dtype=np.int32),
    )
    seen = client_counts(table, np.arange(5) * 10**9)
    assert seen.finished.tolist() == [0, 0, 0, 2, 2]
    assert seen.first_tokens.tolist() == [0, 1, 2, 2, 2]
    assert seen.prompt_tokens.tolist() == [0, 10, 30, 30, 30]
    assert seen.output_tokens.tolist() == [0, 1, 2 + 2 + 2, 10, 10]
    assert seen.busy_s.tolist() == [0, 1, 2, 3, 3]
    assert seen.held_tokens.tolist() == [0, 11, 10 + 3 + 20 + 3, 0, 0]
    ttft = next(one for one in seen.times if one.name == "ttft")
    assert (ttft.n, ttft.mean_s) == (2, 1.0)
    assert seen.each.came_s.tolist() == [0.0, 0.5]
    gone = table._replace(
        status=np.where(table.status == RequestStatus.FAILED, RequestStatus.ABORTED, table.status)
    )
    left = client_counts(gone, np.arange(5) * 10**9)
    assert left.finished.tolist() == seen.finished.tolist()
    assert left.each.came_s.tolist() == [0.0, 0.5, 0.6]  # it waited, too
    assert left.each.output_tokens.tolist() == [5, 5, 5]
