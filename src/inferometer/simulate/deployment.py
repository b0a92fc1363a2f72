"""The replica to simulate: model, device, scheduler settings, KV cache and step times."""

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer import suggestions
from inferometer.errors import SpecError, TooLargeError
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel import kv_cache, memory, steptime_levels
from inferometer.perfmodel.roofline import ParallelPlan, kv_dtype
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate import engine_config
from inferometer.simulate.scheduler_config import SchedulerConfig, most_sliding_blocks
from inferometer.simulate.sglang_config import SglangConfig

Pace: TypeAlias = Literal["likely", "fast", "slow"]
"""Which step times are used: the expected ones, or the fast or slow end of their interval."""

Case: TypeAlias = Pace | int
"""A plausible server: with the step times of a pace, or the draw with this index."""

PACES: Final[tuple[Pace, ...]] = ("likely", "fast", "slow")

STAGES_KNOB: Final = "pipeline_parallel_size"
_BUDGET_KNOB: Final = "max_num_batched_tokens"
_POOLS_KNOB: Final = "kv_pools"
_STATES_KNOB: Final = "num_state_blocks"
_AMPLE: Final = {"num_blocks": 2**24}
_FEW: Final = {"max_num_seqs": 8, "max_model_len": 8192}
"""Limits with which a few users are served, where those given leave no memory."""
_MOST_SHARE: Final = 0.95
_ENDS: Final = (0.95, 0.05)
_STRIDE: Final = 7
"""Shares no factor with the number of draws, 19: every seventh quantile visits them all."""
_NO_PREFIXES: Final = {"enable_prefix_caching": "false"}
"""vLLM 0.32.0 caches no prefixes of models without attention, unless its user asks for it."""
_PLAIN_KV_CACHE: Final = {
    "rules": "vllm",
    "preemption_mode": "recompute",
    "kv_allocation": "paged",
    _POOLS_KNOB: "",
}
"""Values of settings with which the KV cache is managed as in vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The settings of an engine that the user gave; others are computed or defaults."""

    policy: str = "vllm"
    """One of ``engine_config.ENGINE_NAMES``."""
    shared: Mapping[str, int] = field(default_factory=dict[str, int])
    """Settings that all engines have, by vLLM's names: see ``engine_config.engine_config``."""
    own: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other settings, by the engine's own names, as text."""
    utilization_fraction: float | None = None
    """``gpu_memory_utilization``; None: the engine's default."""
    data_parallel_size: int = 1
    """Replicas that share the experts of a model, each with a part of them in its memory."""

    @property
    def share_fraction(self) -> float:
        """``gpu_memory_utilization``, or what the engine takes by default."""
        given = self.utilization_fraction
        return memory.usual_share(self.policy).value if given is None else given


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One plausible combination of a replica's limits, step times and front-end time.

    The true combination is as likely as each of the draws. So for any number that follows from it,
    the lowest and the highest of 19 draws are the ends of a 90 % interval.
    """

    config: engine_config.EngineConfig
    steps: StepTimeArrays
    front_end_s: float


class Ends(NamedTuple):
    """A replica's settings with the most and with the fewest of its plausible KV blocks.

    The ends of a 90 % interval, as fast and slow step times are.
    """

    fast: engine_config.EngineConfig
    slow: engine_config.EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica, and the sources of its numbers."""

    model: ModelSpec
    engine: EngineSpec
    hardware: HardwareSpec | None
    config: engine_config.EngineConfig
    step_times: steptime_levels.StepTimes
    kv_origin: str
    """Source of the number of KV blocks."""
    knobs: Knobs
    """The settings that the user gave."""
    front_end_s: float = 0.0
    """Time from a request's send to its arrival at the scheduler; 0 is assumed if unknown."""
    draws: tuple[Draw, ...] = ()
    """Plausible combinations; empty if only the fast and slow ends of step times are known."""
    ends: Ends | None = None
    """Settings at the fast and the slow end; None if the number of KV blocks is known."""
    least_blocks: int | None = None
    """The fewest KV blocks with which the server starts, where versions of it may leave fewer."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """The plausible servers to simulate, the expected one first."""
        return ("likely", *range(len(self.draws))) if self.draws else PACES

    def at(self, case: Case) -> "Deployment":
        """The deployment with this plausible server's step times as the expected ones."""
        if isinstance(case, str):
            config, times, outside_s = self.config, self.step_times, self.front_end_s
            if self.ends is not None and case != "likely":
                config = self.ends.fast if case == "fast" else self.ends.slow
            if times.front_end_ends_s is not None and case != "likely":
                outside_s = times.front_end_ends_s[case == "slow"]
            times = replace(times, likely=getattr(times, case))
            return replace(
                self, config=config, step_times=times, front_end_s=outside_s, draws=(), ends=None
            )
        if not self.draws:
            return self
        draw = self.draws[case]
        times = replace(self.step_times, likely=draw.steps, fast=draw.steps, slow=draw.steps)
        return replace(
            self,
            config=draw.config,
            step_times=times,
            front_end_s=draw.front_end_s,
            draws=(),
            ends=None,
        )

    def for_classes(self, class_names: Sequence[str]) -> "Deployment":
        """The deployment for a workload with these classes, to which KV pools may be assigned."""
        draws = (
            replace(one, config=engine_config.for_classes(one.config, class_names))
            for one in self.draws
        )
        config = engine_config.for_classes(self.config, class_names)
        ends = self.ends and Ends(
            *(engine_config.for_classes(one, class_names) for one in self.ends)
        )
        return replace(self, config=config, draws=tuple(draws), ends=ends)

    @property
    def n_devices(self) -> int:
        """The number of devices of one replica: tensor-parallel size times pipeline stages."""
        return self._plan.n_devices

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of a KV block on all devices together."""
        return kv_cache.kv_block_bytes(
            self.model,
            kv_dtype(self.engine),
            block_tokens=self.config.block_size,
            is_grouped=self._is_grouped,
        )

    @property
    def kv_block_ends(self) -> tuple[int, int]:
        """The fewest and the most KV blocks of the plausible servers."""
        configs = [draw.config for draw in self.draws] or (self.ends or ())
        counts = [one.n_kv_blocks for one in (self.config, *configs)]
        return min(counts), max(counts)

    @property
    def n_kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens."""
        if isinstance(self.config, SchedulerConfig):
            return self.config.n_kv_tokens
        return self.config.n_kv_blocks * self.config.block_size

    @property
    def keeps_windows_whole(self) -> bool:
        """Does the engine keep the blocks of sliding-window layers that are outside the window?"""
        window_tokens = kv_cache.kv_groups(self.model).window_tokens
        return (
            window_tokens is not None
            and window_tokens < self.config.max_model_len
            and not self._is_grouped
        )

    @property
    def _is_grouped(self) -> bool:
        return isinstance(self.config, SchedulerConfig) and self.config.sliding_window > 0

    @property
    def parallelism(self) -> str:
        """The replica's parallelism: ``TP8``, or with pipeline stages ``TP8 PP2``."""
        plan = self._plan
        return f"TP{plan.n_tensor}" + f" PP{plan.n_pipeline}" * (plan.n_pipeline > 1)

    @property
    def _plan(self) -> ParallelPlan:
        return ParallelPlan(
            n_tensor=self.engine.tensor_parallel_size,
            n_pipeline=engine_config.n_stages_of(self.config),
        )


class _KvBlocks(NamedTuple):
    found: memory.KvBlocks
    origin: str
    max_num_seqs: int


def deploy(
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
    step_times: steptime_levels.StepTimes,
    knobs: Knobs,
) -> Deployment:
    """Configure a replica; the number of KV blocks defaults to the largest that fits in memory.

    Raises
    ------
    SpecError
        The engine does not have a setting or accept its value, the size of the KV cache is unknown,
        or there is no memory left for it.
    """
    engine_config.check_positions(model, knobs.policy, knobs.shared, knobs.own)
    if not model.n_attention_layers:
        engine_config.check_states(model, knobs.policy, knobs.own, (*_PLAIN_KV_CACHE, _STATES_KNOB))
    plan = requested_plan(engine, knobs)
    _check_sharing(model, step_times.n_sharing, plan, knobs.data_parallel_size)
    try:
        replica = _replica(model, engine, hardware, knobs)
    except TooLargeError as error:
        raise _with_what_fits(error, model, engine, hardware, knobs) from error
    step_times = steptime_levels.through_stages(step_times, model, hardware, plan.n_pipeline)
    if isinstance(replica.config, SchedulerConfig) and knobs.policy == "vllm":
        step_times = steptime_levels.captured_within(step_times, replica.config.max_num_seqs)
    replica, least_blocks = _that_starts(replica)
    configs = _plausible_configs(replica, len(step_times.draws))
    return Deployment(
        model=model,
        engine=engine,
        hardware=hardware,
        config=replica.config,
        step_times=step_times,
        kv_origin=replica.kv_origin,
        knobs=knobs,
        front_end_s=step_times.front_end_s or 0.0,
        draws=tuple(
            Draw(config=config, steps=draw.steps, front_end_s=draw.front_end_s)
            for config, draw in zip(configs, step_times.draws, strict=True)
        ),
        ends=None
        if replica.blocks is None
        else Ends(*(_at_quantile(replica, replica.blocks, one) for one in _ENDS)),
        least_blocks=least_blocks,
    )


class _Replica(NamedTuple):
    config: engine_config.EngineConfig
    kv_origin: str
    blocks: memory.KvBlocks | None
    """None where the number of KV blocks is given."""
    with_blocks: Callable[[int], engine_config.EngineConfig]
    """The same with this number of KV blocks."""


def _that_starts(replica: _Replica) -> tuple[_Replica, int | None]:
    """The replica with KV blocks of those servers that start, and the fewest where some do not."""
    found = replica.blocks
    if found is None:
        return replica, None
    low = found.quantile(0.0)
    least = _fewest(replica.with_blocks, low, found.likely)
    if least == low:
        return replica, None
    return replica._replace(blocks=found._replace(low=least)), least


def _fewest(with_blocks: Callable[[int], object], low: int, high: int) -> int:
    """The fewest blocks from ``low`` to ``high`` with which a server starts, as its user's does."""

    def starts(n_blocks: int) -> bool:
        with suppress(SpecError):
            with_blocks(n_blocks)
            return True
        return False

    if starts(low) or not starts(high):
        return low
    return low + bisect.bisect_left(range(low, high), 1, key=starts)


def _plausible_configs(replica: _Replica, n_draws: int) -> Iterator[engine_config.EngineConfig]:
    """One for each draw, with KV blocks from all of their interval, in no order of step times."""
    for index in range(n_draws):
        fraction = (_STRIDE * index % n_draws + 0.5) / n_draws
        found = replica.blocks
        yield replica.config if found is None else _at_quantile(replica, found, fraction)


def _at_quantile(
    replica: _Replica, found: memory.KvBlocks, fraction: float
) -> engine_config.EngineConfig:
    """The replica's settings with this quantile of its KV blocks."""
    n_blocks = found.quantile(fraction)
    likely = replica.config
    return likely if n_blocks == likely.n_kv_blocks else replica.with_blocks(n_blocks)


def _replica(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec | None, knobs: Knobs
) -> _Replica:
    """The engine's configuration; raises TooLargeError if model and KV cache do not fit."""
    plan = requested_plan(engine, knobs)
    limits = memory.default_limits(hardware, n_devices=plan.n_devices)
    shared = dict(knobs.shared)
    if knobs.policy == "vllm":
        shared = engine_config.with_defaults(limits, knobs.shared, knobs.own)
    block_size = shared.get("block_size", engine_config.default_block_size(knobs.policy))
    paging = None
    is_plain = _PLAIN_KV_CACHE.items() <= {**_PLAIN_KV_CACHE, **knobs.own}.items()
    if knobs.policy == "vllm" and is_plain and _STATES_KNOB not in knobs.own:
        paging = kv_cache.state_paging(model, engine, kv_dtype(engine), block_tokens=block_size)
    if paging is not None:
        block_size = shared["block_size"] = paging.block_tokens
    own = {
        **knobs.own,  # also first, so that errors about unknown settings name the user's own
        **({} if model.n_attention_layers else _NO_PREFIXES),
        **_window_knobs(model, hardware, knobs),
        **({} if paging is None else {_STATES_KNOB: str(paging.n_blocks)}),
        **memory.copying_knobs(model, engine, hardware, block_size, knobs.own),
        **knobs.own,
    }
    kv_origin, found = "given", None
    asked = {"max_num_seqs", engine_config.own_name(knobs.policy, "max_num_seqs")}
    is_fixed = bool(asked & (knobs.shared.keys() | knobs.own.keys()))
    if "num_blocks" not in shared and "num_blocks" not in knobs.own:
        requested = replace(knobs, shared=limits._asdict() | shared, own=own)
        question = (model, engine, hardware, block_size, requested, paging)
        found, kv_origin, n_seqs = _kv_blocks(*question, is_fixed=is_fixed)
        if n_seqs < requested.shared["max_num_seqs"]:
            shared["max_num_seqs"] = n_seqs
    has_states = found is not None and paging is not None and not is_fixed

    def with_blocks(n_blocks: int | None) -> engine_config.EngineConfig:
        these = shared if n_blocks is None else shared | {"num_blocks": n_blocks}
        if has_states:  # those of a sequence are in a block
            these["max_num_seqs"] = min(these["max_num_seqs"], these["num_blocks"])
        if "max_model_len" not in these:
            these = these | {"max_model_len": _longest_context(model, these, own, block_size, plan)}
        if _is_budget_for_contexts(knobs):
            least_tokens = limits.max_num_batched_tokens
            these = these | {_BUDGET_KNOB: max(least_tokens, these["max_model_len"])}
        return _config(model, engine, knobs, these, own)

    found = found and found._replace(likely=_fewest(with_blocks, found.likely, found.high))
    config = with_blocks(found and found.likely)
    kv_origin += kv_cache.group_words(model) if own.get("sliding_window", "0") != "0" else ""
    kv_origin += "" if paging is None else paging.words
    return _Replica(config, kv_origin, found, with_blocks)


def _with_what_fits(
    error: TooLargeError,
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
    knobs: Knobs,
) -> TooLargeError:
    """The error with a suggestion: limits for few users, or the fewest devices, that fit."""
    where = f"--hardware, --{'tp' if knobs.data_parallel_size == 1 else 'data-parallel-size'}"
    for try_, wide, more in _that_may_fit(model, engine, hardware, knobs):
        with suppress(SpecError):
            _replica(model, wide, hardware, more)
            return TooLargeError(error.what, where=where, try_=try_)
    # With ample memory: raises the error of a setting that is impossible on any device.
    _replica(model, engine, hardware, replace(knobs, shared={**knobs.shared, **_AMPLE}))
    try_, is_staged = memory.how_it_fits(None), engine_config.has_knob(knobs.policy, STAGES_KNOB)
    if not (is_staged or hardware is None or knobs.data_parallel_size > 1):
        widest = max(one.n_tensor for one in memory.groups_on(hardware, model))
        try_ = f"{memory.how_it_fits(None, widest)}; --policy vllm has stages of more"
    return TooLargeError(error.what, where=where, try_=try_)


def _that_may_fit(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec | None, knobs: Knobs
) -> Iterator[tuple[str, EngineSpec, Knobs]]:
    """Limits for few users, then more devices: the remedy, engine settings and knobs."""
    given = knobs.utilization_fraction
    for share in dict.fromkeys((given, given or _MOST_SHARE)):
        few = replace(knobs, shared={**knobs.shared, **_FEW}, utilization_fraction=share)
        limits = {**_FEW, "gpu_memory_utilization": share} if share != given else _FEW
        named = ((f"--{name.replace('_', '-')}", limit) for name, limit in limits.items())
        flags = suggestions.flags(*(word for pair in named for word in pair))
        yield f"{flags}: for a few users", engine, few
    n_sharing, is_staged = knobs.data_parallel_size, STAGES_KNOB in knobs.own
    for n in memory.GROUP_SIZES if n_sharing > 1 else ():
        if n > n_sharing:
            remedy = memory.how_it_fits(suggestions.flags("--data-parallel-size", n))
            yield remedy, engine, replace(knobs, data_parallel_size=n)
    shared = {name: value for name, value in knobs.shared.items() if name != STAGES_KNOB}
    for group in memory.groups_on(hardware, model) if hardware and n_sharing == 1 else ():
        own = dict(knobs.own)
        if is_staged or group.n_pipeline > 1:
            own[STAGES_KNOB] = str(group.n_pipeline)
        wide = replace(engine, tensor_parallel_size=group.n_tensor)
        flags = group.flags + " --pp 1" * (is_staged and group.n_pipeline == 1)
        yield memory.how_it_fits(flags), wide, replace(knobs, shared=shared, own=own)


def _config(
    model: ModelSpec,
    engine: EngineSpec,
    knobs: Knobs,
    shared: Mapping[str, int],
    own: Mapping[str, str],
) -> engine_config.EngineConfig:
    """The engine's configuration with these settings, including KV pools if there are any."""
    origins = {
        name: f"--{name.replace('_', '-')}" if name in knobs.shared else "its default here"
        for name in shared
    }
    pools_text = ""
    if engine_config.has_knob(knobs.policy, _POOLS_KNOB):
        pools_text = own.get(_POOLS_KNOB, "")
        own = {name: value for name, value in own.items() if name != _POOLS_KNOB}
    config = engine_config.engine_config(knobs.policy, shared, own, where="--set", origins=origins)
    if isinstance(config, SglangConfig):  # what has vLLM's names is of each replica
        is_chunk_named = "chunked_prefill_size" in own
        return config.of_rank(
            knobs.data_parallel_size,
            divides_requests="max_running_requests" in own,
            divides_chunks=is_chunk_named or _BUDGET_KNOB not in shared,
        )
    if not pools_text:
        return config
    is_longest = "max_model_len" not in knobs.shared.keys() | knobs.own.keys()
    token_bytes = partial(kv_cache.kv_bytes_per_token, model)
    return engine_config.with_pools(
        config, pools_text, kv_dtype(engine), token_bytes, is_longest=is_longest
    )


def _check_sharing(model: ModelSpec, n_measured: int, plan: ParallelPlan, n_sharing: int) -> None:
    """Raise SpecError if replicas cannot share experts, or step times are of another group size."""
    steptime_levels.check_sharing(model, n_sharing)
    if n_sharing > 1 and plan.n_pipeline > 1:
        raise SpecError(
            f"{n_sharing} replicas of {plan.n_pipeline} pipeline stages that share experts",
            where="--data-parallel-size",
            allowed="--pp 1",
        )
    if n_measured != n_sharing:
        raise SpecError(
            "the fit is of an engine that has its experts for itself",
            where="--data-parallel-size",
            try_="--hardware ID without --fit",
        )


def _is_budget_for_contexts(knobs: Knobs) -> bool:
    """Is the step budget raised to the longest context (vLLM without chunked prefill)?"""
    is_whole = (
        knobs.policy == "vllm" and knobs.own.get("enable_chunked_prefill", "").lower() == "false"
    )
    return is_whole and _BUDGET_KNOB not in knobs.shared.keys() | knobs.own.keys()


def requested_plan(engine: EngineSpec, knobs: Knobs) -> ParallelPlan:
    """How these settings divide a replica over devices.

    An invalid number of pipeline stages counts as 1 here; ``engine_config`` rejects it later.
    """
    n_stages = knobs.own.get(STAGES_KNOB, str(knobs.shared.get(STAGES_KNOB, 1)))
    return ParallelPlan(
        n_tensor=engine.tensor_parallel_size,
        n_pipeline=max(int(n_stages), 1) if n_stages.isdecimal() else 1,
    )


def _kv_blocks(
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
    block_size: int,
    knobs: Knobs,
    paging: kv_cache.StatePaging | None,
    *,
    is_fixed: bool,
) -> _KvBlocks:
    if hardware is None:
        raise SpecError(
            "the size of the KV cache is unknown",
            where="--num-blocks, --hardware",
            try_=(
                "--num-blocks N (vLLM's log: 'GPU KV cache size' over the block size), or"
                " --hardware ID"
            ),
        )
    plan, step_tokens = requested_plan(engine, knobs), knobs.shared["max_num_batched_tokens"]
    question = memory.MemoryQuestion(
        model=model,
        engine=engine,
        hardware=hardware,
        context_tokens=1,
        plan=plan,
        prompt_tokens=step_tokens,
        max_step_tokens=step_tokens,
        block_tokens=block_size,
        utilization_fraction=knobs.utilization_fraction,
        n_expert_shards=knobs.data_parallel_size,
    )
    n_seqs, is_given = knobs.shared["max_num_seqs"], is_fixed or paging is not None
    n_seqs, n_states = memory.running_and_states(
        question, knobs.policy, knobs.own, max_num_seqs=n_seqs, is_given=is_given
    )
    found = memory.kv_blocks(
        question,
        knobs.policy,
        max_num_seqs=n_seqs,
        n_states=n_states,
        is_grouped=knobs.own.get("sliding_window", "0") != "0",
        paging=paging,
    )
    if found.likely < 2:
        where = f"{plan.n_devices} x {hardware.name}"
        raise TooLargeError(f"{model.model_id!r} leaves no memory for a KV cache on {where}")
    origin = f"computed from the memory of {hardware.name}; a server's log says it exactly"
    return _KvBlocks(found, origin, n_seqs)


def _window_knobs(model: ModelSpec, hardware: HardwareSpec | None, knobs: Knobs) -> dict[str, str]:
    """Settings for vLLM's hybrid KV cache manager; empty if no blocks leave a window."""
    groups, own = kv_cache.kv_groups(model), knobs.own
    if (
        groups.window_tokens is None
        or groups.window_tokens >= model.max_position_tokens
        or knobs.policy != "vllm"
        or "sliding_window" in own
        or not _PLAIN_KV_CACHE.items() <= {**_PLAIN_KV_CACHE, **own}.items()
        or (own.get("draft_method") == "eagle" and own.get("num_speculative_tokens", "0") != "0")
        or (hardware is not None and hardware.kind == "tpu")
    ):
        return {}
    return {
        "sliding_window": str(groups.window_tokens),
        "num_sliding_groups": str(groups.n_sliding),
        "num_full_groups": str(groups.n_full),
    }


def _longest_context(
    model: ModelSpec,
    shared: Mapping[str, int],
    own: Mapping[str, str],
    block_size: int,
    plan: ParallelPlan,
) -> int:
    """The longest context that the model supports and that fits into the KV cache, in tokens."""
    if "num_blocks" not in shared:
        return model.max_position_tokens
    n_states = own.get(_STATES_KNOB, "0")
    n_blocks = shared["num_blocks"] - 1 - (int(n_states) if n_states.isdecimal() else 0)
    window, n_sliding, n_full = (
        int(own.get(name, usual)) if own.get(name, "0").isdecimal() else usual
        for name, usual in (
            ("sliding_window", 0),
            ("num_sliding_groups", 0),
            ("num_full_groups", 1),
        )
    )
    if window == 0:
        return max(min(model.max_position_tokens, n_blocks * block_size), 2)
    n_in_flight = plan.n_pipeline + (own.get("async_scheduling", "true").lower() != "false")
    budget = own.get(_BUDGET_KNOB, str(shared.get(_BUDGET_KNOB, 0)))
    in_flight_tokens = n_in_flight * (int(budget) if budget.isdecimal() else 0)

    def n_short(context_tokens: int) -> int:
        most = most_sliding_blocks(
            window,
            in_flight_tokens=in_flight_tokens,
            max_model_len=context_tokens,
            block_size=block_size,
        )
        return n_full * -(-context_tokens // block_size) + n_sliding * most - n_blocks

    return max(bisect.bisect_right(range(model.max_position_tokens + 1), 0, key=n_short) - 1, 2)
