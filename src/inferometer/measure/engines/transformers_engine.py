"""How long does a model take in Hugging Face transformers, prefill and each decode step apart?

The loop is ours and not ``generate``'s: prefill asks for the last position's logits only, decode
steps run the whole batch, and nothing stops early.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from inferometer.inputs.types import EngineMode, EngineSpec
from inferometer.measure.child_processes import available_bytes
from inferometer.measure.engines.hf_folder import unpacked_if_small
from inferometer.measure.engines.protocol import (
    Ceiling,
    ModelReference,
    OutOfMemory,
    Repetition,
    Score,
    Scored,
    is_memory,
)
from inferometer.measure.engines.transformers_loading import (
    TORCH_DTYPE,
    HfConfig,
    HfModel,
    check_spec,
    distinct_parameters,
    hash_weights,
    load_model,
    pack_weights,
    packed_sizes,
    read_config,
    replicated_parts,
)
from inferometer.measure.engines.transformers_pairs import PairedSteps
from inferometer.measure.engines.transformers_quality import read_text
from inferometer.measure.engines.transformers_ranks import Ranks, rank_of_this_process
from inferometer.records.columns import I64
from inferometer.records.types import EngineFacts
from inferometer.units import format_bytes


def open_engine(spec: EngineSpec, model: ModelReference) -> "TransformersEngine":
    """Load a model.

    Raises
    ------
    SpecError, OutOfMemory, EngineError
        The question is bad; the weights do not fit; transformers failed.
    """
    check_spec(spec)
    begin_s = time.perf_counter()
    _set_threads(spec)
    torch.manual_seed(0)
    loadable = model if spec.load_format == "dummy" else unpacked_if_small(model)
    config = read_config(loadable)
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
        spec, loadable, config, device.partition(":")[0] if spec.device == "cpu" else device
    )
    engine = TransformersEngine(spec, model, pack_weights(loaded, spec.quantization), ranks)
    engine.warm_up(begin_s)
    return engine


def _set_threads(spec: EngineSpec) -> None:
    if spec.n_threads is not None:
        torch.set_num_threads(max(spec.n_threads // spec.tensor_parallel_size, 1))


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
        self._decoders = {spec.mode: self._decoder}
        self._pairs = PairedSteps(loaded)
        self._device = next(iter(loaded.parameters())).device
        self._kv_bytes_per_token = 0.0
        self._load_s = 0.0
        self._weights_sha256 = None if spec.load_format == "dummy" else hash_weights(model)

    def facts(self) -> EngineFacts:
        """The loaded model, and versions."""
        parameters = list(distinct_parameters(self._model))
        packed_bytes, n_packed = packed_sizes(self._model)
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
            )
            + packed_bytes,
            n_parameters=sum(parameter.numel() for parameter in parameters) + n_packed,
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
        """Run two tokens, to initialise libraries and to measure KV bytes per token."""
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
            self._release()
            is_short = is_memory(error)
            if self._spec.tensor_parallel_size > 1 and (
                is_short or (self._ranks is not None and self._ranks.ran_out_of_memory())
            ):
                die_of_memory()
            if is_short:
                raise OutOfMemory(str(error).splitlines()[0]) from None
            raise

    def retune(self, spec: EngineSpec) -> None:
        """Continue in another mode or with other threads; compiled parts are reused."""
        self._spec = spec
        _set_threads(spec)
        if spec.mode not in self._decoders:
            self._decoders[spec.mode] = Decoder(self._model, spec.mode, spec.device)
        self._decoder = self._decoders[spec.mode]

    def score(self, task: Score) -> Scored:
        """Change the model, then read and continue the text.

        Raises
        ------
        SpecError
            The model has no tokenizer, or the text is too short.
        """
        return read_text(self._model, self._reference, task)

    def paired_steps(self) -> tuple[Ceiling, ...]:
        """Steps of this model and of a narrow one, in turns; nothing but of eager steps of one process."""
        is_plain = self._spec.mode == "eager" and self._spec.quantization is None
        if not is_plain or self._spec.tensor_parallel_size > 1:
            return ()
        return self._pairs.bout()

    def close(self) -> None:
        """Free memory and end the other ranks."""
        self._release()
        if self._ranks is not None:
            self._ranks.close()

    def _release(self) -> None:
        for decoder in self._decoders.values():
            decoder.release()

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
        """Free the cache and the compiled step."""
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


# Would it fit?
# Asked before a machine swaps itself to death, and told apart from other failures after.


SPARE_BYTES: Final = 256 * 2**20
"""Left to the rest of the machine: what needs more than is free without it is refused, not
tried."""


def check_weights_fit(spec: EngineSpec, config: HfConfig) -> None:
    """Refuse weights that are larger than a CPU machine's free memory.

    They are counted on the meta device, where they take none.
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


def die_of_memory() -> NoReturn:
    """End all ranks when one is lost, with the message that the parent expects."""
    sys.stderr.write("out of memory in a tensor-parallel rank\n")
    sys.stderr.flush()
    os._exit(1)


# When was each phase of a run over, without disturbing it?
# On a CPU the clock is read after each step. On CUDA work is asynchronous: an event is recorded
# in the stream after each step and read when all is over, so that no step waits for a
# synchronisation of ours; phases are synchronised.


class PhaseClock(Protocol):
    """Marks, in order; the durations are those between them."""

    def mark(self) -> None:
        """End an interval with the work submitted so far."""
        ...

    def settle(self) -> None:
        """Wait until the device has done all that was submitted."""
        ...

    def durations_ns(self) -> tuple[int, ...]:
        """The intervals between the marks, once settled."""
        ...


class CpuClock:
    """Reads the monotonic clock: operations on a CPU are over when they return."""

    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        """Read the clock."""
        self._marks_ns.append(time.perf_counter_ns())

    def settle(self) -> None:
        """Wait for the device; nothing to do on a CPU."""

    def durations_ns(self) -> tuple[int, ...]:
        """The intervals between readings."""
        return tuple(
            after - before
            for before, after in zip(self._marks_ns, self._marks_ns[1:], strict=False)
        )


class CudaClock:
    """Records events in the current stream."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def mark(self) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def durations_ns(self) -> tuple[int, ...]:
        """The intervals between events; their resolution is about half a microsecond."""
        return tuple(
            round(before.elapsed_time(after) * 1e6)
            for before, after in zip(self._events, self._events[1:], strict=False)
        )


def clock_for(device: str) -> PhaseClock:
    """A fresh clock for one run on this device."""
    return CpuClock() if device == "cpu" else CudaClock()
