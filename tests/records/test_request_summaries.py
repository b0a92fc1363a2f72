"""Are latencies, throughput and verdicts those of the definitions, and is nothing that was not done left out?"""

import math
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.records.load_run import load_run

from inferometer.errors import RecordError
from inferometer.inputs.objectives import ObjectiveSpec, Threshold, parse_objective
from inferometer.inputs.types import Caution
from inferometer.records import tables
from inferometer.records.latencies import delivered_tokens, end_ns, latency_samples
from inferometer.records.reading import read_run
from inferometer.records.request_summaries import (
    judge_objective,
    summarise_groups,
    summarise_requests,
)
from inferometer.records.types import LagTable, RequestStatus, RequestTable, Run

MS = 1_000_000
FIXTURE = Path(__file__).parent / "fixtures" / "version_2"

NOTHING = {
    "sent_ns": 0,
    "prompt_tokens": 100,
    "cached_tokens": 0,
    "n_preemptions": 0,
    "priority": 0,
    "class_index": 0,
    "request_index": 0,
}
DONE = NOTHING | {
    "intended_send_ns": 0,
    "sent_ns": 10 * MS,
    "admitted_ns": 40 * MS,
    "first_token_ns": 100 * MS,
    "finished_ns": 400 * MS,
    "output_tokens": 4,
    "status": RequestStatus.STOPPED,
}
ONE_TOKEN = DONE | {"finished_ns": 100 * MS, "output_tokens": 1, "status": RequestStatus.LENGTH}
DECODING = DONE | {"finished_ns": None, "output_tokens": 2, "status": RequestStatus.UNFINISHED}
WAITING = DECODING | {"admitted_ns": None, "first_token_ns": None, "output_tokens": 0}
GONE = WAITING | {"finished_ns": 200 * MS, "status": RequestStatus.ABORTED}
REFUSED = WAITING | {"finished_ns": 10 * MS, "status": RequestStatus.REJECTED}
LAST = DONE | {
    "intended_send_ns": 900 * MS,
    "sent_ns": 900 * MS,
    "admitted_ns": 900 * MS,
    "first_token_ns": 950 * MS,
    "finished_ns": 1000 * MS,
}


@pytest.fixture
def run_of(make_manifest):
    def make(*rows) -> Run:
        return Run(
            manifest=make_manifest(None),
            sweep=None,
            steps=None,
            ceilings=None,
            requests=tables.from_rows(RequestTable, rows),
        )

    return make


def seconds(run, latency):
    samples = latency_samples(run.requests, latency, at_ns=end_ns(run))
    return samples.rows.tolist(), samples.lower_s.tolist(), samples.upper_s.tolist()


def test_definitions(run_of):
    run = run_of(DONE, ONE_TOKEN, LAST)
    assert seconds(run, "ttft") == ([0, 1, 2], [0.1, 0.1, 0.05], [0.1, 0.1, 0.05])
    assert seconds(run, "ttft_uncorrected")[1] == [0.09, 0.09, 0.05]
    assert seconds(run, "tpot") == (
        [0, 2],
        [0.1, pytest.approx(0.05 / 3)],
        [0.1, pytest.approx(0.05 / 3)],
    )
    assert seconds(run, "e2e")[1] == [0.4, 0.1, 0.1]
    assert seconds(run, "queue")[1] == [0.03, 0.03, 0.0]


def test_what_was_not_done_is_bounded_from_below(run_of):
    run = run_of(DONE, DECODING, WAITING, GONE, REFUSED, LAST)
    inf = math.inf
    assert seconds(run, "ttft") == (
        [0, 1, 2, 3, 5],
        [0.1, 0.1, 1.0, 0.2, 0.05],
        [0.1, 0.1, inf, inf, 0.05],
    )
    assert seconds(run, "e2e") == (
        [0, 1, 2, 3, 5],
        [0.4, 1.0, 1.0, 0.2, 0.1],
        [0.4, inf, inf, inf, 0.1],
    )
    assert seconds(run, "queue") == (
        [0, 1, 2, 3, 5],
        [0.03, 0.03, 0.99, 0.19, 0.0],
        [0.03, 0.03, inf, inf, 0.0],
    )
    assert seconds(run, "tpot")[0] == [0, 5]
    summary = summarise_requests(run)
    assert dict(summary.n_by_status) == {"stopped": 2, "aborted": 1, "rejected": 1, "unfinished": 2}
    assert summary.n_requests == 6
    assert summary.latency("ttft").n_bounded_below_only == 2
    assert summary.latency("ttft").percentile(0.95).is_lower_bound
    assert not summary.latency("ttft").percentile(0.5).is_lower_bound


def test_throughput(run_of):
    summary = summarise_requests(run_of(DONE, DECODING, WAITING, LAST))
    assert summary.span_s == 1.0
    assert summary.output_tokens == 10
    assert summary.output_tokens_per_s.value == pytest.approx(10)
    assert summary.input_tokens == 300, "of requests that got a first token"
    assert summary.total_tokens_per_s.value == pytest.approx(310)
    assert summary.completed_requests_per_s.value == pytest.approx(2)
    assert summary.offered_requests_per_s == pytest.approx(3 / 0.9)
    assert summary.tokens_per_s_per_user.value == pytest.approx(60), (
        "1 / the median of 16.7 and 100 ms, the lower of two"
    )


def test_few_requests_have_percentiles_without_intervals(run_of):
    percentile = summarise_requests(run_of(DONE, LAST)).latency("ttft").percentile(0.95)
    assert percentile.seconds.low is None
    assert "too small" in percentile.seconds.method


def test_without_requests_there_is_nothing_to_summarise(run_of):
    """A load test that was stopped before its first request names the command that goes on."""
    run = run_of()
    run = replace(run, manifest=replace(run.manifest, command=("inferometer", "load", "a b")))
    with pytest.raises(RecordError, match="no request") as refused:
        summarise_requests(run)
    assert refused.value.try_ == "inferometer load 'a b'"


def test_a_run_where_nothing_was_answered(run_of):
    summary = summarise_requests(run_of(WAITING, REFUSED))
    assert summary.latency("tpot").percentiles == ()
    assert summary.tokens_per_s_per_user is None
    assert summary.output_tokens == 0


def test_groups_add_up():
    run = read_run(FIXTURE)
    whole = summarise_requests(run)
    parts = summarise_groups(run, run.requests.class_index, ("chat", "batch", "nobody"))
    assert [part.name for part in parts] == ["chat", "batch"]
    assert sum(part.n_requests for part in parts) == whole.n_requests
    assert sum(part.output_tokens_per_s.value for part in parts) == pytest.approx(
        whole.output_tokens_per_s.value
    )
    assert sum(part.completed_requests_per_s.value for part in parts) == pytest.approx(
        whole.completed_requests_per_s.value
    )


def test_means_are_worked_out_by_hand(run_of):
    few = summarise_requests(run_of(DONE, DECODING, WAITING, GONE, REFUSED, LAST))
    ttft, tpot = few.latency("ttft").mean, few.latency("tpot").mean
    assert ttft.seconds.value == pytest.approx((0.1 + 0.1 + 1.0 + 0.2 + 0.05) / 5)
    assert ttft.is_lower_bound, "two had no first token when they were last seen"
    assert ttft.seconds.low is None, "n is too small"
    assert tpot.seconds.value == pytest.approx((0.1 + 0.05 / 3) / 2)
    assert not tpot.is_lower_bound
    assert summarise_requests(run_of(WAITING, REFUSED)).latency("tpot").mean is None


def test_the_interval_of_a_mean_is_open_above_where_requests_were_not_done(run_of):
    done = summarise_requests(run_of(*[DONE, LAST] * 40)).latency("ttft").mean.seconds
    undone = summarise_requests(run_of(*[DONE, LAST] * 40, WAITING)).latency("ttft").mean.seconds
    assert done.value == pytest.approx(0.075)
    assert 0 <= done.low <= done.value <= done.high < math.inf
    assert undone.high == math.inf


def test_percentiles_are_those_of_sql():
    """Another program, another formula, the stored file: the same percentiles."""
    run = read_run(FIXTURE)
    query = """
        SELECT quantile_disc((first_token_ns - intended_send_ns) / 1e9, 0.9),
               quantile_disc((finished_ns - first_token_ns) / (output_tokens - 1) / 1e9, 0.9) FILTER (output_tokens > 1)
        FROM read_parquet(?) WHERE status IN (0, 1)
    """
    with duckdb.connect() as connection:
        ((ttft_s, tpot_s),) = connection.execute(
            query, [str(FIXTURE / "requests.parquet")]
        ).fetchall()
    done = np.isin(run.requests.status, (0, 1))
    only_done = Run(
        manifest=run.manifest,
        sweep=None,
        steps=None,
        ceilings=None,
        requests=tables.select(run.requests, np.flatnonzero(done)),
    )
    summary = summarise_requests(only_done)
    assert summary.latency("ttft").percentile(0.9).seconds.value == pytest.approx(ttft_s)
    assert summary.latency("tpot").percentile(0.9).seconds.value == pytest.approx(tpot_s)


def test_verdicts(run_of):
    many = [LAST] * 400
    judgement = judge_objective(
        run_of(*many), parse_objective("ttft:p95<60ms, tpot:p95<10ms, e2e:p99.9<1s, queue:p50<1ms")
    )
    assert [judged.verdict for judged in judgement.thresholds] == [
        "met",
        "missed",
        "undecided",
        "met",
    ]
    assert judgement.verdict == "missed"
    assert judgement.weakest.threshold.metric == "tpot"
    assert judgement.n_good == 0
    assert judgement.good_requests_per_s == 0
    assert "too small" in judgement.thresholds[2].why
    relaxed = judge_objective(run_of(*many), parse_objective("ttft:p95<60ms, tpot:p95<20ms"))
    assert relaxed.verdict == "met"
    assert relaxed.weakest.threshold.metric == "ttft", "the nearest to its limit"
    assert relaxed.good.value == 1.0
    assert relaxed.n_good == 400


def test_a_percentile_among_the_undone_is_never_met(run_of):
    many = [LAST] * 60
    stuck = WAITING | {"intended_send_ns": 950 * MS, "sent_ns": 950 * MS}
    run = run_of(*many[:30], *[stuck] * 10, *many[30:])
    threshold = judge_objective(run, parse_objective("ttft:p95<200ms")).thresholds[0]
    assert threshold.verdict == "undecided"
    assert threshold.seen.is_lower_bound
    assert threshold.why.startswith("at least ")


LEFT = LAST | {"finished_ns": 990 * MS, "output_tokens": 2, "status": RequestStatus.ABORTED}


@pytest.mark.parametrize(
    ("n_left", "limits", "verdict"),
    [
        (9, "tpot:p95<60ms", "missed"),
        (9, "e2e:p95<1s", "missed"),
        (9, "ttft:p95<60ms", "met"),
        (9, "tpot:p5<60ms", "met"),
        (0, "tpot:p95<60ms", "met"),
    ],
)
def test_whose_users_left_a_slow_answer_did_not_get_it_in_time(run_of, n_left, limits, verdict):
    few = [LAST] * (10 - n_left) + [LEFT] * n_left
    judgement = judge_objective(run_of(*few * 100), parse_objective(limits))
    assert judgement.verdict == verdict
    if verdict == "missed":
        why = "of requests were turned away, or their users left before the answer was complete"
        assert (judgement.weakest.why, judgement.weakest.seen) == (f"90 % {why}", None)


@pytest.mark.parametrize(
    ("n_refused", "limits", "verdict"),
    [
        (9, "ttft:p95<60ms", "missed"),
        (9, "ttft:p5<60ms", "met"),
        (1, "ttft:p95<60ms", "missed"),
        (1, "e2e:p50<1s", "met"),
    ],
)
def test_who_was_turned_away_got_nothing_in_time(run_of, n_refused, limits, verdict):
    few = [LAST] * (10 - n_refused) + [REFUSED] * n_refused
    judgement = judge_objective(run_of(*few * 100), parse_objective(limits))
    assert judgement.verdict == verdict
    if verdict == "missed":
        assert judgement.weakest.why == f"{10 * n_refused} % of requests were turned away"


@pytest.mark.parametrize(("codes", "verdict"), [(["refused"], "missed"), ([], "met")])
def test_a_server_that_refuses_one_request_misses_and_a_gate_may_turn_some_away(
    run_of, codes, verdict
):
    """The rule of `capacity` and `size`: before, `simulate` counted refusals by their share."""
    run = run_of(*[LAST] * 400, REFUSED)
    cautions = tuple(Caution(code=code, text="1 was refused", remedy="-") for code in codes)
    run = replace(run, manifest=replace(run.manifest, cautions=cautions))
    judgement = judge_objective(run, parse_objective("ttft:p95<60ms"))
    assert judgement.verdict == verdict
    assert (judgement.weakest.why == "1 was refused") == bool(codes)
    served = np.arange(401) < 400
    assert judge_objective(run, parse_objective("ttft:p95<60ms"), rows=served).verdict == "met"


def test_a_class_that_a_gate_turned_away_is_not_one_that_the_server_refused(run_of):
    """A prompt too long of the second class was a missed SLO of the first as well."""
    run = run_of(*[LAST] * 400, REFUSED, *[LAST] * 400, REFUSED)
    class_index = np.repeat(np.array([0, 1], np.int32), 401)
    run = replace(
        run,
        requests=run.requests._replace(class_index=class_index),
        manifest=replace(
            run.manifest,
            cautions=(Caution(code="rejected", text="1 was refused", remedy="-"),),
            refused_classes=(1,),
        ),
    )
    objective = parse_objective("ttft:p95<60ms")
    verdicts = [
        judge_objective(run, objective, rows=rows).verdict
        for rows in (class_index == 0, class_index == 1, None)
    ]
    assert verdicts == ["met", "missed", "missed"]


def test_goodput_counts_everybody(run_of):
    rows = (DONE, ONE_TOKEN, DECODING, WAITING, GONE, REFUSED, LAST)
    judgement = judge_objective(
        run_of(*rows),
        ObjectiveSpec(
            thresholds=tuple(
                Threshold(metric=name, percentile_fraction=None, limit_s=0.15)
                for name in ("ttft", "tpot")
            )
        ),
    )
    assert judgement.n_good == 3, "two answers and one of one token, which has no TPOT"
    assert judgement.n_open == 1, "decoding, within its limits so far; the waiting one is beyond"
    assert judgement.good.value == pytest.approx(3 / 7)
    assert judgement.good_requests_per_s == pytest.approx(3.0)
    assert judgement.verdict == "undecided", "limits without percentiles judge no run"


WHOLE = DONE | {"admitted_ns": None, "first_token_ns": None}
WHOLE_LAST = LAST | {"admitted_ns": None, "first_token_ns": None}


def test_an_answer_given_whole_has_its_tokens_and_no_ttft(run_of):
    run = run_of(WHOLE, WHOLE_LAST)
    for latency in ("ttft", "ttft_uncorrected", "tpot", "queue"):
        assert seconds(run, latency) == ([], [], []), latency
    assert seconds(run, "e2e")[1] == [0.4, 0.1]
    summary = summarise_requests(run)
    assert summary.output_tokens_per_s.value == pytest.approx(8)
    assert summary.input_tokens == 200
    assert summary.total_tokens_per_s.value == pytest.approx(208)


@pytest.mark.parametrize(("limit", "n_good", "n_open"), [("200ms", 1, 1), ("500ms", 2, 0)])
def test_an_answer_given_whole_is_good_where_its_end_is_within_the_limit(
    run_of, limit, n_good, n_open
):
    judgement = judge_objective(
        run_of(WHOLE, WHOLE_LAST), parse_objective(f"ttft:p95<{limit}, tpot:p95<1s")
    )
    assert (judgement.n_good, judgement.n_open) == (n_good, n_open)
    assert judgement.verdict == "undecided"


def test_the_tokens_of_a_broken_off_answer_come_until_the_client_left(run_of):
    begun = DECODING | {"request_index": 0, "output_tokens": 20}
    lags = tables.from_rows(
        LagTable,
        [
            {"process_index": 0, "due_ns": at * MS, "lag_ns": 0, "n_in_flight": n}
            for at, n in ((500, 1), (2100, 1), (2200, 0))
        ],
    )
    run = replace(run_of(begun), lags=lags)
    assert end_ns(run) == 2100 * MS, "not 100 ms, when its first token came"
    assert summarise_requests(run).output_tokens_per_s.value == pytest.approx(20 / 2.1)
    assert seconds(run, "e2e")[1] == [2.1]


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 500)),
        min_size=1,
        max_size=30,
    ),
    st.integers(2, 50),
)
def test_tokens_are_conserved(requests, n_instants):
    rows = [
        DONE
        | {
            "intended_send_ns": 0,
            "first_token_ns": first,
            "finished_ns": first + took,
            "output_tokens": n,
        }
        for first, took, n in requests
    ]
    table = tables.from_rows(RequestTable, rows)
    end = 2 * 10**9 + 1
    delivered = delivered_tokens(table, np.linspace(0, end, n_instants).astype(np.int64), at_ns=end)
    assert delivered[-1] == pytest.approx(sum(n for _, _, n in requests))
    assert (np.diff(delivered) >= -1e-9).all()


def test_what_nearly_nobody_got_was_missed_however_few_they_are():
    run = load_run(n=60, ttft_s=0.5)
    judged = judge_objective(run, parse_objective("ttft:p95<100ms")).thresholds[0]
    assert judged.seen.seconds.low is None, "60 requests carry no interval of a p95"
    assert judged.verdict == "missed"
    assert judged.why.startswith("500 ms; 0 % (at most ")
    kept = judge_objective(run, parse_objective("ttft:p95<1s")).thresholds[0]
    assert kept.verdict == "undecided", "that all did well says little of one in twenty"
    some = np.where(np.arange(60) % 12, 0.05, 0.5)
    assert (
        judge_objective(load_run(n=60, ttft_s=some), parse_objective("ttft:p95<100ms")).verdict
        == "undecided"
    )
