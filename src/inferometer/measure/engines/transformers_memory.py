"""Would it fit?

Asked before a machine swaps itself to death, and told apart from other failures after.
"""

import os
import sys
from typing import Final, NoReturn

import torch
from transformers import AutoModelForCausalLM

from inferometer.measure.engines.protocol import OutOfMemory
from inferometer.measure.engines.transformers_config import HfConfig
from inferometer.measure.engines.transformers_loading import TORCH_DTYPE, distinct_parameters
from inferometer.measure.resident import available_bytes
from inferometer.spec.types import EngineSpec
from inferometer.units import format_bytes

SPARE_BYTES: Final = 256 * 2**20
"""Left to the rest of the machine: what needs more than is free without it is refused, not
tried."""
_MEMORY_WORDS: Final = (
    "can't allocate memory",
    "bad_alloc",
    "out of memory",
    "Cannot allocate memory",
)


def check_weights_fit(spec: EngineSpec, config: HfConfig) -> None:
    """Refuse weights that are larger than a CPU machine's free memory.

    They are counted on the meta device, where they take none.

    Raises
    ------
    OutOfMemory
        They are.
    """
    free_bytes = available_bytes()
    if spec.device != "cpu" or free_bytes is None:
        return
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config)
    weight_bytes = (
        sum(parameter.numel() for parameter in distinct_parameters(shapes))
        * TORCH_DTYPE[spec.dtype].itemsize
    )
    if weight_bytes > free_bytes - SPARE_BYTES:
        raise OutOfMemory(
            f"its weights take {format_bytes(weight_bytes)} in {spec.dtype},"
            f" {format_bytes(free_bytes)} are free"
        )


def check_point_fits(
    config: HfConfig,
    prompt_shape: tuple[int, ...],
    gen_tokens: int,
    *,
    kv_bytes_per_token: float,
    held_bytes: int,
) -> None:
    """Refuse a batch whose KV cache and activations are larger than a CPU machine's free memory.

    A GPU says so itself, without harm.

    ``held_bytes`` is what the engine's cache has already, and will use again.

    Raises
    ------
    OutOfMemory
        They are.
    """
    free_bytes = available_bytes()
    if free_bytes is None:
        return
    batch_size, prompt_tokens = prompt_shape
    element_bytes = torch.float32.itemsize if config.dtype is None else config.dtype.itemsize
    kv_bytes = kv_bytes_per_token * batch_size * (prompt_tokens + gen_tokens)
    # What a layer holds at once during prefill: its input, residual and output, and both halves of
    # a gated MLP.
    widest = 3 * config.hidden_size + 2 * (
        getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    )
    activation_bytes = batch_size * (prompt_tokens * widest + config.vocab_size) * element_bytes
    if kv_bytes - held_bytes + activation_bytes > free_bytes - SPARE_BYTES:
        raise OutOfMemory(
            f"{format_bytes(kv_bytes)} of KV cache and {format_bytes(activation_bytes)} of"
            f" activations, {format_bytes(free_bytes)} are free"
        )


def is_want_of_memory(error: BaseException) -> bool:
    """Did an allocation fail, in whichever of torch's words?"""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _MEMORY_WORDS)


def die_of_memory() -> NoReturn:
    """Ranks that lost one of them cannot go on together: end, in words that the parent takes for what it was."""
    sys.stderr.write("out of memory in a tensor-parallel rank\n")
    sys.stderr.flush()
    os._exit(1)
