"""Which limits does a record of a vLLM server's configuration name?

LLMServingSim's ``meta.json`` holds the arguments and what they became.

What vLLM resolved (``resolved_config``, ``kv_cache``) is the server's; the arguments stand in where
it was not stored.
"""

from dataclasses import dataclass, field

from inferometer.records.imports.json_fields import DOOR
from inferometer.records.types import EngineFacts, SchedulerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """Those of the server's start, or a part of its resolved configuration: None is not stored, or left to vLLM."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    scheduler_config: _Arguments = field(default_factory=_Arguments)
    cache_config: _Arguments = field(default_factory=_Arguments)
    model_config: _Arguments = field(default_factory=_Arguments)
    parallel_config: _Arguments = field(default_factory=_Arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meta:
    engine_kwargs: _Arguments
    vllm_version: str = "unknown"
    kv_cache: _Arguments = field(default_factory=_Arguments)
    resolved_config: _Resolved = field(default_factory=_Resolved)


def vllm_facts(text: str, where: str) -> EngineFacts:
    """What a ``meta.json`` names of the server.

    Raises
    ------
    RecordError
        A limit is not a number, or there are no arguments.
    """
    read = DOOR.json(text, _Meta, where=where)
    resolved = read.resolved_config
    parts = (
        resolved.scheduler_config,
        resolved.cache_config,
        resolved.model_config,
        resolved.parallel_config,
        read.kv_cache,
        read.engine_kwargs,
    )

    def count(name: str) -> int | None:
        return next((value for part in parts if (value := getattr(part, name)) is not None), None)

    def switch(name: str) -> bool | None:
        return next((value for part in parts if (value := getattr(part, name)) is not None), None)

    return EngineFacts(
        engine="vllm",
        version=read.vllm_version,
        libraries=(),
        weight_bytes=None,
        n_parameters=None,
        weights_origin="unknown",
        weights_sha256=None,
        attention_implementation=None,
        load_s=None,
        compile_s=None,
        compute_dtype=read.engine_kwargs.dtype,
        n_kv_blocks=count("num_gpu_blocks"),
        kv_block_tokens=count("block_size"),
        scheduler=SchedulerFacts(
            max_num_seqs=count("max_num_seqs"),
            max_num_batched_tokens=count("max_num_batched_tokens"),
            max_model_len=count("max_model_len"),
            enable_prefix_caching=switch("enable_prefix_caching"),
            enable_chunked_prefill=switch("enable_chunked_prefill"),
            async_scheduling=switch("async_scheduling"),
            tensor_parallel_size=count("tensor_parallel_size"),
            data_parallel_size=count("data_parallel_size"),
        ),
    )
