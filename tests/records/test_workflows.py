"""Does a workflow take from its planner's intended send to the end of its synthesis, whatever is known of it?"""

from dataclasses import replace

import numpy as np
from tests.records.test_request_summaries import DONE, GONE, MS, REFUSED, WAITING, run_of

from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.plan import request_plan, workflow_parts
from inferometer.records.latencies import end_ns, workflow_samples
from inferometer.records.request_summaries import (
    judge_objective,
    summarise_classes,
    summarise_requests,
)

__all__ = ["run_of"]


def plan_of(n_workflows):
    """Planner, two subtasks and a synthesis each; the planners come every millisecond."""
    n = 4 * n_workflows
    place, planner = np.arange(n) % 4, np.arange(n) // 4 * 4
    return request_plan(
        "here",
        arrival_ns=np.where(place == 0, planner // 4 * MS, -1),
        prompt_tokens=np.full(n, 100),
        output_tokens=np.full(n, 4),
        follows=np.where(place == 0, -1, planner),
        joins=np.where((place == 1) | (place == 2), planner + 3, -1),
        think_ns=np.where(place == 0, -1, 0),
    )


def at(row, index, sent_ms, **changes):
    return row | {"request_index": index, "intended_send_ns": sent_ms * MS} | changes


def test_of_each_synthesis_that_was_served(run_of):
    run = run_of(
        at(DONE, 0, 0),
        at(DONE, 4, 1),
        at(DONE, 8, 2),
        at(DONE, 12, 3),
        at(DONE, 1, 400),
        at(DONE, 2, 400, finished_ns=700 * MS),
        at(DONE, 3, 700, finished_ns=950 * MS),
        at(GONE, 7, 710, finished_ns=800 * MS),
        at(REFUSED, 11, 720),
    )
    found = workflow_samples(run.requests, plan_of(5), at_ns=end_ns(run))
    assert found.rows.tolist() == [0, 1, 3], "the third was refused, the fifth has not begun"
    assert found.lower_s.tolist() == [0.95, 0.799, 0.947]
    assert found.upper_s.tolist() == [0.95, np.inf, np.inf]


def test_beside_the_latencies_of_requests_where_there_are_some(run_of):
    run = run_of(at(DONE, 0, 0), at(WAITING, 1, 400), at(WAITING, 2, 400))
    plan = plan_of(1)
    assert "workflow" not in {one.latency for one in summarise_requests(run).latencies}
    found = summarise_requests(replace(run, drawn=plan)).latency("workflow")
    assert (found.n_samples, found.n_bounded_below_only) == (1, 1)
    assert found.mean.is_lower_bound


def workflows_of(run_of, n_workflows, slow_ms):
    """All done, each within 900 ms, but every fortieth, whose synthesis takes longer."""
    rows = [
        at(DONE, 4 * k + i, k + sent_ms, finished_ns=(k + sent_ms + 300) * MS)
        for k in range(n_workflows)
        for i, sent_ms in enumerate((0, 300, 300, 600))
    ]
    for row in rows:
        if row["request_index"] % 160 == 3:
            row["finished_ns"] += slow_ms * MS
    run = run_of(*sorted(rows, key=lambda row: row["intended_send_ns"]))
    return replace(run, drawn=plan_of(n_workflows))


def judged(run, text, rows=None):
    return judge_objective(run, parse_objective(text, has_workflows=True), rows=rows)


def test_a_limit_of_workflows_is_judged_by_workflows(run_of):
    run = workflows_of(run_of, 400, 5000)
    found = judged(run, "workflow:p95<1s, e2e:p95<1s")
    assert [one.verdict for one in found.thresholds] == ["met", "met"]
    assert [one.seen.seconds.n_samples for one in found.thresholds] == [400, 1600]
    assert judged(run, "workflow:p99<1s").verdict == "missed"
    within = found.good.value * 1600
    assert within == 1600 - 10 - 10, (
        "ten syntheses beyond the limit of E2E, their planners beyond the other"
    )


def test_a_part_of_the_requests_is_judged_by_the_workflows_that_begin_in_it(run_of):
    """Their other requests need not be in it: a window of time ends while some are under way."""
    run = workflows_of(run_of, 400, 5000)
    is_planner = run.requests.request_index % 4 == 0
    is_slow = run.requests.request_index % 160 < 4
    assert judged(run, "workflow:p99<1s", is_planner & ~is_slow).verdict == "met"
    assert judged(run, "workflow:p50<1s", is_planner & is_slow).thresholds[0].seen.seconds.value > 5
    assert judged(run, "workflow:p50<1s", ~is_planner).thresholds[0].seen is None
    assert judged(replace(run, drawn=None), "workflow:p50<1s").verdict == "undecided"


def test_classes_split_into_the_parts_of_their_workflows(run_of):
    run = workflows_of(run_of, 5, 0)
    parts = summarise_classes(run, ("agent",))
    assert [(one.name, one.n_requests) for one in parts] == [
        ("agent planner", 5), ("agent subtask", 10), ("agent synthesis", 5)
    ]  # fmt: skip
    assert summarise_classes(replace(run, drawn=None), ("agent",)) == ()
    assert not workflow_parts(plan_of_beams(3)).any(), "a beam search is one request of its client"


def plan_of_beams(n_searches):
    """Searches of two beams and three tokens, which come every millisecond."""
    n = 5 * n_searches
    place, first = np.arange(n) % 5, np.arange(n) // 5 * 5
    return request_plan(
        "here",
        arrival_ns=np.where(place == 0, first // 5 * MS, -1),
        prompt_tokens=np.full(n, 100),
        output_tokens=np.full(n, 1),
        follows=np.select([place == 0, place < 3], [-1, first], first + 1),
        joins=np.where(place == 2, first + 3, -1),
        accompanies=np.select([place == 2, place == 4], [first + 1, first + 3], -1),
        think_ns=np.where(place == 0, -1, 0),
    )


def test_a_beam_search_ends_with_the_last_of_its_last_beams(run_of):
    steps = [
        at(DONE, 5 * k + i, sent_ms, finished_ns=(sent_ms + 90 + 7 * i) * MS)
        for k in range(4)
        for i, sent_ms in ((0, k), (1, 200), (2, 200))
    ]
    run = run_of(
        *sorted(steps, key=lambda row: row["intended_send_ns"]),
        at(DONE, 3, 400, finished_ns=950 * MS),
        at(DONE, 4, 400, finished_ns=901 * MS),
        at(DONE, 8, 400, finished_ns=920 * MS),
        at(GONE, 9, 400, finished_ns=930 * MS),
        at(DONE, 13, 400, finished_ns=920 * MS),
        at(REFUSED, 14, 401),
    )
    found = workflow_samples(run.requests, plan_of_beams(4), at_ns=end_ns(run))
    assert found.rows.tolist() == [0, 1, 3], "one of the third's was refused"
    assert found.lower_s.tolist() == [0.95, 0.929, 0.947], "the fourth's last step has not begun"
    assert found.upper_s.tolist() == [0.95, np.inf, np.inf]
    summary = summarise_requests(replace(run, drawn=plan_of_beams(4))).latency("workflow")
    assert (summary.n_samples, summary.n_bounded_below_only) == (3, 2)
