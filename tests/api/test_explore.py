"""Is a state a URL and a command that give one answer, and do curves stay while a slider moves?"""

import shlex
from dataclasses import replace

import pytest

from inferometer.api import explore_page, explore_states, explored
from inferometer.api.explore import (
    Explore,
    command_of,
    query_of,
    question_at,
    state_of,
    values_of,
)
from inferometer.api.question import question_of
from inferometer.api.simulate import simulate
from inferometer.cli.explore import command
from inferometer.errors import SpecError
from inferometer.measure.executors.local import Inline
from inferometer.report.html import fragments

SMALL = {
    "model": "smollm2-135m",
    "hardware": "l4",
    "rate": 20.0,
    "requests": 120,
    "slo": "ttft:p95<1s",
    "datasheet": True,
}
INLINE = Inline(lambda _done, _all: None)
STATES = [
    SMALL,
    {
        **SMALL,
        "rate": 0.125,
        "burstiness": 0.5,
        "workload": "prompt=16..64,output=8..32,prefix=128",
    },
    {
        "model": "llama-3.1-8b",
        "hardware": "h100_sxm",
        "concurrency": 8,
        "tp": 2,
        "policy": "sglang",
    },
    {**SMALL, "set": ["enable_chunked_prefill=false", "num_speculative_tokens=3"], "replicas": 2},
    {**SMALL, "duration": "30s", "requests": None, "dtype": "float32", "usd_per_hour": 1.5},
    {**SMALL, "prefill_replicas": 1, "kv_link": "50GB/s", "kv_link_latency": "2ms"},
]


def asked(values):
    return question_of(Explore, values)


@pytest.fixture(scope="module")
def small():
    return explored.refined(asked(SMALL), INLINE)


def without_given(question):
    return replace(question, given=frozenset())


@pytest.mark.parametrize("values", STATES)
def test_a_state_is_a_url_and_a_command(values):
    question = asked(values)
    query = query_of(state_of(question))
    there = question_at(values_of(query), question)
    assert query_of(state_of(there)) == query
    assert without_given(there).simulated == without_given(question).simulated
    name, verb, *words = shlex.split(command_of(question))
    assert (name, verb) == ("inferometer", "explore")
    context = command.make_context("explore", words)
    typed = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name).name == "COMMANDLINE"
    }
    assert query_of(state_of(asked(typed))) == query


def test_the_likely_numbers_are_there_at_once(small):
    coarse = explored.coarse(asked(SMALL), INLINE).answer
    assert coarse.simulation.levels == small.answer.simulation.levels[:1]
    assert len(small.answer.simulation.levels) > 1
    assert coarse.is_coarse
    assert not coarse.points


def test_the_answer_is_that_of_simulate(small):
    question = asked(SMALL)
    plain = simulate(question.simulated)
    assert small.answer.simulation.levels == plain.levels
    assert small.answer.simulation.verdict == plain.verdict
    assert small.answer.simulation.memory == plain.memory
    assert explore_states.explore(question) == small.answer


def test_curves_do_not_move_with_the_load_that_is_asked_for(small):
    other = explored.sketched(asked({**SMALL, "rate": 40.0}), INLINE).answer
    mine = explored.sketched(asked(SMALL), INLINE).answer
    assert other.points == mine.points
    assert [point.ttft_p95.seconds.value for point in small.answer.points] == [
        point.ttft_p95.seconds.value for point in mine.points
    ]
    assert other.simulation.levels != mine.simulation.levels


def test_curves_reach_from_idle_to_more_than_is_carried(small):
    points = small.answer.points
    assert all(
        point.ttft_p95.seconds.low <= point.ttft_p95.seconds.value <= point.ttft_p95.seconds.high
        for point in points
    )
    last = points[-1]
    assert last.completed_requests_per_s.value < 0.9 * last.offered_requests_per_s
    first = points[0]
    assert last.ttft_p95.seconds.value > 2 * first.ttft_p95.seconds.value


def test_costs_are_those_of_the_price_and_the_tokens():
    question = asked({**SMALL, "usd_per_hour": 2.0, "replicas": 2})
    answer = explored.coarse(question, INLINE).answer
    rate = answer.simulation.levels[0].summary.output_tokens_per_s
    assert answer.usd_per_hour == 4.0
    assert answer.usd_per_million_output_tokens.value == pytest.approx(
        4.0 / 3600 / rate.value * 1e6
    )
    assert answer.usd_per_million_output_tokens.low < answer.usd_per_million_output_tokens.value


def test_stricter_limits_never_cost_less(small):
    costs = [one.usd_per_hour for one in small.answer.limit_costs]
    assert costs
    assert costs == sorted(costs, reverse=True)


def test_layouts_that_cannot_be_are_left_out(small):
    # SmolLM2's 9 heads do not divide by 2.
    assert {one.device for one in small.answer.trades} == {"TP 1"}


def test_all_charts_are_there(small):
    found = explore_page.shown(small)
    drawn = fragments(found.page, found.charts)
    assert list(drawn["figures"]) == [
        one for one in explore_page.CHART_IDS if one in drawn["figures"]
    ]
    assert set(drawn["figures"]) == set(explore_page.CHART_IDS)
    assert "smollm2-135m" in drawn["head"]
    assert "cost of 1M output tok" in drawn["head"]


@pytest.mark.parametrize(
    "field",
    [
        {"model": "/etc/passwd"},
        {"workload": "/etc/passwd"},
        {"fit": "/etc/passwd"},
        {"gate": "x.toml"},
    ],
)
def test_a_page_does_not_choose_which_files_are_read(field):
    with pytest.raises(SpecError, match="no name that is known"):
        question_at({**SMALL, **field}, asked(SMALL))


@pytest.mark.parametrize("query", ["export=x", "port=1", "run=x", "nonsense=1", "rate=1&rate=2"])
def test_what_is_no_state_is_refused(query):
    with pytest.raises(SpecError, match="the address"):
        values_of(f"model=llama-3.1-8b&{query}")


def test_the_grid_of_a_file_begins_with_its_state():
    states = list(explore_states.around(asked(SMALL)))
    assert states[0] == asked(SMALL)
    queries = [query_of(state_of(one)) for one in states]
    assert len(set(queries)) == len(queries) == 28
