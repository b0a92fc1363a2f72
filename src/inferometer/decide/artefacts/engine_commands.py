"""With which command does an engine run a deployment, and where does it depart from the defaults?

vLLM's flags are those of ``vllm_command``. SGLang's are those of SGLang 0.5.23: its memory flag
covers weights and KV cache alone.
"""

import shlex
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from inferometer.decide.artefacts.vllm_command import engine_flags
from inferometer.errors import SizingError
from inferometer.inputs.types import DType, EngineSpec, ModelSpec
from inferometer.perfmodel.kv_cache import n_kv_shards
from inferometer.perfmodel.weights import weight_bytes
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig

_SGLANG_KV: Final[dict[DType, str]] = {
    "bfloat16": "bf16",
    "float8": "fp8_e4m3",
    "float4": "fp4_e2m1",
}
_SGLANG_WEIGHTS: Final[dict[DType, str]] = {"float8": "fp8", "int8": "w8a8_int8"}
"""Formats to which SGLang turns a checkpoint in 16 bits; others must be the checkpoint's own."""
_SGLANG_SWITCHES: Final = (
    "enable_mixed_chunk",
    "enable_priority_scheduling",
    "disable_radix_cache",
    "disable_overlap_schedule",
)
_CONSEQUENCES: Final = frozenset({"num_blocks", "max_total_num_tokens", "context_length"})
"""What follows from the memory that is left, and is no choice."""


class Departure(NamedTuple):
    """A setting that is not the engine's default."""

    name: str
    value: str
    default: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replica:
    model: ModelSpec
    engine: EngineSpec
    scheduler: SchedulerConfig
    utilization_fraction: float


def serve_command(deployment: Deployment) -> str:
    """The command line of one replica, for a shell.

    Raises
    ------
    SizingError
        Something was simulated that the engine does not have.
    """
    config, model = deployment.config, deployment.model
    name = model.hf_id or model.model_id
    if isinstance(config, SchedulerConfig):
        replica = _Replica(
            model=model,
            engine=deployment.engine,
            scheduler=config,
            utilization_fraction=deployment.knobs.utilization_fraction,
        )
        return shlex.join(["vllm", "serve", name, *engine_flags(replica)])
    if isinstance(config, SglangConfig):
        flags = _sglang_flags(deployment, config)
        return shlex.join(["python", "-m", "sglang.launch_server", "--model-path", name, *flags])
    raise SizingError(
        f"no command line of {config.engine} is known",
        where="--policy",
        allowed="vllm, sglang",
        try_="--policy vllm",
    )


def _sglang_flags(deployment: Deployment, config: SglangConfig) -> list[str]:
    engine = deployment.engine
    if config.radix_eviction_policy != "lru":
        raise SizingError(
            f"SGLang's command line has no {config.radix_eviction_policy} for its radix tree",
            where="radix_eviction_policy",
            allowed="lru",
            try_="--set radix_eviction_policy=lru",
        )
    valued = {
        "dtype": engine.dtype,
        "quantization": _SGLANG_WEIGHTS.get(engine.quantization or engine.dtype),
        "kv-cache-dtype": _SGLANG_KV.get(engine.kv_cache_dtype or "float32"),
        "tp-size": engine.tensor_parallel_size,
        "context-length": config.context_length,
        "mem-fraction-static": _static_fraction(deployment),
        "max-running-requests": config.max_running_requests,
        "chunked-prefill-size": config.chunked_prefill_size,
        "max-prefill-tokens": config.max_prefill_tokens,
        "page-size": config.page_size,
        "schedule-policy": config.schedule_policy,
        "schedule-conservativeness": f"{config.schedule_conservativeness_ratio:g}",
    }
    words = [
        word
        for name, value in valued.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]
    return words + [
        f"--{name.replace('_', '-')}" for name in _SGLANG_SWITCHES if getattr(config, name)
    ]


def _static_fraction(deployment: Deployment) -> str | None:
    """SGLang's share of the memory: weights and KV cache, without activations; None: not known."""
    hardware, engine = deployment.hardware, deployment.engine
    if hardware is None:
        return None
    n_blocks = deployment.config.n_kv_blocks
    cache_bytes = n_blocks * deployment.kv_block_bytes / n_kv_shards(deployment.model, engine)
    held_bytes = weight_bytes(deployment.model, engine) + cache_bytes
    return f"{held_bytes / hardware.memory_bytes.value:.3f}"


def departures(chosen: Deployment, default: Deployment) -> tuple[Departure, ...]:
    """The settings in which a deployment differs from the engine's defaults on as many devices."""
    ours, theirs = _settings(chosen), {**_settings(default), "tensor_parallel_size": 1}
    return tuple(
        Departure(name, str(value), str(theirs.get(name)))
        for name, value in ours.items()
        if value != theirs.get(name)
    )


def _settings(deployment: Deployment) -> dict[str, object]:
    engine, config = deployment.engine, deployment.config
    settings: dict[str, object] = {
        "tensor_parallel_size": engine.tensor_parallel_size,
        "quantization": engine.quantization or engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype or engine.dtype,
        "gpu_memory_utilization": deployment.knobs.utilization_fraction,
    }
    return settings | {
        one.name: getattr(config, one.name)
        for one in fields(config)
        if one.name not in _CONSEQUENCES
    }
