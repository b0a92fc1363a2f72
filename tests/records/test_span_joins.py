"""Are the parts of requests' time those of examples worked by hand, and never more than the whole?"""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferometer.inputs import spans as names
from inferometer.inputs.spans import Span, SpanEvent
from inferometer.records.request_spans import _part, span_times

MS = 1_000_000
T0 = 1_795_540_200_000_000_000


def client(number, start_ms, end_ms, *, first_ms=None, error=None):
    events = () if first_ms is None else (SpanEvent(names.FIRST_TOKEN, T0 + first_ms * MS),)
    return Span(
        1,
        number,
        99,
        "chat m",
        "client",
        T0 + start_ms * MS,
        T0 + end_ms * MS,
        {names.OPERATION: names.CHAT},
        events,
        error,
    )


def delay(number, start_ms, end_ms):
    start_ns, end_ns = T0 + start_ms * MS, T0 + end_ms * MS
    return Span(1, 1000 + number, number, names.SCHEDULE_DELAY, "internal", start_ns, end_ns, {})


def between(number, parent, start_ms, end_ms):
    start_ns, end_ns = T0 + start_ms * MS, T0 + end_ms * MS
    return Span(1, 2000 + number, parent, "POST /v1", "server", start_ns, end_ns, {})


def server(number, parent, start_ms, *, e2e, queue, prefill, decode):
    told = {names.E2E: e2e, names.IN_QUEUE: queue, names.IN_PREFILL: prefill}
    attributes = {name: value / 1e3 for name, value in (told | {names.IN_DECODE: decode}).items()}
    attributes[names.COMPLETION_TOKENS] = 5
    start_ns = T0 + start_ms * MS
    return Span(
        1,
        3000 + number,
        parent,
        "llm_request",
        "server",
        start_ns,
        start_ns + int(e2e * MS),
        attributes,
    )


def means(times):
    return {part.name: pytest.approx(1e3 * part.mean_s.value) for part in times.parts}


def test_each_part_of_a_request_behind_a_router():
    spans = [
        # the server's export came first, and its clock is an hour ahead
        server(1, 2001, 3_600_000, e2e=70, queue=20, prefill=15, decode=30),
        client(1, 0, 100, first_ms=60),
        delay(1, 0, 4),
        between(1, 1, 6, 90),
    ]
    times = span_times(spans)
    assert means(times) == {
        "schedule delay": 4,
        "network": 12,
        "router": 14,
        "server's front end": 5,
        "queue": 20,
        "prefill": 15,
        "decode": 30,
    }
    assert (times.n_requests, times.seen_by) == (1, "client and server")
    assert 1e3 * times.total_s.value == pytest.approx(100)


def test_without_spans_between_network_and_router_are_one_part_and_others_are_counted():
    spans = [
        client(1, 0, 100),
        server(1, 1, 3, e2e=70, queue=20, prefill=20, decode=30),
        server(7, 1, 3, e2e=60, queue=20, prefill=20, decode=20),  # another answer, ends earlier
        client(2, 0, 50),
        client(3, 0, 50, error="reset"),
        server(9, None, 3, e2e=7, queue=2, prefill=2, decode=3),
    ]
    times = span_times(spans)
    assert means(times) == {
        "network and router": 30,
        "server's front end": 0,
        "queue": 20,
        "prefill": 20,
        "decode": 30,
    }
    assert (times.n_failed, times.n_client_only, times.n_server_only) == (1, 1, 1)


def test_the_server_alone_and_the_client_alone():
    alone = span_times([server(1, 555, 0, e2e=70, queue=20, prefill=15, decode=30)])
    assert alone.seen_by == "server"
    assert means(alone) == {"server's front end": 5, "queue": 20, "prefill": 15, "decode": 30}
    watched = span_times([client(1, 0, 100, first_ms=60), delay(1, 0, 4), client(2, 0, 9)])
    assert watched.seen_by == "client"
    assert means(watched) == {
        "schedule delay": 4,
        "until the first token": 56,
        "from the first to the last token": 40,
    }
    assert span_times([between(1, None, 0, 5)]) is None
    assert span_times([]) is None


def test_a_server_without_times_in_the_model_has_no_front_end():
    """VLLM 0 reports the first token; of others only the length is known. The rest is not 0."""
    full = server(1, None, 0, e2e=70, queue=20, prefill=15, decode=30)
    shorter = {name: value for name, value in full.attributes.items()
               if name not in (names.IN_PREFILL, names.IN_DECODE)}  # fmt: skip
    first = span_times([full._replace(attributes=shorter | {names.TO_FIRST_TOKEN: 0.040})])
    assert means(first) == {
        "queue": 20,
        "until the first token": 20,
        "from the first to the last token": 30,
    }
    assert means(span_times([full._replace(attributes=shorter)])) == {"queue": 20, "server": 50}


@given(
    st.lists(
        st.tuples(*[st.integers(0, 500)] * 5).filter(lambda one: sum(one) > 0),
        min_size=1,
        max_size=60,
    )
)
def test_the_parts_are_all_of_the_time(rows):
    spans = list[Span]()
    for number, (late, network, queue, prefill, decode) in enumerate(rows, 1):
        start, e2e = 1000 * number, queue + prefill + decode
        spans += [
            client(number, start, start + late + network + e2e),
            delay(number, start, start + late),
            server(number, number, start, e2e=e2e, queue=queue, prefill=prefill, decode=decode),
        ]
    times = span_times(spans)
    assert sum(part.mean_s.value for part in times.parts) == pytest.approx(times.total_s.value)
    assert sum(part.share_fraction.value for part in times.parts) == pytest.approx(1)
    assert sum(part.slowest_share_fraction.value for part in times.parts) == pytest.approx(1)
    for part in times.parts:
        assert (
            part.share_fraction.low is None or part.share_fraction.low <= part.share_fraction.high
        )


@pytest.mark.slow
def test_the_interval_of_a_share_holds_the_truth_about_as_often_as_it_says():
    """Independent requests whose queue is half of their time on average."""
    rng, n_hit, n_runs = np.random.default_rng(7), 0, 100
    for _ in range(n_runs):
        queue, decode = rng.exponential(50, (2, 400))
        spans = [
            server(k, None, 1000 * k, e2e=q + d, queue=q, prefill=0, decode=d)
            for k, (q, d) in enumerate(zip(queue.tolist(), decode.tolist(), strict=True), 1)
        ]
        share = next(
            part for part in span_times(spans).parts if part.name == "queue"
        ).share_fraction
        n_hit += share.low <= 0.5 <= share.high
    assert n_hit >= 90  # of 100 at 95 %: fewer than 90 have probability 0.01


def test_a_time_that_most_requests_lack_has_no_interval_below_zero():
    """A queue in which one request of a hundred waits: batch means spread far to both sides."""
    waited_s = np.zeros(200)
    waited_s[::100] = 30.0
    total_s = waited_s + 0.1
    part = _part("queue", waited_s, total_s, total_s >= 0)
    assert part.mean_s.low == 0
    assert part.mean_s.value == pytest.approx(0.3)
