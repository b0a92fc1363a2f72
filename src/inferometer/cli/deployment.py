"""Which server is simulated: which model, on which device, whose scheduler, how much KV cache, and which step times?"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import click

from inferometer.cli.step_times import StepTimes, datasheet_levels, fitted_levels
from inferometer.errors import SpecError
from inferometer.perfmodel import memory
from inferometer.simulate import engine_config, serving_config
from inferometer.spec import catalog, resolve
from inferometer.spec.types import DType, EngineSpec, HardwareSpec, ModelSpec

_COUNT: Final = click.IntRange(min=1)
_SHARED: Final = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks")
_DEFAULT_SEATS: Final = 256
_DEFAULT_STEP_TOKENS: Final = 2048
"""vLLM's usual ``max_num_seqs`` and ``max_num_batched_tokens``: what activations are reckoned with where nobody says."""

_OPTIONS: Final = (
    click.argument("model"),
    click.option("--hardware", metavar="ID", help="A device of the catalogue: for memory, and for step times without --fit."),
    click.option(
        "--fit", "fit_path", type=click.Path(path_type=Path), help="Step times of `inferometer fit`: its file, or the run's folder."
    ),
    click.option("--dtype", type=click.Choice(get_args(DType)), help="Of weights and activations. [that of --fit, else bfloat16]"),
    click.option("--kv-dtype", type=click.Choice(get_args(DType)), help="Of the KV cache. [as --dtype]"),
    click.option("--quantization", type=click.Choice(get_args(DType)), help="Weights alone, in fewer bits."),
    click.option("--tp", type=_COUNT, help="Tensor-parallel devices. [that of --fit, else 1]"),
    click.option(
        "--policy", type=click.Choice(serving_config.ENGINE_NAMES), default="vllm", show_default=True, help="Whose scheduler decides."
    ),
    click.option("--max-num-seqs", type=_COUNT, help="Seats: requests that run at once. [the engine's default]"),
    click.option("--max-num-batched-tokens", type=_COUNT, help="Tokens computed in a step. [the engine's default]"),
    click.option("--max-model-len", type=_COUNT, help="Prompt and output together. [what the model and the KV cache can hold]"),
    click.option("--block-size", type=_COUNT, help="Tokens in a KV block. [the engine's default]"),
    click.option("--num-blocks", type=_COUNT, help="KV blocks, as the server's log says. [reckoned from --hardware]"),
    click.option("--gpu-memory-utilization", type=float, default=0.9, show_default=True, help="Share of memory given to the engine."),
    click.option("--set", "own", multiple=True, metavar="NAME=VALUE", help="Another knob of the engine, under its own name; repeatable."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica, and where its numbers are from."""

    model: ModelSpec
    engine: EngineSpec
    hardware: HardwareSpec | None
    config: engine_config.EngineConfig
    step_times: StepTimes
    kv_origin: str
    """Where the number of KV blocks is from."""


def takes_deployment(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that describe a server; the command gets ``deployment: Deployment``."""

    @functools.wraps(command)
    def with_deployment(**flags: object) -> None:
        names = ("model", "hardware", "fit_path", "dtype", "kv_dtype", "quantization", "tp", "policy", "gpu_memory_utilization", "own")
        command(deployment=_deployment({name: flags.pop(name) for name in (*names, *_SHARED)}), **flags)

    wrapped: Callable[..., None] = with_deployment
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _deployment(flags: Mapping[str, Any]) -> Deployment:
    model = resolve.resolve_model(flags["model"], load_format="dummy").spec
    hardware = catalog.find_hardware(flags["hardware"]) if flags["hardware"] else None
    if flags["fit_path"] is not None:
        step_times = fitted_levels(
            flags["fit_path"], model, asked={name: flags[name] for name in ("dtype", "kv_dtype", "tp", "quantization")}
        )
        engine = step_times.engine
    elif hardware is not None:
        engine = EngineSpec(
            dtype=flags["dtype"] or ("float32" if hardware.kind == "cpu" else "bfloat16"),
            kv_cache_dtype=flags["kv_dtype"],
            quantization=flags["quantization"],
            device="cpu" if hardware.kind == "cpu" else "cuda",
            tensor_parallel_size=flags["tp"] or 1,
        )
        step_times = datasheet_levels(model, engine, hardware)
    else:
        raise SpecError(
            "nothing says how long a step takes",
            where="--hardware, --fit",
            allowed="a device of the catalogue, or a fit",
            try_="--hardware h100_sxm",
        )
    config, kv_origin = _config(model, engine, hardware, flags)
    return Deployment(model=model, engine=engine, hardware=hardware, config=config, step_times=step_times, kv_origin=kv_origin)


def _config(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec | None, flags: Mapping[str, Any]
) -> tuple[engine_config.EngineConfig, str]:
    policy = flags["policy"]
    shared = {name: flags[name] for name in _SHARED if flags[name] is not None}
    own = dict(_own_knob(text) for text in flags["own"])
    block_size = shared.get("block_size", serving_config.default_block_size(policy))
    kv_origin = "given"
    if "num_blocks" not in shared and "num_blocks" not in own:
        shared["num_blocks"] = _blocks_that_fit(model, engine, hardware, shared, block_size, flags["gpu_memory_utilization"])
        kv_origin = f"reckoned from the memory of {'' if hardware is None else hardware.name}; a server's log says it exactly"
    if "max_model_len" not in shared:
        held_tokens = (shared["num_blocks"] - 1) * block_size if "num_blocks" in shared else model.max_position_tokens
        shared["max_model_len"] = max(min(model.max_position_tokens, held_tokens), 2)
    return serving_config.engine_config(policy, shared, own, where="--set"), kv_origin


def _blocks_that_fit(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec | None, shared: Mapping[str, int], block_size: int, utilization: float
) -> int:
    if hardware is None:
        raise SpecError(
            "nothing says how large the KV cache is",
            where="--num-blocks, --hardware",
            try_="--num-blocks N (vLLM's log: 'GPU KV cache size' over the block size), or --hardware ID",
        )
    seats = shared.get("max_num_seqs", _DEFAULT_SEATS)
    step_tokens = shared.get("max_num_batched_tokens", _DEFAULT_STEP_TOKENS)
    question = memory.MemoryQuestion(
        model=model,
        engine=engine,
        hardware=hardware,
        context_tokens=1,
        prompt_tokens=step_tokens,
        max_step_tokens=step_tokens,
        block_tokens=block_size,
        utilization_fraction=utilization,
    )
    n_blocks = memory.n_kv_blocks_that_fit(question, max_num_seqs=seats)
    if n_blocks < 2:
        raise SpecError(
            f"{model.model_id!r} leaves no memory for a KV cache on {engine.tensor_parallel_size} x {hardware.name}",
            where="--hardware, --tp",
            try_="more devices (--tp), fewer bits (--quantization), or a larger device",
        )
    return n_blocks


def _own_knob(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise SpecError(f"{text!r} sets nothing", where="--set", allowed="NAME=VALUE", try_="--set policy=priority")
    return name.strip(), value.strip()


__all__ = ["Deployment", "takes_deployment"]
