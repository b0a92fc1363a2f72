"""Where does the time to the first token go.

The client, the network, the server's queue, prefill, the rest of the server?

client = sent - intended send · network = the client's first token - sent - the server's own TTFT
(connecting, proxies, the way there and back, and text that a parser of tool calls or thoughts holds
back) · queue and prefill as the server says · hand-over = the server's TTFT - queue - prefill
(reading the request, tokenising, handing the first step's token out). Means add up; percentiles
would not. Of a simulated run the engine itself says who was first scheduled when: queue ends and
prefill begins there, what a preemption before the first token takes included.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from inferometer.records.server_names import Histogram
from inferometer.records.server_summaries import ServerSummary
from inferometer.records.types import ABSENT, RequestTable
from inferometer.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftParts:
    """Mean parts of the time to the first token. None: nobody could tell.

    A difference can be slightly negative: client and server do not count quite the same requests at
    a window's ends.
    """

    n_requests: int
    """Of the client, whose first token came in the window."""
    n_server_requests: int | None
    total_s: float
    """From the intended send to the first token."""
    client_s: float
    network_s: float | None
    queue_s: float | None
    prefill_s: float | None
    handover_s: float | None


_NS_DIGITS: Final = 9
"""A difference of means is no finer than the clock: what is left beyond is rounding."""


def ttft_parts(requests: RequestTable, server: ServerSummary) -> TtftParts | None:
    """The mean parts over the summary's window; None where no first token came in it."""
    first_ns = requests.first_token_ns
    is_within = (
        (first_ns != ABSENT)
        & (first_ns >= server.start_s * NS_PER_S)
        & (first_ns <= server.end_s * NS_PER_S)
    )
    rows = np.flatnonzero(is_within)
    if not rows.size:
        return None
    client_s = float((requests.sent_ns[rows] - requests.intended_send_ns[rows]).mean()) / NS_PER_S
    from_sent_s = float((first_ns[rows] - requests.sent_ns[rows]).mean()) / NS_PER_S
    ttft_s, queue_s, prefill_s = (_mean_s(server, name) for name in ("ttft", "queue", "prefill"))
    handover_s = (
        None
        if ttft_s is None or queue_s is None or prefill_s is None
        else round(ttft_s - queue_s - prefill_s, _NS_DIGITS)
    )
    ttft = server.time("ttft")
    return TtftParts(
        n_requests=len(rows),
        n_server_requests=None if ttft is None else ttft.n,
        total_s=client_s + from_sent_s,
        client_s=client_s,
        network_s=None if ttft_s is None else from_sent_s - ttft_s,
        queue_s=queue_s,
        prefill_s=prefill_s,
        handover_s=handover_s,
    )


def engine_ttft_parts(requests: RequestTable) -> TtftParts | None:
    """Mean TTFT parts from the engine's own request records; None without them."""
    rows = np.flatnonzero(
        (requests.first_token_ns != ABSENT)
        & (requests.admitted_ns != ABSENT)
        & (requests.sent_ns != ABSENT)
    )
    if not rows.size:
        return None
    instants = (
        requests.intended_send_ns,
        requests.sent_ns,
        requests.admitted_ns,
        requests.first_token_ns,
    )
    client_s, queue_s, prefill_s = (
        float((later[rows] - earlier[rows]).mean()) / NS_PER_S
        for earlier, later in pairwise(instants)
    )
    return TtftParts(
        n_requests=len(rows),
        n_server_requests=None,
        total_s=client_s + queue_s + prefill_s,
        client_s=client_s,
        network_s=None,
        queue_s=queue_s,
        prefill_s=prefill_s,
        handover_s=None,
    )


def _mean_s(server: ServerSummary, name: Histogram) -> float | None:
    time = server.time(name)
    return None if time is None else time.mean_s
