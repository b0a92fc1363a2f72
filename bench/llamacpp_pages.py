"""What would llama.cpp have shown on ``/metrics`` where vLLM's page shows what happened?

Names and the times at which things are counted are those of llama.cpp b11549
(``tools/server/server-context.cpp``): a prompt when it is done, an answer when it ends, steps as they
are done, and no requests.
"""

from inferometer.units import NS_PER_S


class LlamaCppAccounts:
    """Keeps llama.cpp's metrics, as ``emulator_metrics.Accounts`` keeps vLLM's."""

    def __init__(self, config):
        self._n_slots = config.max_num_seqs
        self._begun_ns = {}
        self._numbers = dict.fromkeys(
            (
                *("prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total"),
                *("tokens_predicted_total", "tokens_predicted_seconds_total", "n_decode_total"),
                *("requests_processing", "requests_deferred"),
            ),
            0.0,
        )

    def arrived(self, request):
        pass

    def scheduled(self, admitted, n_preempted):
        pass

    def count_step(self, deliveries, now_ns):
        for request, _ in deliveries:
            if request.index not in self._begun_ns:
                self._begun_ns[request.index] = now_ns
                self._add("prompt_tokens_total", request.num_prompt_tokens)
                self._add("prompt_tokens_total", -request.num_cached_tokens)
                self._add("prompt_tokens_cached_total", request.num_cached_tokens)
                self._add("prompt_seconds_total", (now_ns - request.admitted_ns) / NS_PER_S)
            if request.finished_ns == now_ns:
                took_ns = now_ns - self._begun_ns[request.index]
                self._add("tokens_predicted_total", request.num_output_tokens)
                self._add("tokens_predicted_seconds_total", took_ns / NS_PER_S)

    def refresh(self, now, *, has_prefill, prefill_tokens):
        del has_prefill, prefill_tokens
        self._add("n_decode_total", 1)
        n_inside = now.n_running + now.n_waiting  # a slot is taken before the prompt's turn comes
        self._numbers["requests_processing"] = min(n_inside, self._n_slots)
        self._numbers["requests_deferred"] = max(n_inside - self._n_slots, 0)

    def page(self):
        lines = [f"llamacpp:{name} {value}" for name, value in self._numbers.items()]
        return ("\n".join(lines) + "\n").encode()

    def _add(self, name, value):
        self._numbers[name] += value
