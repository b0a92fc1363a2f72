"""What would TensorRT-LLM have shown on ``/prometheus/metrics`` where vLLM's page shows what happened?

Names and buckets are those of TensorRT-LLM 1.3 (``tensorrt_llm/metrics/collector.py``): a request is
counted with its times and tokens when it ends, gauges are written after each step
(``enable_iter_perf_stats``), and the limits of a step are among them.
"""

from types import SimpleNamespace

from inferometer.records.types import ABSENT
from inferometer.serve.emulator_metrics import Histogram
from inferometer.units import NS_PER_S

_LABELS = {"model_name": "m", "engine_type": "trtllm"}
_LONG_S = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80, 160, 640, 2560),
)
_TPOT_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80),
)
_PREFILL_S = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
_HISTOGRAMS = {
    "time_to_first_token_seconds": _TTFT_S,
    "time_per_output_token_seconds": _TPOT_S,
    "e2e_request_latency_seconds": _LONG_S,
    "request_queue_time_seconds": _LONG_S,
    "request_prefill_time_seconds": _PREFILL_S,
    "request_decode_time_seconds": _LONG_S,
    "request_inference_time_seconds": _LONG_S,
}


class TrtllmAccounts:
    """Keeps TensorRT-LLM's metrics, as ``emulator_metrics.Accounts`` keeps vLLM's."""

    def __init__(self, config):
        self._lives = {}
        self._gauges = {
            "num_requests_running": 0,
            "num_requests_waiting": 0,
            "kv_cache_utilization": 0.0,
            "kv_cache_tokens_per_block": config.block_size,
            "kv_cache_max_blocks": config.num_blocks,
            "max_batch_size_runtime": config.max_num_seqs,
            "max_num_tokens_runtime": config.max_num_batched_tokens,
        }
        self._counters = dict.fromkeys(
            ("prompt_tokens_total", "generation_tokens_total", "prompt_cached_tokens_total"), 0
        )
        self._n_ended = 0
        self._histograms = {name: Histogram(edges) for name, edges in _HISTOGRAMS.items()}

    def arrived(self, request):
        self._lives[request.index] = SimpleNamespace(first_ns=ABSENT)

    def scheduled(self, admitted, n_preempted):
        pass

    def count_step(self, deliveries, now_ns):
        for request, _ in deliveries:
            life = self._lives[request.index]
            if life.first_ns == ABSENT:
                life.first_ns = now_ns
            if request.finished_ns == now_ns:
                self._ended(request, self._lives.pop(request.index), now_ns)

    def refresh(self, now, *, has_prefill, prefill_tokens):
        del has_prefill, prefill_tokens
        self._gauges["num_requests_running"] = now.n_running
        self._gauges["num_requests_waiting"] = now.n_waiting
        self._gauges["kv_cache_utilization"] = now.kv_used_fraction

    def page(self):
        lines = [_line(name, value) for name, value in (self._gauges | self._counters).items()]
        lines.append(_line("request_success_total", self._n_ended, finished_reason="length"))
        for name, histogram in self._histograms.items():
            lines += histogram.lines(f"trtllm_{name}", _LABELS)
        return ("\n".join(lines) + "\n").encode()

    def _ended(self, request, life, now_ns):
        self._n_ended += 1
        self._counters["prompt_tokens_total"] += request.num_prompt_tokens
        self._counters["generation_tokens_total"] += request.num_output_tokens
        self._counters["prompt_cached_tokens_total"] += request.num_cached_tokens
        self._observe("time_to_first_token_seconds", life.first_ns - request.arrival_ns)
        self._observe("e2e_request_latency_seconds", now_ns - request.arrival_ns)
        self._observe("request_queue_time_seconds", request.admitted_ns - request.arrival_ns)
        self._observe("request_prefill_time_seconds", life.first_ns - request.admitted_ns)
        self._observe("request_decode_time_seconds", now_ns - life.first_ns)
        self._observe("request_inference_time_seconds", now_ns - request.admitted_ns)
        if request.num_output_tokens > 1:
            tpot_ns = (now_ns - life.first_ns) / (request.num_output_tokens - 1)
            self._observe("time_per_output_token_seconds", tpot_ns)

    def _observe(self, name, took_ns):
        self._histograms[name].observe(took_ns / NS_PER_S, 1)


def _line(name, value, **labels):
    said = ",".join(f'{key}="{one}"' for key, one in sorted((_LABELS | labels).items()))
    return f"trtllm_{name}{{{said}}} {float(value)}"
