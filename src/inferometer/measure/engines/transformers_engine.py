"""How long does a model take in Hugging Face transformers, prefill and each decode step apart?

The loop is ours and not ``generate``'s: prefill asks for the last position's logits only, decode
steps run the whole batch, and nothing stops early.
"""

import gc
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import transformers
from transformers import DynamicCache, StaticCache

from inferometer.measure.engines.phase_clock import clock_for
from inferometer.measure.engines.protocol import ModelReference, OutOfMemory, Repetition
from inferometer.measure.engines.transformers_config import HfModel
from inferometer.measure.engines.transformers_loading import (
    check_spec,
    distinct_parameters,
    hash_weights,
    load_model,
    read_config,
    replicated_parts,
)
from inferometer.measure.engines.transformers_memory import (
    check_point_fits,
    check_weights_fit,
    die_of_memory,
    is_want_of_memory,
)
from inferometer.measure.engines.transformers_ranks import Ranks, rank_of_this_process
from inferometer.records.columns import I64
from inferometer.records.types import EngineFacts
from inferometer.spec.types import EngineMode, EngineSpec


def open_engine(spec: EngineSpec, model: ModelReference) -> "TransformersEngine":
    """Load a model.

    Raises
    ------
    SpecError, OutOfMemory, EngineError
        The question is bad; the weights do not fit; transformers failed.
    """
    check_spec(spec)
    begin_s = time.perf_counter()
    if spec.n_threads is not None:
        torch.set_num_threads(max(spec.n_threads // spec.tensor_parallel_size, 1))
    torch.manual_seed(0)
    config = read_config(model)
    if rank_of_this_process() is None:
        check_weights_fit(spec, config)
    ranks = (
        Ranks.start(spec, model)
        if spec.tensor_parallel_size > 1 and rank_of_this_process() is None
        else None
    )
    device = (
        spec.device
        if spec.tensor_parallel_size == 1
        else f"{spec.device}:{rank_of_this_process()}".replace("cpu:0", "cpu")
    )
    loaded = load_model(
        spec, model, config, device.partition(":")[0] if spec.device == "cpu" else device
    )
    engine = TransformersEngine(spec, model, loaded, ranks)
    engine.warm_up(begin_s)
    return engine


class TransformersEngine:
    """One model in transformers.

    With tensor parallelism this is one rank of it; rank 0 tells the others what to run.
    """

    def __init__(
        self, spec: EngineSpec, model: ModelReference, loaded: HfModel, ranks: Ranks | None
    ) -> None:
        self._spec = spec
        self._reference = model
        self._model = loaded
        self._ranks = ranks
        self._decoder = Decoder(loaded, spec.mode, spec.device)
        self._device = next(iter(loaded.parameters())).device
        self._kv_bytes_per_token = 0.0
        self._load_s = 0.0
        self._weights_sha256 = None if spec.load_format == "dummy" else hash_weights(model)

    def facts(self) -> EngineFacts:
        """What is loaded, in which versions?"""
        parameters = list(distinct_parameters(self._model))
        is_random = self._spec.load_format == "dummy" or self._reference.location is None
        versions = {
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "cuda": torch.version.cuda,
        }
        return EngineFacts(
            engine="transformers",
            version=transformers.__version__,
            libraries=tuple(
                (name, version) for name, version in sorted(versions.items()) if version is not None
            ),
            weight_bytes=sum(
                parameter.numel() * parameter.element_size() for parameter in parameters
            ),
            n_parameters=sum(parameter.numel() for parameter in parameters),
            weights_origin="random" if is_random else "file",
            weights_sha256=self._weights_sha256,
            attention_implementation=getattr(self._model.config, "_attn_implementation", None),
            load_s=self._load_s,
            compile_s=self._decoder.compile_s if self._spec.mode == "compiled" else None,
            compute_dtype=self._spec.dtype,
            kv_cache_dtype=self._spec.dtype,
            replicated_parts=replicated_parts(self._model.config, self._spec),
        )

    def warm_up(self, load_begin_s: float) -> None:
        """Run two tokens: libraries set themselves up, and the cache tells how many bytes a token takes."""
        eager = Decoder(self._model, "eager", self._spec.device)
        ids = torch.ones((1, 2), dtype=torch.long, device=self._device)
        with torch.inference_mode():
            eager.prepare(ids, 1)
            eager.prefill(ids)
        self._kv_bytes_per_token = eager.cache_bytes() / 2 * self._spec.tensor_parallel_size
        self._load_s = time.perf_counter() - load_begin_s

    def run(self, prompt_ids: I64, gen_tokens: int) -> Repetition:
        """Run one static batch once.

        Raises
        ------
        OutOfMemory
            It does not fit, or would not leave the machine alive.
        """
        if self._spec.device == "cpu":
            check_point_fits(
                self._model.config,
                prompt_ids.shape,
                gen_tokens,
                kv_bytes_per_token=self._kv_bytes_per_token,
                held_bytes=self._decoder.cache_bytes(),
            )
        try:
            ids = torch.from_numpy(prompt_ids)
            if self._ranks is not None:
                self._ranks.announce(ids, gen_tokens)
            with torch.inference_mode():
                return self._run(ids.to(self._device), gen_tokens)
        except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
            self._decoder.release()
            is_memory = is_want_of_memory(error)
            if self._spec.tensor_parallel_size > 1 and (
                is_memory or (self._ranks is not None and self._ranks.ran_out_of_memory())
            ):
                die_of_memory()
            if is_memory:
                raise OutOfMemory(str(error).splitlines()[0]) from None
            raise

    def close(self) -> None:
        """Give back memory and the other ranks."""
        self._decoder.release()
        if self._ranks is not None:
            self._ranks.close()

    def _run(self, ids: torch.Tensor, gen_tokens: int) -> Repetition:
        self._decoder.prepare(ids, gen_tokens)
        clock = clock_for(self._spec.device)
        if self._spec.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        clock.settle()
        started_ns = time.perf_counter_ns()
        clock.mark()
        tokens = [self._decoder.prefill(ids)]
        clock.mark()
        clock.settle()
        for _ in range(gen_tokens - 1):
            tokens.append(self._decoder.step(tokens[-1]))
            clock.mark()
        clock.settle()
        prefill_ns, *step_ns = clock.durations_ns()
        is_cuda = self._spec.device == "cuda"
        return Repetition(
            started_ns=started_ns,
            prefill_ns=prefill_ns,
            decode_step_ns=tuple(step_ns),
            reserved_bytes=torch.cuda.max_memory_reserved() if is_cuda else None,
            allocated_bytes=torch.cuda.max_memory_allocated() if is_cuda else None,
            output_ids=tuple(tuple(row) for row in torch.cat(tokens, dim=1).tolist()),
        )


# How is one step run in each mode: with a growing cache, a preallocated one, or a compiled step?


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
