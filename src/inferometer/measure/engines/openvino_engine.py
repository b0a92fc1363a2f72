"""How long does a model take in OpenVINO GenAI, prefill and each decode step apart?

Its continuous-batching pipeline is stepped by hand: all sequences are added before the first step,
so that one step prefills them all and every further step decodes them all. It reads a GGUF file as
it is and keeps its 4- and 8-bit weights; ``quantization`` packs those of 16 or 32 bits; ``dtype``
is the format of activations and multiplications.
"""

import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.gguf import GgufContent, hash_file, read_gguf
from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.measure import environments
from inferometer.measure.child_processes import available_bytes
from inferometer.measure.engines import openvino_weights
from inferometer.measure.engines.openvino_spec import PRECISIONS, READABLE, check_spec, no_weights
from inferometer.measure.engines.protocol import (
    ModelReference,
    OutOfMemory,
    Repetition,
    Score,
    Scored,
    is_memory,
    last_line,
)
from inferometer.records.columns import I64
from inferometer.records.types import EngineFacts

Pipeline: TypeAlias = Any
"""``openvino_genai.ContinuousBatchingPipeline``, whose types only its own environment has."""

MAX_BATCHED_TOKENS: Final = 131_072
"""Prompt tokens of one step: the largest sweeps prefill in one."""
KV_FRACTION: Final = 0.5
"""Share of the free memory that the KV cache may take."""
SPARE_BYTES: Final = 256 * 2**20
KV_BLOCK_TOKENS: Final = 32
"""The CPU plugin's block size."""

_HELD_BLOCKS: Final = {"Q4_1": (32, 18.5), "Q8_0": (32, 35.0), "F16": (1, 2.0), "F32": (1, 4.0)}
"""GGUF format -> (weights in a block, bytes that OpenVINO holds for them): the codes, a 16-bit
scale and a zero point as wide as a code. Source: constants of the graph that openvino-genai
2026.4.1 builds from such files."""


def open_engine(spec: EngineSpec, model: ModelReference) -> "OpenVinoEngine":
    """Load a model into OpenVINO.

    Raises
    ------
    SpecError, OutOfMemory, EngineError
        The question is bad; the weights do not fit; OpenVINO failed.
    """
    check_spec(spec)
    location = _readable_location(model)
    begin_s = time.perf_counter()
    content = read_gguf(location) if location.is_file() else None
    properties = _properties(spec)
    computes_in = _resolved_precision(properties)
    if computes_in != spec.dtype:
        raise SpecError(
            f"this CPU computes in {computes_in} when asked for {spec.dtype}",
            where="--dtype",
            allowed=", ".join(dict.fromkeys((computes_in, "float32"))),
        )
    engine = OpenVinoEngine(spec, model.spec, content, *_started(location, spec, properties))
    engine.warm_up(begin_s)
    if location.is_file():
        engine.weights_sha256 = hash_file(location)
    return engine


class OpenVinoEngine:
    """One model in OpenVINO's continuous-batching pipeline, stepped by hand."""

    def __init__(
        self,
        spec: EngineSpec,
        model: ModelSpec | None,
        content: GgufContent | None,
        pipeline: Pipeline,
        weights: openvino_weights.PackedWeights | None,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._model = model
        self._content = content
        self._pipeline: Pipeline = pipeline
        self._n_requests = 0
        self._n_kv_blocks: int | None = None
        self._load_s = 0.0
        self.weights_sha256: str | None = None

    def facts(self) -> EngineFacts:
        """The loaded model, and versions.

        Parameters and bytes of weights are absent where the file is no GGUF.
        """
        content, packed = self._content, self._weights
        weight_bytes = None if content is None else _held_bytes(content)
        formats = () if content is None else content.formats
        names = ("openvino", "openvino-genai", "openvino-tokenizers")
        return EngineFacts(
            engine="openvino",
            version=version("openvino-genai"),
            libraries=tuple((name, version(name)) for name in names),
            weight_bytes=weight_bytes if packed is None else packed.n_bytes,
            n_parameters=None if content is None else content.n_parameters,
            weights_origin="file",
            weights_sha256=self.weights_sha256,
            attention_implementation="paged",
            load_s=self._load_s,
            compute_dtype=self._spec.dtype,
            weight_formats=formats if packed is None else packed.formats,
            kv_cache_dtype=self._kv_cache_dtype(),
            n_kv_blocks=self._n_kv_blocks,
            kv_block_tokens=KV_BLOCK_TOKENS,
        )

    def warm_up(self, load_begin_s: float) -> None:
        """Run one short request: the pipeline allocates its cache and reports its blocks."""
        self._run(np.ones((1, 2 * KV_BLOCK_TOKENS), dtype=np.int64), 2)
        metrics = self._pipeline.get_metrics()
        # Usage is in percent; 64 prompt tokens and the first generated one take three blocks.
        self._n_kv_blocks = (
            round(3 / (metrics.max_cache_usage / 100)) if metrics.max_cache_usage > 0 else None
        )
        self._load_s = time.perf_counter() - load_begin_s

    def run(self, prompt_ids: I64, gen_tokens: int) -> Repetition:
        """Run one static batch once.

        Raises
        ------
        OutOfMemory
            Its KV cache does not fit into the blocks there are, or an allocation failed.
        """
        batch_size, prompt_tokens = prompt_ids.shape
        self._check_fits(batch_size, prompt_tokens, gen_tokens)
        try:
            return self._run(prompt_ids, gen_tokens)
        except (MemoryError, RuntimeError) as error:
            if is_memory(error):
                raise OutOfMemory(last_line(error)) from None
            raise EngineError(
                f"OpenVINO failed: {last_line(error)}", where="one of its steps"
            ) from error

    def score(self, task: Score) -> Scored:
        """Logprobs of the windows as echoed prompts, and continuations of the first ones.

        Which token is the most probable, OpenVINO does not say.
        """
        windows = np.asarray(task.token_ids, dtype=np.int64)
        prompts = windows[: task.n_generated, : task.prompt_tokens]
        continued = self._run(prompts, task.gen_tokens).output_ids if len(prompts) else ()
        return Scored(
            token_ids=task.token_ids,
            nll=tuple(self._read(row) for row in windows),
            top_ids=(),
            generated_ids=continued,
        )

    def _read(self, window: I64) -> tuple[float, ...]:
        from openvino import Tensor  # only its own environment has it
        from openvino_genai import GenerationConfig

        echoed = GenerationConfig(
            max_new_tokens=1, ignore_eos=True, do_sample=False, logprobs=1, echo=True
        )
        self._n_requests += 1
        handle = self._pipeline.add_request(
            self._n_requests, Tensor(np.ascontiguousarray(window[np.newaxis, :])), echoed
        )
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        # One for each token of the prompt but the first, whose place is empty, then the new one.
        return tuple(-value for value in handle.read_all()[0].generated_log_probs[1 : len(window)])

    def close(self) -> None:
        """Free the model and its cache."""
        self._pipeline = None

    def _run(self, prompt_ids: I64, gen_tokens: int) -> Repetition:
        from openvino import Tensor  # only its own environment has it
        from openvino_genai import GenerationConfig

        wanted = GenerationConfig(
            max_new_tokens=gen_tokens, min_new_tokens=gen_tokens, ignore_eos=True, do_sample=False
        )
        prompts = [Tensor(np.ascontiguousarray(row[np.newaxis, :])) for row in prompt_ids]
        first_id = self._n_requests
        self._n_requests += len(prompts)
        started_ns = time.perf_counter_ns()
        # A request lives as long as its handle does.
        handles = [
            self._pipeline.add_request(first_id + index, prompt, wanted)
            for index, prompt in enumerate(prompts)
        ]
        waiting = set(range(len(handles)))
        marks_ns: list[int] = []
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now_ns = time.perf_counter_ns()
            waiting = {index for index in waiting if not handles[index].can_read()}
            if not waiting:
                marks_ns.append(now_ns)
        return Repetition(
            started_ns=started_ns,
            prefill_ns=marks_ns[0] - started_ns,
            decode_step_ns=tuple(after - before for before, after in pairwise(marks_ns)),
            reserved_bytes=None,
            allocated_bytes=None,
            output_ids=tuple(tuple(handle.read_all()[0].generated_ids) for handle in handles),
        )

    def _check_fits(self, batch_size: int, prompt_tokens: int, gen_tokens: int) -> None:
        """Refuse a batch that would wait or be preempted."""
        environments.check_batch(self._spec, batch_size)
        if batch_size * prompt_tokens > MAX_BATCHED_TOKENS:
            raise OutOfMemory(
                f"{batch_size * prompt_tokens} prompt tokens at once, of which a step takes"
                f" {MAX_BATCHED_TOKENS}"
            )
        needed_blocks = batch_size * -(-(prompt_tokens + gen_tokens) // KV_BLOCK_TOKENS)
        if self._n_kv_blocks is not None and needed_blocks > self._n_kv_blocks:
            raise OutOfMemory(
                f"{needed_blocks} KV blocks of {KV_BLOCK_TOKENS} tokens needed, {self._n_kv_blocks}"
                " there"
            )

    def _kv_cache_dtype(self) -> str | None:
        """Number format of the KV cache; from its bytes, not from what was asked for."""
        if self._model is None or self._model.mla is not None or not self._n_kv_blocks:
            return None
        attention = self._model.attention
        n_numbers = (
            2
            * self._model.n_layers
            * attention.n_kv_heads
            * attention.head_dim
            * KV_BLOCK_TOKENS
            * self._n_kv_blocks
        )
        bytes_per_number = self._pipeline.get_metrics().kv_cache_size_in_bytes / n_numbers
        sixteen_bits = self._spec.kv_cache_dtype or self._spec.dtype
        if 1.0 <= bytes_per_number < 1.5:  # scales and zero points included
            return "int8"
        return {2: sixteen_bits, 4: "float32"}.get(round(bytes_per_number, 2))


def _started(
    location: Path, spec: EngineSpec, properties: dict[str, Any]
) -> tuple[Pipeline, openvino_weights.PackedWeights | None]:
    """The pipeline, and its packed weights."""
    if spec.quantization is None:
        return _start(location, properties), None
    try:
        with openvino_weights.packed(location, spec.quantization) as (folder, done):
            return _start(folder, properties), done
    except (MemoryError, RuntimeError, OSError) as error:
        if is_memory(error):
            raise OutOfMemory(last_line(error)) from None
        raise EngineError(
            f"its weights could not be packed: {last_line(error)}",
            where=f"--quantization {spec.quantization}",
            try_="unchanged weights: omit --quantization",
        ) from error


def _start(location: Path, properties: dict[str, Any]) -> Pipeline:
    from openvino_genai import (
        ContinuousBatchingPipeline,
        SchedulerConfig,
    )  # only its own environment has it

    free_bytes = available_bytes()
    size_bytes = (
        location.stat().st_size
        if location.is_file()
        else sum(path.stat().st_size for path in location.glob("*.bin"))
    )
    if free_bytes is not None and size_bytes > free_bytes - SPARE_BYTES:
        raise OutOfMemory(
            f"the weights take {size_bytes / 2**30:.1f} GiB, {free_bytes / 2**30:.1f} GiB free"
        )
    scheduler = SchedulerConfig()
    scheduler.cache_size = max(
        int(KV_FRACTION * ((free_bytes or 8 * 2**30) - size_bytes) / 2**30), 1
    )
    scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
    scheduler.max_num_seqs = environments.MAX_SEQUENCES
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = False
    try:
        return ContinuousBatchingPipeline(str(location), scheduler, "CPU", properties, {})
    except (MemoryError, RuntimeError) as error:
        if is_memory(error):
            raise OutOfMemory(last_line(error)) from None
        raise EngineError(
            f"OpenVINO could not load the model: {last_line(error)}",
            where=str(location),
            try_="--engine transformers",
        ) from error


def _properties(spec: EngineSpec) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": PRECISIONS[spec.dtype],
        "KV_CACHE_PRECISION": PRECISIONS[spec.kv_cache_dtype or spec.dtype],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": (
            0
        ),  # else it quantises activations to 8 bits behind the dtype's back
        "INFERENCE_NUM_THREADS": spec.n_threads or 0,  # 0: as many as there are cores
        "ENABLE_CPU_PINNING": (
            False
        ),  # on a shared machine a thread bound to a busy core waits for it
    }


def _resolved_precision(properties: dict[str, Any]) -> str:
    """Number format in which the CPU plugin computes with these properties.

    A one-node graph tells.
    """
    import openvino  # only its own environment has it
    from openvino import opset13

    entry = opset13.parameter([1], np.float32)
    compiled = openvino.Core().compile_model(
        openvino.Model([opset13.relu(entry)], [entry]), "CPU", properties
    )
    name = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return next((dtype for dtype, precision in PRECISIONS.items() if precision == name), name)


def _readable_location(model: ModelReference) -> Path:
    if model.location is None:
        raise no_weights()
    location = Path(model.location)
    if not location.is_file() and not (location / "openvino_model.xml").is_file():
        raise SpecError(
            f"{model.location!r} is not in a form that OpenVINO reads",
            where="--model",
            allowed=READABLE,
            try_="a GGUF file, or convert the folder with optimum-intel's export",
        )
    return location


def _held_bytes(content: GgufContent) -> int | None:
    """Bytes that OpenVINO allocates for these weights.

    None where a format's layout was not looked at.
    """
    total_bytes = 0.0
    for name, n_weights in content.formats:
        if name not in _HELD_BLOCKS:
            return None
        block_weights, block_bytes = _HELD_BLOCKS[name]
        total_bytes += n_weights / block_weights * block_bytes
    return round(total_bytes)
