"""What would SGLang have shown on ``/metrics`` where vLLM's page shows what happened?

Names, labels, buckets and the times at which things are counted are those of SGLang 0.5.23
(``sglang/srt/observability/metrics_collector.py``, ``.../managers/scheduler_components/
metrics_reporter.py``): tokens and requests are counted when a request ends, steps and what they
prefill when they are done, and the gauges are written with each prefill, but only every 40th decode
step (``--decode-log-interval``).
"""

from types import SimpleNamespace

from inferometer.records.types import ABSENT
from inferometer.serve.emulator_metrics import Histogram
from inferometer.units import NS_PER_S

DECODE_LOG_INTERVAL = 40
_LENGTHS = (
    *(100, 300, 500, 700, 1000, 1500),
    *range(2000, 10_001, 1000),
    *(12_500, 15_000, 17_500, 20_000, 22_500, 25_000, 27_500, 30_000, 35_000, 40_000, 60_000),
    *(80_000, 100_000, 200_000, 300_000, 400_000, 600_000, 800_000, 1_000_000, 1_100_000),
)
_TTFT_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E_S = (*_TTFT_S, 600, 1200, 1800, 2400)
_GAPS_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_QUEUE_S = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20),
    *range(30, 101, 10),
    *range(200, 1001, 100),
    *(1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
_HISTOGRAMS = {
    "time_to_first_token_seconds": _TTFT_S,
    "inter_token_latency_seconds": _GAPS_S,
    "request_time_per_output_token_seconds": _GAPS_S,
    "e2e_request_latency_seconds": _E2E_S,
    "queue_time_seconds": _QUEUE_S,
    "per_stage_req_latency_seconds": tuple(0.001 * 1.62**k for k in range(30)),
    "prompt_tokens_histogram": _LENGTHS,
    "generation_tokens_histogram": _LENGTHS,
}
_STREAMED = {
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_requests_total",
}
_LABELS = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}


class SglangAccounts:
    """Keeps SGLang's metrics, as ``emulator_metrics.Accounts`` keeps vLLM's."""

    def __init__(self, config):
        self._config, self._lives, self._n_decode_steps = config, {}, 0
        self._gauges = dict.fromkeys(("num_running_reqs", "num_queue_reqs", "token_usage"), 0.0)
        self._counters = dict.fromkeys(
            ("prompt_tokens_total", "generation_tokens_total", "num_requests_total"), 0
        )
        self._counters |= {"num_retracted_requests_total": 0}
        self._cached_tokens = 0
        self._passes = {"prefill_none": 0, "decode_cuda_graph": 0}
        self._realtime = {"prefill_compute": 0, "prefill_cache": 0}
        self._histograms = {name: Histogram(edges) for name, edges in _HISTOGRAMS.items()}
        self._hidden = ()

    def hides_lengths(self):
        """As it is without ``--collect-tokens-histogram``, its default."""
        self._hidden = ("prompt_tokens_histogram", "generation_tokens_histogram")

    def arrived(self, request):
        self._lives[request.index] = SimpleNamespace(first_ns=ABSENT, last_ns=ABSENT)

    def scheduled(self, admitted, n_preempted):
        self._counters["num_retracted_requests_total"] += n_preempted
        for one in admitted:
            self._realtime["prefill_cache"] += one.num_cached_tokens
            self._observe("queue_time_seconds", one.admitted_ns - one.arrival_ns)

    def count_step(self, deliveries, now_ns):
        for request, n_tokens in deliveries:
            life = self._lives[request.index]
            if life.first_ns == ABSENT:
                life.first_ns = now_ns
                self._observe("time_to_first_token_seconds", now_ns - request.arrival_ns)
                self._observe("per_stage_req_latency_seconds", now_ns - request.admitted_ns)
            else:
                gap_ns = (now_ns - life.last_ns) / n_tokens
                self._observe("inter_token_latency_seconds", gap_ns, n_tokens)
            life.last_ns = now_ns
            if request.finished_ns == now_ns:
                self._ended(request, self._lives.pop(request.index), now_ns)

    def refresh(self, now, *, has_prefill, prefill_tokens):
        """Write the gauges after a step, if SGLang would."""
        self._realtime["prefill_compute"] += prefill_tokens
        self._passes["prefill_none" if has_prefill else "decode_cuda_graph"] += 1
        self._n_decode_steps += not has_prefill
        is_due = self._n_decode_steps % DECODE_LOG_INTERVAL == 0
        if has_prefill or is_due or now.n_running == 0:
            self._gauges["num_running_reqs"] = now.n_running
            self._gauges["num_queue_reqs"] = now.n_waiting
            self._gauges["token_usage"] = now.kv_used_fraction

    def page(self):
        config = self._config
        pages = {"page_size": config.block_size, "num_pages": config.num_blocks}
        lines = [_line(name, value) for name, value in (self._gauges | pages).items()]
        lines += [_line(name, value) for name, value in self._counters.items()]
        lines += [
            _line(name, value, mode=mode)
            for name, counts in (
                ("realtime_tokens_total", self._realtime),
                ("cuda_graph_passes_total", self._passes),
            )
            for mode, value in counts.items()
        ]
        if self._cached_tokens:
            lines.append(_line("cached_tokens_total", self._cached_tokens, cache_source="device"))
        for name, histogram in self._histograms.items():
            if name in self._hidden:
                continue
            labels = {"stage": "prefill_forward"} if name.startswith("per_stage") else {}
            lines += histogram.lines(f"sglang:{name}", _labels(name) | labels)
        return ("\n".join(lines) + "\n").encode()

    def _ended(self, request, life, now_ns):
        self._counters["prompt_tokens_total"] += request.num_prompt_tokens
        self._counters["generation_tokens_total"] += request.num_output_tokens
        self._counters["num_requests_total"] += 1
        self._cached_tokens += request.num_cached_tokens
        self._observe("e2e_request_latency_seconds", now_ns - request.arrival_ns)
        if request.num_output_tokens > 1:
            tpot_ns = (now_ns - life.first_ns) / (request.num_output_tokens - 1)
            self._observe("request_time_per_output_token_seconds", tpot_ns)
        self._histograms["prompt_tokens_histogram"].observe(request.num_prompt_tokens)
        self._histograms["generation_tokens_histogram"].observe(request.num_output_tokens)

    def _observe(self, name, took_ns, n_times=1):
        self._histograms[name].observe(took_ns / NS_PER_S, n_times)


def _labels(name):
    return _LABELS | ({"is_streaming": "true"} if name in _STREAMED else {})


def _line(name, value, **labels):
    said = ",".join(f'{key}="{one}"' for key, one in sorted((_labels(name) | labels).items()))
    return f"sglang:{name}{{{said}}} {float(value)}"
