"""How long does a model take in vLLM, prefill and each decode step apart?

vLLM runs in this process and is stepped by hand: all sequences are added before the first step, so
that one step prefills them all and every further step decodes them all. Where the batch's prompts
exceed ``MAX_BATCHED_TOKENS`` the prefill takes several steps, and ``prefill_ns`` lasts until every
sequence has its first token.
"""

import time
from itertools import pairwise
from typing import Final

import torch
import transformers

from inferometer.errors import EngineError, SpecError
from inferometer.measure.engines.protocol import ModelReference, OutOfMemory, Repetition
from inferometer.measure.engines.transformers_loading import TORCH_DTYPE, hash_weights
from inferometer.measure.engines.vllm_loading import (
    KV_BLOCK_TOKENS,
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    SPARE_BYTES,
    VllmModel,
    check_spec,
    is_memory,
    last_line,
    read_model,
    start_core,
    stop_core,
)
from inferometer.measure.resident import available_bytes
from inferometer.records.columns import I64
from inferometer.records.types import EngineFacts
from inferometer.spec.types import EngineSpec

FIRST_KV_TOKENS: Final = 16_384
"""Room in the KV cache at the start."""


def open_engine(spec: EngineSpec, model: ModelReference) -> "VllmEngine":
    """Load a model into vLLM.

    Raises
    ------
    SpecError, OutOfMemory, EngineError
        The question is bad; the weights do not fit; vLLM failed.
    """
    check_spec(spec)
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
        self._model = model
        self._weights_sha256 = weights_sha256
        self._core = start_core(model, FIRST_KV_TOKENS)
        self._load_s = time.perf_counter() - load_begin_s
        self._n_runs = 0

    def facts(self) -> EngineFacts:
        """What is loaded, in which versions?

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
            compile_s=None,
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
        self._grow_to(batch_size * -(-(prompt_tokens + gen_tokens) // KV_BLOCK_TOKENS))
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

    def close(self) -> None:
        """Give back memory and the other ranks."""
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
        """Would vLLM run this as one static batch, with nothing waiting and nothing preempted?"""
        config = self._model.config.get_text_config()
        if batch_size > MAX_SEQUENCES:
            raise SpecError(
                f"a batch of {batch_size}",
                where="--batch-sizes",
                allowed=f"at most {MAX_SEQUENCES} on this engine",
            )
        length_tokens = prompt_tokens + gen_tokens
        if length_tokens > config.max_position_embeddings:
            raise SpecError(
                f"{prompt_tokens} prompt tokens and {gen_tokens} to generate",
                where="the sweep's points",
                allowed=f"together at most the model's {config.max_position_embeddings}",
            )
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
        """Nothing may wait and nothing may be preempted: have as many KV blocks as the batch will fill."""
        usable_blocks = (
            self._core.vllm_config.cache_config.num_gpu_blocks - 1
        )  # block 0 is vLLM's null block
        if needed_blocks <= usable_blocks:
            return
        stop_core(self._core)
        try:
            self._core = start_core(self._model, 2 * needed_blocks * KV_BLOCK_TOKENS)
        except OutOfMemory:
            self._core = start_core(self._model, (usable_blocks + 1) * KV_BLOCK_TOKENS)
            raise

    def _attention_name(self) -> str | None:
        if self._spec.tensor_parallel_size > 1:
            return None  # it is in the ranks' processes
        groups = self._core.model_executor.driver_worker.worker.model_runner.attn_groups
        return str(groups[0][0].backend.get_name())
