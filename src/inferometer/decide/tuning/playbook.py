"""Which settings does each step of the playbook try, and what can be predicted of it?

A step looks at the server as it is and lists changes, the nearest first, or says why there is
nothing to try. Flags are those of vLLM 0.33 and SGLang 0.5.23.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from inferometer.inputs.workload.plan import RequestPlan
from inferometer.perfmodel.whatif import find_method
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig

Value: TypeAlias = int | float | str | bool
Variant: TypeAlias = tuple[tuple[str, Value], ...]
"""Differences from the server as it is: setting and value, sorted."""
Kind: TypeAlias = Literal["plain", "lossy", "assumed"]
"""lossy: answers change, so that quality is checked first; assumed: it rests on a number that only
the user's own text tells."""
StepName: TypeAlias = Literal[
    "memory",
    "graphs_and_host",
    "kernels",
    "max_num_seqs",
    "step_budget",
    "prefill_shaping",
    "prefix_cache",
    "kv_precision",
    "weight_precision",
    "speculation",
    "parallelism",
    "scheduling",
    "routing",
    "again",
]
STEP_NAMES: Final = get_args(StepName)

_AT_ONCE: Final = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_BUDGETS: Final = (512, 1024, 2048, 4096, 8192, 16384)
_THRESHOLDS: Final = (256, 512, 1024, 2048, 4096)
_AGAIN_AT_ONCE: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
_AGAIN_THRESHOLDS: Final = (512, 2048)
_UTILIZATIONS: Final = (0.92, 0.95, 0.97)
_TP: Final = (1, 2, 4, 8)
_DRAFTS: Final = (1, 2, 3, 5)
_CONSERVATIVENESS: Final = (0.3, 0.6, 1.0, 1.3)
_ROUTERS: Final = ("least-loaded", "prefix-affine", "round-robin")


class Change(NamedTuple):
    """One change that may help."""

    words: str
    settings: tuple[Mapping[str, Value], ...]
    """Several where it is not known which of them will be true: an acceptance, for example."""


class Now(NamedTuple):
    """The server as it is, and its traffic."""

    deployment: Deployment
    plan: RequestPlan
    n_replicas: int
    router: str
    is_plain: bool
    """Equal replicas, without prefill replicas, a gate or shared experts."""
    has_fewer_devices: bool
    """Is using fewer devices worth something?"""

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return self.deployment.config

    @property
    def engine(self) -> str:
        """``vllm`` or ``sglang``."""
        return self.deployment.knobs.policy


Tries: TypeAlias = tuple[Change, ...] | str
"""Changes, or why there is none to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step."""

    name: StepName
    title: str
    flags: Mapping[str, str]
    """Flags of each engine."""
    tries: Callable[[Now], Tries]
    kind: Kind = "plain"
    unpredicted: str = ""
    """The part of this step that no simulation predicts, to be measured."""


def changed(variant: Variant, settings: Mapping[str, Value]) -> Variant:
    """The variant with these settings.

    Example
    -------
    >>> changed((("tp", 2),), {"max_num_seqs": 64, "tp": 1})
    (('max_num_seqs', 64), ('tp', 1))
    """
    return tuple(sorted({**dict(variant), **settings}.items()))


def _one(name: str, value: Value) -> Change:
    return Change(f"{name} {value}", ({name: value},))


def _nearest_first(values: Iterable[int], current: int) -> list[int]:
    others = [value for value in values if value != current]
    return sorted(others, key=lambda value: abs(math.log(value / max(current, 1))))


def _changes(name: str, values: Sequence[Value], nothing: str) -> Tries:
    return tuple(_one(name, value) for value in values) or nothing


def _memory(now: Now) -> Tries:
    if now.deployment.kv_origin == "given" or now.deployment.hardware is None:
        return "the number of KV blocks is given, so the share of memory changes nothing"
    used = now.deployment.knobs.share_fraction
    higher = [value for value in _UTILIZATIONS if value > used + 0.004]
    return _changes("gpu_memory_utilization", higher, f"{used:g} of the memory is in use")


def _host(now: Now) -> Tries:
    if isinstance(now.config, SchedulerConfig) and not now.config.async_scheduling:
        return (_one("async_scheduling", value=True),)
    if isinstance(now.config, SglangConfig) and now.config.disable_overlap_schedule:
        return (_one("disable_overlap_schedule", value=False),)
    return "scheduling overlaps with the device already, and graphs are on by default"


def _kernels(now: Now) -> Tries:
    del now
    return "no kernel's speed is predicted"


def _at_once_values(now: Now) -> list[int]:
    most = (
        now.config.max_num_batched_tokens if isinstance(now.config, SchedulerConfig) else 1_000_000
    )
    return _nearest_first((one for one in _AT_ONCE if one <= most), now.config.max_num_active)


def _at_once(now: Now) -> Tries:
    return _changes("max_num_seqs", _at_once_values(now), "a step has fewer tokens")


def _budget_values(now: Now) -> list[int]:
    config = now.config
    if isinstance(config, SchedulerConfig):
        least = config.max_num_seqs
        if not config.enable_chunked_prefill:
            least = max(least, config.max_model_len)
        return _nearest_first(
            (one for one in _BUDGETS if one >= least), config.max_num_batched_tokens
        )
    if isinstance(config, SglangConfig):
        whole = (one for one in _BUDGETS if one % config.page_size == 0)
        return _nearest_first(whole, config.chunked_prefill_size)
    return []


def _budget(now: Now) -> Tries:
    return _changes("max_num_batched_tokens", _budget_values(now), "no other value is allowed")


def _shaping(now: Now) -> Tries:
    config = now.config
    if isinstance(config, SglangConfig):
        return (_one("enable_mixed_chunk", not config.enable_mixed_chunk),)
    if not isinstance(config, SchedulerConfig):
        return "this engine has no such setting"
    longest = int(now.plan.prompt_tokens.max())
    current = config.long_prefill_token_threshold
    most = min(longest, config.max_num_batched_tokens)
    values = [one for one in _THRESHOLDS if one < most and one != current]
    if current:
        values.append(0)
    return _changes(
        "long_prefill_token_threshold", values, f"the longest prompt has {longest:,} tokens"
    )


def _prefix(now: Now) -> Tries:
    if not now.plan.prefix_tokens.any():
        return "no prompt of this workload begins as an earlier one does"
    if now.config.enable_prefix_caching:
        return "on already, as by default"
    if isinstance(now.config, SglangConfig):
        return (_one("disable_radix_cache", value=False),)
    return (_one("enable_prefix_caching", value=True),)


def _kv_precision(now: Now) -> Tries:
    stored = now.deployment.engine.kv_cache_dtype or now.deployment.engine.dtype
    if stored in {"float8", "int8", "int4", "float4"}:
        return f"{stored} already"
    return (_one("kv_dtype", "float8"),)


def _weights(now: Now) -> Tries:
    engine = now.deployment.engine
    if engine.quantization in {"int4", "float4"}:
        return f"{engine.quantization} already"
    formats = ("float8", "int4") if engine.quantization is None else ("int4",)
    return tuple(_one("quantization", one) for one in formats)


def _drafts(now: Now) -> Tries:
    config = now.config
    if not isinstance(config, SchedulerConfig):
        return "drafts are simulated for vLLM alone"
    if config.num_speculative_tokens:
        return f"{config.num_speculative_tokens} drafted tokens already"
    likely = find_method("ngram").acceptance
    return tuple(
        Change(
            f"n-grams, {n} drafted tokens",
            tuple(
                {
                    "draft_method": "ngram",
                    "num_speculative_tokens": n,
                    "acceptance_fraction": acceptance,
                }
                for acceptance in (
                    likely.likely_fraction,
                    likely.low_fraction,
                    likely.high_fraction,
                )
            ),
        )
        for n in _DRAFTS
    )


def _parallelism(now: Now) -> Tries:
    """The same devices, cut into replicas in other ways; fewer where that is worth something."""
    deployment = now.deployment
    tp = deployment.engine.tensor_parallel_size
    if not now.is_plain or deployment.n_devices != tp:
        return "only equal replicas without pipeline stages are cut in other ways"
    n_devices = tp * now.n_replicas
    totals = [n_devices]
    while now.has_fewer_devices and totals[-1] % 2 == 0:
        totals.append(totals[-1] // 2)
    changes = tuple(
        Change(
            f"TP {one} x {total // one} replica{'s' * (total // one > 1)}",
            ({"tp": one, "replicas": total // one},),
        )
        for total, one in product(totals, _TP)
        if total % one == 0 and (one, total // one) != (tp, now.n_replicas)
    )
    return changes or "one device"


def _scheduling(now: Now) -> Tries:
    config, changes = now.config, list[Change]()
    has_priorities = len(np.unique(now.plan.priority)) > 1
    if isinstance(config, SchedulerConfig):
        if has_priorities and config.policy != "priority":
            changes.append(Change("policy priority", ({"policy": "priority"},)))
        if config.scheduler_reserve_full_isl is False:
            changes.append(_one("scheduler_reserve_full_isl", value=True))
    if isinstance(config, SglangConfig):
        orders = ("lpm", "lof") if now.plan.prefix_tokens.any() else ("lof",)
        if not config.enable_priority_scheduling:
            changes += [
                _one("schedule_policy", one) for one in orders if one != config.schedule_policy
            ]
        changes += [
            _one("schedule_conservativeness_ratio", one)
            for one in _CONSERVATIVENESS
            if one != config.schedule_conservativeness_ratio
        ]
    if changes:
        return tuple(changes)
    return "it goes by priority already" if has_priorities else "all requests have one priority"


def _routing(now: Now) -> Tries:
    if now.n_replicas == 1:
        return "one replica"
    if not now.is_plain:
        return "only the routers of equal replicas are compared"
    return tuple(_one("router", one) for one in _ROUTERS if one != now.router)


def _again(now: Now) -> Tries:
    """All combinations of the settings that affect one another."""
    nearest = [one for one in _at_once_values(now) if one in _AGAIN_AT_ONCE]
    at_once = [now.config.max_num_active, *nearest]
    budget = now.config.step_budget_tokens
    if isinstance(now.config, SglangConfig):
        budget = now.config.chunked_prefill_size
    budgets = [budget, *_budget_values(now)]
    shaping = _shaping(now)
    shapes: list[Mapping[str, Value]] = [{}]
    if not isinstance(shaping, str):
        few = [one.settings[0] for one in shaping]
        shapes += [one for one in few if {*one.values()} & {*_AGAIN_THRESHOLDS, 0, True}]
    return tuple(
        Change(
            ", ".join(f"{name} {value}" for name, value in settings.items()),
            (settings,),
        )
        for n, tokens, shape in product(at_once, budgets, shapes)
        if n <= tokens and (n, tokens, shape) != (at_once[0], budget, shapes[0])
        for settings in [{"max_num_seqs": n, "max_num_batched_tokens": tokens, **shape}]
    )


PLAYBOOK: Final[tuple[Step, ...]] = (
    Step(
        name="memory",
        title="as much KV cache as is safe",
        flags={
            "vllm": "--gpu-memory-utilization, --max-model-len",
            "sglang": "--mem-fraction-static",
        },
        tries=_memory,
        unpredicted="whether the longest prompt in a full step still fits: try it before it serves",
    ),
    Step(
        name="graphs_and_host",
        title="graphs and host",
        flags={
            "vllm": (
                "-O, --performance-mode, --async-scheduling, --stream-interval, --api-server-count"
            ),
            "sglang": "--cuda-graph-max-bs-decode, --disable-overlap-schedule,"
            " --tokenizer-worker-num, --num-continuous-decode-steps",
        },
        tries=_host,
        unpredicted="the host's time for each step and stream: measure it on the server",
    ),
    Step(
        name="kernels",
        title="kernels",
        flags={
            "vllm": "--attention-backend, --moe-backend, --linear-backend",
            "sglang": "--attention-backend, --moe-runner-backend",
        },
        tries=_kernels,
        unpredicted="all of it: measure batch shapes, and compare log-probabilities",
    ),
    Step(
        name="max_num_seqs",
        title="requests at once",
        flags={"vllm": "--max-num-seqs", "sglang": "--max-running-requests"},
        tries=_at_once,
    ),
    Step(
        name="step_budget",
        title="tokens in a step",
        flags={"vllm": "--max-num-batched-tokens", "sglang": "--chunked-prefill-size"},
        tries=_budget,
    ),
    Step(
        name="prefill_shaping",
        title="shape of prefills",
        flags={
            "vllm": "--long-prefill-token-threshold, --prefill-schedule-interval",
            "sglang": "--enable-mixed-chunk, --prefill-decode-interval",
        },
        tries=_shaping,
        unpredicted="intervals between prefills",
    ),
    Step(
        name="prefix_cache",
        title="prefix cache",
        flags={
            "vllm": "--enable-prefix-caching, --kv-offloading-size",
            "sglang": "--disable-radix-cache, --enable-hierarchical-cache",
        },
        tries=_prefix,
        unpredicted="tiers in host memory",
    ),
    Step(
        name="kv_precision",
        title="precision of the KV cache",
        flags={"vllm": "--kv-cache-dtype", "sglang": "--kv-cache-dtype"},
        tries=_kv_precision,
        kind="lossy",
    ),
    Step(
        name="weight_precision",
        title="precision of the weights",
        flags={"vllm": "--quantization", "sglang": "--quantization"},
        tries=_weights,
        kind="lossy",
    ),
    Step(
        name="speculation",
        title="speculative decoding",
        flags={"vllm": "--speculative-config", "sglang": "--speculative-algorithm"},
        tries=_drafts,
        kind="assumed",
        unpredicted="drafts of EAGLE, MTP or a small model, whose acceptance has not been measured here",
    ),
    Step(
        name="parallelism",
        title="tensor parallelism and replicas",
        flags={"vllm": "--tensor-parallel-size", "sglang": "--tp"},
        tries=_parallelism,
        unpredicted="expert and decode context parallelism",
    ),
    Step(
        name="scheduling",
        title="order of the queue",
        flags={
            "vllm": "--scheduling-policy, --max-num-queued-tokens",
            "sglang": "--schedule-policy, --schedule-conservativeness, --max-queued-requests",
        },
        tries=_scheduling,
        unpredicted="limits of the queue: `inferometer simulate --gate` shows them",
    ),
    Step(
        name="routing",
        title="router",
        flags={"vllm": "its data parallelism, or a gateway", "sglang": "smg"},
        tries=_routing,
        unpredicted="prefill replicas: `inferometer size --prefill-replicas` compares them",
    ),
    Step(
        name="again",
        title="again, together: what acts on one another",
        flags={
            "vllm": "--max-num-seqs, --max-num-batched-tokens, --long-prefill-token-threshold",
            "sglang": "--max-running-requests, --chunked-prefill-size, --enable-mixed-chunk",
        },
        tries=_again,
    ),
)
"""All steps in order."""
