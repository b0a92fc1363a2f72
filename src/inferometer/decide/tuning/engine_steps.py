"""Which options of an engine of this machine does each step try, one change at a time?

A step looks at the options as they are and lists changes, or says why there is nothing to try.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec

EngineStepName: TypeAlias = Literal[
    "graphs_and_host",
    "kernels",
    "threads",
    "weight_precision",
    "compute_precision",
    "kv_precision",
]
ENGINE_STEP_NAMES: Final = get_args(EngineStepName)

FLAGS: Final = {
    "mode": "--mode",
    "attention": "--attn",
    "dtype": "--dtype",
    "kv_cache_dtype": "--kv-dtype",
    "quantization": "--quantization",
    "n_threads": "--threads",
}
"""Flag of `inferometer sweep` for what a step changes."""
_USUAL_ATTENTION: Final = "sdpa"
"""transformers' default for every architecture that has it."""
_LEAST_THREADS: Final = 1
_PLAIN_BITS: Final = 16


class EngineChange(NamedTuple):
    """The options after one change."""

    words: str
    spec: EngineSpec


Tries: TypeAlias = tuple[EngineChange, ...] | str


class EngineStep(NamedTuple):
    """One step: its changes, each measured against the options adopted before it."""

    name: EngineStepName
    title: str
    flags: str
    tries: Callable[[EngineSpec], Tries]
    is_lossy: bool = False
    """Answers change, so that quality decides."""


def option_words(spec: EngineSpec) -> list[object]:
    """Flags and values of the options that are set."""
    return [
        word
        for name, flag in FLAGS.items()
        if (value := getattr(spec, name)) is not None
        for word in (flag, value)
    ]


def changed_names(spec: EngineSpec, before: EngineSpec) -> tuple[str, ...]:
    """The options in which both differ."""
    return tuple(
        one.name for one in fields(spec) if getattr(spec, one.name) != getattr(before, one.name)
    )


def shares_load(one: EngineSpec, other: EngineSpec) -> bool:
    """Can both options run in turns on one loaded model?

    Mode and threads change without a load; what is compiled is compiled for a number of threads.
    """
    changed = set(changed_names(one, other))
    if one.engine != "transformers" or one.tensor_parallel_size > 1:
        return not changed
    is_compiled = "compiled" in {one.mode, other.mode}
    return changed <= ({"mode"} if is_compiled else {"mode", "n_threads"})


def _changes(now: EngineSpec, name: str, values: Sequence[object], nothing: str) -> Tries:
    found = list[EngineChange]()
    for value in values:
        change: dict[str, Any] = {name: value}
        found.append(EngineChange(f"{FLAGS[name]} {value}", replace(now, **change)))
    return tuple(found) or nothing


def _modes(now: EngineSpec) -> Tries:
    if now.engine != "transformers":
        return f"{now.engine} always runs its compiled graph on a paged cache"
    values = [one for one in ("static", "compiled") if one != now.mode]
    return _changes(now, "mode", values if now.mode != "compiled" else (), "compiled already")


def _attention(now: EngineSpec) -> Tries:
    if now.engine != "transformers":
        return f"{now.engine} has its own paged attention alone"
    other = "sdpa" if (now.attention or _USUAL_ATTENTION) == "eager" else "eager"
    return _changes(now, "attention", (other,), "")


def _threads(now: EngineSpec) -> Tries:
    if now.device != "cpu" or now.n_threads is None:
        return f"{now.device} computes: threads of the CPU are no option of it"
    half = now.n_threads // 2
    return _changes(now, "n_threads", (half,) if half >= _LEAST_THREADS else (), "one thread")


def _kv_cache(now: EngineSpec) -> Tries:
    if now.engine != "openvino":
        return "the KV cache of transformers has the format of the activations"
    stored = now.kv_cache_dtype or now.dtype
    values = () if stored == "int8" else ("int8",)
    return _changes(now, "kv_cache_dtype", values, f"{stored} already")


def _weights(now: EngineSpec) -> Tries:
    if now.device != "cpu":
        return f"the kernels of such weights are those of a CPU, and this runs on {now.device}"
    if now.tensor_parallel_size > 1:
        return "the kernels of such weights are those of one process: --tp 1"
    values = {None: ("int8", "int4"), "int8": ("int4",)}.get(now.quantization, ())
    return _changes(now, "quantization", values, f"{now.quantization} already")


def _arithmetic(now: EngineSpec) -> Tries:
    values = ("bfloat16",) if now.dtype == "float32" else ()
    return _changes(now, "dtype", values, f"{now.dtype} already")


ENGINE_STEPS: Final = (
    EngineStep("graphs_and_host", "static cache, compiled steps", "--mode", _modes),
    EngineStep("kernels", "attention kernel", "--attn", _attention),
    EngineStep("threads", "threads", "--threads", _threads),
    EngineStep(
        "weight_precision", "precision of the weights", "--quantization", _weights, is_lossy=True
    ),
    EngineStep(
        "compute_precision", "precision of the arithmetic", "--dtype", _arithmetic, is_lossy=True
    ),
    EngineStep("kv_precision", "precision of the KV cache", "--kv-dtype", _kv_cache, is_lossy=True),
)
"""All steps, in their order: what loses nothing comes first, then what moves most bytes: reading the
weights is most of a decode step of few sequences, and which arithmetic is faster depends on them."""
AGAIN: Final[Mapping[EngineStepName, EngineStepName]] = {"compute_precision": "weight_precision"}
"""A step -> an earlier one that is looked at again with its change, where that is taken or the earlier
one gained nothing: kernels for packed weights exist for some arithmetic only."""


def tries_of(step: EngineStep, now: EngineSpec, stored: DType | None) -> Tries:
    """The changes of a step; ``stored`` is the format of most of the file's weights, where known."""
    is_packed = stored is not None and DTYPE_BITS[stored] < _PLAIN_BITS
    if step.name == "weight_precision" and now.engine == "openvino" and is_packed:
        return f"the file's weights are in {stored} and stay so: another file is another MODEL"
    return step.tries(now)


def quality_options(spec: EngineSpec, name: str) -> dict[str, object]:
    """The options of `inferometer quality` that check a lossy change of this one of an engine's."""
    value = getattr(spec, name)
    engine: dict[str, object] = {} if spec.engine == "transformers" else {"engine": spec.engine}
    if name == "quantization":
        is_grouped = spec.engine == "transformers" and value == "int4"
        return {**engine, name: [value]} | ({"group_size": 64} if is_grouped else {})
    if name == "kv_cache_dtype":
        return {"engine": spec.engine, "kv_dtype": [value]}
    device = {} if spec.device == "cpu" else {"device": spec.device}
    return {"other_dtype": [value], **device}


def quality_words(model: str, spec: EngineSpec, name: str) -> list[object]:
    """Words of the command that checks quality."""
    words = list[object]([model])
    for option, value in quality_options(spec, name).items():
        flag = f"--{option.replace('_', '-')}"
        words += [flag, *value] if isinstance(value, list) else [flag, value]
    return words
