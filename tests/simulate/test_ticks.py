"""Does the tick model give what can be worked out by hand, and what the course that it is from teaches?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from inferometer.errors import SpecError
from inferometer.records.types import PartKind, RequestStatus
from inferometer.simulate.ticks import TICK_NS, TickQuestion, run_ticks


def report(**question):
    return run_ticks(TickQuestion(**question)).report


def test_a_static_batch_by_hand():
    """Four contexts of two ticks one after the other, then nine tokens.

    17 ticks for four requests, none of which waits twice.
    """
    said = report(batching="static", load_amount=8, horizon_ticks=1000)
    assert said.run_ticks == 34
    assert said.n_finished == 8
    assert said.ttft_ticks == (8 + 17 + 8) / 2
    assert said.e2e_ticks == (17 + 34) / 2
    assert said.itl_ticks == 1
    assert said.requests_per_1000_ticks == pytest.approx(8000 / 34)
    assert said.output_tokens_per_1000_ticks == pytest.approx(80_000 / 34)
    assert said.busy_slot_fraction == 1


def test_in_flight_batching_by_hand():
    """Two slots, contexts of 3 ticks, outputs of 2 and more tokens: whoever generates waits for the others' contexts."""
    run = run_ticks(
        TickQuestion(
            batching="in-flight",
            n_slots=2,
            prefill_ticks=3,
            output_tokens=2,
            load_amount=3,
            horizon_ticks=1000,
        )
    )
    # Step 1: contexts of 0 and 1 (6 ticks). Step 2: their second tokens (1 tick). Step 3: context
    # of 2 (3). Step 4: its second token.
    assert (run.steps.duration_ns // TICK_NS).tolist() == [6, 1, 3, 1]
    assert (run.requests.first_token_ns // TICK_NS).tolist() == [6, 6, 10]
    assert (run.requests.finished_ns // TICK_NS).tolist() == [7, 7, 11]
    assert run.parts.slot.tolist() == [0, 1, 0, 1, 0, 0]
    assert run.report.busy_slot_fraction == (2 * 7 + 4) / (2 * 11)


def test_one_prefill_at_a_time_by_hand():
    """Two slots, contexts of two chunks of a tick.

    Each chunk beside the other's token, so that a token waits for nobody.
    """
    run = run_ticks(
        TickQuestion(
            batching="one-prefill",
            n_slots=2,
            prefill_ticks=2,
            n_prefill_chunks=2,
            output_tokens=3,
            load_amount=3,
            horizon_ticks=99,
        )
    )
    # 0: chunk of 0. 1: its second, first token at 2. 2: chunk of 1, token of 0. 3: first token of
    # 1, last of 0. And so on to 8.
    assert (run.steps.duration_ns // TICK_NS).tolist() == [1] * 8
    assert (run.requests.admitted_ns // TICK_NS).tolist() == [0, 2, 4]
    assert (run.requests.first_token_ns // TICK_NS).tolist() == [2, 4, 6]
    assert (run.requests.finished_ns // TICK_NS).tolist() == [4, 6, 8]
    said = run.report
    assert (said.ttft_ticks, said.itl_ticks, said.e2e_ticks) == (4, 1, 6)
    assert (said.requests_per_1000_ticks, said.output_tokens_per_1000_ticks) == (375, 1125)


@pytest.mark.parametrize(
    ("n_chunks", "finished", "itl", "e2e"), [(1, [14, 19], 2.5, 9), (2, [12, 17], 1.5, 7)]
)
def test_a_rate_by_hand(n_chunks, finished, itl, e2e):
    """One request each five ticks, contexts of four.

    The third token of each waits for the next one's context, or for half of it.
    """
    run = run_ticks(
        TickQuestion(
            n_slots=2,
            prefill_ticks=4,
            n_prefill_chunks=n_chunks,
            output_tokens=3,
            load="rate",
            load_amount=200,
            horizon_ticks=20,
        )
    )
    assert (run.requests.intended_send_ns // TICK_NS).tolist() == [5, 10, 15, 20]
    assert (run.requests.first_token_ns[:3] // TICK_NS).tolist() == [9, 14, 19]
    assert (run.requests.finished_ns[:2] // TICK_NS).tolist() == finished
    said = run.report
    assert (said.ttft_ticks, said.itl_ticks, said.e2e_ticks) == (4, itl, e2e)
    assert (said.requests_per_1000_ticks, said.output_tokens_per_1000_ticks) == (100, 400)
    assert (said.n_finished, said.n_unfinished, said.n_queued_at_end) == (2, 2, 1)


def test_a_rate_that_is_too_high_by_hand():
    """Three ticks each, one each two ticks: at the end of the fourth context, at 13, those of 10 and 12 wait."""
    said = report(n_slots=1, output_tokens=2, load="rate", load_amount=500, horizon_ticks=12)
    assert said.run_ticks == 13
    assert (said.n_finished, said.n_queued_at_end) == (3, 2)
    assert (said.ttft_ticks, said.e2e_ticks) == ((2 + 3 + 4) / 3, (3 + 4 + 5) / 3)


def test_concurrency_by_hand():
    """Three users and one slot: each answer takes three ticks, and whoever got one asks again."""
    said = report(n_slots=1, output_tokens=2, load="concurrency", load_amount=3, horizon_ticks=9)
    assert (said.ttft_ticks, said.itl_ticks, said.e2e_ticks) == (
        (2 + 5 + 8) / 3,
        1,
        (3 + 6 + 9) / 3,
    )
    assert said.requests_per_1000_ticks == pytest.approx(3000 / 9)
    assert (said.n_finished, said.n_unfinished, said.n_queued_at_end) == (3, 2, 2)


def test_chunks_shorten_the_steps_that_generate():
    """A context in two chunks makes two steps of one tick each instead of one of two, so nobody's token waits."""
    whole = report(batching="one-prefill", load_amount=50, horizon_ticks=2000)
    chunked = report(batching="one-prefill", n_prefill_chunks=2, load_amount=50, horizon_ticks=2000)
    assert chunked.itl_ticks == 1
    assert whole.itl_ticks > 1
    assert chunked.requests_per_1000_ticks > whole.requests_per_1000_ticks


def test_what_the_course_teaches():
    """In-flight batching beats static, chunks beat that, one context at a time is best.

    The course's published numbers, with random

    output lengths, are 190, 267, 310 and 360 requests per 1,000 ticks.
    """
    common = {
        "output_tokens": 10,
        "output_deviation_tokens": 2.0,
        "load_amount": 5_000,
        "horizon_ticks": 5_000,
    }
    rates = [
        report(batching=batching, n_prefill_chunks=n_chunks, **common).requests_per_1000_ticks
        for batching, n_chunks in (
            ("static", 1),
            ("in-flight", 1),
            ("in-flight", 2),
            ("one-prefill", 2),
        )
    ]
    assert rates == sorted(rates)
    assert rates[1] > 1.15 * rates[0]


def test_an_open_loop_grows_without_bound_and_a_closed_one_looks_fine():
    """460 requests in 1,000 ticks are more than four slots serve: at 100 ticks TTFT is about 11, at 10,000 about 1,250."""
    common = {"batching": "one-prefill", "n_prefill_chunks": 2, "output_deviation_tokens": 2.0}
    short, long = (
        report(load="rate", load_amount=460, horizon_ticks=ticks, **common)
        for ticks in (100, 10_000)
    )
    assert short.ttft_ticks < 15
    assert long.ttft_ticks > 1000
    assert long.n_queued_at_end > 900
    short, long = (
        report(load="concurrency", load_amount=6, horizon_ticks=ticks, **common)
        for ticks in (100, 10_000)
    )
    assert long.ttft_ticks == pytest.approx(short.ttft_ticks, rel=0.2)
    assert long.n_queued_at_end <= 6 - 3, "six users, of whom at least three are served"


def test_the_legacy_generator_draws_what_numpy_random_seed_draws():
    """``np.random.seed(7)``, then one ``np.random.normal`` for each request, cut to whole tokens, one at least."""
    question = TickQuestion(
        output_deviation_tokens=4.0,
        output_tokens=5,
        load_amount=60,
        horizon_ticks=10_000,
        seed=7,
        rng="numpy-legacy",
    )
    drawn = np.random.RandomState(7).normal(5, 4.0, 60)
    assert (
        run_ticks(question).requests.output_tokens.tolist()
        == np.maximum(drawn, 1).astype(int).tolist()
    )
    assert (
        run_ticks(replace(question, rng="numpy")).requests.output_tokens.tolist()
        != np.maximum(drawn, 1).astype(int).tolist()
    )


def test_means_of_requests_that_started_by_hand():
    """One slot, contexts of two ticks, three tokens.

    At 6 the first has ended (4 ticks), the second has its first token (at 6).
    """
    common = {"n_slots": 1, "output_tokens": 3, "load_amount": 2, "horizon_ticks": 6}
    assert report(**common).ttft_ticks == 2
    assert report(**common, counted="started").ttft_ticks == (2 + 6) / 2
    assert report(**common, counted="started").e2e_ticks == report(**common).e2e_ticks == 4


def test_the_step_at_the_horizon_by_hand():
    """One slot, contexts of two ticks, three tokens: steps begin at 0, 2, 3 and 4."""
    common = {"n_slots": 1, "output_tokens": 3, "load_amount": 2, "horizon_ticks": 4}
    assert report(**common).run_ticks == 4
    assert report(**common, horizon="inclusive").run_ticks == 6


def test_rows_of_a_static_batch_that_have_ended_are_shown_as_such():
    run = run_ticks(
        TickQuestion(
            batching="static", output_deviation_tokens=4.0, load_amount=4, horizon_ticks=100, seed=3
        )
    )
    ended = run.parts.kind == PartKind.ENDED
    assert ended.any()
    assert run.parts.n_delivered_tokens[ended].sum() == 0
    last_step = len(run.steps.start_ns) - 1
    assert np.sum(run.parts.step_index == last_step) == 4, "every slot is kept to the end"


@given(
    st.builds(
        TickQuestion,
        batching=st.sampled_from(["static", "in-flight", "one-prefill"]),
        n_slots=st.integers(1, 6),
        prefill_ticks=st.integers(1, 6),
        n_prefill_chunks=st.sampled_from([1, 2, 4, 5]),
        output_tokens=st.integers(1, 12),
        output_deviation_tokens=st.sampled_from([0.0, 3.0]),
        load=st.sampled_from(["batch", "concurrency", "rate"]),
        load_amount=st.integers(1, 300),
        horizon_ticks=st.integers(1, 300),
        seed=st.integers(0, 9),
    )
)
@settings(max_examples=60)
def test_nothing_is_lost_and_time_adds_up(question):
    run = run_ticks(question)
    requests, steps, parts = run.requests, run.steps, run.parts
    assert (
        np.bincount(parts.request_index, parts.n_delivered_tokens, len(requests.status)).tolist()
        == requests.output_tokens.tolist()
    )
    assert np.all(steps.start_ns[1:] >= steps.start_ns[:-1] + steps.duration_ns[:-1])
    done = requests.status == RequestStatus.STOPPED
    assert np.all(requests.admitted_ns[done] >= requests.intended_send_ns[done])
    assert np.all(
        requests.first_token_ns[done]
        >= requests.admitted_ns[done] + question.prefill_ticks * TICK_NS
    )
    assert done.sum() + run.report.n_unfinished == len(requests.status)
    busy = np.bincount(
        parts.step_index[parts.kind != PartKind.ENDED], minlength=len(steps.start_ns)
    )
    assert np.all(busy == steps.n_prefill_requests + steps.n_decode_requests)
    assert np.all(busy <= question.n_slots)
    # Little's law, exact over a run that ends empty: requests in the system, averaged over time,
    # are their rate times their stay.
    if run.report.n_unfinished == 0 and done.any():
        stay_ns = (requests.finished_ns - requests.intended_send_ns).sum()
        instants = np.concatenate([requests.intended_send_ns, requests.finished_ns])
        changes = np.concatenate([np.ones(len(done)), -np.ones(len(done))])
        order = np.argsort(instants, kind="stable")
        area = np.sum(np.cumsum(changes[order])[:-1] * np.diff(instants[order]))
        assert area == stay_ns


@pytest.mark.parametrize(
    "question",
    [
        {"n_slots": 0},
        {"seed": -1},
        {"seed": 2**32, "rng": "numpy-legacy"},
        {"prefill_ticks": 0},
        {"output_deviation_tokens": -1.0},
        {"n_prefill_chunks": 3},
        {"load_amount": 10**8},
    ],
)
def test_impossible_questions_are_refused(question):
    with pytest.raises(SpecError):
        TickQuestion(**question)
