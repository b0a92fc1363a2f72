"""With which command line does vLLM run a replica just as it was simulated?

Every flag on which the decision rests is said, also where it is vLLM's default: defaults differ
between devices and versions.
"""

import json
import shlex
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, Protocol, cast

from inferometer.decide.artefacts.packaging import VLLM_VERSION, Fleet, Packaging
from inferometer.errors import SizingError
from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, ModelSpec
from inferometer.perfmodel.kv_cache import n_kv_shards
from inferometer.perfmodel.weights import weight_bytes
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.scheduler_config import KvPool, SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig

_KV_DTYPES: Final[dict[DType, str]] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "float4": "nvfp4",
}
_ONLINE: Final[dict[DType, str]] = {"float8": "fp8", "int8": "int8_per_channel_weight_only"}
"""Formats to which vLLM turns the weights of a checkpoint when it loads them; others must be the
checkpoint's own."""
KV_SAMPLE_FRACTION: Final = 0.01
"""Share of KV blocks that --kv-cache-metrics samples: vLLM's default, written out."""
_SWITCHES: Final = {
    "enable-prefix-caching": "enable_prefix_caching",
    "enable-chunked-prefill": "enable_chunked_prefill",
    "scheduler-reserve-full-isl": "scheduler_reserve_full_isl",
    "async-scheduling": "async_scheduling",
}


class Replica(Protocol):
    """What vLLM's command line needs to know of a replica; a ``Fleet`` has all of it."""

    @property
    def model(self) -> ModelSpec:
        """The model, and the format of its checkpoint."""
        ...

    @property
    def engine(self) -> EngineSpec:
        """Number formats and devices."""
        ...

    @property
    def scheduler(self) -> SchedulerConfig:
        """The scheduler's settings."""
        ...

    @property
    def utilization_fraction(self) -> float:
        """``gpu_memory_utilization``"""
        ...

    @property
    def is_eager(self) -> bool:
        """Without CUDA graphs?"""
        ...


def serve_arguments(fleet: Fleet, packaging: Packaging) -> tuple[str, ...]:
    """Arguments of ``vllm serve``: the model, then flags with their values.

    Raises
    ------
    SizingError
        Something was simulated that this vLLM does not have.
    """
    names = (
        "--served-model-name",
        packaging.served_name,
        "--host",
        "0.0.0.0",  # noqa: S104 -- a replica is reached from outside its pod or machine
        "--port",
        str(packaging.wishes.port),
    )
    watched = (
        ("--kv-cache-metrics", "--kv-cache-metrics-sample", f"{KV_SAMPLE_FRACTION:g}")
        if fleet.scheduler.enable_prefix_caching
        else ()
    )
    return (packaging.model_source, *names, *engine_flags(fleet), *watched)


def engine_flags(replica: Replica) -> list[str]:
    """Flags of the engine, as words.

    Raises
    ------
    SizingError
        Something was simulated that this vLLM does not have.
    """
    _check_vllm_has(replica.scheduler)
    return _flag_words(replica)


def serve_script(fleet: Fleet, packaging: Packaging) -> str:
    """A shell script that starts one replica, and passes on its arguments."""
    model, *flags = serve_arguments(fleet, packaging)
    lines: list[str] = []
    for word in flags:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    called = " \\\n  ".join([f"exec vllm serve {shlex.quote(model)}", *lines, '"$@"'])
    heading = (
        f"One replica of {packaging.served_name} for vLLM {VLLM_VERSION}: {fleet.n_devices} x"
        f" {fleet.hardware.name}."
    )
    return f"#!/bin/sh\n# {heading}\nset -eu\n{called}\n"


def checkpoint_note(fleet: Replica) -> str | None:
    """Format that the checkpoint must have, where no flag of vLLM makes it so; else None."""
    wanted = fleet.engine.quantization
    if _online(fleet) is not None or wanted == _published(fleet):
        return None
    simulated = wanted or fleet.engine.dtype
    return (
        f"the weights were simulated as {simulated}: name a checkpoint in that format"
        " (--model-source); vLLM does not make it of another"
    )


def _flag_words(fleet: Replica) -> list[str]:
    engine, scheduler = fleet.engine, fleet.scheduler
    valued = {
        "dtype": engine.dtype,
        "quantization": _online(fleet),
        "kv-cache-dtype": (
            "auto"
            if engine.kv_cache_dtype in {None, engine.dtype}
            else _KV_DTYPES.get(engine.kv_cache_dtype or "float16")
        ),
        "tensor-parallel-size": engine.tensor_parallel_size,
        "pipeline-parallel-size": (
            scheduler.pipeline_parallel_size if scheduler.pipeline_parallel_size > 1 else None
        ),
        "max-model-len": scheduler.max_model_len,
        "max-num-seqs": scheduler.max_num_seqs,
        "max-num-batched-tokens": scheduler.max_num_batched_tokens,
        "max-num-active-seqs": scheduler.max_num_active_seqs,
        # Blocks that hold states are as long as the engine makes them.
        "block-size": None if scheduler.num_state_blocks else scheduler.block_size,
        "gpu-memory-utilization": f"{fleet.utilization_fraction:g}",
        "scheduling-policy": scheduler.policy,
        "long-prefill-token-threshold": scheduler.long_prefill_token_threshold or None,
        "watermark": f"{scheduler.watermark_fraction:g}" if scheduler.watermark_fraction else None,
        "speculative-config": _speculation(scheduler),
    }
    words = [
        word
        for name, value in valued.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]
    words += [
        f"--{name}" if getattr(scheduler, field) else f"--no-{name}"
        for name, field in _SWITCHES.items()
    ]
    return (
        words
        + ["--long-prefill-token-threshold-adaptive"]
        * scheduler.long_prefill_token_threshold_adaptive
        + ["--enforce-eager"] * fleet.is_eager
    )


def _online(fleet: Replica) -> str | None:
    """VLLM's quantization method that makes these weights while loading a 16-bit checkpoint.

    Of a checkpoint in 16 bits or more.
    """
    wanted = fleet.engine.quantization
    return None if wanted is None or _published(fleet) is not None else _ONLINE.get(wanted)


def _published(fleet: Replica) -> DType | None:
    """Quantized format of the published checkpoint; None where it is not quantized."""
    stored = fleet.model.checkpoint_dtype
    return None if stored is None or DTYPE_BITS[stored] >= DTYPE_BITS["bfloat16"] else stored


def _speculation(scheduler: SchedulerConfig) -> str | None:
    if not scheduler.num_speculative_tokens:
        return None
    return json.dumps(
        {
            "method": scheduler.draft_method,
            "num_speculative_tokens": scheduler.num_speculative_tokens,
        }
    )


def _check_vllm_has(scheduler: SchedulerConfig) -> None:
    problems = {
        f"the rules of {scheduler.rules}": scheduler.rules != "vllm",
        "the policy srpt": scheduler.policy == "srpt",
        "one prefill at a time": scheduler.one_prefill_at_a_time,
        "a contiguous KV cache": scheduler.is_contiguous,
        "swapping": scheduler.preemption_mode == "swap",
        "a KV cache of several pools": bool(scheduler.kv_pools),
        f"drafts of {scheduler.draft_method}, whose model is not named": (
            scheduler.num_speculative_tokens > 0 and scheduler.draft_method != "ngram"
        ),
    }
    found = [name for name, is_so in problems.items() if is_so]
    if found:
        raise SizingError(
            f"vLLM {VLLM_VERSION} cannot be configured to run {', '.join(found)}",
            where="the sizing",
            try_="size without it",
        )


# With which command does an engine run a deployment, and where does it depart from the defaults?
#
# vLLM's flags are those of `vllm_command`. SGLang's are those of SGLang 0.5.23: its memory flag
# covers weights and KV cache alone.


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
_CONSEQUENCES: Final = frozenset(
    {
        *("num_blocks", "max_total_num_tokens", "context_length"),
        *("sliding_window", "num_sliding_groups", "num_full_groups"),
    }
)
"""Settings that follow from free memory and the model's layers, and are not written."""


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
    is_eager: bool


def serve_command(deployment: Deployment, *, has_expert_parallelism: bool = False) -> str:
    """The command line of one replica, for a shell.

    Raises
    ------
    SizingError
        Something was simulated that the engine does not have.
    """
    config, model = deployment.config, deployment.model
    name = model.hf_id or model.model_id
    n_sharing = deployment.knobs.data_parallel_size
    if n_sharing > 1 and not isinstance(config, SchedulerConfig):
        raise SizingError(
            f"no command line of replicas that share experts in {config.engine} is known",
            where="--data-parallel-size",
            allowed="1, or --policy vllm",
            try_="the same without --data-parallel-size",
        )
    n_tensor = deployment.engine.tensor_parallel_size
    is_spread = has_expert_parallelism and n_tensor > 1 and model.moe is not None
    is_eager = deployment.step_times.likely.singly_s > 0
    if isinstance(config, SchedulerConfig):
        replica = _Replica(
            model=model,
            engine=deployment.engine,
            scheduler=config,
            utilization_fraction=deployment.knobs.share_fraction,
            is_eager=is_eager,
        )
        spread = ["--data-parallel-size", str(n_sharing)] if n_sharing > 1 else []
        spread += ["--enable-expert-parallel"] if is_spread or n_sharing > 1 else []
        return shlex.join(["vllm", "serve", name, *engine_flags(replica), *spread])
    if isinstance(config, SglangConfig):
        flags = _sglang_flags(deployment, config)
        flags += ["--ep-size", str(n_tensor)] if is_spread else []
        flags += ["--disable-cuda-graph"] if is_eager else []
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
        "mem-fraction-static": static_fraction(deployment),
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


def static_fraction(deployment: Deployment) -> str | None:
    """SGLang's share of the memory: weights and KV cache, without activations; None: not known."""
    hardware, engine = deployment.hardware, deployment.engine
    if hardware is None:
        return None
    n_blocks = deployment.config.n_kv_blocks
    cache_bytes = n_blocks * deployment.kv_block_bytes / n_kv_shards(deployment.model, engine)
    held_bytes = weight_bytes(deployment.model, engine) + cache_bytes
    return f"{held_bytes / hardware.memory_bytes.value:.3f}"


def departures(chosen: Deployment, default: Deployment) -> tuple[Departure, ...]:
    """Settings that differ from the engine's defaults on this number of devices."""
    ours, theirs = _settings(chosen), {**_settings(default), "tensor_parallel_size": 1}
    return tuple(
        Departure(name, _setting_text(value), _setting_text(theirs.get(name)))
        for name, value in ours.items()
        if value != theirs.get(name)
    )


def _setting_text(value: object) -> str:
    """A setting in words; KV pools with their rules and sizes."""
    if not isinstance(value, tuple):
        return str(value)
    parts = cast("tuple[object, ...]", value)
    pools = [one for one in parts if isinstance(one, KvPool)]
    if len(pools) < len(parts):
        return str(parts)
    return "; ".join(
        f"{one.n_blocks} blocks of {one.block_size} for {one.rule_text}" for one in pools
    )


def _settings(deployment: Deployment) -> dict[str, object]:
    engine, config = deployment.engine, deployment.config
    settings: dict[str, object] = {
        "tensor_parallel_size": engine.tensor_parallel_size,
        "quantization": engine.quantization or engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype or engine.dtype,
        "gpu_memory_utilization": deployment.knobs.share_fraction,
    }
    return settings | {
        one.name: getattr(config, one.name)
        for one in fields(config)
        if one.name not in _CONSEQUENCES
    }
