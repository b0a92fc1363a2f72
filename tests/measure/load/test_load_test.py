import itertools

import numpy as np
import pytest
from tiny_server import EVENT, LAST, a_plan, load

from inferometer.measure.load import bodies
from inferometer.records.raw_log import int32s, int64s

ASKING = 1
"""The connection that found out whether somebody is there."""


def test_every_request_is_sent_and_kept(server, tmp_path):
    plan = a_plan(50, gap_ns=4_000_000, output_tokens=list(range(1, 51)))
    loaded = load(server.url, plan, tmp_path)
    assert loaded.outcome.n_sent == 50
    assert loaded.outcome.n_failed == 0
    assert sorted(frame.request_index for frame in loaded.requests) == list(range(50))
    for frame in loaded.requests:
        assert (frame.error, frame.http_status) == ("", 200)
        assert frame.body == EVENT * (frame.request_index + 1) + LAST
        assert frame.asked_output_tokens == frame.request_index + 1
        assert frame.intended_ns == 4_000_000 * frame.request_index
        reads = int64s(frame.read_ns)
        assert (
            frame.intended_ns
            <= frame.sent_ns
            <= frame.head_ns
            <= reads[0]
            <= reads[-1]
            <= frame.finished_ns
        )
        assert int32s(frame.read_bytes).sum() == len(frame.body) == frame.received_bytes
    assert [end.is_interrupted for end in loaded.ends] == [False]
    assert loaded.ends[0].n_unsent == 0


def test_connections_are_used_again(server, tmp_path):
    n_requests = 20
    one_after_the_other = {
        "arrival_ns": [0] + [-1] * 19,
        "follows": list(range(-1, 19)),
        "think_ns": [-1] + [0] * 19,
    }
    loaded = load(server.url, a_plan(n_requests, **one_after_the_other), tmp_path)
    assert server.n_connections == 1 + ASKING
    assert [frame.is_reused for frame in loaded.requests] == [False] + [True] * 19
    assert [frame.connected_ns is None for frame in loaded.requests] == [False] + [True] * 19


def test_prompts_hold_the_plans_tokens(server, tmp_path):
    plan = a_plan(3, prompt_tokens=[6, 12, 9], prefix_request=[-1, 0, 1], prefix_tokens=[0, 8, 3])
    load(server.url, plan, tmp_path, prompt_form="token-ids")
    prompts = {len(seen.body["prompt"]): seen.body["prompt"] for seen in server.seen}
    assert set(prompts) == {6, 12, 9}
    assert prompts[12][:6] == prompts[6], "the second goes on from the first"
    assert prompts[9][:3] == prompts[12][:3], (
        "the third begins as the second, which begins as the first"
    )
    assert prompts[9][3:9] != prompts[12][3:9]
    flat = list(itertools.chain(*prompts.values()))
    assert min(flat) >= bodies.FIRST_TOKEN_ID
    assert max(flat) < bodies.FIRST_TOKEN_ID + bodies.N_TOKEN_IDS


def test_followers_come_after_their_leaders_end_and_thought(server, tmp_path):
    plan = a_plan(
        4,
        arrival_ns=[0, -1, -1, 1_000_000],
        follows=[-1, 0, 1, -1],
        think_ns=[-1, 30_000_000, 0, -1],
    )
    loaded = load(server.url, plan, tmp_path)
    assert loaded.of(1).intended_ns == loaded.of(0).finished_ns + 30_000_000
    assert loaded.of(2).intended_ns == loaded.of(1).finished_ns
    assert loaded.of(3).intended_ns == 1_000_000


@pytest.mark.parametrize("n_processes", [1, 2])
def test_a_fan_out_is_sent_at_one_end_and_joins_at_the_last(server, tmp_path, n_processes):
    """Two planners, three subtasks each, and syntheses; the second waits for the first one's planner too."""
    plan = a_plan(
        10,
        arrival_ns=[0, *[-1] * 4, 2_000_000, *[-1] * 4],
        follows=[-1, 0, 0, 0, 0, -1, 5, 5, 5, 5],
        joins=[9, 4, 4, 4, -1, -1, 9, 9, 9, -1],
        think_ns=[-1, 0, 20_000_000, 0, 3_000_000, -1, 0, 0, 0, 0],
        output_tokens=[2, 1, 3, 9, 1, 2, 1, 3, 9, 1],
    )
    loaded = load(server.url, plan, tmp_path, n_processes=n_processes)
    assert sorted(frame.request_index for frame in loaded.requests) == list(range(10))
    assert {frame.error for frame in loaded.requests} == {""}
    for row in (1, 2, 3, 6, 7, 8):
        leader = loaded.of(int(plan.follows[row]))
        assert loaded.of(row).intended_ns == leader.finished_ns + int(plan.think_ns[row])
    for synthesis in (4, 9):
        awaited = [*np.flatnonzero(plan.joins == synthesis).tolist(), int(plan.follows[synthesis])]
        last_ns = max(loaded.of(row).finished_ns for row in awaited)
        assert loaded.of(synthesis).intended_ns == last_ns + int(plan.think_ns[synthesis])
    assert len({frame.process_index for frame in loaded.requests}) == 1, "who waits is of one chain"


@pytest.mark.slow
def test_processes_share_one_schedule(server, tmp_path):
    plan = a_plan(60, gap_ns=5_000_000)
    loaded = load(server.url, plan, tmp_path, n_processes=3)
    assert sorted(frame.intended_ns for frame in loaded.requests) == [
        5_000_000 * i for i in range(60)
    ]
    assert len({frame.origin_monotonic_ns for frame in loaded.sessions}) == 1
    by_process = {
        process: {f.request_index for f in loaded.requests if f.process_index == process}
        for process in range(3)
    }
    assert [len(rows) for rows in by_process.values()] == [20, 20, 20]
    assert len(loaded.ends) == 3


def test_followers_go_to_the_process_of_their_leader(server, tmp_path):
    plan = a_plan(
        6,
        arrival_ns=[0, 0, 0, -1, -1, -1],
        follows=[-1, -1, -1, 0, 1, 2],
        think_ns=[-1] * 3 + [0] * 3,
    )
    loaded = load(server.url, plan, tmp_path, n_processes=2)
    assert len(loaded.requests) == 6
    for row in range(3):
        assert loaded.of(row).process_index == loaded.of(row + 3).process_index


def test_the_client_watches_its_own_lag(server, tmp_path):
    loaded = load(server.url, a_plan(2, gap_ns=500_000_000), tmp_path)
    due_ns = np.concatenate([int64s(frame.due_ns) for frame in loaded.lags])
    lag_ns = np.concatenate([int64s(frame.lag_ns) for frame in loaded.lags])
    assert (np.diff(due_ns) == 10_000_000).all()
    assert len(due_ns) >= 50
    assert (lag_ns >= 0).all()


def test_progress_is_reported(server, tmp_path):
    seen = []
    load(server.url, a_plan(120, gap_ns=10_000_000), tmp_path, on_progress=seen.append)
    assert seen[-1].n_good == seen[-1].n_sent == seen[-1].n_planned == 120
    assert seen[0].first_bytes_s is None or seen[0].first_bytes_s > 0


def test_no_more_connections_than_allowed(server, tmp_path):
    loaded = load(server.url, a_plan(30), tmp_path, max_connections=2)
    assert server.n_connections == 2 + ASKING
    assert [frame.error for frame in loaded.requests] == [""] * 30
