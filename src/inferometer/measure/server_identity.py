"""What does a server say that it is: its version, its model, and the limits that it was started with?

Pages beside its metrics, each read once. ``/v1/models``: all; ``/version``: vLLM and TensorRT-LLM;
``/server_info``: SGLang (``/get_server_info`` of older versions), and vLLM in its development
mode (``VLLM_SERVER_DEV_MODE=1``); ``/props``: llama.cpp. Of a page only what is named here is taken:
SGLang's holds the server's keys, too.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from inferometer.errors import MeasureError
from inferometer.inputs.foreign_bytes import Door
from inferometer.measure.scrape import MetricsPage, MetricsSource, metrics_url
from inferometer.records.server_names import ServerKind
from inferometer.records.types import EngineFacts, SchedulerFacts

_DOOR: Final = Door(noun="page about itself", allowed="a JSON object", refusal=MeasureError)
_PATIENCE_S: Final = 5.0
_MOST: Final = 10**9
_UNKNOWN: Final = "unknown"

_Json: TypeAlias = Mapping[str, Any]
_Pages: TypeAlias = Callable[[str], _Json]


class ServerIdentity(NamedTuple):
    """Model, version and settings that the server reports; None: not reported."""

    model: str | None
    facts: EngineFacts | None
    """Facts, with the scheduler's limits where reported."""

    @property
    def scheduler(self) -> SchedulerFacts | None:
        """Scheduler limits; None where not reported."""
        return None if self.facts is None else self.facts.scheduler


def server_identity(source: MetricsSource | str, kind: ServerKind) -> ServerIdentity:
    """What the server of this kind reports about itself, at the address of its metrics.

    A page that is not there says nothing.
    """
    where = MetricsSource(url=source) if isinstance(source, str) else source
    base = metrics_url(where.url).partition("?")[0].removesuffix("/metrics")
    base = base.removesuffix("/prometheus").removesuffix("/v1")

    def pages(path: str) -> _Json:
        return _json_at(replace(where, url=f"{base}{path}"))

    model, facts = _OF_KIND.get(kind, _of_others)(pages, kind)
    card = _first(pages("/v1/models").get("data"))
    is_silent = facts.version == _UNKNOWN and facts.scheduler is None
    return ServerIdentity(_text(card, "id") or model, None if is_silent else facts)


def _json_at(source: MetricsSource) -> _Json:
    """The JSON object there; empty where there is none."""
    with closing(MetricsPage(source, _PATIENCE_S)) as page:
        try:
            return _DOOR.json(page.get(), dict[str, Any], where=page.url)
        except MeasureError:
            return {}


_Stated: TypeAlias = tuple[str | None, EngineFacts]
"""The model, and the engine."""


def _of_others(pages: _Pages, kind: ServerKind) -> _Stated:
    version = _text(pages("/version"), "version") or _UNKNOWN
    return None, EngineFacts(engine=kind, version=version)


def _of_vllm(pages: _Pages, kind: ServerKind) -> _Stated:
    """Fields of its ``VllmConfig`` (vLLM 0.32, ``entrypoints/serve/dev/server_info``)."""
    _, facts = _of_others(pages, kind)
    config = _object(pages("/server_info?config_format=json").get("vllm_config"))
    scheduler, model, parallel, cache = (
        _object(config.get(f"{name}_config"))
        for name in ("scheduler", "model", "parallel", "cache")
    )
    if not scheduler:
        return None, facts
    limits = SchedulerFacts(
        max_num_seqs=_count(scheduler, "max_num_seqs"),
        max_num_batched_tokens=_count(scheduler, "max_num_batched_tokens"),
        max_model_len=_count(model, "max_model_len"),
        enable_prefix_caching=_switch(cache, "enable_prefix_caching"),
        enable_chunked_prefill=_switch(scheduler, "enable_chunked_prefill"),
        async_scheduling=_switch(scheduler, "async_scheduling"),
        tensor_parallel_size=_count(parallel, "tensor_parallel_size"),
        data_parallel_size=_count(parallel, "data_parallel_size"),
    )
    found = replace(
        facts,
        compute_dtype=(_text(model, "dtype") or "").removeprefix("torch.") or None,
        n_kv_blocks=_count(cache, "num_gpu_blocks"),
        kv_block_tokens=_count(cache, "block_size"),
        scheduler=limits,
    )
    return _text(model, "model"), found


def _of_sglang(pages: _Pages, kind: ServerKind) -> _Stated:
    """Its arguments, as the first data-parallel rank resolved them (SGLang 0.5).

    A prefill is cut at ``chunked_prefill_size``; where that is -1, prompts are taken whole up to
    ``max_prefill_tokens``.
    """
    info = pages("/server_info") or pages("/get_server_info")
    if not info:
        return None, EngineFacts(engine=kind, version=_UNKNOWN)
    rank = _first(info.get("internal_states"))
    memory, page_tokens = _object(rank.get("memory_usage")), _count(info, "page_size")
    kv_tokens = _count(info, "max_total_num_tokens") or _count(memory, "token_capacity")
    dtype, is_cut = _text(info, "dtype"), _count(info, "chunked_prefill_size") is not None
    cache_off = _switch(info, "disable_radix_cache")
    limits = SchedulerFacts(
        max_num_seqs=_count(rank, "effective_max_running_requests_per_dp")
        or _count(info, "max_running_requests"),
        max_num_batched_tokens=_count(
            info, "chunked_prefill_size" if is_cut else "max_prefill_tokens"
        ),
        max_model_len=_count(info, "context_length"),
        enable_prefix_caching=None if cache_off is None else not cache_off,
        enable_chunked_prefill=is_cut if "chunked_prefill_size" in info else None,
        tensor_parallel_size=_count(info, "tp_size"),
        data_parallel_size=_count(info, "dp_size"),
    )
    facts = EngineFacts(
        engine=kind,
        version=_text(info, "version") or _UNKNOWN,
        compute_dtype=None if dtype == "auto" else dtype,
        n_kv_blocks=None if kv_tokens is None or page_tokens is None else kv_tokens // page_tokens,
        kv_block_tokens=page_tokens,
        scheduler=limits,
    )
    return _text(info, "served_model_name") or _text(info, "model_path"), facts


def _of_llama_cpp(pages: _Pages, kind: ServerKind) -> _Stated:
    """``GET /props`` (llama.cpp, ``tools/server``): a slot serves one request."""
    props = pages("/props")
    n_slots = _count(props, "total_slots")
    each = _object(props.get("default_generation_settings"))
    limits = SchedulerFacts(max_num_seqs=n_slots, max_model_len=_count(each, "n_ctx"))
    facts = EngineFacts(
        engine=kind,
        version=_text(props, "build_info") or _UNKNOWN,
        scheduler=None if n_slots is None else limits,
    )
    return _text(props, "model_alias") or _text(props, "model_path"), facts


_OF_KIND: Final[Mapping[ServerKind, Callable[[_Pages, ServerKind], _Stated]]] = {
    "vllm": _of_vllm,
    "sglang": _of_sglang,
    "llama.cpp": _of_llama_cpp,
}


def _object(value: object) -> _Json:
    return value if isinstance(value, dict) else {}


def _first(value: object) -> _Json:
    return _object(value[0]) if isinstance(value, list) and value else {}


def _text(page: _Json, name: str) -> str | None:
    value = page.get(name)
    return value if isinstance(value, str) and value else None


def _switch(page: _Json, name: str) -> bool | None:
    value = page.get(name)
    return value if isinstance(value, bool) else None


def _count(page: _Json, name: str) -> int | None:
    """A whole number above 0; None for "no limit" (null, 0, -1)."""
    value = page.get(name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
    return value if is_count else None
