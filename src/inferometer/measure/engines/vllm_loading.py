"""How does a model come into vLLM: what it can do, with which arguments, with how large a KV cache?"""

import os
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import torch
import transformers

from inferometer.errors import EngineError, SpecError
from inferometer.measure.engines.hf_folder import config_folder, weights_folder
from inferometer.measure.engines.protocol import ModelReference, OutOfMemory
from inferometer.measure.engines.transformers_config import HfConfig
from inferometer.measure.engines.transformers_loading import (
    TORCH_DTYPE,
    distinct_parameters,
    read_config,
)
from inferometer.measure.resident import available_bytes
from inferometer.spec.types import EngineSpec

VllmCore: TypeAlias = Any
"""vLLM's ``LLMEngine``, whose types only its own environment has."""

MAX_BATCHED_TOKENS: Final = 131_072
"""Prompt tokens of one step: the largest sweeps prefill in one. vLLM sizes index buffers by it,
a few MB."""
MAX_SEQUENCES: Final = 256
KV_BLOCK_TOKENS: Final = 128
"""vLLM's own choice on a CPU."""
SPARE_BYTES: Final = 256 * 2**20
_MEMORY_WORDS: Final = (
    "can't allocate memory",
    "bad_alloc",
    "out of memory",
    "Cannot allocate memory",
    "less than requested memory for kv",
)
_VARIABLES: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": (
        "0"
    ),  # the engine's core in this process: a step is over when step() returns
    "VLLM_CPU_OMP_THREADS_BIND": (
        "nobind"
    ),  # on a shared machine a thread bound to a busy core waits for it
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModel:
    """A model as vLLM is to load it, and what is known of it before."""

    spec: EngineSpec
    config: HfConfig
    folder: str
    n_parameters: int | None
    """None where transformers does not know the architecture."""
    is_random: bool


def check_spec(spec: EngineSpec) -> None:
    """Can this engine do what is asked?

    Raises
    ------
    SpecError
        It cannot.
    """
    if spec.device != "cpu":
        raise SpecError(
            "vLLM was only tried on CPUs here",
            where="--device",
            allowed="cpu",
            try_="--engine transformers --device cuda",
        )
    if spec.mode == "static":
        raise SpecError(
            "vLLM has no mode 'static': its paged KV cache is always preallocated",
            where="--mode",
            allowed="eager, compiled",
            try_="--mode eager",
        )
    if spec.dtype not in TORCH_DTYPE:
        raise SpecError(
            f"dtype {spec.dtype!r} is not computed in by vLLM on a CPU",
            where="--dtype",
            allowed=", ".join(TORCH_DTYPE),
        )
    if spec.quantization is not None:
        raise SpecError(
            f"quantization {spec.quantization!r} is not run by the vllm engine",
            where="--quantization",
            allowed="none (a GGUF file is unpacked to --dtype)",
            try_="--engine openvino, which keeps a GGUF's 4-bit weights",
        )
    if spec.kv_cache_dtype not in {None, spec.dtype}:
        raise SpecError(
            f"a KV cache in {spec.kv_cache_dtype!r}",
            where="--kv-cache-dtype",
            allowed=f"the model's own {spec.dtype}",
        )


def read_model(spec: EngineSpec, model: ModelReference) -> VllmModel:
    """What is to be loaded?

    Unpacks a GGUF file where that has not been done, and prepares this process for vLLM.

    Raises
    ------
    SpecError, EngineError
        The question is bad; the file cannot be unpacked.
    """
    config = read_config(model)
    _check_heads(spec, config)
    _set_variables(spec)
    is_random = spec.load_format == "dummy" or model.location is None
    return VllmModel(
        spec=spec,
        config=config,
        folder=config_folder(config) if is_random else weights_folder(model, config),
        n_parameters=_count_parameters(config),
        is_random=is_random,
    )


def start_core(model: VllmModel, kv_tokens: int) -> VllmCore:
    """Start vLLM with room for this many tokens in its KV cache.

    Raises
    ------
    OutOfMemory, EngineError
        It does not fit; vLLM failed.
    """
    from vllm.engine.arg_utils import EngineArgs  # only its own environment has it
    from vllm.v1.engine.llm_engine import LLMEngine

    kv_bytes = kv_tokens * _kv_token_bytes(model)
    _check_room(model, kv_bytes)
    # A request of the longest length must fit, beside the null block and a block that is partly
    # filled.
    longest_tokens = min(
        model.config.get_text_config().max_position_embeddings, kv_tokens - 2 * KV_BLOCK_TOKENS
    )
    arguments = EngineArgs(
        model=model.folder,
        dtype=cast("Any", model.spec.dtype),
        load_format="dummy" if model.is_random else "auto",
        skip_tokenizer_init=True,
        max_model_len=longest_tokens,
        max_num_batched_tokens=MAX_BATCHED_TOKENS,
        max_num_seqs=MAX_SEQUENCES,
        block_size=KV_BLOCK_TOKENS,
        kv_cache_memory_bytes=kv_bytes // model.spec.tensor_parallel_size,
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=model.spec.mode == "eager",
        tensor_parallel_size=model.spec.tensor_parallel_size,
        disable_log_stats=True,
    )
    try:
        return LLMEngine.from_engine_args(arguments)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        if is_memory(error):
            raise OutOfMemory(last_line(error)) from None
        raise EngineError(
            f"vLLM could not load the model: {last_line(error)}",
            where=model.folder,
            try_="--engine transformers",
        ) from error


def stop_core(core: VllmCore) -> None:
    """Give back memory and ranks, so that another core can be started in this process."""
    from vllm.distributed.parallel_state import (
        cleanup_dist_env_and_memory,
    )  # only its own environment has it

    core.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def is_memory(error: BaseException) -> bool:
    """Does this error say that memory ran out?"""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _MEMORY_WORDS)


def last_line(error: BaseException) -> str:
    """What is it that vLLM complains about, without pydantic's frame around it?"""
    text = str(error).strip() or type(error).__name__
    if "Value error, " in text:
        return text.partition("Value error, ")[2].partition(" [type=")[0]
    return text.splitlines()[-1].strip()


def _set_variables(spec: EngineSpec) -> None:
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    n_threads = spec.n_threads or len(os.sched_getaffinity(0))
    # vLLM falls back to one thread where nothing is said; ranks inherit the variable, this process
    # has read it already.
    os.environ["OMP_NUM_THREADS"] = str(max(n_threads // spec.tensor_parallel_size, 1))
    torch.set_num_threads(max(n_threads // spec.tensor_parallel_size, 1))


def _check_heads(spec: EngineSpec, config: HfConfig) -> None:
    n_heads = config.get_text_config().num_attention_heads
    if n_heads % spec.tensor_parallel_size:
        raise SpecError(
            f"{n_heads} attention heads cannot be divided among {spec.tensor_parallel_size} ranks",
            where="--tp",
            allowed=f"a divisor of {n_heads} (vLLM splits attention by heads)",
            try_="--engine transformers, which then keeps attention whole",
        )


def _count_parameters(config: HfConfig) -> int | None:
    """How many parameters has this architecture, tied ones once?

    Counted on the meta device, where they take no memory.
    """
    try:
        with torch.device("meta"):
            shapes = transformers.AutoModelForCausalLM.from_config(config)
    except ValueError:
        return None  # vLLM knows architectures that transformers does not
    return int(sum(parameter.numel() for parameter in distinct_parameters(shapes)))


def _kv_token_bytes(model: VllmModel) -> int:
    """Bytes of keys and values of one token, all layers: 2 · layers · KV heads · head size · bytes of a number."""
    text = model.config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    n_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return int(
        2 * text.num_hidden_layers * n_kv_heads * head_dim * TORCH_DTYPE[model.spec.dtype].itemsize
    )


def _check_room(model: VllmModel, kv_bytes: int) -> None:
    """Would weights and cache fit?

    vLLM writes its whole cache once, so that all of it becomes resident.
    """
    from vllm.utils.cpu_resource_utils import (
        get_allowed_cpu_list,
        get_memory_node_info,
    )  # only its own environment has it

    # vLLM binds all its memory to the node of its first core.
    node_bytes: int = get_memory_node_info(get_allowed_cpu_list()[0].numa_node).available_memory
    free_bytes = min(node_bytes, available_bytes() or node_bytes)
    weight_bytes = (model.n_parameters or 0) * TORCH_DTYPE[model.spec.dtype].itemsize
    if weight_bytes + kv_bytes > free_bytes - SPARE_BYTES:
        raise OutOfMemory(
            f"weights of {weight_bytes / 2**30:.1f} GiB and a KV cache of {kv_bytes / 2**30:.1f}"
            f" GiB, {free_bytes / 2**30:.1f} GiB free"
        )
