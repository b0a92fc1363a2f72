"""What became of each request, as vLLM's metrics count it?

Instants are the scheduler's, not those of the wall clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from inferometer.records.types import ABSENT
from inferometer.serve.emulator_metrics import Metrics
from inferometer.simulate.live import Delivery, LiveRequest
from inferometer.simulate.outcome import Status
from inferometer.units import s_from_ns

_REASONS = {
    Status.STOPPED: "stop",
    Status.LENGTH: "length",
    Status.ABORTED: "abort",
    Status.REJECTED: "error",
}


@dataclass(slots=True)
class _Life:
    first_token_ns: int = ABSENT
    last_token_ns: int = ABSENT


class Accounts:
    """Keeps the metrics true, told what the engine does."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lives: dict[int, _Life] = {}

    def arrived(self, request: LiveRequest) -> None:
        """A request was given to the engine."""
        self._lives[request.index] = _Life()

    def scheduled(self, admitted: Sequence[LiveRequest], n_preempted: int) -> None:
        """Steps were decided, with the first parts of these requests."""
        counters = self._metrics.counters
        counters["num_preemptions"] += n_preempted
        for request in admitted:
            counters["prefix_cache_queries"] += request.num_prompt_tokens
            counters["prefix_cache_hits"] += request.num_cached_tokens
            self._metrics.labelled["prompt_tokens_cached_by_source"]["device"] += (
                request.num_cached_tokens
            )

    def stepped(self, deliveries: Sequence[Delivery], now_ns: int) -> None:
        """A step has ended."""
        n_generated, n_prefilled = 0, 0
        for request, n_tokens in deliveries:
            life = self._lives.get(request.index)
            if life is None or n_tokens == 0:
                continue
            n_generated += n_tokens
            if life.first_token_ns == ABSENT:
                n_prefilled += self._first_token(request, life, now_ns)
            else:
                gap_s = s_from_ns(now_ns - life.last_token_ns)
                self._metrics.histograms["inter_token_latency_seconds"].observe(gap_s)
            life.last_token_ns = now_ns
            if request.status.is_finished:
                self.ended(request, now_ns)
        self._metrics.counters["generation_tokens"] += n_generated
        if n_generated or n_prefilled:
            self._metrics.histograms["iteration_tokens_total"].observe(n_generated + n_prefilled)

    def ended(self, request: LiveRequest, now_ns: int) -> None:
        """A request has ended, with its last token or without."""
        life = self._lives.pop(request.index, None)
        if life is None:
            return
        self._metrics.labelled["request_success"][_REASONS[request.status]] += 1
        if life.last_token_ns != ABSENT and request.status in {Status.STOPPED, Status.LENGTH}:
            self._latencies(request, life, now_ns)
            self._sizes(request)

    def _first_token(self, request: LiveRequest, life: _Life, now_ns: int) -> int:
        """How many tokens of the prompt were computed for it?"""
        n_computed = request.num_prompt_tokens - request.num_cached_tokens
        life.first_token_ns = now_ns
        counters, by_source = (
            self._metrics.counters,
            self._metrics.labelled["prompt_tokens_by_source"],
        )
        counters["prompt_tokens"] += request.num_prompt_tokens
        counters["prompt_tokens_cached"] += request.num_cached_tokens
        by_source["local_compute"] += n_computed
        by_source["local_cache_hit"] += request.num_cached_tokens
        self._metrics.histograms["time_to_first_token_seconds"].observe(
            s_from_ns(now_ns - request.arrival_ns)
        )
        return n_computed

    def _latencies(self, request: LiveRequest, life: _Life, now_ns: int) -> None:
        decode_ns = life.last_token_ns - life.first_token_ns
        n_gaps = request.num_output_tokens - 1
        for name, duration_ns in {
            "e2e_request_latency_seconds": now_ns - request.arrival_ns,
            "request_queue_time_seconds": request.admitted_ns - request.arrival_ns,
            "request_prefill_time_seconds": life.first_token_ns - request.admitted_ns,
            "request_decode_time_seconds": decode_ns,
            "request_inference_time_seconds": life.last_token_ns - request.admitted_ns,
        }.items():
            self._metrics.histograms[name].observe(s_from_ns(duration_ns))
        mean_s = (
            s_from_ns(decode_ns) / n_gaps if n_gaps else 0.0
        )  # vLLM counts one-token answers as 0 here
        self._metrics.histograms["request_time_per_output_token_seconds"].observe(mean_s)

    def _sizes(self, request: LiveRequest) -> None:
        for name, n_tokens in {
            "request_prompt_tokens": request.num_prompt_tokens,
            "request_generation_tokens": request.num_output_tokens,
            "request_max_num_generation_tokens": request.num_output_tokens,
            "request_params_max_tokens": request.max_tokens,
            "request_prefill_kv_computed_tokens": request.num_prompt_tokens
            - request.num_cached_tokens,
            "request_params_n": 1,
            "request_num_preemptions": request.num_preemptions,
        }.items():
            self._metrics.histograms[name].observe(n_tokens)
