"""What did a server's metrics show in a window: how full, how many came, how long did steps take?

Letters of shapes: T scrapes of the window.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, get_args

import numpy as np
import scipy

from inferometer import suggestions
from inferometer.decide.diagnosis.missing_counts import Clients, client_counts, lengths_by_counts
from inferometer.decide.diagnosis.replicas import Replica, observed_replica
from inferometer.errors import ModelError
from inferometer.records.columns import F64
from inferometer.records.server_names import Counter, Gauge, Histogram, TokenHistogram
from inferometer.records.server_series import (
    Growth,
    ServerRecord,
    bucket_series,
    counter_series,
    gauge_series,
    histogram_growth,
    histogram_series,
    is_of_several,
    server_record,
)
from inferometer.records.server_summaries import (
    ServerSummary,
    ServerTime,
    bucket_percentile,
    summarise_server,
)
from inferometer.records.step_logs import StepLog
from inferometer.records.types import RequestTable, ServerSampleTable
from inferometer.units import NS_PER_S

_FEWEST_SCRAPES: Final = 12
_FEWEST_REQUESTS: Final = 20
_TAIL_FRACTION: Final = 0.95
_WORDS: Final = {
    "finished": "how many requests ended",
    "running": "how many requests are in the batch",
    "waiting": "how many requests wait",
}
_ALIKE_FRACTION: Final = 0.9
"""Share of the scrapes in a closed loop that show all of its clients."""
_ALIKE_RATIO: Final = 0.04
_GROWING_FRACTION: Final = 0.2
"""Of the requests that come, which the batch grows by: more, and they are too many for the server.
A batch that is as full as ever grows by less, by chance alone."""
_STREAMED_FRACTION: Final = 0.9
"""Share of gaps among counted tokens, below which answers are not streamed."""


class Cumulated(NamedTuple):
    """Counts and sums since the first scrape (T each)."""

    n: F64
    total: F64


class Lengths(NamedTuple):
    """Lengths in tokens of the prompts, or of the answers, of requests that ended."""

    seen: Growth
    means: F64
    """(B) Of each bucket."""

    @property
    def bounds(self) -> tuple[F64, F64]:
        """(B) Ends of each bucket; the open last one ends at twice its start."""
        return _bounds(self.seen.edges)

    @property
    def most_tokens(self) -> float:
        """The longest that there may have been."""
        return float(self.bounds[1][self.seen.counts > 0].max())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """A server's own numbers, scrape by scrape; None where it does not report one."""

    summary: ServerSummary
    record: ServerRecord
    """The server's metrics, for direct reading."""
    at_s: F64
    """(T) Since the first scrape."""
    running: F64
    """(T) Requests in the batch."""
    waiting: F64
    """(T)"""
    kv_usage: F64 | None
    """(T) From 0 to 1."""
    finished: F64
    """(T) Requests that ended since the first scrape, however they did."""
    prompt_tokens: F64
    """(T) Of requests whose prompt was done; those found in the prefix cache included."""
    step_prompt_tokens: F64
    """(T) The same as steps computed or found them, where a server tells."""
    output_tokens: F64
    """(T)"""
    n_steps: F64 | None
    """(T) Of the engine."""
    step_sizes: Lengths | None
    """Tokens of a step, where the server has a histogram of them (vLLM)."""
    gaps: Cumulated | None
    """Tokens after the first of each answer, and the seconds between them and those before."""
    first_tokens: F64 | None
    """(T) How many requests had got their first token, since the first scrape."""
    prompt_lengths: Lengths
    output_lengths: Lengths
    spreads: dict[Histogram, Growth]
    """Histograms of its latencies, where it has buckets."""
    clients: Clients | None = None
    """Requests of a load test, for a server that counts none."""
    busy_s: F64 | None = None
    """(T) Seconds in which a request was in the server, where its clients tell."""
    held_tokens: F64 | None = None
    """(T) Tokens in the KV cache, where its clients tell."""
    alike_fraction: float | None = None
    """Share of prompt tokens in shared prefixes, where the workload is known."""
    step_log: StepLog | None = None
    """Single steps, where the server records them."""
    enable_prefix_caching: bool | None = None
    """As reported by the server; None: not reported."""
    n_users: int | None = None
    """Users of a closed-loop load test; None: unknown."""
    replica: Replica | None = None
    """Which of several replicas on the page it is; None: there is one."""
    n_added_up: int = 1
    """Engines that share their counters, and are observed together."""

    @property
    def duration_s(self) -> float:
        """Time from the first scrape to the last."""
        return float(self.at_s[-1])

    @property
    def arrivals(self) -> F64:
        """(T - 1) Arrivals between scrapes: ended requests plus growth of those in the server."""
        came = np.diff(self.finished) + np.diff(self.running + self.waiting)
        return np.maximum(np.rint(came), 0.0)

    @property
    def is_closed_loop(self) -> bool:
        """Is the number of requests in the server constant, as in a closed loop?

        A few scrapes may fall between the end of some requests and the sending of the next.
        """
        if self.n_users is not None:
            return True
        inside = self.running + self.waiting
        most = float(np.quantile(inside, _ALIKE_FRACTION))
        within = max(1.0, _ALIKE_RATIO * most)
        is_full = np.abs(inside - most) <= within
        return bool(most >= 1 and inside.min() >= 1 and is_full.mean() >= _ALIKE_FRACTION)

    @property
    def growths_per_s(self) -> tuple[float, float]:
        """By how many requests a second the batch grows, and the queue: trends of the window."""
        trends = (np.polyfit(self.at_s, one, 1)[0] for one in (self.running, self.waiting))
        running, waiting = map(float, trends)
        return running, waiting

    @property
    def is_batch_growing(self) -> bool:
        """Does the batch grow by a good part of the requests that come, and more than the queue?"""
        running, waiting = self.growths_per_s
        rate_per_s = float(self.arrivals.sum()) / self.duration_s
        is_growing = running > max(_GROWING_FRACTION * rate_per_s, waiting)
        return is_growing and not self.is_closed_loop

    @property
    def are_stages_of_early_requests(self) -> bool:
        """Are times in the queue and of prefills those of the few that came first?

        They are counted when a request ends, and in a batch that grows these came when it was
        smaller; how long the answers are that go on, nothing tells.
        """
        return self.is_batch_growing and not self.is_stage_counted_early

    @property
    def is_cache_off(self) -> bool:
        """Is the prefix cache off: as reported, or because no prompt is looked up (vLLM)?"""
        if self.enable_prefix_caching is not None:
            return not self.enable_prefix_caching
        return self.summary.prefix_queries_tokens == 0 and bool(self.prompt_tokens[-1])

    @property
    def is_stage_counted_early(self) -> bool:
        """Is a stage's time counted when the stage ends (SGLang, llama.cpp), not when the request ends?"""
        return self.summary.kind in {"sglang", "llama.cpp"}

    @property
    def is_answer_counted_late(self) -> bool:
        """Are output tokens counted when the request ends (TensorRT-LLM)?"""
        return self.summary.kind == "tensorrt-llm"

    @property
    def is_slot_taken_early(self) -> bool:
        """Does a request that waits for its prompt's turn count as running (llama.cpp)?

        It takes a slot as soon as one is free, and only those without a slot are deferred
        (b11549, ``server-context.cpp``); vLLM admits a request with the first part of its prompt.
        """
        return self.summary.kind == "llama.cpp"

    @property
    def mean_waiting(self) -> float:
        """Mean number of waiting requests.

        SGLang and TensorRT-LLM write their gauge after they have admitted what they can: there each
        request's time in the queue counts too (Little's law).
        """
        shown, queued = float(self.waiting.mean()), self.summary.time("queue")
        if queued is None or not (self.is_stage_counted_early or self.is_answer_counted_late):
            return shown
        return max(shown, queued.mean_s * queued.n / self.duration_s)

    @property
    def hit_fraction(self) -> float:
        """Share of prompt tokens found in the prefix cache; 0 where the server does not report it."""
        return self.summary.prefix_hit_fraction or 0.0


def log_distance(seen: Growth, seconds: F64, weights: F64, n_events: float) -> float:
    """Distance between two distributions: an area between them over the logarithm of time.

    It is Wasserstein's distance of order 1, as far as the histogram's edges show it, but of twice the
    square roots of the shares beyond each edge: as exact for the rare long ones as for the others
    (``n_events``, steps or requests, caused them all), since a step budget shows in the longest gaps.
    """
    edges_s = seen.edges[np.isfinite(seen.edges) & (seen.edges > 0)]
    if not weights.sum() or len(edges_s) < 2:
        return 0.0
    order = np.argsort(seconds)
    above = np.concatenate([np.cumsum(weights[order][::-1])[::-1], [0.0]]) / weights.sum()
    simulated = above[np.searchsorted(seconds[order], edges_s, side="right")]
    below = (np.cumsum(seen.counts) / seen.counts.sum())[np.searchsorted(seen.edges, edges_s)]
    roots = [2 * np.sqrt(np.maximum(one, 0) + 1 / n_events) for one in (1 - below, simulated)]
    return float(np.trapezoid(np.abs(roots[0] - roots[1]), np.log(edges_s)))


def log_outside(seen: Growth, seconds: F64, weights: F64) -> float:
    """Distance (log) of the simulated percentile from the bucket that holds the measured one."""
    bucket = bucket_percentile(seen, _TAIL_FRACTION)
    if bucket is None or not weights.sum():
        return 0.0
    order = np.argsort(seconds)
    place = np.searchsorted(np.cumsum(weights[order]), _TAIL_FRACTION * weights.sum())
    tail_s = max(float(seconds[order][min(place, len(order) - 1)]), 1e-6)
    return math.log(tail_s / min(max(tail_s, bucket.low_s), bucket.high_s))


def observed_window(
    samples: ServerSampleTable,
    requests: RequestTable | None = None,
    *,
    replica: str | None = None,
) -> ServerWindow:
    """The window of all these scrapes, of several replicas that of ``replica``, else of the fullest.

    What a server that counts no requests leaves out is taken of the ``requests`` of a load test.

    Raises
    ------
    RecordError
        There is no scrape of a known server that was answered, or only one.
    SpecError
        There is no such replica.
    ModelError
        The server was restarted, reports too little, or too few requests ended.
    """
    observed = observed_replica(samples, replica)
    record = server_record(observed.samples)
    summary = summarise_server(observed.samples)
    _check(record, summary)
    if requests is not None and counter_series(record, "finished") is None:
        return _of_clients(record, summary, requests)
    finished = _counted(record, "finished")
    prompts = _request_lengths(record, "request_prompt_tokens", "prompt_tokens", finished)
    outputs = _request_lengths(record, "request_output_tokens", "output_tokens", finished)
    _check_requests(prompts.seen.n, summary)
    usage = gauge_series(record, "kv_usage")
    first_tokens = _cumulated(record, "ttft")
    window = ServerWindow(
        summary=summary,
        record=record,
        at_s=(record.scraped_ns - record.scraped_ns[0]) / NS_PER_S,
        running=_gauge(record, "running"),
        waiting=_gauge(record, "waiting"),
        kv_usage=None if usage is None or np.isnan(usage.value).any() else usage.value,
        finished=finished,
        prompt_tokens=_counted(record, "prompt_tokens"),
        step_prompt_tokens=_step_prompt_tokens(record),
        output_tokens=_output_tokens(record),
        n_steps=_steps(record),
        step_sizes=_lengths(record, "step_tokens"),
        gaps=_cumulated(record, "itl"),
        first_tokens=None if first_tokens is None else first_tokens.n,
        prompt_lengths=prompts,
        output_lengths=outputs,
        spreads=_spreads(record),
        replica=observed.replica,
        n_added_up=observed.n_added_up,
    )
    return _with_unfinished(window) if window.is_answer_counted_late else window


def _of_clients(
    record: ServerRecord, summary: ServerSummary, requests: RequestTable
) -> ServerWindow:
    """A window with queue and batch from the server's metrics and all else from the clients."""
    seen = client_counts(requests, record.scraped_ns)
    _check_requests(seen.prompts[0].n, summary)
    return ServerWindow(
        summary=replace(summary, times=(*seen.times, *_prefills(record, seen.first_tokens))),
        record=record,
        at_s=(record.scraped_ns - record.scraped_ns[0]) / NS_PER_S,
        running=_gauge(record, "running"),
        waiting=_gauge(record, "waiting"),
        kv_usage=None,
        finished=seen.finished,
        prompt_tokens=seen.prompt_tokens,
        step_prompt_tokens=seen.prompt_tokens,
        output_tokens=seen.output_tokens,
        n_steps=_steps(record),
        step_sizes=None,
        gaps=None,
        busy_s=seen.busy_s,
        held_tokens=seen.held_tokens,
        first_tokens=seen.first_tokens,
        prompt_lengths=Lengths(*seen.prompts),
        output_lengths=Lengths(*seen.outputs),
        spreads=seen.spreads,
        clients=seen.each,
    )


def _prefills(record: ServerRecord, first_tokens: F64) -> tuple[ServerTime, ...]:
    """The mean time from the first part of a prompt to its end, where the server adds them up."""
    n, took_s = int(first_tokens[-1]), counter_series(record, "prefill_s")
    if took_s is None or not n:
        return ()
    mean_s = float(took_s.value[-1] - took_s.value[0]) / n
    return (ServerTime(name="prefill", n=n, mean_s=mean_s, percentiles=()),)


def _check_requests(n_ended: int, summary: ServerSummary) -> None:
    if n_ended < _FEWEST_REQUESTS:
        raise ModelError(
            f"{n_ended} requests ended in {summary.end_s - summary.start_s:.0f} s",
            where="the window",
            allowed=f"{_FEWEST_REQUESTS} or more",
            try_="a longer window (--for; of a Prometheus --last), or more traffic",
        )


def _with_unfinished(window: ServerWindow) -> ServerWindow:
    """Tokens counted when a request ends, and those by which its running requests hold more and more.

    In an overload the batch fills up, and most of what was computed is of requests that have not
    ended. What they hold is prompts and answers so far: the KV cache's tokens, without the prompts.
    """
    held, gap = _held_tokens(window), window.summary.time("tpot")
    if window.is_batch_growing and held is not None and gap is not None and gap.mean_s > 0:
        return _as_decoded(window, held, gap.mean_s)
    prompt_tokens = float(window.prompt_lengths.seen.total / window.prompt_lengths.seen.n)
    prompts = window.running * prompt_tokens
    answers = np.zeros_like(prompts) if held is None else held - prompts
    return replace(
        window,
        step_prompt_tokens=_filling(window, window.step_prompt_tokens, prompts),
        output_tokens=_filling(window, window.output_tokens, answers),
    )


def _as_decoded(window: ServerWindow, held: F64, gap_s: float) -> ServerWindow:
    """Of a batch that grows: each running request gets a token in each gap, all else is prompts.

    Most of what it holds is prompts of requests that go on. By their mean length, as exact as the few
    that ended tell it, the small part of the answers would be anything.
    """
    in_batch_s = (window.running[1:] + window.running[:-1]) / 2 * np.diff(window.at_s)
    answers: F64 = np.concatenate([[0.0], np.cumsum(in_batch_s) / gap_s])
    prompts = held - held[0] + window.step_prompt_tokens + window.output_tokens - answers
    return replace(
        window,
        step_prompt_tokens=np.maximum.accumulate(np.maximum(prompts, 0.0)),
        output_tokens=answers,
    )


def _held_tokens(window: ServerWindow) -> F64 | None:
    """(T) Tokens in the KV cache, without the empty part of each request's last block."""
    n_blocks, block_tokens = window.summary.n_kv_blocks, window.summary.kv_block_tokens
    if window.kv_usage is None or not n_blocks or not block_tokens:
        return None
    held: F64 = block_tokens * (window.kv_usage * n_blocks - window.running / 2)
    return held


def _filling(window: ServerWindow, counted: F64, held: F64) -> F64:
    """(T) Counted tokens plus the trend of held ones, each token once."""
    per_s = float(np.polynomial.Polynomial.fit(window.at_s, held, 1).convert().coef[-1])
    came: F64 = np.maximum.accumulate(np.maximum(counted + per_s * window.at_s, 0.0))
    return came


def _lengths(record: ServerRecord, name: TokenHistogram) -> Lengths | None:
    """None where the server has no histogram of them.

    Between two scrapes few requests end: what the sum grew by is the counts of the buckets times
    their means, which lie within the buckets (least squares with bounds).
    """
    seen = histogram_growth(record, name)
    totals, buckets = histogram_series(record, name), bucket_series(record, name)
    if seen is None or totals is None or not seen.edges.size or not seen.counts.sum():
        return None if seen is None or not seen.edges.size else Lengths(seen, seen.edges)
    low, high = _bounds(seen.edges)
    counts, grown = np.diff(buckets, axis=0), np.diff(totals[1].value)
    rows, used = counts.sum(axis=1) > 0, seen.counts > 0
    # Of lengths spread evenly over their buckets the sum is off by this, and by a token.
    noise = np.sqrt(counts[rows] @ ((high - low) ** 2 / 12) + 1)
    found = scipy.optimize.lsq_linear(
        counts[rows][:, used] / noise[:, None],
        grown[rows] / noise,
        bounds=(low[used], high[used] + 1e-6),
    )
    means = (low + high) / 2
    means[used] = found.x
    return Lengths(seen, means)


def _request_lengths(
    record: ServerRecord, name: TokenHistogram, counter: Counter, finished: F64
) -> Lengths:
    """Lengths by the server's histogram, or the mean by its counters of requests and tokens."""
    found = _lengths(record, name)
    if found is not None and found.seen.n:
        return found
    counted = lengths_by_counts(finished, _counted(record, counter))
    if counted is None:
        raise ModelError(
            "no request ended",
            where="the window",
            allowed=f"{_FEWEST_REQUESTS} or more",
            try_="a longer window (--for; of a Prometheus --last), or more traffic",
        )
    return Lengths(*counted)


def _bounds(edges: F64) -> tuple[F64, F64]:
    low: F64 = np.concatenate([[0.0], edges[:-1]])
    return low, np.where(np.isinf(edges), 2 * np.maximum(low, 1.0), edges)


def _spreads(record: ServerRecord) -> dict[Histogram, Growth]:
    found = ((name, histogram_growth(record, name)) for name in get_args(Histogram))
    return {name: one for name, one in found if one is not None and one.counts.sum() > 0}


def _check(record: ServerRecord, summary: ServerSummary) -> None:
    if is_of_several(record):
        raise ModelError(
            "several servers answer in turn: start times or counters go up and down",
            where="its metrics",
            allowed="the metrics of a single server, not of a load balancer",
            try_="the address of one server: its own port",
        )
    if summary.n_restarts:
        raise ModelError(
            "the server was started anew within the window",
            where="its metrics",
            try_="the same command again",
        )
    if summary.n_scrapes < _FEWEST_SCRAPES:
        raise ModelError(
            f"{summary.n_scrapes} scrapes were answered, fewer than {_FEWEST_SCRAPES}",
            where="the window",
            allowed=f"{_FEWEST_SCRAPES} or more",
            try_="a longer window (--for; of a Prometheus --last; of a stored run, one of load with"
            " --for 60s)",
        )


def _gauge(record: ServerRecord, gauge: Gauge) -> F64:
    series = gauge_series(record, gauge)
    if series is None or np.isnan(series.value).any():
        raise _unreported(gauge)
    return series.value


def _counted(record: ServerRecord, counter: Counter) -> F64:
    series = counter_series(record, counter)
    if series is None:
        raise _unreported(counter)
    since_start: F64 = series.value - series.value[0]
    return since_start


def _step_prompt_tokens(record: ServerRecord) -> F64:
    """(T) Prompt tokens as they are computed, where a server reports them.

    SGLang (0.5.23) adds a prompt to ``prompt_tokens_total`` when its request ends, seconds after the
    steps that computed it, and to ``realtime_tokens_total`` with each of these steps.
    """
    counted = _counted(record, "prompt_tokens")
    names: tuple[Counter, Counter] = ("computed_prompt_tokens", "found_prompt_tokens")
    known = [one.value for name in names if (one := counter_series(record, name)) is not None]
    if not known:
        return counted
    computed: F64 = np.sum(known, axis=0)
    computed = computed - computed[0]
    return computed if computed[-1] > 0 else counted


def _steps(record: ServerRecord) -> F64 | None:
    """(T) By a histogram of their tokens (vLLM), or by the graphs that were launched or not (SGLang)."""
    sizes, passes = _cumulated(record, "step_tokens"), counter_series(record, "steps")
    if sizes is not None:
        return sizes.n
    if passes is None:
        return None
    since_start: F64 = passes.value - passes.value[0]
    return since_start if since_start[-1] > 0 else None


def _output_tokens(record: ServerRecord) -> F64:
    """(T) As they come: first tokens and those after them where more are observed than counted.

    SGLang (0.5.23, ``tokenizer_manager.py``) adds an answer to its counter when it ends, but observes
    the gap before each streamed token as it comes.
    """
    counted = _counted(record, "output_tokens")
    firsts, gaps = _cumulated(record, "ttft"), _cumulated(record, "itl")
    if record.names.kind != "sglang" or firsts is None or gaps is None:
        return counted
    seen: F64 = firsts.n + gaps.n
    return seen if seen[-1] >= _STREAMED_FRACTION * counted[-1] else counted


def _unreported(name: str) -> ModelError:
    words = _WORDS.get(name, name.replace("_", " "))
    return ModelError(
        f"the server does not report {words} at each scrape",
        where="its metrics",
        allowed="metrics of vLLM, SGLang (--enable-metrics), NVIDIA NIM or TensorRT-LLM"
        " (return_perf_metrics and enable_iter_perf_stats); a stored load test of llama.cpp",
        try_=f"{suggestions.command('load', 'URL', '--out', 'RUN')}, then"
        f" {suggestions.command('diagnose', 'RUN')}: clients count what the server does not",
    )


def _cumulated(record: ServerRecord, name: Histogram | TokenHistogram) -> Cumulated | None:
    found = histogram_series(record, name)
    return None if found is None else Cumulated(*(one.value - one.value[0] for one in found))
