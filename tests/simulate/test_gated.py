"""Does a gate before one engine do what it says, alike in both simulators, and does the run say so?"""

import pytest
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal

from inferometer.inputs.gate import GateSpec
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.reading import workload_from_text
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.request_summaries import judge_objective
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.simulate.batch_config import DynamicBatching
from inferometer.simulate.demand import demand
from inferometer.simulate.gate_config import (
    ClassRules,
    GateConfig,
    Reason,
    first_token_pace,
    gate_rules,
)
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import demand_of, simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import simulated_run
from inferometer.simulate.step_cost import linear_cost

S = 10**9
MIX = """
seed = 11
n_requests = 12000
arrivals = { kind = "open", rate_per_s = 11 }
[[classes]]
name = "chat"
weight_ratio = 3
prompt_tokens = { kind = "lognormal", median = 300, sigma = 0.6, max = 2000 }
output_tokens = { kind = "lognormal", median = 120, sigma = 0.6, max = 600 }
slo = "ttft:p90<500ms"
[[classes]]
name = "report"
prompt_tokens = { kind = "lognormal", median = 2000, sigma = 0.6, max = 8000 }
output_tokens = { kind = "lognormal", median = 400, sigma = 0.6, max = 2000 }
slo = "ttft:p90<60s"
"""


ONE_SEAT = SchedulerConfig(
    num_blocks=100,
    max_model_len=512,
    max_num_seqs=1,
    enable_prefix_caching=False,
    async_scheduling=False,
)


def one_at_a_time(requests, gate, **kinds):
    """A server of one request, a second for each token."""
    both = [
        form(requests, ONE_SEAT, linear_cost(launch_s=1.0), gate=gate, **kinds)
        for form in (simulate, simulate_plainly)
    ]
    assert_equal(*both)
    return both[0]


def test_the_order_of_the_gate_is_the_order_of_admission():
    requests = demand([0, 1, 2, 3], [1] * 4, [3, 4, 2, 1])
    table = one_at_a_time(requests, GateConfig(order="shortest-remaining")).requests
    assert (table.admitted_ns // S).tolist() == [0, 6, 4, 3]
    assert table.intended_send_ns.tolist() == [0, 1, 2, 3]


def test_who_is_turned_away_ends_at_that_instant_and_is_counted():
    """The server is busy until 3 s; one waits too long at 2.5 s, one finds two waiting, one goes away, one is let in."""
    requests = demand(
        [0, S // 2, S, S, 2 * S],
        [1] * 5,
        [3, 1, 1, 1, 1],
        class_index=[0, 1, 0, 0, 0],
        abort_ns=[ABSENT, ABSENT, ABSENT, ABSENT, 3 * S - 1],
    )
    gate = GateConfig(max_queue=2, classes=(ClassRules(), ClassRules(max_wait_ns=2 * S)))
    found = one_at_a_time(requests, gate)
    rejected, length, aborted = RequestStatus.REJECTED, RequestStatus.LENGTH, RequestStatus.ABORTED
    assert found.requests.status.tolist() == [length, rejected, length, rejected, rejected]
    assert found.requests.finished_ns.tolist() == [3 * S, 5 * S // 2, 4 * S, S, 2 * S]
    assert found.shed_reasons.tolist() == [
        Reason.NONE,
        Reason.WAITED_TOO_LONG,
        Reason.NONE,
        Reason.QUEUE_FULL,
        Reason.QUEUE_FULL,
    ]
    roomy = one_at_a_time(
        requests, GateConfig(classes=(ClassRules(), ClassRules(max_wait_ns=2 * S)))
    )
    assert roomy.requests.status.tolist() == [length, rejected, length, length, aborted]
    assert roomy.requests.finished_ns[4] == 3 * S - 1


def test_a_window_holds_a_class_back_while_the_engine_is_idle():
    gate = GateConfig(classes=(ClassRules(window_ns=5 * S, window_size=2),))
    table = one_at_a_time(demand([0, 3 * S, 10 * S], [1] * 3, [1] * 3), gate).requests
    assert (table.admitted_ns // S).tolist() == [3, 4, 15]


def test_whoever_follows_one_who_was_turned_away_is_sent():
    requests = demand([0, 0, 0], [1] * 3, [3, 1, 1], follows=[-1, -1, 1], think_ns=[0, 0, S])
    table = one_at_a_time(requests, GateConfig(max_wait_ns=S // 2)).requests
    assert table.intended_send_ns.tolist() == [0, 0, 3 * S // 2]
    assert table.finished_ns.tolist() == [3 * S, S // 2, 2 * S]


def test_the_time_over_finds_requests_at_the_gate_unfinished():
    found = one_at_a_time(
        demand([0, 0], [1] * 2, [1, 1]),
        GateConfig(classes=(ClassRules(window_ns=9 * S),)),
        until_ns=5 * S,
    )
    assert found.outcome is Outcome.HORIZON
    assert found.requests.status.tolist() == [RequestStatus.UNFINISHED] * 2


@pytest.mark.slow  # nothing else in the fast suite has Triton's loop with a gate compiled, which takes 10 s
def test_an_engine_that_refuses_leaves_the_gate_going():
    """Triton's queue holds one behind the batch that runs.

    The gate lets four in at once, so that three are refused there.
    """
    config = DynamicBatching(num_blocks=100, max_model_len=512, max_batch_size=1, max_queue_size=1)
    requests = demand([0] * 8, [1] * 8, [1] * 8)
    found = [
        form(requests, config, linear_cost(launch_s=1.0), gate=GateConfig(max_in_flight=4))
        for form in (simulate, simulate_plainly)
    ]
    assert_equal(*found)
    assert found[0].outcome is Outcome.FINISHED
    assert set(found[0].requests.status.tolist()) == {RequestStatus.LENGTH, RequestStatus.REJECTED}
    assert not found[0].shed_reasons.any()


def test_earliest_deadline_meets_what_first_come_first_served_misses():
    """Three short chats for each long report, a little less than the server takes.

    Reports can wait a minute, chats half a second.
    """
    spec = workload_from_text(MIX, where="here")
    workload = draw_workload(spec)
    requests = demand_of(workload.plan, 16, has_contents=False)
    config = SchedulerConfig(
        num_blocks=30_000, max_model_len=16_384, max_num_seqs=32, enable_prefix_caching=False
    )
    cost = linear_cost(launch_s=8e-3, per_row_s=15e-6, per_context_token_s=2e-8)
    verdicts = {}
    for order in ("fcfs", "earliest-deadline"):
        gate = gate_rules(GateSpec(order=order), workload, first_token_pace(cost))
        simulation = simulate(requests, config, cost, gate=gate, record_steps=False)
        assert simulation.outcome is Outcome.FINISHED
        run = simulated_run(
            simulation, config, run_id="one", created_utc="", command=(), tool_version="0"
        )
        verdicts[order] = [
            judge_objective(
                run, parse_objective(slo), rows=run.requests.class_index == index
            ).verdict
            for index, slo in enumerate(workload.class_slos)
        ]
    assert verdicts == {"fcfs": ["missed", "met"], "earliest-deadline": ["met", "met"]}


def test_the_run_says_whom_the_gate_turned_away():
    requests = demand([0] * 6, [1] * 6, [1] * 6, class_index=[0, 0, 0, 1, 1, 1])
    gate = GateConfig(max_queue=2, classes=(ClassRules(name="chat"), ClassRules(name="report")))
    run = simulated_run(
        one_at_a_time(requests, gate),
        ONE_SEAT,
        run_id="one",
        created_utc="",
        command=(),
        tool_version="0",
    )
    assert [(one.code, one.text) for one in run.manifest.cautions] == [
        ("shed", "the gate turned away 1 of 3 requests of chat: 1 found the gate's queue full"),
        ("shed", "the gate turned away 3 of 3 requests of report: 3 found the gate's queue full"),
    ]
