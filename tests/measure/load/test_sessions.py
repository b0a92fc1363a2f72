"""What is sent after a run was interrupted or killed: what is missing, once, at the old spacing."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from arrival_tests import ARRIVALS, check_dispersion, check_gaps, plan_of
from hypothesis import given, strategies as st
from tiny_server import a_plan, frames_of, load, silent_inside

from inferometer.inputs.workload.plan import NONE
from inferometer.measure.load.schedule import Past, past_of, session_after
from inferometer.records.raw_log import int64s, raw_logs


def rows_of(session):
    return sorted(row for share in session.shares for row in share.rows.tolist())


def test_what_is_left_keeps_its_spacing_from_the_seam_on():
    plan = a_plan(6, gap_ns=1_000)
    past = Past(n_sessions=1, done=frozenset({0, 1, 3}), ended_ns=50_000)
    share = session_after(past, plan, for_s=None, n_processes=1).shares[0]
    assert share.rows.tolist() == [2, 4, 5]
    assert share.due_ns.tolist() == [50_000, 52_000, 53_000]


def test_a_follower_whose_leader_ended_before_comes_after_its_thought():
    plan = a_plan(3, arrival_ns=[0, -1, -1], follows=[-1, 0, 1], think_ns=[-1, 700, 800])
    past = Past(n_sessions=1, done=frozenset({0}), ended_ns=5_000)
    share = session_after(past, plan, for_s=None, n_processes=1).shares[0]
    assert (share.rows.tolist(), share.due_ns.tolist()) == ([1], [5_700])
    assert (share.waiting_for, share.n_awaited) == ({1: (2,)}, {2: 1})


def test_who_waits_for_several_waits_for_those_that_are_left_of_them():
    plan = a_plan(
        5,
        arrival_ns=[0, -1, -1, -1, -1],
        follows=[-1, 0, 0, 0, 0],
        joins=[-1, 4, 4, 4, -1],
        think_ns=[-1, 0, 0, 0, 700],
    )
    past = Past(n_sessions=1, done=frozenset({0, 1, 3}), ended_ns=5_000)
    share = session_after(past, plan, for_s=None, n_processes=1).shares[0]
    assert (share.rows.tolist(), share.due_ns.tolist()) == ([2], [5_000])
    assert (share.waiting_for, share.n_awaited) == ({2: (4,)}, {4: 1})
    past = Past(n_sessions=1, done=frozenset({0, 1, 2, 3}), ended_ns=5_000)
    share = session_after(past, plan, for_s=None, n_processes=1).shares[0]
    assert (share.rows.tolist(), share.due_ns.tolist(), share.waiting_for) == ([4], [5_700], {})


def test_what_would_come_after_the_end_is_not_sent():
    plan = a_plan(10, gap_ns=100_000_000)
    fresh = session_after(Past(), plan, for_s=0.45, n_processes=1)
    assert (rows_of(fresh), fresh.cutoff_ns) == ([0, 1, 2, 3, 4], 450_000_000)
    past = Past(n_sessions=1, done=frozenset({0, 1}), ended_ns=700_000_000)
    later = session_after(past, plan, for_s=0.45, n_processes=1)
    assert rows_of(later) == [2, 3, 4], "the pause in between is not counted"


@pytest.mark.parametrize("n_processes", [1, 4])
@pytest.mark.parametrize("process", ARRIVALS)
def test_the_schedule_of_all_processes_together_is_the_asked_process(process, n_processes):
    plan = plan_of(process)
    session = session_after(Past(), plan, for_s=None, n_processes=n_processes)
    due_ns = np.sort(np.concatenate([share.due_ns for share in session.shares]))
    assert (due_ns == np.sort(plan.arrival_ns)).all()
    check_dispersion(process, due_ns)
    check_gaps(process, due_ns, 0.0)


@pytest.mark.slow
@given(data=st.data(), n_requests=st.integers(1, 60), n_processes=st.integers(1, 5))
def test_processes_share_out_every_missing_request_once(data, n_requests, n_processes):
    follows = [
        data.draw(st.sampled_from([NONE, *range(max(0, row - 3), row)]))
        for row in range(n_requests)
    ]
    joins, accompanies = [NONE] * n_requests, [NONE] * n_requests
    for row in range(n_requests):
        those = [lead for lead in range(row) if follows[lead] != NONE and accompanies[lead] == NONE]
        accompanies[row] = lead = data.draw(st.sampled_from([NONE, NONE, *those[-2:]]))
        follows[row] = follows[row] if lead == NONE else follows[lead]
    alone = [row for row in range(n_requests) if follows[row] != NONE and accompanies[row] == NONE]
    for row in range(n_requests - 1):
        those = [later for later in alone if later > row]
        joins[row] = data.draw(st.sampled_from([NONE, *those[:3]]))
    arrival = [NONE if leader != NONE else 10 * row for row, leader in enumerate(follows)]
    think = [5 if leader != NONE else NONE for leader in follows]
    columns = {"follows": follows, "joins": joins, "accompanies": accompanies}
    plan = a_plan(n_requests, arrival_ns=arrival, think_ns=think, **columns)
    awaited = [
        {leader} - {NONE}
        | {other for other in range(row) if joins[other] in {row, accompanies[row]} - {NONE}}
        for row, leader in enumerate(follows)
    ]
    done: set[int] = set()
    for row, those in enumerate(awaited):
        if those <= done and data.draw(st.booleans()):
            done.add(row)
    session = session_after(
        Past(n_sessions=1, done=frozenset(done), ended_ns=10**6),
        plan,
        for_s=None,
        n_processes=n_processes,
    )
    sent = rows_of(session)
    reached = set(sent)
    for share in session.shares:
        mine = set(share.rows.tolist())
        assert (np.diff(share.due_ns) >= 0).all()
        frontier, ended, n_awaited = list(mine), set(done), dict(share.n_awaited)
        while frontier:
            ended.add(row := frontier.pop())
            for waiting in share.waiting_for.get(row, ()):
                n_awaited[waiting] -= 1
                if not n_awaited[waiting]:
                    assert waiting not in reached, "sent by one process alone"
                    assert awaited[waiting] <= ended, "after all for which it waits"
                    reached.add(waiting)
                    frontier.append(waiting)
        assert not any(n_awaited.values())
    assert len(sent) == len(set(sent))
    assert reached == set(range(n_requests)) - done
    assert session.n_requests == n_requests - len(done)


def test_an_interrupted_run_goes_on_and_sends_each_request_once(server, tmp_path):
    def interrupt_once(progress):
        if progress.n_sent > 10 and not stopped:
            stopped.append(progress)
            signal.raise_signal(signal.SIGINT)

    stopped = []
    plan = a_plan(80, gap_ns=20_000_000)
    first = load(server.url, plan, tmp_path, on_progress=interrupt_once)
    past = past_of(tmp_path)
    assert past.n_sessions == 1
    assert 10 < len(past.done) < 80
    loaded = load(server.url, plan, tmp_path, past=past)
    good = sorted(frame.request_index for frame in loaded.requests if not frame.error)
    assert good == list(range(80))
    seam_ns = loaded.sessions[1].begins_ns
    assert seam_ns == max(frame.ended_ns for frame in first.ends)
    later = sorted(frame.intended_ns for frame in loaded.requests if frame.intended_ns >= seam_ns)
    assert seam_ns <= later[0] < seam_ns + 20_000_000
    assert (np.diff(later) == 20_000_000).all()
    assert len(raw_logs(tmp_path)) == 2


CHILD = """
    import sys
    sys.path.insert(0, sys.argv[3])
    from pathlib import Path
    from tiny_server import a_plan, load
    load(sys.argv[1], a_plan(3000, gap_ns=5_000_000), Path(sys.argv[2]), n_processes=2)
"""


def test_kill_9_of_everything_loses_a_second_at_most(server, tmp_path):
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(CHILD),
        server.url,
        str(tmp_path),
        str(Path(__file__).parent),
    ]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while len(server.seen) < 300 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    workers = [
        int(one) for one in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    ]
    n_seen = len(server.seen)
    for pid in (*workers, child.pid):
        os.kill(pid, signal.SIGKILL)
    child.wait()
    assert len(workers) == 2
    past = past_of(tmp_path)
    n_per_s = 200
    assert n_seen - n_per_s <= len(past.done) <= len(server.seen)


def test_clients_stop_when_their_command_is_killed(server, tmp_path):
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(CHILD),
        server.url,
        str(tmp_path),
        str(Path(__file__).parent),
    ]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while len(server.seen) < 50 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    child.kill()
    child.wait()
    while len(frames_of(tmp_path)[3]) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert [end.is_interrupted for end in frames_of(tmp_path)[3]] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("error", ["interrupted", "total_timeout"])
def test_what_was_cut_short_is_asked_again_what_failed_is_not(error, server, tmp_path):
    server.answer = silent_inside

    def interrupt_once(progress):
        if progress.n_sent == 1 and error == "interrupted" and not stopped:
            stopped.append(progress)
            signal.raise_signal(signal.SIGINT)

    stopped = []
    loaded = load(
        server.url,
        a_plan(1),
        tmp_path,
        timeout_s=1.0 if error == "total_timeout" else 60.0,
        on_progress=interrupt_once,
    )
    assert loaded.of(0).error == error
    assert past_of(tmp_path).done == (frozenset() if error == "interrupted" else frozenset({0}))
    assert int64s(loaded.of(0).read_ns).size == 1
