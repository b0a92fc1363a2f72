"""Of what are load tests.

On which device, in which format, on how many devices and by which engine, as far as anybody stated
it?
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, get_args

from inferometer.errors import RecordError
from inferometer.perfmodel.fit_subject import FitSubject
from inferometer.records.server_summaries import summarise_server
from inferometer.records.types import Run
from inferometer.spec.types import DType, EngineSpec, HardwareSpec

_VERSION: Final = r"LLM engine \(v([^)]+)\)"
_DTYPE: Final = r"\bdtype=torch\.(\w+)"
_TENSOR: Final = r"\btensor_parallel_size=(\d+)"
"""vLLM 0.32.0, v1/engine/core.py and config/vllm.py: "Initializing a V1 LLM engine (v0.32.0)
with config: model='…', dtype=torch.bfloat16, tensor_parallel_size=1, …"."""


class StatedServer(NamedTuple):
    """What the command line states of the server; None: nothing."""

    hardware: HardwareSpec | None
    engine: EngineSpec | None
    n_tensor: int | None


def server_subject(runs: Sequence[Run], log: str | None, stated: StatedServer) -> FitSubject:
    """The facts of the command line, else of the server's log, its metrics, or an imported record of it; what is in none is None."""
    recorded = next((run.manifest.engine for run in runs if run.manifest.engine is not None), None)
    scheduler = None if recorded is None else recorded.scheduler
    hardware, engine, text = stated.hardware, stated.engine, log or ""
    version, dtype, tensor = (re.search(pattern, text) for pattern in (_VERSION, _DTYPE, _TENSOR))
    named = dtype[1] if dtype is not None else None if recorded is None else recorded.compute_dtype
    logged = next((one for one in get_args(DType) if named == one), None)
    return FitSubject(
        hardware_id=None if hardware is None else hardware.hardware_id,
        device=None if hardware is None else hardware.name,
        engine=(
            "vllm"
            if version is not None
            else _kind_of(runs) or (None if recorded is None else recorded.engine)
        ),
        engine_version=(
            version[1] if version is not None else None if recorded is None else recorded.version
        ),
        dtype=logged if engine is None else engine.dtype,
        kv_cache_dtype=None if engine is None else engine.kv_cache_dtype,
        quantization=None if engine is None else engine.quantization,
        tensor_parallel_size=stated.n_tensor
        or (
            int(tensor[1])
            if tensor is not None
            else None
            if scheduler is None
            else scheduler.tensor_parallel_size
        ),
    )


def server_engine(subject: FitSubject, stated: StatedServer) -> EngineSpec:
    """The engine as far as its facts are known; the rest is what servers usually have."""
    is_cpu = stated.hardware is not None and stated.hardware.kind == "cpu"
    usual = stated.engine or EngineSpec(
        engine="vllm",
        mode="compiled",
        dtype="float32" if is_cpu else "bfloat16",
        device="cpu" if is_cpu else "cuda",
    )
    return replace(
        usual,
        dtype=subject.dtype or usual.dtype,
        tensor_parallel_size=subject.tensor_parallel_size or 1,
    )


def _kind_of(runs: Sequence[Run]) -> str | None:
    """Whose metrics were scraped beside the load tests?"""
    kinds = set[str]()
    for run in runs:
        if run.server is not None:
            try:
                kinds.add(summarise_server(run.server).kind)
            except RecordError:  # pages that are no known server's, or one only
                continue
    return kinds.pop() if len(kinds) == 1 else None
