"""How is one step run in each mode: with a growing cache, a preallocated one, or a compiled step?"""

import gc
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache, StaticCache

from inferometer.measure.engines.transformers_config import HfModel
from inferometer.spec.types import EngineMode

Tensor: TypeAlias = torch.Tensor
Cache: TypeAlias = Any
"""A ``DynamicCache`` or ``StaticCache``."""
N_COMPILING_STEPS = 3
"""Steps run to compile: CUDA graphs are recorded by the second and replayed by the third."""


class Decoder:
    """Greedy prefill and decode steps of whole batches.

    Call ``prepare``, then ``prefill``, then ``step`` again and again.
    """

    def __init__(self, model: HfModel, mode: EngineMode, device: str) -> None:
        self._model = model
        self._mode = mode
        self._device = device
        self._cache: Cache = None
        self._shape: tuple[int, int] | None = None
        self._step: Callable[[Tensor, Cache], Tensor] = self._next_token
        self.compile_s = 0.0

    def prepare(self, prompt_ids: Tensor, gen_tokens: int) -> None:
        """Bring the cache to its starting state; allocate and compile where the shape is new.

        Not part of any timing.
        """
        batch_size, prompt_tokens = prompt_ids.shape
        shape = (batch_size, prompt_tokens + gen_tokens)
        if shape != self._shape:
            self.release()
            self._shape = shape
            if self._mode == "compiled":
                self._compile(
                    prompt_ids, cache_tokens=max(shape[1], prompt_tokens + N_COMPILING_STEPS)
                )
        if self._mode == "eager":
            self._cache = DynamicCache(config=self._model.config)
        elif self._cache is None:
            self._cache = StaticCache(config=self._model.config, max_cache_len=shape[1])
        else:
            self._cache.reset()

    def prefill(self, prompt_ids: Tensor) -> Tensor:
        """The first token of every sequence."""
        return self._next_token(prompt_ids, self._cache)

    def step(self, tokens: Tensor) -> Tensor:
        """The next token of every sequence."""
        return self._step(tokens, self._cache)

    def cache_bytes(self) -> int:
        """Bytes of keys and values that the cache holds now."""
        layers = [] if self._cache is None else self._cache.layers
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))

    def release(self) -> None:
        """Give the cache and the compiled step back."""
        self._cache = self._shape = None
        self._step = self._next_token
        if self._mode == "compiled":
            # Compiled code is kept per shape and its number is limited: beyond the limit steps
            # would silently run eager.
            torch.compiler.reset()
        gc.collect()
        if self._device != "cpu":
            torch.cuda.empty_cache()

    def _next_token(self, ids: Tensor, cache: Cache) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits
        return logits[:, -1:].argmax(-1)

    def _compile(self, prompt_ids: Tensor, *, cache_tokens: int) -> None:
        begin_s = time.perf_counter()
        if self._device == "cpu":
            self._step = torch.compile(self._next_token, dynamic=False)
        else:
            graphed = torch.compile(self._next_token, dynamic=False, mode="reduce-overhead")

            def step(tokens: Tensor, cache: Cache) -> Tensor:
                torch.compiler.cudagraph_mark_step_begin()
                return graphed(
                    tokens, cache
                ).clone()  # the graph writes its next result to the same place

            self._step = step
        self._cache = StaticCache(config=self._model.config, max_cache_len=cache_tokens)
        tokens = self.prefill(prompt_ids)
        for _ in range(N_COMPILING_STEPS):
            tokens = self.step(tokens)
        if self._device != "cpu":
            torch.cuda.synchronize()
        self.compile_s += time.perf_counter() - begin_s
