"""The real scheduler of vLLM 0.32.0 behind the same interface: no model, no GPU, no network.

Runs in vLLM's environment.
"""

import functools
import json
import os
import tempfile
from collections import deque
from pathlib import Path
from typing import NamedTuple

import torch
from cases import STOP_TOKEN
from stepping import State
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_kv_cache_capacity,
    get_kv_cache_configs,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from inferometer.inputs.types import ModelSpec
from inferometer.perfmodel.kv_cache import head_kinds
from inferometer.simulate.scheduler_config import n_accepted

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
}


class VllmFactory:
    """Makes real schedulers; keeps what is slow to make."""

    def __init__(self) -> None:
        init_none_hash(sha256)
        self._folder = tempfile.TemporaryDirectory()
        (Path(self._folder.name) / "config.json").write_text(json.dumps(MODEL))

    def config(self, config) -> VllmConfig:
        model = ModelConfig(
            model=self._folder.name,
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=config.max_model_len,
        )
        cache = CacheConfig(
            block_size=config.block_size,
            gpu_memory_utilization=0.9,
            cache_dtype="auto",
            enable_prefix_caching=config.enable_prefix_caching,
        )
        cache.num_gpu_blocks = config.num_blocks
        vllm_config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_active_seqs=config.max_num_active_seqs,
                max_model_len=config.max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=config.enable_chunked_prefill,
                async_scheduling=config.async_scheduling,
                policy=config.policy,
                long_prefill_token_threshold=config.long_prefill_token_threshold,
                long_prefill_token_threshold_adaptive=config.long_prefill_token_threshold_adaptive,
                watermark=config.watermark_fraction,
                scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
            ),
            model_config=model,
            cache_config=cache,
        )
        vllm_config.speculative_config = speculation(config, model, vllm_config.parallel_config)
        # as on a GPU: on a CPU it is turned off, and less may be in flight
        vllm_config.scheduler_config.async_scheduling = config.async_scheduling
        return vllm_config

    def scheduler(self, config):
        cls = AsyncScheduler if config.async_scheduling else Scheduler
        vllm_config = self.config(config)
        blocks = KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=kv_groups(config),
            prefix_cache_retention_interval=vllm_config.cache_config.prefix_cache_retention_interval,
        )
        if (
            config.pipeline_parallel_size > 1
        ):  # as on a GPU: model runner V2, which alone pipes asynchronously
            vllm_config.parallel_config.pipeline_parallel_size = config.pipeline_parallel_size
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        scheduler = cls(
            vllm_config=vllm_config,
            kv_cache_config=blocks,
            structured_output_manager=StructuredOutputManager(vllm_config),
            block_size=config.block_size,
            log_stats=False,
        )
        os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
        assert config.pipeline_parallel_size == 1 or scheduler.use_v2_model_runner
        return scheduler


def kv_groups(config):
    """A layer for each group, those with a window first, as in the models that have both."""
    layer = {
        "block_size": config.block_size,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
    }
    windows = [config.sliding_window] * config.num_sliding_groups + [None] * config.num_full_groups
    return [
        KVCacheGroupSpec(
            [f"layer{group}"],
            FullAttentionSpec(**layer)
            if window is None
            else SlidingWindowSpec(**layer, sliding_window=window),
        )
        for group, window in enumerate(windows)
    ]


def speculation(config, model, parallel):
    """vLLM's own rules of each method, without the weights of a draft.

    Made as n-grams, which need none, and then renamed.
    """
    if config.num_speculative_tokens == 0:
        return None
    made = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=config.num_speculative_tokens,
        prompt_lookup_max=2,
        target_model_config=model,
        target_parallel_config=parallel,
    )
    made.method = config.draft_method
    return made


class Capacity(NamedTuple):
    """What vLLM makes of a model's layers and of the memory for its KV cache."""

    windows: tuple[int, ...]
    """Of each group of layers, 0 for full attention."""
    n_layers: int
    """The most in a group."""
    num_blocks: int
    n_tokens: int
    """"GPU KV cache size" in the log."""
    max_concurrency: float


def capacity(model: ModelSpec, config, memory_bytes: int, factory: VllmFactory) -> Capacity:
    """By vLLM's own functions, for one device that holds all layers."""
    vllm_config = factory.config(config)
    vllm_config.cache_config.kv_cache_layout = "LBNHC"
    layer = {"block_size": config.block_size, "dtype": torch.bfloat16}
    window, specs = model.attention.sliding_window_tokens, {}
    full, sliding = head_kinds(model)
    slides = functools.partial(SlidingWindowSpec, sliding_window=window)
    for kind, spec in ((sliding, slides), (full, FullAttentionSpec)):
        # keys and values of as many elements in all, whatever each has
        head_size = kind.n_elements // (2 * kind.n_kv_heads)
        for _ in range(kind.n_layers - kind.n_shared_layers):
            specs[f"layer{len(specs)}"] = spec(
                **layer, num_kv_heads=kind.n_kv_heads, head_size=head_size
            )
    (found,) = get_kv_cache_configs(vllm_config, [specs], [memory_bytes])
    n_tokens, concurrency = get_kv_cache_capacity(vllm_config, found)
    return Capacity(
        windows=tuple(
            getattr(group.kv_cache_spec, "sliding_window", None) or 0
            for group in found.kv_cache_groups
        ),
        n_layers=max(len(group.layer_names) for group in found.kv_cache_groups),
        num_blocks=found.num_blocks,
        n_tokens=n_tokens,
        max_concurrency=concurrency,
    )


class VllmDriver:
    def __init__(self, case, factory: VllmFactory) -> None:
        self.case = case
        self.scheduler = factory.scheduler(case.config)
        hasher = (
            get_request_block_hasher(case.config.block_size, sha256)
            if case.config.enable_prefix_caching
            else None
        )
        self.requests = [
            Request(
                request_id=f"{i:06d}",
                prompt_token_ids=list(request.prompt),
                sampling_params=SamplingParams(
                    max_tokens=request.max_tokens, ignore_eos=True, stop_token_ids=[STOP_TOKEN]
                ),
                pooling_params=None,
                arrival_time=float(request.arrival),
                priority=request.priority,
                block_hasher=hasher,
            )
            for i, request in enumerate(case.requests)
        ]
        self.in_flight = deque()
        self.output = None

    def add(self, index):
        self.scheduler.add_request(self.requests[index])

    def schedule(self):
        drafted = {f"{i:06d}" for i, request in enumerate(self.requests) if request.spec_token_ids}
        self.output = self.scheduler.schedule()
        self.in_flight.append((self.output, self.yields(self.output, drafted)))

    def yields(self, output, drafted):
        """What will the device say of each request in the batch.

        None of an unfinished prompt, else how many drafts it can accept?

        Who had no drafts and verifies some was padded with such as cannot be accepted.
        """
        verified = output.scheduled_spec_decode_tokens
        return {
            name: (
                None
                if self.requests[int(name)].is_prefill_chunk
                else len(verified.get(name, ())) * (name in drafted)
            )
            for name in output.num_scheduled_tokens
        }

    def update(self):
        output, yields = self.in_flight.popleft()
        self.output = None
        self.scheduler.update_from_output(output, self.sampled(yields))
        if not self.case.config.async_scheduling and (drafts := self.drafts(list(yields))):
            self.scheduler.update_draft_token_ids(drafts)

    def sampled(self, yields):
        tokens = [
            [] if n_drafts is None else self._next_tokens(int(name), n_drafts)
            for name, n_drafts in yields.items()
        ]
        places = {name: i for i, name in enumerate(yields)}
        return ModelRunnerOutput(
            req_ids=list(yields), req_id_to_index=places, sampled_token_ids=tokens, logprobs=None
        )

    def n_drafts(self):
        """How many drafts does the step verify that was just scheduled?"""
        return sum(map(len, self.output.scheduled_spec_decode_tokens.values()))

    def drafts(self, names):
        """What the draft proposes for each request in a batch; the scheduler ignores it for unfinished prompts."""
        n_drafts = self.case.config.num_speculative_tokens
        return DraftTokenIds(names, [[1] * n_drafts for _ in names]) if n_drafts else None

    def abort(self, index):
        self.scheduler.finish_requests(f"{index:06d}", RequestStatus.FINISHED_ABORTED)

    def has_unfinished(self):
        return self.scheduler.has_unfinished_requests()

    def state(self):
        running = self.scheduler.running
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        output = self.output
        return State(
            scheduled=(
                tuple((int(name), n) for name, n in output.num_scheduled_tokens.items())
                if output
                else ()
            ),
            preempted=(
                tuple(sorted(int(name) for name in output.preempted_req_ids or ()))
                if output
                else ()
            ),
            running=tuple(int(request.request_id) for request in running),
            waiting=tuple(int(request.request_id) for request in self.scheduler.waiting),
            computed=tuple(request.num_computed_tokens for request in running),
            blocks=tuple(
                tuple(
                    block.block_id
                    for manager in managers
                    for block in manager.req_to_blocks[request.request_id]
                )
                for request in running
            ),
            free_queue=tuple(
                block.block_id
                for block in (
                    self.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
                )
            ),
        )

    def _next_tokens(self, index, n_drafts):
        """What the model says next, and one more for each draft that it accepts; of a finished request nobody asks."""
        outputs, n_said = self.case.requests[index].outputs, self.requests[index].num_output_tokens
        n_tokens = 1 + n_accepted(self.case.config.acceptance, index, n_said, n_drafts)
        return [
            outputs[i] if i < len(outputs) else STOP_TOKEN for i in range(n_said, n_said + n_tokens)
        ]
