"""Which flags say how a model is to be run, the same for every verb that runs one?"""

import functools
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import click

from inferometer.cli.format_option import FORMAT, FORMAT_OR_AUTO
from inferometer.spec.types import EngineMode, EngineName, EngineSpec, LoadFormat

_Brought = TypeVar("_Brought")
"""What a command gives back: nothing, or what its second half takes."""

_NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")
_NAMES: Final = tuple(field.name for field in fields(EngineSpec))

_OPTIONS: Final = (
    click.option(
        "--engine",
        type=click.Choice(get_args(EngineName)),
        default="transformers",
        show_default=True,
        help="What runs it.",
    ),
    click.option(
        "--mode",
        type=click.Choice(get_args(EngineMode)),
        default="eager",
        show_default=True,
        help="eager; static KV cache; compiled (CUDA graphs on a GPU).",
    ),
    click.option(
        "--dtype",
        type=FORMAT_OR_AUTO,
        default="auto",
        show_default=True,
        help="Of weights, activations.",
    ),
    click.option(
        "--kv-dtype",
        "--kv-cache-dtype",
        "kv_cache_dtype",
        type=FORMAT,
        help="KV cache; default: as --dtype.",
    ),
    click.option("--quantization", type=FORMAT, help="Weights alone, in fewer bits."),
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True
    ),
    click.option(
        "--tp",
        "--tensor-parallel-size",
        "tensor_parallel_size",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Tensor-parallel ranks.",
    ),
    click.option(
        "--threads",
        "n_threads",
        type=click.IntRange(min=1),
        help="CPU threads; default: the cores this process may use.",
    ),
    click.option(
        "--load-format",
        type=click.Choice(get_args(LoadFormat)),
        default="auto",
        show_default=True,
        help=(
            "auto: the real weights; dummy: the true architecture with random weights (speed does"
            " not depend on values)."
        ),
    ),
)


def takes_engine(command: Callable[..., _Brought]) -> Callable[..., _Brought]:
    """Add the flags to a command; it gets what they say as ``engine: EngineSpec``.

    ``auto`` is a GPU where there is one.
    """

    @functools.wraps(command)
    def with_engine(**flags: object) -> _Brought:
        engine = _engine_from({name: flags.pop(name) for name in _NAMES})
        return command(engine=engine, **flags)

    wrapped: Callable[..., _Brought] = with_engine
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _engine_from(flags: dict[str, Any]) -> EngineSpec:
    if flags["device"] == "auto":
        flags["device"] = "cuda" if _NVIDIA_DEVICE.exists() else "cpu"
    if flags["dtype"] == "auto":
        flags["dtype"] = "bfloat16" if flags["device"] == "cuda" else "float32"
    if flags["n_threads"] is None and flags["device"] == "cpu":
        flags["n_threads"] = len(os.sched_getaffinity(0))
    return EngineSpec(**flags)
