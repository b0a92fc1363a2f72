"""How is a model run that is measured: by which engine, in which number formats, where?"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, cast

from inferometer.api.model_options import FORMATS, KV_DTYPE_FLAGS, TP_FLAGS
from inferometer.api.question import Option
from inferometer.inputs.types import DType, EngineMode, EngineName, EngineSpec, LoadFormat

_NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine in this process's machine, and how it runs the model."""

    engine: Annotated[EngineName, Option("What runs it.", heading="Engine", is_common=True)] = (
        "transformers"
    )
    mode: Annotated[
        EngineMode,
        Option(
            "eager; static KV cache; compiled (CUDA graphs on a GPU).",
            heading="Engine",
            is_common=True,
        ),
    ] = "eager"
    dtype: Annotated[
        str,
        Option(
            "Of weights, activations.", heading="Engine", is_common=True, formats=("auto", *FORMATS)
        ),
    ] = "auto"
    kv_dtype: Annotated[
        DType | None,
        Option(
            "KV cache; default: as --dtype.",
            heading="Engine",
            formats=FORMATS,
            flags=KV_DTYPE_FLAGS,
        ),
    ] = None
    quantization: Annotated[
        DType | None,
        Option("Weights alone, in fewer bits.", heading="Engine", is_common=True, formats=FORMATS),
    ] = None
    device: Annotated[
        str, Option("Where it runs.", heading="Engine", choices=("auto", "cpu", "cuda"))
    ] = "auto"
    tp: Annotated[
        int,
        Option("Tensor-parallel ranks.", heading="Engine", is_common=True, least=1, flags=TP_FLAGS),
    ] = 1
    threads: Annotated[
        int | None,
        Option("CPU threads; default: the cores this process may use.", heading="Engine", least=1),
    ] = None
    load_format: Annotated[
        LoadFormat,
        Option(
            "auto: the real weights; dummy: the true architecture with random weights (speed does"
            " not depend on values).",
            heading="Engine",
            is_common=True,
        ),
    ] = "auto"


def engine_of(options: Engine) -> EngineSpec:
    """The engine of these options; ``auto`` is a GPU where there is one."""
    is_gpu = options.device == "cuda" or (options.device == "auto" and _NVIDIA_DEVICE.exists())
    dtype = ("bfloat16" if is_gpu else "float32") if options.dtype == "auto" else options.dtype
    n_threads = options.threads
    if n_threads is None and not is_gpu:
        n_threads = len(os.sched_getaffinity(0))
    return EngineSpec(
        engine=options.engine,
        mode=options.mode,
        dtype=cast("DType", dtype),
        kv_cache_dtype=options.kv_dtype,
        quantization=options.quantization,
        device="cuda" if is_gpu else "cpu",
        tensor_parallel_size=options.tp,
        n_threads=n_threads,
        load_format=options.load_format,
    )
