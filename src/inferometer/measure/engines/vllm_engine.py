"""How long does a model take in vLLM, prefill and each decode step apart?

vLLM runs in this process and is stepped by hand: all sequences are added before the first step, so
that one step prefills them all and every further step decodes them all. Where the batch's prompts
exceed ``MAX_BATCHED_TOKENS`` the prefill takes several steps, and ``prefill_ns`` lasts until every
sequence has its first token.
"""

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

import numpy as np
import torch
import transformers

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.types import EngineSpec
from inferometer.measure import environments
from inferometer.measure.child_processes import available_bytes
from inferometer.measure.engines.hf_folder import (
    config_folder,
    unpacked_if_small,
    weights_folder,
)
from inferometer.measure.engines.protocol import (
    ModelReference,
    OutOfMemory,
    Repetition,
    Score,
    Scored,
    is_memory,
    last_line,
)
from inferometer.measure.engines.transformers_loading import (
    TORCH_DTYPE,
    HfConfig,
    check_device,
    distinct_parameters,
    hash_weights,
    read_config,
)
from inferometer.records.columns import I64
from inferometer.records.types import EngineFacts

# How does a model come into vLLM: what it can do, with which arguments, with how large a KV
# cache?


VllmCore: TypeAlias = Any
"""vLLM's ``LLMEngine``, whose types only its own environment has."""

MAX_BATCHED_TOKENS: Final = 131_072
"""Prompt tokens of one step: the largest sweeps prefill in one. vLLM sizes index buffers by it,
a few MB."""
KV_BLOCK_TOKENS: Final = {"cpu": 128, "cuda": 16}
"""vLLM's own choice on each device."""
SPARE_BYTES: Final = 256 * 2**20
LEAST_MEMORY_FRACTION: Final = 0.01
"""vLLM refuses 0."""
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
    """A model for vLLM to load, with what is known before."""

    spec: EngineSpec
    config: HfConfig
    folder: str
    n_parameters: int | None
    """None where transformers does not know the architecture."""
    is_random: bool


def check_spec(spec: EngineSpec) -> None:
    """Refuse settings that this engine does not support on this machine."""
    check_device(spec)
    environments.check_torch_spec(spec)


def check_build(spec: EngineSpec) -> None:
    """Refuse a device that this vLLM was not built for."""
    from vllm.platforms import current_platform  # only its own environment has it

    built_for = str(current_platform.device_type)
    if built_for != spec.device:
        raise SpecError(
            f"the vLLM that is installed runs on {built_for or 'no device of this machine'},"
            f" not on {spec.device}",
            where="--device",
            allowed=built_for or "another machine's",
            try_="--engine transformers, or install the other build of vLLM",
        )


def read_model(spec: EngineSpec, model: ModelReference) -> VllmModel:
    """Read the model's configuration.

    Unpacks a GGUF file where that has not been done, and prepares this process for vLLM.

    Raises
    ------
    SpecError, EngineError
        The question is bad; the file cannot be unpacked.
    """
    readable = model if spec.load_format == "dummy" else unpacked_if_small(model)
    config = read_config(readable)
    environments.check_heads(spec, config.get_text_config().num_attention_heads)
    _set_variables(spec)
    is_random = spec.load_format == "dummy" or model.location is None
    return VllmModel(
        spec=spec,
        config=config,
        folder=config_folder(config) if is_random else weights_folder(readable),
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
    memory = _check_room(model, kv_bytes)
    # A request of the longest length must fit, beside the null block and a block that is partly
    # filled.
    block_tokens = KV_BLOCK_TOKENS[model.spec.device]
    longest_tokens = min(
        model.config.get_text_config().max_position_embeddings, kv_tokens - 2 * block_tokens
    )
    arguments = EngineArgs(
        model=model.folder,
        dtype=cast("Any", model.spec.dtype),
        load_format="dummy" if model.is_random else "auto",
        skip_tokenizer_init=True,
        max_model_len=longest_tokens,
        max_num_batched_tokens=MAX_BATCHED_TOKENS,
        max_num_seqs=environments.MAX_SEQUENCES,
        block_size=block_tokens,
        kv_cache_memory_bytes=kv_bytes // model.spec.tensor_parallel_size,
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=model.spec.mode == "eager",
        tensor_parallel_size=model.spec.tensor_parallel_size,
        disable_log_stats=True,
        **memory,
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
    """Free memory and ranks, so that another core can start in this process."""
    from vllm.distributed.parallel_state import (
        cleanup_dist_env_and_memory,
    )  # only its own environment has it

    core.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def _set_variables(spec: EngineSpec) -> None:
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    # Beside a GPU vLLM takes one thread of each rank: more wait for one another in small work.
    n_threads = spec.n_threads or (
        len(os.sched_getaffinity(0)) if spec.device == "cpu" else spec.tensor_parallel_size
    )
    # vLLM falls back to one thread where nothing is said; ranks inherit the variable, this process
    # has read it already.
    os.environ["OMP_NUM_THREADS"] = str(max(n_threads // spec.tensor_parallel_size, 1))
    torch.set_num_threads(max(n_threads // spec.tensor_parallel_size, 1))


def _count_parameters(config: HfConfig) -> int | None:
    """Parameters of this architecture, tied ones once.

    Counted on the meta device, where they take no memory.
    """
    try:
        with torch.device("meta"):
            shapes = transformers.AutoModelForCausalLM.from_config(config)
    except ValueError:
        return None  # vLLM knows architectures that transformers does not
    return int(sum(parameter.numel() for parameter in distinct_parameters(shapes)))


def _kv_token_bytes(model: VllmModel) -> int:
    """KV bytes per token in all layers: 2 · layers · KV heads · head size · bytes of a number."""
    text = model.config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    n_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return int(
        2 * text.num_hidden_layers * n_kv_heads * head_dim * TORCH_DTYPE[model.spec.dtype].itemsize
    )


def _check_room(model: VllmModel, kv_bytes: int) -> dict[str, Any]:
    """Arguments of vLLM for the memory of weights and KV cache.

    vLLM writes its whole cache once, so that all of it becomes resident.
    """
    total_bytes, free_bytes = _memory_bytes(model.spec)
    weight_bytes = (model.n_parameters or 0) * TORCH_DTYPE[model.spec.dtype].itemsize
    # Ranks on CPUs share one memory; each GPU has its own.
    n_memories = 1 if model.spec.device == "cpu" else model.spec.tensor_parallel_size
    needed_bytes = (weight_bytes + kv_bytes) // n_memories
    if needed_bytes > free_bytes - SPARE_BYTES:
        raise OutOfMemory(
            f"weights of {weight_bytes / 2**30:.1f} GiB and a KV cache of {kv_bytes / 2**30:.1f}"
            f" GiB, {free_bytes / 2**30:.1f} GiB free"
        )
    if model.spec.device == "cpu":
        return {}  # it takes what the cache needs
    return {"gpu_memory_utilization": max(needed_bytes / total_bytes, LEAST_MEMORY_FRACTION)}


def _memory_bytes(spec: EngineSpec) -> tuple[int, int]:
    """Total and free bytes of the memory that vLLM fills.

    On a CPU, that of the node of its first core: vLLM binds all its memory to it.
    """
    if spec.device == "cuda":
        torch.cuda.empty_cache()  # what probes of the ceilings took and gave back
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return total_bytes, free_bytes
    from vllm.utils.cpu_resource_utils import (
        get_allowed_cpu_list,
        get_memory_node_info,
    )  # only its own environment has it

    node = get_memory_node_info(get_allowed_cpu_list()[0].numa_node)
    node_bytes: int = node.available_memory
    return int(node.total_memory), min(node_bytes, available_bytes() or node_bytes)


FIRST_KV_TOKENS: Final = {"cpu": 16_384, "cuda": 131_072}
"""Room in the KV cache at the start: a start on a GPU takes a minute, and memory is there."""


def open_engine(spec: EngineSpec, model: ModelReference) -> "VllmEngine":
    """Load a model into vLLM.

    Raises
    ------
    SpecError, OutOfMemory, EngineError
        The question is bad; the weights do not fit; vLLM failed.
    """
    check_spec(spec)
    check_build(spec)
    begin_s = time.perf_counter()
    loadable = read_model(spec, model)
    return VllmEngine(loadable, begin_s, None if loadable.is_random else hash_weights(model))


class VllmEngine:
    """One model in vLLM's engine core, stepped by hand.

    The KV cache grows by starting vLLM anew when a point needs more: all of it is resident, and a
    sweep's largest point is not known at the start.
    """

    def __init__(self, model: VllmModel, load_begin_s: float, weights_sha256: str | None) -> None:
        self._spec = model.spec
        self._block_tokens = KV_BLOCK_TOKENS[model.spec.device]
        self._model = model
        self._weights_sha256 = weights_sha256
        self._core = start_core(model, FIRST_KV_TOKENS[model.spec.device])
        self._load_s = time.perf_counter() - load_begin_s
        self._n_runs = 0

    def facts(self) -> EngineFacts:
        """The loaded model, and versions.

        Parameters are counted from the configuration: vLLM packs weights for its CPU kernels, out
        of torch's sight. It does not say how long it compiled: in mode 'compiled' that is in
        ``load_s``.
        """
        import vllm  # only its own environment has it

        n_parameters = self._model.n_parameters
        cache = self._core.vllm_config.cache_config
        return EngineFacts(
            engine="vllm",
            version=vllm.__version__,
            libraries=(
                ("torch", str(torch.__version__)),
                ("transformers", transformers.__version__),
                ("vllm", vllm.__version__),
            ),
            weight_bytes=(
                None
                if n_parameters is None
                else n_parameters * TORCH_DTYPE[self._spec.dtype].itemsize
            ),
            n_parameters=n_parameters,
            weights_origin="random" if self._model.is_random else "file",
            weights_sha256=self._weights_sha256,
            attention_implementation=self._attention_name(),
            load_s=self._load_s,
            compute_dtype=str(self._core.vllm_config.model_config.dtype).removeprefix("torch."),
            kv_cache_dtype=(
                self._spec.dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype)
            ),
            n_kv_blocks=cache.num_gpu_blocks,
            kv_block_tokens=cache.block_size,
        )

    def run(self, prompt_ids: I64, gen_tokens: int) -> Repetition:
        """Run one static batch once.

        Raises
        ------
        OutOfMemory
            Its KV cache does not fit into memory, or an allocation failed.
        """
        batch_size, prompt_tokens = prompt_ids.shape
        self._check_fits(batch_size, prompt_tokens, gen_tokens)
        self._grow_to(batch_size * -(-(prompt_tokens + gen_tokens) // self._block_tokens))
        self._n_runs += 1
        names = [f"{self._n_runs}-{index}" for index in range(len(prompt_ids))]
        try:
            return self._run(names, prompt_ids.tolist(), gen_tokens)
        except (MemoryError, RuntimeError) as error:
            self._core.abort_request(names)
            if is_memory(error):
                raise OutOfMemory(
                    str(error).splitlines()[0] if str(error) else "an allocation failed"
                ) from None
            raise EngineError(
                f"vLLM failed: {last_line(error)}", where="one of its steps"
            ) from error

    def score(self, task: Score) -> Scored:
        """Read the windows as prompts with their probabilities, and continue the first ones."""
        prompts = np.asarray(
            [row[: task.prompt_tokens] for row in task.token_ids[: task.n_generated]], np.int64
        )
        continued = self.run(prompts, task.gen_tokens).output_ids if len(prompts) else ()
        read = [self._read(f"read-{i}", list(row)) for i, row in enumerate(task.token_ids)]
        return Scored(
            token_ids=task.token_ids,
            nll=tuple(nll for nll, _ in read),
            top_ids=tuple(top_ids for _, top_ids in read),
            generated_ids=continued,
        )

    def _read(self, name: str, window: list[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """-log p of each token after the first, and the most probable token there."""
        from vllm import SamplingParams  # only its own environment has it

        wanted = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, prompt_logprobs=1)
        (prompt,) = self._core.renderer.render_cmpl([{"prompt_token_ids": window}])
        self._core.add_request(name, prompt, wanted)
        found: list[dict[int, Any]] = []
        while self._core.has_unfinished_requests():
            for output in self._core.step():
                found = output.prompt_logprobs[1:] if output.prompt_logprobs else found
        nll = tuple(-float(at[token].logprob) for at, token in zip(found, window[1:], strict=True))
        return nll, tuple(max(at, key=lambda token: at[token].logprob) for at in found)

    def close(self) -> None:
        """Free memory and end the other ranks."""
        stop_core(self._core)

    def _run(self, names: list[str], prompts: list[list[int]], gen_tokens: int) -> Repetition:
        from vllm import SamplingParams  # only its own environment has it
        from vllm.sampling_params import RequestOutputKind

        wanted = SamplingParams(
            max_tokens=gen_tokens,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        rendered = self._core.renderer.render_cmpl(
            [{"prompt_token_ids": prompt} for prompt in prompts]
        )
        tokens: dict[str, list[int]] = {name: [] for name in names}
        started_ns = time.perf_counter_ns()
        for name, prompt in zip(names, rendered, strict=True):
            self._core.add_request(name, prompt, wanted)
        marks_ns: list[int] = []
        while self._core.has_unfinished_requests():
            outputs = self._core.step()
            now_ns = time.perf_counter_ns()
            for output in outputs:
                tokens[output.request_id] += output.outputs[0].token_ids
            if marks_ns or all(tokens.values()):
                marks_ns.append(now_ns)
        return Repetition(
            started_ns=started_ns,
            prefill_ns=marks_ns[0] - started_ns,
            decode_step_ns=tuple(after - before for before, after in pairwise(marks_ns)),
            reserved_bytes=None,
            allocated_bytes=None,
            output_ids=tuple(tuple(tokens[name]) for name in names),
        )

    def _check_fits(self, batch_size: int, prompt_tokens: int, gen_tokens: int) -> None:
        """Refuse a batch that would wait or be preempted."""
        config = self._model.config.get_text_config()
        environments.check_batch(self._spec, batch_size)
        length_tokens = prompt_tokens + gen_tokens
        if length_tokens > config.max_position_embeddings:
            raise SpecError(
                f"{prompt_tokens} prompt tokens and {gen_tokens} to generate",
                where="the sweep's points",
                allowed=f"together at most the model's {config.max_position_embeddings}",
            )
        if self._spec.device == "cuda":
            return  # vLLM ran its largest step before it took the cache's memory
        free_bytes = available_bytes()
        widest = 3 * config.hidden_size + 2 * getattr(
            config, "intermediate_size", config.hidden_size
        )
        n_tokens = min(batch_size * prompt_tokens, MAX_BATCHED_TOKENS)
        needed_bytes = (n_tokens * widest + batch_size * config.vocab_size) * TORCH_DTYPE[
            self._spec.dtype
        ].itemsize
        if free_bytes is not None and needed_bytes > free_bytes - SPARE_BYTES:
            raise OutOfMemory(
                f"{needed_bytes / 2**30:.1f} GiB of activations, {free_bytes / 2**30:.1f} GiB free"
            )

    def _grow_to(self, needed_blocks: int) -> None:
        """Restart with enough KV blocks, so that nothing waits and nothing is preempted."""
        usable_blocks = (
            self._core.vllm_config.cache_config.num_gpu_blocks - 1
        )  # block 0 is vLLM's null block
        if needed_blocks <= usable_blocks:
            return
        stop_core(self._core)
        try:
            self._core = start_core(self._model, 2 * needed_blocks * self._block_tokens)
        except OutOfMemory:
            self._core = start_core(self._model, (usable_blocks + 1) * self._block_tokens)
            raise

    def _attention_name(self) -> str | None:
        if self._spec.tensor_parallel_size > 1:
            return None  # it is in the ranks' processes
        runner = self._core.model_executor.driver_worker.worker.model_runner
        groups = getattr(runner, "attn_groups", None)  # not every version's runner has them
        return str(groups[0][0].backend.get_name()) if groups and groups[0] else None
