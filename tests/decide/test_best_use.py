"""Is the best use of a number of devices found: how many to a replica, which format, one pool or two?"""

from dataclasses import replace

import pytest

from inferometer.decide import best_use as searching
from inferometer.decide.best_use import UseTask, best_use
from inferometer.decide.candidates import Grid, Offer, candidates_of
from inferometer.decide.probing import probe_of
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.reading import resolve_workload, with_changes

MODEL = catalog.find_model("llama-3.1-8b")
GRID = Grid(tensor_parallel_sizes=(1, 2, 4), max_num_seqs=(256,), max_num_batched_tokens=(2048,))


def question(slo):
    return SizingQuestion(
        spec=resolve_workload("chat"),
        offered_load=1.0,
        objective=parse_objective(slo),
        n_requests=100,
        requests_cap=400,
    )


def found(slo, n_total, grid=GRID):
    possible = candidates_of(
        MODEL, [Offer(hardware=catalog.find_hardware("h100_sxm"), price=None)], grid
    ).possible
    return best_use(UseTask(question(slo), possible, n_total))


@pytest.mark.slow
def test_a_lax_slo_takes_small_replicas_and_a_strict_one_large_ones():
    lax, strict = found("tpot:p95<100ms", 4), found("tpot:p95<5ms", 4)
    assert (lax.uses[0].candidate.parallelism, lax.uses[0].n_replicas) == ("TP1", 4)
    assert strict.uses[0].candidate.parallelism == "TP4"
    assert lax.uses[0].most_load > strict.uses[0].most_load > 0


@pytest.mark.slow
def test_no_layout_takes_more_devices_than_there_are():
    n_devices = [
        use.n_replicas * use.candidate.n_devices for use in found("tpot:p95<100ms", 3).uses
    ]
    assert n_devices[0] == max(n_devices) == 3


@pytest.mark.slow
def test_splits_are_examined_and_the_best_is_shown_with_its_interval():
    answer = found("tpot:p95<100ms", 2, replace(GRID, tensor_parallel_sizes=(1,)))
    assert answer.is_split_examined
    assert {use.n_prefill for use in answer.uses} == {0, 1}
    best = answer.uses[0].capacity
    assert best.met_load <= best.located_load <= best.missed_load


def test_where_a_lone_request_misses_no_layout_is_simulated():
    answer = found("tpot:p95<100us", 2)
    assert answer.uses == ()
    assert answer.nearest.why.startswith("tpot:p95<0.1ms: ")
    assert answer.nearest.margin_ratio > 1


def test_two_pools_carry_less_prompt_work_than_replicas_that_do_both():
    """With one replica for prompts and one for answers neither takes all of the traffic that two together take."""
    candidate = candidates_of(
        MODEL, [Offer(hardware=catalog.find_hardware("h100_sxm"), price=None)], GRID
    ).possible[0]
    asked = question("ttft:p95<1s")
    both, split = (
        probe_of(asked, candidate, "likely", 2),
        probe_of(asked, candidate, "likely", 1, 1),
    )
    assert split(1.0, 0).verdict == both(1.0, 0).verdict == "met"
    assert split(20.0, 0).margin_ratio > both(20.0, 0).margin_ratio


@pytest.mark.parametrize("n_total", [1, 2])
def test_a_model_that_needs_more_devices_has_no_layout(n_total):
    big = catalog.find_model("llama-3.1-405b")
    grid = replace(GRID, tensor_parallel_sizes=(8,), pipeline_parallel_sizes=(2,))
    possible = candidates_of(
        big, [Offer(hardware=catalog.find_hardware("h100_sxm"), price=None)], grid
    ).possible
    assert best_use(UseTask(question("tpot:p95<1s"), possible, n_total)).uses == ()


@pytest.mark.slow
def test_the_leaders_step_budgets_come_first_and_its_best_one_before_others(monkeypatch):
    """With the time limit between, other layouts are compared with the budget that carries most."""
    examined = []

    def noted(question, candidate, *rest):
        examined.append((candidate.parallelism, candidate.step_budget_tokens))
        return probe_of(question, candidate, *rest)

    monkeypatch.setattr(searching, "probe_of", noted)
    budgets = replace(GRID, tensor_parallel_sizes=(1, 2), max_num_batched_tokens=(2048, 8192))
    users = with_changes(
        resolve_workload("chat"), {"arrivals": {"kind": "closed", "concurrency": 1}}, where="a test"
    )
    lax = replace(question("ttft:p95<1s"), spec=users, offered_load=50.0)
    possible = candidates_of(
        MODEL, [Offer(hardware=catalog.find_hardware("h100_sxm"), price=None)], budgets
    ).possible
    answer = best_use(UseTask(lax, possible, 2))
    assert examined[:4] == [("TP1", 8192), ("TP1", 2048), ("TP2", 8192), ("TP2", 2048)]
    assert (answer.uses[0].candidate.step_budget_tokens, answer.n_step_budgets) == (8192, 2)
