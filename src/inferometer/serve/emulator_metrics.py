"""``/metrics`` of the emulator, counted as vLLM does.

The names, labels and buckets of vLLM 0.33 (``vllm/v1/metrics``), in Prometheus' text format 0.0.4.
Instants are the scheduler's, not those of the wall clock.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from inferometer.records.exposition import labels_text
from inferometer.records.server_names import START_TIME, VLLM_EDGES_S
from inferometer.records.types import ABSENT
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.live import Delivery, LiveRequest
from inferometer.simulate.outcome import Status
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.units import NS_PER_S, s_from_ns

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "vllm:"
_STEP_TOKENS: Final = (1, *(2**power for power in range(3, 15)))
FINISH_REASONS: Final = ("stop", "length", "abort", "error", "repetition")

_GAUGES: Final = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "num_requests_waiting_by_reason": "Number of waiting requests by reason.",
    "engine_sleep_state": "Engine sleep state.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
    "cache_config_info": "Information of the LLMEngine CacheConfig",
}
_COUNTERS: Final = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "external_prefix_cache_queries": (
        "External prefix cache queries, in terms of number of queried tokens."
    ),
    "external_prefix_cache_hits": (
        "External prefix cache hits, in terms of number of cached tokens."
    ),
    "mm_cache_queries": "Multi-modal cache queries, in terms of number of queried items.",
    "mm_cache_hits": "Multi-modal cache hits, in terms of number of cached items.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
}
_SPECULATION: Final = {
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
"""Counters of servers that speculate."""
_LABELLED_COUNTERS: Final = {
    "prompt_tokens_by_source": (
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "prompt_tokens_cached_by_source": (
        "source",
        ("device", "host", "disk", "p2p", "external_unspecified"),
    ),
    "request_success": ("finished_reason", FINISH_REASONS),
    "admission_rejections": ("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
}
_HISTOGRAMS: Final[dict[str, Sequence[float]]] = {
    "iteration_tokens_total": _STEP_TOKENS,
    "request_prompt_tokens": (),
    "request_generation_tokens": (),
    "request_max_num_generation_tokens": (),
    "request_params_max_tokens": (),
    "request_prefill_kv_computed_tokens": (),
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "time_to_first_token_seconds": VLLM_EDGES_S["ttft"],
    "inter_token_latency_seconds": VLLM_EDGES_S["tpot"],
    "request_time_per_output_token_seconds": VLLM_EDGES_S["tpot"],
    "e2e_request_latency_seconds": VLLM_EDGES_S["e2e"],
    "request_queue_time_seconds": VLLM_EDGES_S["e2e"],
    "request_inference_time_seconds": VLLM_EDGES_S["e2e"],
    "request_prefill_time_seconds": VLLM_EDGES_S["e2e"],
    "request_decode_time_seconds": VLLM_EDGES_S["e2e"],
}
"""Upper bounds of buckets; () stands for 1, 2, 5, 10, ... up to the longest context."""
_REASONS = {
    Status.STOPPED: "stop",
    Status.LENGTH: "length",
    Status.ABORTED: "abort",
    Status.REJECTED: "error",
}


class Histogram:
    """Counts of observed values by bucket."""

    __slots__ = ("_counts", "_edges", "_total")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self._total = 0.0

    def observe(self, value: float, n_times: int = 1) -> None:
        """Add a value ``n_times``."""
        self._counts[bisect_left(self._edges, value)] += n_times
        self._total += value * n_times

    def observe_each(self, values: Iterable[float]) -> None:
        """Add values, most of them equal to the one before: gaps of a batch's tokens."""
        counts, total, before, place = self._counts, self._total, math.nan, 0
        for value in values:
            if value != before:
                before, place = value, bisect_left(self._edges, value)
            counts[place] += 1
            total += value
        self._total = total

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Prometheus samples: cumulative buckets, count and sum."""
        cumulative = list(accumulate(self._counts))
        heads = _bucket_heads(name, tuple(labels.items()), self._edges)
        for head, count in zip(heads, cumulative, strict=True):
            yield f"{head} {float(count)}"
        yield _sample(f"{name}_count", labels, cumulative[-1])
        yield _sample(f"{name}_sum", labels, self._total)


_START_TIME_HELP: Final = "Start time of the process since unix epoch in seconds."


_Family: TypeAlias = tuple[tuple[str, str], list[str]]
"""Heading of a metric, and its samples."""


class Now(NamedTuple):
    """Values of the gauges at one instant."""

    n_running: int
    n_waiting: int
    kv_used_fraction: float
    process_started_s: float | None = None
    """Unix time; None: not shown."""


class Metrics:
    """All metrics of vLLM's front end, for one engine of its data-parallel ones.

    What an emulator never has (images, other servers' caches) stays at 0.
    """

    def __init__(
        self,
        model_name: str,
        *,
        max_model_len: int,
        cache_config: Mapping[str, str],
        n_drafted: int = 0,
        rank: int = 0,
    ) -> None:
        """``n_drafted`` tokens are drafted for each sequence of a step; 0: no speculation."""
        self._labels = {"engine": str(rank), "model_name": model_name}
        self._is_first = rank == 0
        self._cache_config = dict(cache_config) | {"engine": str(rank)}
        self._started_s = datetime.now(UTC).timestamp()
        self.n_drafted = n_drafted
        self._counted = _COUNTERS | (_SPECULATION if n_drafted else {})
        self.counters = dict.fromkeys(self._counted, 0)
        self.labelled = {
            name: dict.fromkeys(values, 0) for name, (_, values) in _LABELLED_COUNTERS.items()
        }
        series = one_two_five(max_model_len)
        self.histograms = {name: Histogram(edges or series) for name, edges in _HISTOGRAMS.items()}

    def text(self, now: Now) -> bytes:
        """The page of a server with this engine alone."""
        return page_of([self], [now])

    def families(self, now: Now) -> Iterator[_Family]:
        """Each metric's heading, and the samples of this engine."""
        yield from self._gauges(now)
        yield from self._counter_families()
        yield from self._histogram_families()

    def _gauges(self, now: Now) -> Iterator[_Family]:
        """The emulator never defers requests and never sleeps: these gauges stay constant."""
        reasons = {"capacity": now.n_waiting, "deferred": 0}
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        samples: dict[str, list[tuple[Mapping[str, str], float]]] = {
            "num_requests_running": [(self._labels, now.n_running)],
            "num_requests_waiting": [(self._labels, now.n_waiting)],
            "num_requests_waiting_by_reason": [
                ({**self._labels, "reason": name}, value) for name, value in reasons.items()
            ],
            "engine_sleep_state": [
                ({**self._labels, "sleep_state": name}, value) for name, value in states.items()
            ],
            "kv_cache_usage_perc": [(self._labels, now.kv_used_fraction)],
            "cache_config_info": [(self._cache_config, 1)],
        }
        for name, help_text in _GAUGES.items():
            lines = [_sample(_PREFIX + name, labels, value) for labels, value in samples[name]]
            yield _heading(_PREFIX + name, help_text, "gauge"), lines

    def _counter_families(self) -> Iterator[_Family]:
        for name, help_text in self._counted.items():
            yield from self._counter(name, help_text, {"": self.counters[name]}, label="")
        for name, (label, _) in _LABELLED_COUNTERS.items():
            yield from self._counter(name, f"Count by {label}.", self.labelled[name], label=label)

    def _counter(
        self, name: str, help_text: str, values: Mapping[str, float], *, label: str
    ) -> Iterator[_Family]:
        is_front_ends = name == "admission_rejections"
        own = {"model_name": self._labels["model_name"]} if is_front_ends else self._labels
        rows = [({**own, label: which} if label else own, value) for which, value in values.items()]
        rows = [] if is_front_ends and not self._is_first else rows
        lines = [_sample(f"{_PREFIX}{name}_total", labels, value) for labels, value in rows]
        yield _heading(f"{_PREFIX}{name}_total", help_text, "counter"), lines
        yield self._created(name, [labels for labels, _ in rows])

    def _histogram_families(self) -> Iterator[_Family]:
        for name, histogram in self.histograms.items():
            heading = _heading(_PREFIX + name, f"Histogram of {name}.", "histogram")
            yield heading, list(histogram.lines(_PREFIX + name, self._labels))
            yield self._created(name, [self._labels])

    def _created(self, name: str, rows: Sequence[Mapping[str, str]]) -> _Family:
        heading = _heading(f"{_PREFIX}{name}_created", f"When {name} began.", "gauge")
        return heading, [
            _sample(f"{_PREFIX}{name}_created", labels, self._started_s) for labels in rows
        ]


def page_of(engines: Sequence[Metrics], nows: Sequence[Now]) -> bytes:
    """The page of a server with these engines; each metric has the samples of all of them."""
    started_s, lines = nows[0].process_started_s, list[str]()
    if started_s is not None:
        heading = _heading(START_TIME, _START_TIME_HELP, "gauge")
        lines = [*heading, f"{START_TIME} {started_s}"]
    pages = [engine.families(now) for engine, now in zip(engines, nows, strict=True)]
    for of_engines in zip(*pages, strict=True):
        lines += of_engines[0][0]
        lines += [sample for _, samples in of_engines for sample in samples]
    return ("\n".join(lines) + "\n").encode()


def metrics_of(model_name: str, config: EngineConfig, rank: int = 0) -> Metrics:
    """The metrics of an engine with this configuration, all at 0."""
    n_blocks = config.num_blocks if isinstance(config, SchedulerConfig) else config.n_kv_blocks
    cache = {
        "block_size": str(config.block_size),
        "num_gpu_blocks": str(n_blocks),
        "enable_prefix_caching": str(config.enable_prefix_caching),
    }
    n_drafted = config.num_speculative_tokens if isinstance(config, SchedulerConfig) else 0
    return Metrics(
        model_name,
        max_model_len=config.max_model_len,
        cache_config=cache,
        n_drafted=n_drafted,
        rank=rank,
    )


def one_two_five(most: int) -> tuple[int, ...]:
    """The series 1, 2, 5, 10, 20, 50, ... up to a limit.

    Example
    -------
    >>> one_two_five(100)
    (1, 2, 5, 10, 20, 50, 100)
    """
    powers = [10**power for power in range(len(str(most)))]
    return tuple(
        value for power in powers for value in (power, 2 * power, 5 * power) if value <= most
    )


def _heading(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{_head(name, tuple(labels.items()))} {float(value)}"


# Each page has the same series as the one before: to write their names took four fifths of its time.
@lru_cache(2**14)
def _head(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    pairs = labels_text(dict(labels))
    return f"{name}{{{pairs}}}"


@lru_cache(2**12)
def _bucket_heads(
    name: str, labels: tuple[tuple[str, str], ...], edges: tuple[float, ...]
) -> tuple[str, ...]:
    bounds = [*(str(float(edge)) for edge in edges), "+Inf"]
    return tuple(_head(f"{name}_bucket", (*labels, ("le", bound))) for bound in bounds)


@dataclass(slots=True)
class _Life:
    first_token_ns: int = ABSENT
    last_token_ns: int = ABSENT


class Accounts:
    """Updates the metrics of the engines when requests arrive, steps end and requests end.

    ``engines``: one, or one for each replica.

    Source
    ------
    vLLM 0.32.0, v1/core/kv_cache_manager.py, ``get_computed_blocks``: without a prefix cache there
    are no queries of it.
    """

    def __init__(self, engines: Sequence[Metrics], *, has_prefix_cache: bool) -> None:
        self._engines = tuple(engines)
        self._has_prefix_cache = has_prefix_cache
        self._lives: dict[int, _Life] = {}

    def arrived(self, request: LiveRequest) -> None:
        """Count a request that the engine got."""
        self._lives[request.index] = _Life()

    def _of(self, replica: int) -> Metrics:
        """The metrics of a replica's engine; those of the first for a request that none has got."""
        return self._engines[max(replica, 0) if len(self._engines) > 1 else 0]

    def scheduled(
        self, admitted: Sequence[LiveRequest], n_preempted: int, replica: int = 0
    ) -> None:
        """Note the requests of which the first prompt tokens were scheduled."""
        metrics = self._of(replica)
        counters = metrics.counters
        counters["num_preemptions"] += n_preempted
        for request in admitted if self._has_prefix_cache else ():
            counters["prefix_cache_queries"] += request.num_prompt_tokens
            counters["prefix_cache_hits"] += request.num_cached_tokens
            metrics.labelled["prompt_tokens_cached_by_source"]["device"] += (
                request.num_cached_tokens
            )

    def count_step(self, deliveries: Sequence[Delivery], now_ns: int) -> None:
        """Count the tokens of a replica's step that has ended."""
        if not deliveries:
            return
        first, _ = deliveries[0]
        metrics = self._of(first.replica)
        n_generated, n_prefilled = 0, 0
        gaps_s, n_drafted = list[float](), metrics.n_drafted
        for request, n_tokens in deliveries:
            life = self._lives.get(request.index)
            if life is None or n_tokens == 0:
                continue
            n_generated += n_tokens
            if life.first_token_ns == ABSENT:
                n_prefilled += _count_first_token(metrics, request, life, now_ns)
            else:
                gaps_s.append((now_ns - life.last_token_ns) / NS_PER_S)
                if n_drafted:
                    _count_verified(metrics, n_tokens)
            life.last_token_ns = now_ns
            if request.status.is_finished:
                self.ended(request, now_ns)
        metrics.histograms["inter_token_latency_seconds"].observe_each(gaps_s)
        metrics.counters["generation_tokens"] += n_generated
        if n_generated or n_prefilled:
            metrics.histograms["iteration_tokens_total"].observe(n_generated + n_prefilled)

    def ended(self, request: LiveRequest, now_ns: int) -> None:
        """Count a request that has ended, by its last token or before it."""
        life = self._lives.pop(request.index, None)
        if life is None:
            return
        metrics = self._of(request.replica)
        metrics.labelled["request_success"][_REASONS[request.status]] += 1
        if life.last_token_ns != ABSENT and request.status in {Status.STOPPED, Status.LENGTH}:
            _count_latencies(metrics, request, life, now_ns)
            _count_sizes(metrics, request)


def _count_verified(metrics: Metrics, n_tokens: int) -> None:
    """Count the accepted draft tokens of a sequence's step; one token more is the model's own."""
    counters = metrics.counters
    counters["spec_decode_num_drafts"] += 1
    counters["spec_decode_num_draft_tokens"] += metrics.n_drafted
    counters["spec_decode_num_accepted_tokens"] += n_tokens - 1


def _count_first_token(metrics: Metrics, request: LiveRequest, life: _Life, now_ns: int) -> int:
    """Count a first token; returns the prompt tokens computed for it."""
    n_computed = request.num_prompt_tokens - request.num_cached_tokens
    life.first_token_ns = now_ns
    counters, by_source = metrics.counters, metrics.labelled["prompt_tokens_by_source"]
    counters["prompt_tokens"] += request.num_prompt_tokens
    counters["prompt_tokens_cached"] += request.num_cached_tokens
    by_source["local_compute"] += n_computed
    by_source["local_cache_hit"] += request.num_cached_tokens
    metrics.histograms["time_to_first_token_seconds"].observe(
        s_from_ns(now_ns - request.arrival_ns)
    )
    return n_computed


def _count_latencies(metrics: Metrics, request: LiveRequest, life: _Life, now_ns: int) -> None:
    decode_ns = life.last_token_ns - life.first_token_ns
    n_gaps = request.num_output_tokens - 1
    for name, duration_ns in {
        "e2e_request_latency_seconds": now_ns - request.arrival_ns,
        "request_queue_time_seconds": request.admitted_ns - request.arrival_ns,
        "request_prefill_time_seconds": life.first_token_ns - request.admitted_ns,
        "request_decode_time_seconds": decode_ns,
        "request_inference_time_seconds": life.last_token_ns - request.admitted_ns,
    }.items():
        metrics.histograms[name].observe(s_from_ns(duration_ns))
    mean_s = (
        s_from_ns(decode_ns) / n_gaps if n_gaps else 0.0
    )  # vLLM counts one-token answers as 0 here
    metrics.histograms["request_time_per_output_token_seconds"].observe(mean_s)


def _count_sizes(metrics: Metrics, request: LiveRequest) -> None:
    for name, n_tokens in {
        "request_prompt_tokens": request.num_prompt_tokens,
        "request_generation_tokens": request.num_output_tokens,
        "request_max_num_generation_tokens": request.num_output_tokens,
        "request_params_max_tokens": request.max_tokens,
        "request_prefill_kv_computed_tokens": request.num_prompt_tokens - request.num_cached_tokens,
        "request_params_n": 1,
        "request_num_preemptions": request.num_preemptions,
    }.items():
        metrics.histograms[name].observe(n_tokens)
