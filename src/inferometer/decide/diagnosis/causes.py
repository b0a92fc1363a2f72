"""What may limit a server, and what is simulated to tell how much of a latency it costs?

Each cause is a limit that a simulation lifts. What a setting can change names vLLM's flag (0.33)
and SGLang's (0.5); the others are the work itself, or the traffic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from inferometer.decide.diagnosis.rebuilding import Rebuilt
from inferometer.decide.diagnosis.traffic import sharing
from inferometer.inputs.workload.plan import NONE
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.server_names import ServerKind

Kind: TypeAlias = Literal["setting", "traffic", "work"]
CauseName: TypeAlias = Literal[
    "max_num_seqs",
    "kv_cache",
    "prefix_cache",
    "small_step_budget",
    "large_step_budget",
    "long_prompts",
    "overload",
    "prompt_compute",
    "step_floor",
    "kv_reads",
]

_LIFTED: Final = 4
_LEAST_BUDGET: Final = 128
_LEAST_CHUNK: Final = 256
_NOTHING_RATIO: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One limit of a server that can be lifted in a simulation."""

    name: CauseName
    kind: Kind
    words: str
    """Text after "limited by"."""
    change: str
    """The change that lessens it; ``{value}`` where a simulation gives a number."""
    changes: Mapping[ServerKind, str] = field(default_factory=dict[ServerKind, str])
    """The same in the words of one engine alone."""
    costs: str
    """Drawback of the change."""
    lifted: Callable[[Rebuilt, float], Rebuilt]
    """The same server with the limit moved by this factor."""
    factors: tuple[float, ...] = (_LIFTED,)
    """Factors on the limit, from the smallest change to one that counts as lifted."""
    value_of: Callable[[Rebuilt, float], int] | None = None
    """Value in ``change`` for a server whose limit was moved by this factor."""
    applies: Callable[[Rebuilt], bool] = lambda _: True
    """Can a server have this limit at all?"""
    decided_by: str = ""
    """What would decide, where metrics alone do not; '': a longer window."""


def _with_config(**ratios: Callable[[Rebuilt, float], int]) -> Callable[[Rebuilt, float], Rebuilt]:
    def lifted(one: Rebuilt, factor: float) -> Rebuilt:
        changes: dict[str, Any] = {name: value(one, factor) for name, value in ratios.items()}
        return replace(one, config=replace(one.config, **changes))

    return lifted


def _more_at_once(one: Rebuilt, factor: float) -> int:
    """No more than a step has tokens: another limit is not moved with this one."""
    return min(round(one.config.max_num_seqs * factor), one.config.max_num_batched_tokens)


def _blocks(one: Rebuilt, factor: float) -> int:
    return round(one.config.num_blocks * factor)


def _budget(one: Rebuilt, factor: float) -> int:
    moved = round(one.config.max_num_batched_tokens * factor)
    return max(moved, one.config.max_num_seqs, _LEAST_BUDGET)


def _chunk(one: Rebuilt, factor: float) -> int:
    longest = one.config.max_model_len
    return min(max(round(one.config.max_num_batched_tokens * factor), _LEAST_CHUNK), longest)


def _fewer(one: Rebuilt, factor: float) -> Rebuilt:
    """The requests of one of ``factor`` replicas that take turns; in a closed loop, of part of the clients."""
    n_replicas = round(factor)
    plan = one.plan
    stays = np.arange(plan.n_requests) % n_replicas == 0
    for row, before in enumerate(plan.follows.tolist()):
        if before != NONE:
            stays[row] = stays[before]
    rows = np.flatnonzero(stays)
    place = np.full(plan.n_requests + 1, NONE)
    place[rows] = np.arange(len(rows))
    fewer = plan._replace(**{name: getattr(plan, name)[rows] for name in plan._fields})
    owner = place[fewer.prefix_request]
    fewer = fewer._replace(
        follows=place[fewer.follows].astype(np.int32),
        joins=place[fewer.joins].astype(np.int32),
        accompanies=place[fewer.accompanies].astype(np.int32),
        prefix_request=owner.astype(np.int32),
        prefix_tokens=np.where(owner == NONE, 0, fewer.prefix_tokens).astype(np.int32),
    )
    return replace(one, plan=fewer)


def _caching(one: Rebuilt, factor: float) -> Rebuilt:
    """The rebuilt server with its prefix cache switched on."""
    del factor
    config = replace(one.config, enable_prefix_caching=True)
    return replace(one, config=config, plan=sharing(one.plan, one.alike_fraction))


def _without(*fields: str) -> Callable[[Rebuilt, float], Rebuilt]:
    def lifted(one: Rebuilt, factor: float) -> Rebuilt:
        del factor
        changes: dict[str, Any] = {
            name: getattr(one.steps, name) * _NOTHING_RATIO for name in fields
        }
        steps: StepTimeArrays = one.steps._replace(**changes)
        return replace(one, steps=steps)

    return lifted


_STEP_BUDGET: Final[Mapping[ServerKind, str]] = {
    "vllm": "--max-num-batched-tokens {value}",
    "sglang": "--chunked-prefill-size {value}",
    "tensorrt-llm": "--max_num_tokens {value}",
    "llama.cpp": "--batch-size {value}",
    "nim": "NIM_MAX_NUM_BATCHED_TOKENS={value}",
}
_OF_THEIR_OWN: Final = "no setting: long prompts to a server of their own"
CAUSES: Final[tuple[Cause, ...]] = (
    Cause(
        name="max_num_seqs",
        kind="setting",
        words="max_num_seqs: the batch is full, and requests wait for a place in it",
        change="--max-num-seqs {value} (SGLang: --max-running-requests)",
        changes={
            "vllm": "--max-num-seqs {value}",
            "sglang": "--max-running-requests {value}",
            "tensorrt-llm": "--max_batch_size {value}",
            "llama.cpp": "--parallel {value} and --ctx-size as many times larger",
            "nim": "NIM_MAX_NUM_SEQS={value}",
        },
        costs="TPOT rises with the batch",
        lifted=_with_config(max_num_seqs=_more_at_once),
        factors=(1.25, 1.5, 2, 3, 4, 8),
        value_of=lambda one, _: one.config.max_num_seqs,
    ),
    Cause(
        name="kv_cache",
        kind="setting",
        words="the KV cache: requests wait for memory, or are preempted",
        change=(
            "{value} KV blocks: --gpu-memory-utilization, --kv-cache-dtype fp8 (check its"
            " quality), more --tensor-parallel-size (SGLang: --mem-fraction-static)"
        ),
        changes={
            "vllm": "{value} KV blocks: --gpu-memory-utilization, --kv-cache-dtype fp8 (check its"
            " quality), more --tensor-parallel-size",
            "sglang": "{value} pages of KV cache: --mem-fraction-static, --kv-cache-dtype fp8_e4m3"
            " (check its quality), more --tp-size",
            "tensorrt-llm": "{value} KV blocks: --kv_cache_free_gpu_memory_fraction, an fp8 KV"
            " cache (check its quality), more --tp_size",
            "llama.cpp": "{value} blocks of 16 tokens: a larger --ctx-size, --cache-type-k q8_0"
            " (check its quality)",
            "nim": "{value} KV blocks: NIM_KVCACHE_PERCENT, more NIM_TENSOR_PARALLEL_SIZE",
        },
        costs="memory for all else; fp8: quality",
        lifted=_with_config(num_blocks=_blocks),
        factors=(1.25, 1.5, 2, 3, 4),
        value_of=lambda one, _: one.config.num_blocks,
    ),
    Cause(
        name="prefix_cache",
        kind="setting",
        words="prefix caching, which is off: prompts that begin alike are computed again",
        change="--enable-prefix-caching",
        changes={
            "sglang": "no --disable-radix-cache",
            "tensorrt-llm": "kv_cache_config.enable_block_reuse: true",
            "llama.cpp": "--cache-prompt",
            "nim": "NIM_ENABLE_KV_CACHE_REUSE=1",
        },
        costs="next to nothing: vLLM and SGLang have it on by default",
        lifted=_caching,
        applies=lambda one: one.is_cache_off,
        decided_by=(
            "its metrics do not tell how much of the prompts is alike; with prefix caching on they"
            " do"
        ),
    ),
    Cause(
        name="small_step_budget",
        kind="setting",
        words="max_num_batched_tokens: prompts are cut into more steps than need be",
        change="--max-num-batched-tokens {value} (SGLang: --chunked-prefill-size)",
        changes=_STEP_BUDGET,
        costs="longer gaps between tokens while prompts are computed",
        lifted=_with_config(max_num_batched_tokens=_budget),
        factors=(2, 4, 8),
        value_of=lambda one, _: one.config.max_num_batched_tokens,
    ),
    Cause(
        name="large_step_budget",
        kind="setting",
        words="max_num_batched_tokens: long prefills hold up the answers",
        change="--max-num-batched-tokens {value} (SGLang: --chunked-prefill-size)",
        changes=_STEP_BUDGET,
        costs="TTFT of long prompts",
        lifted=_with_config(max_num_batched_tokens=_budget),
        factors=(0.5, 0.25, 0.125),
        value_of=lambda one, _: one.config.max_num_batched_tokens,
    ),
    Cause(
        name="long_prompts",
        kind="setting",
        words="long prompts: shorter ones wait behind them",
        change="--long-prefill-token-threshold {value} (SGLang: --schedule-policy hrrn)",
        changes={
            "vllm": "--long-prefill-token-threshold {value}",
            "sglang": "--schedule-policy hrrn (vLLM has chunks of {value} tokens)",
            "tensorrt-llm": _OF_THEIR_OWN,
            "llama.cpp": _OF_THEIR_OWN,
            "nim": _OF_THEIR_OWN,
        },
        costs="TTFT of the long prompts",
        lifted=_with_config(long_prefill_token_threshold=_chunk),
        factors=(0.5, 0.25, 0.125, 0.0625),
        value_of=lambda one, _: one.config.long_prefill_token_threshold,
    ),
    Cause(
        name="overload",
        kind="traffic",
        words="the traffic: more requests come than one replica serves in time",
        change="{value} replicas, or fewer requests (inferometer size)",
        costs="devices",
        lifted=_fewer,
        factors=(2, 3, 4),
        value_of=lambda _, factor: round(factor),
    ),
    Cause(
        name="prompt_compute",
        kind="work",
        words="the computing of prompts",
        change="prefix caching, 8-bit weights, more tensor parallelism, shorter prompts",
        costs="quality, or devices",
        lifted=_without("matmul_row_s"),
    ),
    Cause(
        name="step_floor",
        kind="work",
        words="the time that every step takes: reading weights, and launching kernels",
        change="8- or 4-bit weights, CUDA graphs (no --enforce-eager), speculation, more TP",
        changes={
            "sglang": "8- or 4-bit weights, CUDA graphs (no --disable-cuda-graph), speculation,"
            " more TP",
            "llama.cpp": "weights of fewer bits, --n-gpu-layers where there is a GPU, speculation"
            " (--model-draft)",
        },
        costs="quality, or devices",
        lifted=_without(
            "launch_s", "prefill_launch_s", "captured_launch_s", "read_s", "head_read_s"
        ),
    ),
    Cause(
        name="kv_reads",
        kind="work",
        words="reading the KV cache in each step",
        change="--kv-cache-dtype fp8, shorter contexts, more tensor parallelism",
        changes={
            "sglang": "--kv-cache-dtype fp8_e4m3, shorter contexts, more tensor parallelism",
            "llama.cpp": "--flash-attn on, --cache-type-k q8_0, shorter contexts",
        },
        costs="quality, or devices",
        lifted=_without("kv_token_s"),
    ),
)
"""A setting comes before the traffic, and that before the work itself."""
