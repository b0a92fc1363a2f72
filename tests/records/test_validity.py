"""Does each check see the fault that it is for, and nothing in a clean run?"""

from dataclasses import replace

import numpy as np
import pytest
from tests.records.load_run import MS, changed, load_plan, load_run
from tests.records.server_pages import page, samples_of, zeroed

from inferometer.errors import MeasureError
from inferometer.inputs.workload.plan import request_plan
from inferometer.inputs.workload.types import AtOnce
from inferometer.records.types import ABSENT, ChunkKind, ClockReading, HostClock, RequestStatus
from inferometer.records.validity import CHECKS, require_valid, validity_of

CLEAN = load_run()
UNKNOWN = changed(CLEAN, "chunks", n_tokens=ABSENT)
N = len(CLEAN.requests.status)
FIRST = np.arange(N)
BY_CHUNKS = "chunks"


def with_load(run, **changes):
    return replace(run, manifest=replace(run.manifest, load=load_plan(**changes)))


def stalled(stall_s, share):
    """The loop stood still beside a share of the first tokens, which were read when it went on."""
    is_hit = share * N > FIRST
    late_ns = np.where(is_hit, int(stall_s * 1e9), 0)
    first_ns = CLEAN.requests.first_token_ns + late_ns
    run = changed(
        CLEAN,
        "requests",
        first_token_ns=first_ns,
        finished_ns=np.maximum(first_ns, CLEAN.requests.finished_ns),
    )
    fired_ns = first_ns[is_hit] - 1
    due_ns = np.concatenate([fired_ns - int(stall_s * 1e9), CLEAN.lags.due_ns])
    lag_ns = np.concatenate([np.full(len(fired_ns), int(stall_s * 1e9)), CLEAN.lags.lag_ns])
    columns = [np.zeros(len(due_ns), np.int32), due_ns, lag_ns, np.ones(len(due_ns), np.int32)]
    return replace(run, lags=type(run.lags)(*columns))


def of_share(n_bad, bad, good):
    return np.where(n_bad > FIRST, bad, good)


def not_reused(run):
    """A connection for each request."""
    columns = {"connected_ns": run.requests.sent_ns, "last_byte_ns": run.requests.finished_ns}
    return changed(run, "exchanges", is_reused=False, connection_index=FIRST, **columns)


CLOSED_LATE = np.sort(CLEAN.requests.intended_send_ns) * 13 // 10


def clocked(moved_ms, *, is_there=True):
    """Sent by a host whose clock moved by so much, and is known to 1 ms."""
    readings = [
        ClockReading(at_ns=at_ns, offset_ns=moved, doubt_ns=MS, n_exchanges=50)
        for at_ns, moved in ((0, 0), (10**10, moved_ms * MS))
    ]
    clock = HostClock(
        process_index=0,
        host_hash="abc",
        before=readings[0],
        after=readings[1] if is_there else None,
    )
    return replace(CLEAN, manifest=replace(CLEAN.manifest, clocks=(clock,)))


SHARED = replace(CLEAN, server=samples_of(zeroed(page("sglang")), page("sglang")))
"""In the second between its two scrapes the server answers 40 requests, and the test has 11 of them."""


FAULTS = [
    ("host clocks", "SUSPECT", clocked(20)),
    ("host clocks", "SUSPECT", clocked(0, is_there=False)),
    ("loop lag", "SUSPECT", load_run(lag_s=0.03)),
    ("loop lag", "INVALID", load_run(lag_s=0.06)),
    ("loop lag", "SUSPECT", replace(CLEAN, lags=None)),
    ("send lag", "SUSPECT", load_run(send_lag_s=0.025)),
    ("send lag", "INVALID", load_run(send_lag_s=0.06)),
    ("send lag", "INVALID", changed(CLEAN, "requests", sent_ns=ABSENT)),
    ("client delay", "INVALID", stalled(0.06, 0.03)),
    ("client delay", "SUSPECT", stalled(0.025, 0.03)),
    ("client delay", "SUSPECT", load_run(send_lag_s=0.005)),
    ("rate", "INVALID", changed(CLEAN, "requests", sent_ns=CLOSED_LATE)),
    (
        "rate",
        "SUSPECT",
        changed(CLEAN, "requests", sent_ns=of_share(8, ABSENT, CLEAN.requests.sent_ns)),
    ),
    (
        "arrivals",
        "INVALID",
        changed(
            CLEAN,
            "requests",
            sent_ns=-(-CLEAN.requests.intended_send_ns // (2000 * MS)) * 2000 * MS,
        ),
    ),
    ("connections", "SUSPECT", not_reused(load_run(send_lag_s=0.01))),
    (
        "errors",
        "SUSPECT",
        changed(CLEAN, "requests", status=of_share(8, RequestStatus.FAILED, RequestStatus.LENGTH)),
    ),
    (
        "errors",
        "INVALID",
        changed(CLEAN, "requests", status=of_share(80, RequestStatus.FAILED, RequestStatus.LENGTH)),
    ),
    (
        "errors",
        "SUSPECT",
        changed(
            CLEAN, "requests", status=of_share(200, RequestStatus.REJECTED, RequestStatus.LENGTH)
        ),
    ),
    ("errors", "INVALID", changed(CLEAN, "requests", status=RequestStatus.REJECTED)),
    (
        "not done",
        "SUSPECT",
        changed(
            CLEAN, "requests", status=of_share(8, RequestStatus.UNFINISHED, RequestStatus.LENGTH)
        ),
    ),
    (
        "not done",
        "SUSPECT",
        changed(
            changed(
                CLEAN, "requests", status=of_share(8, RequestStatus.ABORTED, RequestStatus.LENGTH)
            ),
            "exchanges",
            error=of_share(8, "read_timeout", ""),
        ),
    ),
    (
        "output length",
        "SUSPECT",
        changed(CLEAN, "exchanges", asked_output_tokens=of_share(80, 20, 16)),
    ),
    ("output length", "INVALID", changed(CLEAN, "exchanges", asked_output_tokens=20)),
    (
        "false counts",
        "INVALID",
        changed(CLEAN, "exchanges", error=of_share(1, "too_many_tokens", "")),
    ),
    ("cache hits", "SUSPECT", changed(CLEAN, "exchanges", usage_cached_tokens=5)),
    ("cache hits", "INVALID", changed(CLEAN, "exchanges", usage_cached_tokens=64)),
    ("chunks", "SUSPECT", changed(CLEAN, "exchanges", n_coalesced_chunks=2)),
    ("token count", "SUSPECT", changed(CLEAN, "exchanges", token_source=BY_CHUNKS)),
    ("token count", "SUSPECT", changed(UNKNOWN, "requests", output_tokens=18)),
    (
        "warm-up",
        "SUSPECT",
        load_run(
            ttft_s=0.02 * np.where(FIRST < 30, 6, 1) * np.random.default_rng(1).lognormal(0, 0.1, N)
        ),
    ),
    ("other clients", "SUSPECT", SHARED),
    ("steady state", "SUSPECT", load_run(ttft_s=np.linspace(0.02, 2, N))),
]


def of_check(run, check, **more):
    return next(one for one in validity_of(run, **more).reasons if one.check == check)


def test_a_clean_run_is_valid():
    found = validity_of(CLEAN, percentiles=(0.99,))
    assert found.verdict == "VALID"
    assert [one.verdict for one in found.reasons] == ["VALID"] * (len(CHECKS) - 2), (
        "all but those of other hosts' clocks and of other clients"
    )
    assert all(one.text and not one.remedy for one in found.reasons)


def test_new_connections_that_cost_nothing_are_no_fault():
    """As of a server that closes what was idle for five seconds, over loopback."""
    found = of_check(not_reused(CLEAN), "connections")
    assert (found.verdict, "400 connections" in found.text) == ("VALID", True)


def test_clocks_that_agree_are_no_fault():
    assert of_check(clocked(18), "host clocks").verdict == "VALID"


@pytest.mark.parametrize(
    ("check", "verdict", "run"),
    FAULTS,
    ids=[f"{check} {verdict} {i}" for i, (check, verdict, _) in enumerate(FAULTS)],
)
def test_each_fault_is_seen(check, verdict, run):
    found = of_check(run, check)
    assert (found.verdict, bool(found.remedy)) == (verdict, True)
    whole = validity_of(run)
    order = ["INVALID", "SUSPECT", "VALID"]
    assert order.index(whole.verdict) <= order.index(verdict)
    assert whole.verdict == whole.reasons[0].verdict
    assert [order.index(one.verdict) for one in whole.reasons] == sorted(
        order.index(one.verdict) for one in whole.reasons
    )


def test_others_who_use_the_server_are_named_with_both_counts():
    assert "counted 40 first tokens, and " in of_check(SHARED, "other clients").text
    alone = replace(CLEAN, server=samples_of(page("vllm-0.32-before"), page("vllm-0.32-after")))
    assert "other clients" not in {one.check for one in validity_of(alone).reasons}


def test_every_check_has_a_fault():
    assert {one.check for one in validity_of(CLEAN).reasons} - {
        check for check, _, _ in FAULTS
    } == {"requests"}


def test_too_few_requests_for_what_was_asked():
    assert of_check(load_run(n=100), "requests").verdict == "VALID"
    short = of_check(load_run(n=100), "requests", percentiles=(0.5, 0.99))
    assert short.verdict == "SUSPECT"
    assert "needs 368" in short.text


def test_a_late_loop_far_from_any_first_token_is_not_in_ttft():
    run = stalled(0.06, 0.0)
    lags = run.lags._replace(
        due_ns=run.lags.due_ns,
        lag_ns=np.where(np.arange(len(run.lags.lag_ns)) < 3, 80 * MS, run.lags.lag_ns),
    )
    assert of_check(replace(run, lags=lags), "client delay").verdict == "VALID"


def test_stalls_of_another_process_are_not_mine():
    run = stalled(0.06, 0.05)
    assert of_check(run, "client delay").verdict == "INVALID"
    other = replace(
        run, lags=run.lags._replace(process_index=np.ones(len(run.lags.lag_ns), np.int32))
    )
    assert of_check(other, "client delay").verdict == "VALID"


def test_loads_that_are_not_open_have_no_rate_to_hold():
    workload = load_plan().workload
    at_once = with_load(
        CLEAN, workload=type(workload)(n_requests=400, arrivals=AtOnce(), classes=workload.classes)
    )
    assert not {one.check for one in validity_of(at_once).reasons} & {"rate", "arrivals"}


def test_answers_that_end_by_themselves_have_no_length_to_honour():
    free = with_load(changed(CLEAN, "exchanges", asked_output_tokens=20), ignores_eos=False)
    assert "output length" not in {one.check for one in validity_of(free).reasons}


def test_hits_that_the_workload_repeats_are_its_own():
    hits = changed(CLEAN, "exchanges", usage_cached_tokens=64)
    prefix = np.where(FIRST > 0, 64, 0)
    plan = request_plan(
        "test",
        arrival_ns=CLEAN.requests.intended_send_ns,
        prompt_tokens=np.full(N, 100),
        output_tokens=np.full(N, 16),
        prefix_request=np.where(FIRST > 0, 0, -1),
        prefix_tokens=prefix,
    )
    assert of_check(hits, "cache hits", plan=plan).verdict == "VALID"
    assert of_check(hits, "cache hits").verdict == "INVALID"


def test_a_chats_own_frame_may_be_remembered():
    """A template of 30 tokens around prompts of 100, of which a server keeps 16 or 128 tokens."""
    asked = {
        "arrival_ns": CLEAN.requests.intended_send_ns,
        "prompt_tokens": np.full(N, 100),
        "output_tokens": np.full(N, 16),
    }
    plan = request_plan("test", **asked)
    framed = changed(CLEAN, "exchanges", usage_prompt_tokens=130, usage_cached_tokens=16)
    seen = of_check(framed, "cache hits", plan=plan)
    assert (seen.verdict, "own frame around it is 23.1" in seen.text) == ("VALID", True), seen.text
    assert (
        of_check(with_load(framed, endpoint="completions"), "cache hits", plan=plan).verdict
        == "INVALID"
    )
    assert (
        of_check(
            changed(framed, "exchanges", usage_cached_tokens=128), "cache hits", plan=plan
        ).verdict
        == "INVALID"
    )
    miscounted = changed(CLEAN, "exchanges", usage_prompt_tokens=1000, usage_cached_tokens=500)
    assert of_check(miscounted, "cache hits", plan=plan).verdict == "INVALID", (
        "words of nine tokens are no frame"
    )


def test_what_is_said_of_token_counts_is_what_was_seen():
    assert (
        of_check(CLEAN, "token count").text
        == "tokens of 0 of 400 (0 %) answers were counted by their chunks"
    )
    twice = changed(UNKNOWN, "requests", output_tokens=32)
    assert (
        of_check(twice, "token count").text
        == "up to 6,400 of 6,400 (100 %) chunks hold several tokens, nobody knows which"
    )


def test_answers_with_a_token_more_than_chunks_hide_one_gap_each():
    """A GPU's server was SUSPECT by 30 % of its chunks, of which 110 held two tokens."""
    assert of_check(UNKNOWN, "token count").verdict == "VALID", "as many chunks as tokens"
    one_more = changed(UNKNOWN, "requests", output_tokens=17)
    found = of_check(one_more, "token count")
    assert found.verdict == "VALID"
    assert found.text.startswith("up to 400 of 6,400 (6.25 %) chunks hold several tokens")


def test_a_run_without_exchanges_is_no_load_test():
    assert validity_of(replace(CLEAN, exchanges=None)) is None


def test_an_empty_load_test_is_invalid():
    empty = {
        name: type(table)._make(column[:0] for column in table)
        for name in ("requests", "exchanges", "chunks")
        if (table := getattr(CLEAN, name))
    }
    assert validity_of(replace(CLEAN, **empty)).verdict == "INVALID"


def test_nothing_is_built_on_an_invalid_run():
    bad = load_run(send_lag_s=0.06)
    judged = replace(bad, manifest=replace(bad.manifest, validity=validity_of(bad)))
    with pytest.raises(MeasureError, match="INVALID") as raised:
        require_valid(judged)
    assert raised.value.exit_code == 3
    require_valid(judged, forced=True)
    require_valid(CLEAN)
    require_valid(replace(CLEAN, manifest=replace(CLEAN.manifest, validity=validity_of(CLEAN))))
    assert ChunkKind.CONTENT in CLEAN.chunks.kind


def test_a_warm_up_that_moves_nothing_is_no_fault():
    rng = np.random.default_rng(3)
    run = load_run(ttft_s=0.02 * np.where(FIRST < 15, 1.3, 1) * rng.lognormal(0, 0.1, N))
    found = of_check(run, "warm-up")
    assert found.verdict == "VALID"
    cold = load_run(ttft_s=0.02 * np.where(FIRST < 40, 5, 1) * rng.lognormal(0, 0.1, N))
    assert "TTFT p95 is" in of_check(cold, "warm-up").text


def capped(most, *, extra_s=0.0):
    """Requests at 20/s that take 1 s each, of which at most so many may be in flight.

    Each sent ``extra_s`` after a place was free.
    """
    intended = np.arange(200) * 50 * MS
    sent, ends = [], []
    for at in intended.tolist():
        free = at if len(ends) < most else max(at, sorted(ends)[-most])
        sent.append(free + round(extra_s * 1e9))
        ends.append(sent[-1] + 1000 * MS)
    base = load_run(200)
    sent, ends = np.array(sent), np.array(ends)
    requests = base.requests._replace(
        intended_send_ns=intended, sent_ns=sent, first_token_ns=sent + 20 * MS, finished_ns=ends
    )
    load = replace(load_plan(), max_concurrency=most)
    exchanges = base.exchanges._replace(last_byte_ns=ends)
    return replace(
        base, requests=requests, exchanges=exchanges, manifest=replace(base.manifest, load=load)
    )


@pytest.mark.parametrize(("extra_s", "verdict"), [(0.0, "VALID"), (0.06, "INVALID")])
def test_what_waits_for_the_cap_is_not_late_and_what_waits_longer_is(extra_s, verdict):
    run = capped(8, extra_s=extra_s)
    assert (run.requests.sent_ns - run.requests.intended_send_ns).max() > 10_000 * MS
    assert of_check(run, "send lag").verdict == verdict
    assert of_check(run, "client delay").verdict == verdict
    rate = of_check(run, "rate")
    assert rate.verdict == "SUSPECT"
    assert "--max-concurrency 8 holds the others back" in rate.text
    assert rate.remedy.startswith("a higher --max-concurrency, or none")
    enough = of_check(capped(21, extra_s=0.0), "rate")
    assert (enough.verdict, enough.remedy) == ("VALID", "")
    uncapped = replace(run, manifest=replace(run.manifest, load=load_plan()))
    assert of_check(uncapped, "send lag").verdict == "INVALID"
