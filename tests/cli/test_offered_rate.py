"""Is there one offered rate, and is it said where sessions hold it below the one that was asked for?"""

import dataclasses
import re

import numpy as np
import pytest

from inferometer.api.workload import begun_at_once, held_back, left_alone
from inferometer.inputs.workload import reading, replay
from inferometer.inputs.workload.description import describe
from inferometer.inputs.workload.plan import NONE
from inferometer.records.types import RequestTable
from inferometer.units import NS_PER_S


def drawn_at(workload, rate_per_s, n_requests=300):
    changes = {"arrivals": {"kind": "open", "rate_per_s": rate_per_s}, "n_requests": n_requests}
    return replay.draw_workload(
        reading.with_changes(reading.resolve_workload(workload), changes, where="a test")
    )


def test_sessions_that_hold_the_rate_are_named():
    drawn = drawn_at("long-context", 1.0)
    (caution,) = held_back(drawn, 0.107)
    assert caution.text.startswith(
        "0.107 requests/s were offered of 1 asked for: 95 of 300 requests are later turns"
    )
    assert "all took 46.6 min" in caution.text
    assert "--requests" in caution.remedy


def test_a_rate_that_came_is_no_matter_of_sessions():
    drawn = drawn_at("long-context", 1.0)
    assert held_back(drawn, 0.95) == ()
    assert held_back(drawn, None) == ()
    assert held_back(drawn_at("chat", 1.0), 0.1) == (), "nobody waits there"
    assert held_back(dataclasses.replace(drawn, asked_rate_per_s=None), 0.1) == ()


def closed_loop(n_requests, n_users=4):
    changes = {
        "arrivals": {"kind": "closed", "concurrency": n_users},
        "n_requests": n_requests,
    }
    return replay.draw_workload(
        reading.with_changes(reading.resolve_workload("1024x256"), changes, where="a test")
    )


def table_of(drawn, end_ns):
    """Each request is sent as the one before it of the same user ends."""
    follows = drawn.plan.follows
    sent_ns = np.array([0 if before < 0 else end_ns[before] for before in follows])
    n = len(end_ns)
    columns = dict.fromkeys(RequestTable._fields, np.zeros(n, np.int64))
    columns |= {
        "intended_send_ns": sent_ns,
        "finished_ns": np.array(end_ns),
        "request_index": np.arange(n),
    }
    return RequestTable(**columns)


def test_users_whose_last_one_is_alone_are_named():
    drawn = closed_loop(8)
    # users 0 to 2 are done after 10, user 3 after 40: (3 * 10 + 40) / 40 = 1.75 at work
    (caution,) = left_alone(drawn, table_of(drawn, [5, 5, 5, 5, 10, 10, 10, 40]))
    assert caution.text.startswith("1.8 of 4 users were at work on average")
    # 2.25 users were away: beside 19 times as many at work, 8 requests * 2.25 / 1.75 * 19 = 195
    assert caution.remedy == "more requests: --requests 200"


def test_users_of_a_class_who_are_done_before_another_need_other_parts_of_the_requests():
    """More requests in the same parts would leave the others alone for as large a part."""
    text = """
        n_requests = 40
        [[classes]]
        name = "quick"
        concurrency = 2
        weight_ratio = 3
        prompt_tokens = { kind = "constant", value = 10 }
        output_tokens = { kind = "constant", value = 10 }
        [[classes]]
        name = "slow"
        concurrency = 2
        prompt_tokens = { kind = "constant", value = 10 }
        output_tokens = { kind = "constant", value = 10 }
    """
    drawn = replay.draw_workload(reading.workload_from_text(text, where="a test"))
    of_class, follows = drawn.plan.class_index, drawn.plan.follows
    end_ns = list[int]()
    for index, before in enumerate(follows):
        end_ns.append((end_ns[before] if before >= 0 else 0) + (1, 60)[of_class[index]])
    (caution,) = left_alone(drawn, table_of(drawn, end_ns))
    n_quick, n_slow = (of_class == 0).sum(), (of_class == 1).sum()
    per_slow = int(re.search(r"quick (\d+), slow 1$", caution.remedy).group(1))
    assert per_slow == pytest.approx(60, rel=0.1), f"of {n_quick} and {n_slow} requests"


def test_users_who_are_done_together_are_no_matter():
    drawn = closed_loop(8)
    assert left_alone(drawn, table_of(drawn, [5, 5, 5, 5, 10, 10, 10, 11])) == ()
    one = closed_loop(2, n_users=1)
    assert left_alone(one, table_of(one, [5, 90])) == ()
    opened = drawn_at("chat", 1.0, 8)
    assert left_alone(opened, table_of(drawn, [5, 5, 5, 5, 10, 10, 10, 40])) == ()


def test_first_requests_that_come_at_once_are_named_where_they_decide_the_tail():
    drawn = closed_loop(40)
    table = table_of(drawn, list(range(1, 41)))
    burst = np.where(drawn.plan.follows == NONE, int(5e9), int(1e8))
    slow_start = table._replace(first_token_ns=table.intended_send_ns + burst)
    (caution,) = begun_at_once(drawn, slow_start)
    assert caution.text.endswith("4 users come at once: without them TTFT p95 is 100 ms")
    assert caution.remedy.startswith("more requests: --requests 160;")
    even = table._replace(first_token_ns=table.intended_send_ns + int(1e8))
    assert begun_at_once(drawn, even) == ()
    assert begun_at_once(drawn_at("chat", 1.0, 40), slow_start) == ()


def replayed_loop(tmp_path, n_requests):
    """Four users take the requests of a trace of fifty."""
    trace = tmp_path / "trace.jsonl"
    rows = [f'{{"input_length": 100, "output_length": 10, "timestamp": {at}}}' for at in range(50)]
    trace.write_text("\n".join(rows) + "\n")
    changes = {"arrivals": {"kind": "closed", "concurrency": 4}, "n_requests": n_requests}
    return replay.draw_workload(
        reading.with_changes(reading.resolve_workload(str(trace)), changes, where="a test")
    )


def test_users_of_a_replayed_trace_are_advised_no_further_than_it_goes(tmp_path):
    part = replayed_loop(tmp_path, 8)
    (caution,) = left_alone(part, table_of(part, [5, 5, 5, 5, 10, 10, 10, 13]))
    assert caution.remedy == "more requests: --requests 40"
    (caution,) = left_alone(part, table_of(part, [5, 5, 5, 5, 10, 10, 10, 90]))
    assert caution.remedy == "all of the trace: --requests 50; or fewer users: --concurrency 1"
    whole = replayed_loop(tmp_path, 50)
    table = table_of(whole, list(range(1, 51)))
    burst = np.where(whole.plan.follows == NONE, int(5e9), int(1e8))
    (caution,) = begun_at_once(whole, table._replace(first_token_ns=table.intended_send_ns + burst))
    assert caution.remedy.startswith("fewer users: --concurrency 1, or a longer trace;")


def test_users_who_start_one_by_one_are_at_work_since_they_started_and_have_no_rate():
    changes = {
        "arrivals": {"kind": "closed", "concurrency": 4, "start_over_s": 8},
        "n_requests": 8,
    }
    spec = reading.with_changes(reading.resolve_workload("1024x256"), changes, where="a test")
    drawn = replay.draw_workload(spec)
    table = table_of(drawn, [10 * NS_PER_S] * 4 + [20 * NS_PER_S] * 4)
    began_ns = np.where(drawn.plan.follows == NONE, drawn.plan.arrival_ns, table.intended_send_ns)
    assert began_ns.max() > began_ns.min()
    assert left_alone(drawn, table._replace(intended_send_ns=began_ns)) == ()
    assert describe(drawn.plan).rate_per_s is not None
    assert describe(drawn.plan, is_closed=True).rate_per_s is None
