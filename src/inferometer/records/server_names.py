"""What do model servers call the same things in their metrics?

Names are compared with ``_`` for ``:``: newer exporters answer some scrapers with ``vllm_x`` for
``vllm:x``. Where a name died, the old one follows the new one. Checked against the pages of vLLM
0.32 (recorded), the source of vLLM 0.33 (the same names: ``vllm/v1/metrics`` is unchanged, what is
new are KV connectors) and, from documentation and source, SGLang 0.5, TensorRT-LLM's trtllm-serve
and Triton backend, llama.cpp, text-generation-inference and NVIDIA NIM; the five canonical fields
are those of the Gateway API inference extension's model server protocol (waiting, running,
kv_usage, block_tokens, n_blocks). NIM 1 has vLLM's names without their prefix: it is known by
``num_request_max``, a name of its own. NIM 2 has that one beside vLLM's own names.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.records.exposition import SeriesName, labels_of, labels_text

ServerKind: TypeAlias = Literal[
    "vllm", "sglang", "tensorrt-llm", "triton", "llama.cpp", "tgi", "nim"
]

Gauge: TypeAlias = Literal[
    "waiting",
    "running",
    "kv_usage",
    "block_tokens",
    "n_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "deferred",
    "accepted_length",
]
Counter: TypeAlias = Literal[
    "preemptions",
    "prompt_tokens",
    "steps",
    "computed_prompt_tokens",
    "found_prompt_tokens",
    "output_tokens",
    "prefix_queries_tokens",
    "prefix_hits_tokens",
    "finished",
    "rejected",
    "aborted",
    "failed",
    "drafts",
    "accepted_tokens",
    "flop",
    "read_bytes",
    "write_bytes",
    "draft_tokens",
    "prefill_s",
]
Histogram: TypeAlias = Literal[
    "ttft", "itl", "tpot", "e2e", "queue", "prefill", "decode", "inference"
]
TokenHistogram: TypeAlias = Literal["request_prompt_tokens", "request_output_tokens", "step_tokens"]
"""Tokens of a prompt, of an answer, and of an engine step."""
Quantity: TypeAlias = Gauge | Counter | Histogram


class Name(NamedTuple):
    """A metric family, or its series with a certain label."""

    family: str
    """Family with ``_`` for ``:``, without ``_bucket``, ``_sum``, ``_count``."""
    label: str = ""
    """Only series with this label ...."""
    value: str = ""
    """... and this value of it; '' : the value of the label itself is the number."""


class Spread(NamedTuple):
    """A mean duration from two counters: total time, and the count to divide by."""

    took: str
    observed: str
    unit_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNames:
    """Metric names of one kind of server; empty for what it does not report."""

    kind: ServerKind
    prefix: str
    """Prefix of its names; where they have none, the name of a family that no other server has."""
    gauges: dict[Gauge, tuple[Name, ...]]
    counters: dict[Counter, tuple[Name, ...]]
    histograms: dict[Histogram, tuple[Name, ...]]
    spreads: dict[Histogram, Spread]
    token_histograms: dict[TokenHistogram, tuple[Name, ...]] = field(
        default_factory=dict["TokenHistogram", tuple[Name, ...]]
    )

    def wrote(self, families: Iterable[str]) -> bool:
        """Are these families, with ``_`` for ``:``, of a server of this kind?"""
        if self.prefix.endswith("_"):
            return any(family.startswith(self.prefix) for family in families)
        return self.prefix in families

    @property
    def shown(self) -> str:
        """The kind, with how it is known: ``vllm (vllm_...)``."""
        return f"{self.kind} ({self.prefix}{'...' if self.prefix.endswith('_') else ''})"

    def names_of(self, histogram: Histogram | TokenHistogram) -> tuple[Name, ...]:
        """Names of a histogram of seconds or of tokens; () where the server has none."""
        return next(
            (
                names
                for name, names in (*self.histograms.items(), *self.token_histograms.items())
                if name == histogram
            ),
            (),
        )


_VLLM: Final = ServerNames(
    kind="vllm",
    prefix="vllm_",
    gauges={
        "waiting": (Name("vllm_num_requests_waiting"),),
        "running": (Name("vllm_num_requests_running"),),
        "kv_usage": (Name("vllm_kv_cache_usage_perc"), Name("vllm_gpu_cache_usage_perc")),
        "block_tokens": (Name("vllm_cache_config_info", "block_size"),),
        "n_blocks": (Name("vllm_cache_config_info", "num_gpu_blocks"),),
        "max_num_seqs": (Name("num_request_max"),),
        "deferred": (Name("vllm_num_requests_waiting_by_reason", "reason", "deferred"),),
    },
    counters={
        "preemptions": (Name("vllm_num_preemptions_total"),),
        "prompt_tokens": (Name("vllm_prompt_tokens_total"),),
        "output_tokens": (Name("vllm_generation_tokens_total"),),
        "prefix_queries_tokens": (
            Name("vllm_prefix_cache_queries_total"),
            Name("vllm_gpu_prefix_cache_queries_total"),
        ),
        "prefix_hits_tokens": (
            Name("vllm_prefix_cache_hits_total"),
            Name("vllm_gpu_prefix_cache_hits_total"),
        ),
        "finished": (Name("vllm_request_success_total"),),
        "rejected": (Name("vllm_admission_rejections_total"),),
        "aborted": (Name("vllm_request_success_total", "finished_reason", "abort"),),
        "failed": (Name("vllm_request_success_total", "finished_reason", "error"),),
        "drafts": (Name("vllm_spec_decode_num_drafts_total"),),
        "accepted_tokens": (Name("vllm_spec_decode_num_accepted_tokens_total"),),
        "flop": (Name("vllm_estimated_flops_per_gpu_total"),),
        "read_bytes": (Name("vllm_estimated_read_bytes_per_gpu_total"),),
        "write_bytes": (Name("vllm_estimated_write_bytes_per_gpu_total"),),
        "draft_tokens": (Name("vllm_spec_decode_num_draft_tokens_total"),),
    },
    histograms={
        "ttft": (Name("vllm_time_to_first_token_seconds"),),
        "itl": (
            Name("vllm_inter_token_latency_seconds"),
            Name("vllm_time_per_output_token_seconds"),
        ),
        "tpot": (Name("vllm_request_time_per_output_token_seconds"),),
        "e2e": (Name("vllm_e2e_request_latency_seconds"),),
        "queue": (Name("vllm_request_queue_time_seconds"),),
        "prefill": (Name("vllm_request_prefill_time_seconds"),),
        "decode": (Name("vllm_request_decode_time_seconds"),),
        "inference": (Name("vllm_request_inference_time_seconds"),),
    },
    spreads={},
    token_histograms={
        "request_prompt_tokens": (Name("vllm_request_prompt_tokens"),),
        "request_output_tokens": (Name("vllm_request_generation_tokens"),),
        "step_tokens": (Name("vllm_iteration_tokens_total"),),
    },
)

_SGLANG: Final = ServerNames(
    kind="sglang",
    prefix="sglang_",
    gauges={
        "waiting": (Name("sglang_num_queue_reqs"),),
        "running": (Name("sglang_num_running_reqs"),),
        "kv_usage": (Name("sglang_token_usage"),),
        "block_tokens": (Name("sglang_page_size"), Name("sglang_cache_config_info", "page_size")),
        "n_blocks": (Name("sglang_num_pages"), Name("sglang_cache_config_info", "num_pages")),
        "deferred": (Name("sglang_num_grammar_queue_reqs"),),
        "accepted_length": (Name("sglang_spec_accept_length"),),
    },
    counters={
        "preemptions": (
            Name("sglang_num_retracted_requests_total"),
            Name("sglang_num_retracted_reqs_total"),
        ),
        "prompt_tokens": (Name("sglang_prompt_tokens_total"),),
        "output_tokens": (Name("sglang_generation_tokens_total"),),
        "steps": (Name("sglang_cuda_graph_passes_total"),),
        "computed_prompt_tokens": (
            Name("sglang_realtime_tokens_total", "mode", "prefill_compute"),
        ),
        "found_prompt_tokens": (Name("sglang_realtime_tokens_total", "mode", "prefill_cache"),),
        "prefix_queries_tokens": (Name("sglang_prompt_tokens_total"),),
        "prefix_hits_tokens": (Name("sglang_cached_tokens_total"),),
        "finished": (Name("sglang_num_requests_total"),),
        "aborted": (Name("sglang_num_aborted_requests_total"),),
        "flop": (Name("sglang_estimated_flops_per_gpu_total"),),
        "read_bytes": (Name("sglang_estimated_read_bytes_per_gpu_total"),),
        "write_bytes": (Name("sglang_estimated_write_bytes_per_gpu_total"),),
    },
    histograms={
        "ttft": (Name("sglang_time_to_first_token_seconds"),),
        "itl": (
            Name("sglang_inter_token_latency_seconds"),
            Name("sglang_time_per_output_token_seconds"),
        ),
        "tpot": (Name("sglang_request_time_per_output_token_seconds"),),
        "e2e": (Name("sglang_e2e_request_latency_seconds"),),
        "queue": (Name("sglang_queue_time_seconds"),),
        "prefill": (Name("sglang_per_stage_req_latency_seconds", "stage", "prefill_forward"),),
    },
    spreads={},
    token_histograms={
        "request_prompt_tokens": (Name("sglang_prompt_tokens_histogram"),),
        "request_output_tokens": (Name("sglang_generation_tokens_histogram"),),
    },
)

_TRTLLM: Final = ServerNames(
    kind="tensorrt-llm",
    prefix="trtllm_",
    gauges={
        "waiting": (Name("trtllm_num_requests_waiting"),),
        "running": (Name("trtllm_num_requests_running"),),
        "kv_usage": (Name("trtllm_kv_cache_utilization"),),
        "block_tokens": (Name("trtllm_kv_cache_tokens_per_block"),),
        "n_blocks": (Name("trtllm_kv_cache_max_blocks"),),
        "max_num_seqs": (Name("trtllm_max_batch_size_runtime"),),
        "max_num_batched_tokens": (Name("trtllm_max_num_tokens_runtime"),),
    },
    counters={
        "prompt_tokens": (Name("trtllm_prompt_tokens_total"),),
        "output_tokens": (Name("trtllm_generation_tokens_total"),),
        "prefix_queries_tokens": (Name("trtllm_prompt_tokens_total"),),
        "prefix_hits_tokens": (Name("trtllm_prompt_cached_tokens_total"),),
        "finished": (Name("trtllm_request_success_total"),),
    },
    histograms={
        "ttft": (Name("trtllm_time_to_first_token_seconds"),),
        "tpot": (Name("trtllm_time_per_output_token_seconds"),),
        "e2e": (Name("trtllm_e2e_request_latency_seconds"),),
        "queue": (Name("trtllm_request_queue_time_seconds"),),
        "prefill": (Name("trtllm_request_prefill_time_seconds"),),
        "decode": (Name("trtllm_request_decode_time_seconds"),),
        "inference": (Name("trtllm_request_inference_time_seconds"),),
    },
    spreads={},
)

_TRITON: Final = ServerNames(
    kind="triton",
    prefix="nv_",
    gauges={
        "waiting": (Name("nv_trt_llm_request_metrics", "request_type", "waiting"),),
        "running": (Name("nv_trt_llm_request_metrics", "request_type", "scheduled"),),
        "kv_usage": (Name("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),),
        "block_tokens": (
            Name("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"),
        ),
        "n_blocks": (Name("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"),),
    },
    counters={"finished": (Name("nv_inference_request_success"),)},
    histograms={},
    spreads={
        "queue": Spread("nv_inference_queue_duration_us", "nv_inference_request_success", 1e-6),
        "inference": Spread(
            "nv_inference_compute_infer_duration_us", "nv_inference_request_success", 1e-6
        ),
        "e2e": Spread("nv_inference_request_duration_us", "nv_inference_request_success", 1e-6),
    },
)

_LLAMA_CPP: Final = ServerNames(
    kind="llama.cpp",
    prefix="llamacpp_",
    gauges={
        "waiting": (Name("llamacpp_requests_deferred"),),
        "running": (Name("llamacpp_requests_processing"),),
        "kv_usage": (Name("llamacpp_kv_cache_usage_ratio"),),
    },
    counters={
        "prompt_tokens": (Name("llamacpp_prompt_tokens_total"),),
        "output_tokens": (Name("llamacpp_tokens_predicted_total"),),
        "prefill_s": (Name("llamacpp_prompt_seconds_total"),),
        "steps": (Name("llamacpp_n_decode_total"),),
        "prefix_hits_tokens": (Name("llamacpp_prompt_tokens_cached_total"),),
        "drafts": (Name("llamacpp_spec_decode_num_drafts_total"),),
        "draft_tokens": (Name("llamacpp_spec_decode_num_draft_tokens_total"),),
        "accepted_tokens": (Name("llamacpp_spec_decode_num_accepted_tokens_total"),),
    },
    histograms={},
    spreads={
        "itl": Spread("llamacpp_tokens_predicted_seconds_total", "llamacpp_tokens_predicted_total")
    },
)

_TGI: Final = ServerNames(
    kind="tgi",
    prefix="tgi_",
    gauges={"waiting": (Name("tgi_queue_size"),), "running": (Name("tgi_batch_current_size"),)},
    counters={
        "finished": (Name("tgi_request_success"),),
        "failed": (Name("tgi_request_failure"),),
        "prompt_tokens": (Name("tgi_request_input_length_sum"),),
        "output_tokens": (Name("tgi_request_generated_tokens_sum"),),
    },
    histograms={
        "tpot": (Name("tgi_request_mean_time_per_token_duration"),),
        "e2e": (Name("tgi_request_duration"),),
        "queue": (Name("tgi_request_queue_duration"),),
        "inference": (Name("tgi_request_inference_duration"),),
    },
    spreads={},
    token_histograms={
        "request_prompt_tokens": (Name("tgi_request_input_length"),),
        "request_output_tokens": (Name("tgi_request_generated_tokens"),),
    },
)

_NIM: Final = ServerNames(
    kind="nim",
    prefix="num_request_max",
    gauges={
        "waiting": (Name("num_requests_waiting"),),
        "running": (Name("num_requests_running"),),
        "kv_usage": (Name("gpu_cache_usage_perc"),),
        "max_num_seqs": (Name("num_request_max"),),
    },
    counters={
        "prompt_tokens": (Name("prompt_tokens_total"),),
        "output_tokens": (Name("generation_tokens_total"),),
        "finished": (Name("request_finish_total"), Name("request_success_total")),
    },
    histograms={
        "ttft": (Name("time_to_first_token_seconds"),),
        "itl": (Name("time_per_output_token_seconds"),),
        "e2e": (Name("e2e_request_latency_seconds"),),
    },
    spreads={},
    token_histograms={
        "request_prompt_tokens": (Name("request_prompt_tokens"),),
        "request_output_tokens": (Name("request_generation_tokens"),),
    },
)

SERVERS: Final = (_VLLM, _SGLANG, _TRTLLM, _TRITON, _LLAMA_CPP, _TGI, _NIM)
"""In the order in which a page is tried: NIM 2 has its own name beside vLLM's."""

_REQUEST_S: Final = (
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
)
_TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL_S: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)

VLLM_EDGES_S: Final[dict[Histogram, tuple[float, ...]]] = {
    "ttft": _TTFT_S,
    "itl": _ITL_S,
    "tpot": _ITL_S,
    "e2e": _REQUEST_S,
    "queue": _REQUEST_S,
    "prefill": _REQUEST_S,
    "decode": _REQUEST_S,
    "inference": _REQUEST_S,
}
"""The edges of vLLM's histograms, without the infinite one (``vllm/v1/metrics/loggers.py``)."""

START_TIME: Final = "process_start_time_seconds"
"""Another one: the server was restarted."""

_OF_REPLICAS: Final = (
    *("engine", "model_name", "dp_rank", "ReplicaId", "replica"),
    *("instance", "job", "namespace", "pod", "container", "node"),
)
"""Labels that tell several servers on one page apart: a federation's, Ray's, Kubernetes'."""
_PARTS: Final = ("_bucket", "_sum", "_count")


def plain(name: str) -> str:
    """The name as it is compared; Ray exports those of its replicas with a prefix of its own.

    Example
    -------
    >>> plain("vllm:num_requests_running"), plain("ray_vllm:num_requests_running")
    ('vllm_num_requests_running', 'vllm_num_requests_running')
    """
    return name.replace(":", "_").removeprefix("ray_")


def exposed_names() -> str:
    """A regular expression of the names of all series that can be read, as Prometheus has them."""
    prefixes = (one.prefix.removesuffix("_") for one in SERVERS if one.prefix.endswith("_"))
    bare = sorted(family for family in {*_FAMILIES, *_HISTOGRAMS} if _is_bare(family))
    parts = "|".join(_PARTS)
    return f"(ray_)?({'|'.join(prefixes)})[:_].+|({'|'.join(bare)})({parts})?"


def _is_bare(family: str) -> bool:
    """Has the family no prefix by which its server is known?"""
    return not any(one.wrote((family,)) for one in SERVERS if one.prefix.endswith("_"))


def known_families(names: ServerNames) -> frozenset[str]:
    """Metric families that are read from a server of this kind."""
    quantities = (*names.gauges.values(), *names.counters.values(), *names.histograms.values())
    spread = (family for one in names.spreads.values() for family in (one.took, one.observed))
    return frozenset((*(name.family for several in quantities for name in several), *spread))


def kept_series(series: SeriesName) -> SeriesName | None:
    """The form in which a series is stored; None: summaries do not use it.

    Of a family that only carries labels those stay that are read: vLLM's configuration alone has
    forty.
    """
    name = plain(series.name)
    if name == START_TIME:
        return series
    labels_read = _FAMILIES.get(name)
    if labels_read is None:
        stem = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")
        return series if stem in _HISTOGRAMS else None
    if not labels_read:
        return series
    labels = labels_of(series.labels)
    return SeriesName(
        series.name,
        labels_text({one: labels[one] for one in (*labels_read, *_OF_REPLICAS) if one in labels}),
    )


def _families() -> dict[str, tuple[str, ...]]:
    """The labels that are stored of each family; (): none is dropped."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(
        (family for names in SERVERS for family in known_families(names)), ()
    )
    for names in SERVERS:
        for name in (
            one
            for several in names.gauges.values()
            for one in several
            if one.label and not one.value
        ):
            found[name.family] = (*found[name.family], name.label)
    return found


_FAMILIES: Final = _families()
_HISTOGRAMS: Final = frozenset(
    name.family
    for names in SERVERS
    for several in (*names.histograms.values(), *names.token_histograms.values())
    for name in several
)
