"""Work of a server that counts no requests, by the requests of a load test.

llama.cpp counts tokens, steps and who is served or waits, but no requests, and has no histograms. A
load test has its own requests: where they are all that the server got, they are what it would have
counted. Letters of shapes: N requests, T scrapes.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.decide.diagnosis.counted_lengths import histogram_of
from inferometer.records.columns import F64, I32, I64
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.server_names import Histogram
from inferometer.records.server_series import Growth
from inferometer.records.server_summaries import ServerTime
from inferometer.records.types import ABSENT, RequestStatus, RequestTable
from inferometer.units import NS_PER_S

_EDGES_S: Final = np.append(np.geomspace(1e-4, 1e3, 141), np.inf)
"""Bucket edges for histograms of client latencies: 20 for each factor of ten."""


_LEFT: Final = (RequestStatus.ABORTED, RequestStatus.UNFINISHED)


class Clients(NamedTuple):
    """Every request that the clients sent, also before and after the window (N each).

    One that was not answered to its end is as long as another that was.
    """

    came_s: F64
    """Since the first scrape; below 0 before it."""
    prompt_tokens: F64
    output_tokens: F64


class ClientCounts(NamedTuple):
    """Since the first scrape (T each)."""

    finished: F64
    first_tokens: F64
    prompt_tokens: F64
    output_tokens: F64
    busy_s: F64
    """Seconds in which a request was in the server."""
    prompts: tuple[Growth, F64]
    """Lengths of requests that ended: a histogram, and the mean of each of its buckets."""
    outputs: tuple[Growth, F64]
    times: tuple[ServerTime, ...]
    """Latencies from the send, network included."""
    spreads: dict[Histogram, Growth]
    each: Clients


def client_counts(requests: RequestTable, scraped_ns: I64) -> ClientCounts:
    """Counts of the clients at each scrape; tokens of an answer are spaced evenly."""
    got = is_one_of(requests, COMPLETED) & (requests.output_tokens > 0)
    table = requests._replace(
        **{name: getattr(requests, name)[got] for name in RequestTable._fields}
    )
    first, last = int(scraped_ns[0]), int(scraped_ns[-1])
    is_within = (table.finished_ns >= first) & (table.finished_ns <= last)
    gaps = np.maximum(table.output_tokens - 1, 0).astype(float)
    decode_s = (table.finished_ns - table.first_token_ns) / NS_PER_S
    n_first = _by(table.first_token_ns, scraped_ns)
    sent_ns = table.intended_send_ns
    answered = (table.first_token_ns >= first) & (table.first_token_ns <= last)
    latencies: dict[Histogram, F64] = {
        "ttft": ((table.first_token_ns - sent_ns) / NS_PER_S)[answered],
        "e2e": ((table.finished_ns - sent_ns) / NS_PER_S)[is_within],
        "tpot": (decode_s / np.maximum(gaps, 1.0))[is_within & (gaps > 0)],
    }
    prompts, outputs = (
        one[is_within].astype(float) for one in (table.prompt_tokens, table.output_tokens)
    )
    return ClientCounts(
        finished=_since(_by(table.finished_ns, scraped_ns)),
        first_tokens=_since(n_first),
        prompt_tokens=_since(_by(table.first_token_ns, scraped_ns, table.prompt_tokens)),
        output_tokens=_since(n_first + _streamed(table, scraped_ns)),
        busy_s=_since(_busy_s(table, scraped_ns)),
        prompts=histogram_of(prompts),
        outputs=histogram_of(outputs),
        times=tuple(_time(name, one) for name, one in latencies.items() if one.size),
        spreads={name: _spread(one) for name, one in latencies.items() if one.size},
        each=_clients(requests, first),
    )


def _clients(requests: RequestTable, first_ns: int) -> Clients:
    is_whole = is_one_of(requests, COMPLETED) & (requests.output_tokens > 0)
    taken = is_whole | is_one_of(requests, _LEFT)
    outputs = requests.output_tokens.astype(float)
    left = taken & ~is_whole
    if is_whole.any():
        outputs[left] = np.maximum(outputs[left], np.resize(outputs[is_whole], int(left.sum())))
    came_s = (requests.intended_send_ns - first_ns) / NS_PER_S
    return Clients(
        came_s[taken],
        requests.prompt_tokens[taken].astype(float),
        np.maximum(outputs[taken], 1.0),
    )


def _streamed(table: RequestTable, scraped_ns: I64) -> F64:
    """(T) Tokens after the first of each answer that had come."""
    took_ns = np.maximum(table.finished_ns - table.first_token_ns, 1)
    per_ns = np.maximum(table.output_tokens - 1, 0) / took_ns
    return np.array(
        [
            np.clip(at_ns - table.first_token_ns, 0, took_ns) @ per_ns
            for at_ns in scraped_ns.tolist()
        ]
    )


def _busy_s(table: RequestTable, scraped_ns: I64) -> F64:
    """(T) Seconds up to each scrape in which at least one request was in flight."""
    order = np.argsort(table.intended_send_ns)
    latest_ns = np.maximum.accumulate(table.finished_ns[order])
    begun_ns = np.maximum(table.intended_send_ns[order], np.append(0, latest_ns)[:-1])
    lasted_ns = np.maximum(table.finished_ns[order] - begun_ns, 0)
    return np.array(
        [np.clip(at_ns - begun_ns, 0, lasted_ns).sum() / NS_PER_S for at_ns in scraped_ns.tolist()]
    )


def _by(instants_ns: I64, scraped_ns: I64, each: I32 | None = None) -> F64:
    """(T) Number, or sum, of these instants before each scrape."""
    order = np.argsort(instants_ns[instants_ns != ABSENT])
    weights = np.ones(len(order)) if each is None else each[instants_ns != ABSENT].astype(float)
    together = np.concatenate([[0.0], np.cumsum(weights[order])])
    places = np.searchsorted(instants_ns[instants_ns != ABSENT][order], scraped_ns, side="right")
    counted: F64 = together[places]
    return counted


def _since(counted: F64) -> F64:
    since: F64 = counted - counted[0]
    return since


def _time(name: Histogram, seconds: F64) -> ServerTime:
    return ServerTime(name=name, n=seconds.size, mean_s=float(seconds.mean()), percentiles=())


def _spread(seconds: F64) -> Growth:
    edges = np.concatenate([[0.0], _EDGES_S])
    counts = np.histogram(seconds, edges)[0].astype(float)
    return Growth(seconds.size, float(seconds.sum()), _EDGES_S, counts)
