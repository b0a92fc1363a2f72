"""Work of a server that counts no requests or has no histograms of their lengths.

llama.cpp counts tokens, steps and who is served or waits, but no requests, and has no histograms. A
load test has its own requests: where they are all that the server got, they are what it would have
counted. SGLang has a histogram of lengths with ``--collect-tokens-histogram`` only, TensorRT-LLM
has none. Both add the tokens of a request to a counter when it ends (SGLang 0.5.23,
``tokenizer_manager.py``), in the same step as they count the request: between two scrapes k
requests have T tokens together. Where k is 1 that is a length; else T is divided among them, as
lengths that spread as much as all of them do would be. Letters of shapes: T scrapes, N requests.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import F64, I32, I64
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.server_names import Histogram
from inferometer.records.server_series import Growth
from inferometer.records.server_summaries import ServerTime
from inferometer.records.types import ABSENT, RequestStatus, RequestTable
from inferometer.units import NS_PER_S

_MISPLACED_FRACTION: Final = 0.05
"""Share of tokens counted where no request ended, above which counters are of another time."""
_FEWEST_ALONE: Final = 20
_USUAL_SPREAD: Final = 0.8
"""Of the logarithms of lengths, where nothing tells: between that of prompts and of answers of the
common chat datasets. An assumption."""
_SPREADS: Final = (0.02, 2.0)
_FAR: Final = 4.0
"""Deviations of an interval beyond which a few very long requests made it."""
_MAD_OF_SD: Final = 1.4826
_SEED: Final = 1
_BUCKETS: Final = 40
_EACH: Final = 4
"""Requests of a bucket, at least."""


def lengths_by_counts(finished: F64, tokens: F64) -> tuple[Growth, F64] | None:
    """A histogram of the lengths, and the mean of each of its buckets.

    None where no request ended. Both counts (T) are since the first scrape.

    Example
    -------
    >>> seen, means = lengths_by_counts(np.arange(30.0), 7 * np.arange(30.0))
    >>> seen.n, seen.total, round(float(means[seen.counts > 0].max()), 9)
    (29, 203.0, 7.0)
    """
    n_ended = np.maximum(np.rint(np.diff(finished)), 0).astype(np.int64)
    grown = np.maximum(np.diff(tokens), 0.0)
    n, total = int(n_ended.sum()), float(grown.sum())
    if not n or total <= 0:
        return None
    rng = np.random.default_rng(_SEED)
    is_apart = float(grown[n_ended == 0].sum()) > _MISPLACED_FRACTION * total
    if is_apart:
        lengths = np.maximum(rng.lognormal(0.0, _USUAL_SPREAD, n), _SPREADS[0])
        lengths *= total / lengths.sum()
    else:
        lengths = _divided(n_ended[n_ended > 0], grown[n_ended > 0], rng)
    return histogram_of(np.maximum(lengths, 1.0))


def _divided(n_ended: I64, grown: F64, rng: np.random.Generator) -> F64:
    """(N) Lengths that sum to the growth in each interval."""
    mean, spread = _place(n_ended, grown)
    sd = mean * math.sqrt(math.expm1(spread**2))
    found = list[F64]()
    for n, together in zip(n_ended.tolist(), grown.tolist(), strict=True):
        drawn = mean * np.exp(rng.normal(-(spread**2) / 2, spread, n))
        left = together - float(drawn.sum())
        if n > 1 and left > _FAR * sd * math.sqrt(n):
            drawn[int(np.argmax(drawn))] += left
        else:
            drawn *= together / float(drawn.sum())
        found.append(drawn)
    return np.concatenate(found)


def _place(n_ended: I64, grown: F64) -> tuple[float, float]:
    """Mean, and spread of the logarithms, without intervals that a very long request made.

    The spread is that of requests that ended alone, or by how far sums lie from k means.
    """
    mean = float(grown.sum() / n_ended.sum())
    off = (grown - n_ended * mean) / np.sqrt(n_ended)
    sd = _MAD_OF_SD * float(np.median(np.abs(off - np.median(off))))
    is_near = np.abs(off - np.median(off)) <= _FAR * max(sd, 1e-9)
    if is_near.any():
        mean = float(grown[is_near].sum() / n_ended[is_near].sum())
    alone = grown[(n_ended == 1) & (grown > 0)]
    if len(alone) >= _FEWEST_ALONE:
        low, high = np.quantile(np.log(alone), (0.159, 0.841))
        return mean, float(np.clip((high - low) / 2, *_SPREADS))
    ratio = float(off[is_near].std()) / mean if is_near.any() else 0.0
    return mean, float(np.clip(math.sqrt(math.log1p(ratio**2)), *_SPREADS))


def histogram_of(lengths: F64) -> tuple[Growth, F64]:
    """Buckets of equal numbers of lengths (N), with each bucket's mean."""
    if not lengths.size:
        return Growth(0, 0.0, np.array([np.inf]), np.zeros(1)), np.zeros(1)
    n_buckets = max(min(_BUCKETS, len(lengths) // _EACH), 1)
    upper = np.quantile(lengths, np.linspace(0, 1, n_buckets + 1)[1:], method="higher")
    edges = np.append(np.unique(upper), np.inf)
    places = np.searchsorted(edges, lengths)
    counts = np.bincount(places, minlength=len(edges)).astype(float)
    sums = np.bincount(places, lengths, minlength=len(edges))
    bounds = np.concatenate([[0.0], edges[:-1]])
    means = np.where(counts > 0, sums / np.maximum(counts, 1), bounds)
    return Growth(len(lengths), float(lengths.sum()), edges, counts), means


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
    held_tokens: F64
    """Tokens of the KV cache at each scrape: prompts that are done, and their answers so far."""
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
    streamed = _streamed(table, scraped_ns)
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
        output_tokens=_since(n_first + streamed),
        held_tokens=_by(table.first_token_ns, scraped_ns, table.prompt_tokens + 1)
        + streamed
        - _by(table.finished_ns, scraped_ns, table.prompt_tokens + table.output_tokens),
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
