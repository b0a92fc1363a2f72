"""How long were prompts and answers where a server counts tokens, and has no histogram of them?

SGLang has one with ``--collect-tokens-histogram`` only, TensorRT-LLM has none. Both add the tokens of
a request to a counter when it ends (SGLang 0.5.23, ``tokenizer_manager.py``), in the same step as
they count the request: between two scrapes k requests have T tokens together. Where k is 1 that is a
length; else T is divided among them, as lengths that spread as much as all of them do would be.
Letters of shapes: T scrapes, N requests.
"""

import math
from typing import Final

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.records.server_series import Growth

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
