"""Options of questions about a model: its devices, its engine, a quick look."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, cast, get_args

from inferometer.api.question import Option, duration_option, option
from inferometer.errors import SpecError
from inferometer.inputs.types import (
    AttentionKernel,
    DType,
    EngineMode,
    EngineName,
    EngineSpec,
    LoadFormat,
)
from inferometer.measure import environments
from inferometer.measure.engines import openvino_spec
from inferometer.measure.environments import find_environment

FORMATS: Final = get_args(DType)
MODEL_OPTION: Final = Option(
    "A model of the catalogue, a Hugging Face id or folder, a config.json, or a start command of a server.",
    heading="Model",
    is_argument=True,
    is_axis=True,
)
SLO_OPTION: Final = Option(
    "The SLO: 'ttft:p95<500ms, tpot:p95<50ms'. Exit 0 met, 10 missed, 11 undecided; of a grid: 0"
    " where a point meets it, 10 where all miss it.",
    heading="Limits",
    is_common=True,
    metavar="TEXT",
)
TRANSFER_OPTION: Final = Option(
    "Carry the step times of --fit over to another device, --tp, model, format or engine, with wider"
    " intervals.",
    heading="Hardware",
)
DATASHEET_OPTION: Final = Option(
    "Use the datasheet's step times, even where published rows of such devices exist.",
    heading="Hardware",
)
EAGER_OPTION: Final = Option(
    "Without CUDA graphs (a GPU): the host launches each kernel by itself.", heading="Engine"
)
TP_FLAGS: Final = ("--tp", "--tensor-parallel-size")
PP_FLAGS: Final = ("--pp", "--pipeline-parallel-size")
KV_DTYPE_FLAGS: Final = ("--kv-dtype", "--kv-cache-dtype")
LINK_OPTION: Final = Option(
    "Link between devices: nvlink, pcie3, pcie4, pcie5, or its rate one way ('64GB/s'). [the"
    " device's]",
    heading="Hardware",
    is_axis=True,
    metavar="LINK",
)
ALL_REDUCE_OPTION: Final = Option(
    "Latency of one all-reduce in microseconds, where it was measured. [a prior]",
    heading="Hardware",
    least=0,
)


def refuse_links(*, link: str | None, all_reduce_us: float | None) -> None:
    """Refuse other links than those between which step times were fitted."""
    stated = {"--link": link is not None, "--all-reduce-us": all_reduce_us is not None}
    refuse_changed_steps(stated, allowed="the links between which they were measured")


def refuse_changed_steps(changes: Mapping[str, bool], *, allowed: str) -> None:
    """Refuse the first of these flags that is set: with a fit its steps are as they were measured."""
    flag = next((name for name, is_set in changes.items() if is_set), None)
    if flag is not None:
        raise SpecError(
            f"{flag} changes the steps that were fitted",
            where=f"--fit, {flag}",
            allowed=allowed,
            try_=f"the same command without {flag}, or without --fit, which the datasheet answers",
        )


_NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine in this process's machine, and how it runs the model."""

    engine: EngineName = option(
        "transformers", "Engine that runs the model.", "Engine", is_common=True
    )
    mode: EngineMode = option(
        "eager",
        "eager; static KV cache; compiled (CUDA graphs on a GPU).",
        "Engine",
        is_common=True,
    )
    attn: AttentionKernel | None = option(
        None,
        "Attention kernel. [the engine's default]",
        "Engine",
        flags=("--attn", "--attn-implementation", "--attention-backend"),
    )
    dtype: str = option(
        "auto",
        "Format of weights and activations.",
        "Engine",
        is_common=True,
        formats=("auto", *FORMATS),
    )
    kv_dtype: DType | None = option(
        None,
        "Format of the KV cache; default: as --dtype.",
        "Engine",
        formats=FORMATS,
        flags=KV_DTYPE_FLAGS,
    )
    quantization: DType | None = option(
        None,
        "Format of the weights alone, with fewer bits.",
        "Engine",
        is_common=True,
        formats=FORMATS,
    )
    device: str = option("auto", "Where it runs.", "Engine", choices=("auto", "cpu", "cuda"))
    tp: int = option(1, "Tensor-parallel ranks.", "Engine", is_common=True, least=1, flags=TP_FLAGS)
    threads: int | None = option(
        None, "CPU threads; default: the cores this process may use.", "Engine", least=1
    )
    load_format: LoadFormat = option(
        "auto",
        "auto: the real weights; dummy: the true architecture with random weights (speed does not"
        " depend on values).",
        "Engine",
        is_common=True,
    )


def engine_of(options: Engine) -> EngineSpec:
    """The engine of these options; ``auto`` is a GPU where there is one that the engine runs on.

    Raises
    ------
    SpecError
        What the engine does on no machine: found before the engine is looked for, and in a dry run.
    """
    can_be_gpu = options.engine != "openvino" and _NVIDIA_DEVICE.exists()
    is_gpu = options.device == "cuda" or (options.device == "auto" and can_be_gpu)
    dtype = ("bfloat16" if is_gpu else "float32") if options.dtype == "auto" else options.dtype
    n_threads = options.threads
    if n_threads is None and not is_gpu:
        n_threads = len(os.sched_getaffinity(0))
    spec = EngineSpec(
        engine=options.engine,
        mode=options.mode,
        dtype=cast("DType", dtype),
        kv_cache_dtype=options.kv_dtype,
        quantization=options.quantization,
        device="cuda" if is_gpu else "cpu",
        tensor_parallel_size=options.tp,
        n_threads=n_threads,
        load_format=options.load_format,
        attention=options.attn,
    )
    check = openvino_spec.check_spec if spec.engine == "openvino" else environments.check_torch_spec
    check(spec)
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """A model on this machine, and the time there is."""

    model: Annotated[str, MODEL_OPTION]
    engine: Engine = field(default_factory=Engine)
    budget: float = duration_option(
        120.0,
        "About how long it may take, loading included; two points are measured in any case. [2min]",
        "Limits",
        is_common=True,
    )
    out: Path | None = option(
        None, "Folder of the run; or X.csv: the table, with the run in folder X.", is_common=True
    )
    given: frozenset[str] = frozenset()


def with_engine(question: Quick) -> Quick:
    """The same question, of an engine that is installed: a missing one is reported before anything else is imported.

    Raises
    ------
    SpecError
        There is no time, or the engine is not installed.
    """
    if question.budget <= 0:
        raise SpecError(
            f"a budget of {question.budget:g} s",
            where="--budget",
            allowed="more than 0",
            try_="2min",
        )
    find_environment(engine_of(question.engine).engine)
    return question
