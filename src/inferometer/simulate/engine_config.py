"""Configurations of all engines, how each is made, and how to add an engine.

``engine_config`` makes one from the settings that all engines share, under vLLM's names, and from
the engine's own. Each engine's rules (its *policy*) exist twice with the same interface: in plain
Python and compiled. To add an engine:

1. A frozen dataclass with the engine's own names, which refuses what the engine refuses. It has
   ``engine`` (the policy's name for reports), ``max_model_len``, ``max_prompt_tokens`` (longer ones
   are refused), ``step_budget_tokens`` (0: none), ``max_num_active`` (concurrent requests),
   ``depth`` (batches in flight), ``n_instances`` (1, unless batches run side by side),
   ``block_size``, ``n_kv_blocks`` (that can hold tokens) and ``enable_prefix_caching``. It joins
   ``EngineConfig`` below.
2. A class with the methods of ``reference.policy.Policy``, and one line in
   ``reference.policy.policy_of``. ``reference.Scheduler`` is the example;
   ``reference.batch.launch`` counts a request's tokens as computed.
3. A member of ``kernel.config.Kind`` and one case of its ``_own_columns``; columns that only it
   needs join ``kernel.config.Config``, arrays ``State`` (empty for the others).
4. Functions ``add``, ``schedule``, ``update`` and ``abort``, one line each in ``kernel/policy.py``
   (compiled once per kind, without the others: ``kernel/loop.py``); functions called in every step
   are ``compiling.inlined``. ``schedule`` fills a ``Batch`` and its ``Part``s
   (``kernel.vllm.launch`` does) and keeps ``n_running``, ``n_waiting``, ``n_free`` (KV blocks) and
   ``n_preempted`` up to date.
5. A request that begins to run takes the lowest free slot (``kernel/requests.py``,
   ``reference.batch.Slots``); one that ends or is preempted gives it back. Preempt before
   admitting, and admit in batch order. Requests end through ``kernel.requests.end``.
6. If a request waits for a time, ``schedule`` sets ``wake_ns``, the time of its next call, later
   than now.
7. A Hypothesis test checks that both forms agree to the nanosecond; worked examples check both
   against the engine's rules.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from types import MappingProxyType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    get_args,
    get_origin,
)

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import DTYPE_BITS, DType, ModelSpec
from inferometer.perfmodel.memory import BatchLimits
from inferometer.records.columns import I32, I64
from inferometer.simulate.batch_config import (
    BatchConfig,
    DynamicBatching,
    NoBatching,
    StaticBatching,
)
from inferometer.simulate.scheduler_config import KvPool, SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.trtllm_config import TrtllmConfig
from inferometer.units import check_number

EngineConfig: TypeAlias = SchedulerConfig | TrtllmConfig | SglangConfig | BatchConfig


def n_stages_of(config: EngineConfig) -> int:
    """The number of pipeline stages."""
    return config.pipeline_parallel_size if isinstance(config, SchedulerConfig) else 1


def n_state_blocks_of(config: EngineConfig) -> int:
    """Number of blocks that a request holds for the states of recurrent layers."""
    return config.num_state_blocks if isinstance(config, SchedulerConfig) else 0


def n_kv_groups_of(config: EngineConfig) -> int:
    """The number of layer groups with KV block tables of their own."""
    return config.n_kv_groups if isinstance(config, SchedulerConfig) else 1


def kv_pools_of(config: EngineConfig) -> tuple[KvPool, ...]:
    """The parts of a divided KV cache; none where all requests share it."""
    return config.kv_pools if isinstance(config, SchedulerConfig) else ()


class Sorted(Protocol):
    """Properties by which requests are assigned to KV pools (N requests)."""

    @property
    def class_index(self) -> I32:
        """Class of each request in the workload (N)."""
        ...

    @property
    def prompt_tokens(self) -> I32:
        """Prompt length of each request (N)."""
        ...


def pool_of_requests(pools: Sequence[KvPool], requests: Sorted) -> I32:
    """(N) The KV pool of each request: the first whose rules match.

    None (0) without pools.

    Raises
    ------
    SpecError
        No pool takes a request, or a pool is for classes that the workload does not have.
    """
    if not pools:
        return np.empty(0, np.int32)
    chosen = np.full(len(requests.prompt_tokens), -1, np.int32)
    for number in reversed(range(len(pools))):
        pool = pools[number]
        if pool.classes and not pool.class_indices:
            raise SpecError(
                f"a pool for {pool.rule_text}, where classes have no names",
                where=POOLS_KNOB,
                allowed="pools by max_prompt_tokens; simulate, capacity, size, verify know classes",
            )
        takes = np.ones(len(chosen), np.bool_)
        if pool.classes:
            takes &= np.isin(requests.class_index, pool.class_indices)
        if pool.max_prompt_tokens is not None:
            takes &= requests.prompt_tokens <= pool.max_prompt_tokens
        chosen[takes] = number
    if (chosen < 0).any():
        index = int(np.argmax(chosen < 0))
        raise SpecError(
            f"no pool takes request {index} (class {requests.class_index[index]},"
            f" {requests.prompt_tokens[index]:,} prompt tokens)",
            where=POOLS_KNOB,
            allowed="a pool for each request",
            try_="a last pool without class and max_prompt_tokens, for all other requests",
        )
    return chosen


def block_sizes_of(config: EngineConfig, requests: Sorted) -> int | I64:
    """Tokens in a KV block: one number for all requests, or (N) one for each if pools differ."""
    pools = kv_pools_of(config)
    if not pools:
        return config.block_size
    sizes = np.array([pool.block_size for pool in pools], np.int64)
    return sizes[pool_of_requests(pools, requests)]


class AskedPool(NamedTuple):
    """A KV pool as written; block size and format default to the server's."""

    share_millionths: int
    """Share of the KV cache's bytes, in millionths."""
    block_size: int | None
    kv_dtype: DType | None
    classes: tuple[str, ...]
    max_prompt_tokens: int | None


def asked_pools(text: str) -> tuple[AskedPool, ...]:
    """The pools of a text: ``;`` between pools, spaces between the words of one.

    Raises
    ------
    SpecError
        An unknown word, an invalid value, or shares that do not add up to 100 %.

    Example
    -------
    >>> short, rest = asked_pools("share=40% max_prompt_tokens=2000; share=60% block_size=64")
    >>> short.share_millionths, short.max_prompt_tokens, rest.block_size
    (400000, 2000, 64)
    """
    pools = tuple(_asked_pool(one) for one in text.split(";"))
    total = sum(pool.share_millionths for pool in pools)
    if not _WHOLE - len(pools) <= total <= _WHOLE:
        raise SpecError(
            f"shares of {total / _WHOLE:.6g} in all", where=POOLS_KNOB, allowed="100 % together"
        )
    return pools


def with_pools(
    config: EngineConfig,
    text: str,
    dtype: DType,
    token_bytes: Callable[[DType], int],
    *,
    is_longest: bool,
) -> EngineConfig:
    """The configuration with a KV cache that is divided into the pools of this text.

    ``dtype`` is the server's own format, ``token_bytes`` of a token in any. A pool has as many
    whole blocks as its share of the bytes holds. ``is_longest``: raise the context limit to what
    each pool can hold; else it stays.

    Raises
    ------
    SpecError
        See ``asked_pools``; a pool is too small, or the engine's rules have no pools.
    """
    if not isinstance(config, SchedulerConfig):
        return config
    own_bytes, pools = token_bytes(dtype), list[KvPool]()
    usual_bytes = own_bytes * config.block_size
    for one in asked_pools(text):
        n_bytes, size = token_bytes(one.kv_dtype or dtype), one.block_size or config.block_size
        share_bytes = config.n_kv_blocks * usual_bytes * one.share_millionths // _WHOLE
        pools.append(
            KvPool(
                n_blocks=share_bytes // (size * n_bytes),
                block_size=size,
                block_millionths=size * n_bytes * _WHOLE // usual_bytes,
                token_millionths=n_bytes * _WHOLE // own_bytes,
                kv_dtype=one.kv_dtype or dtype,
                classes=one.classes,
                max_prompt_tokens=one.max_prompt_tokens,
            )
        )
    longest = config.max_model_len
    if is_longest:
        longest = max(min(longest, *(one.n_blocks * one.block_size for one in pools)), 2)
    try:
        return replace(config, kv_pools=tuple(pools), max_model_len=longest)
    except SpecError as problem:
        raise SpecError(
            problem.what, where=POOLS_KNOB, allowed=problem.allowed, try_=problem.try_
        ) from problem


def for_classes(config: EngineConfig, class_names: Sequence[str]) -> EngineConfig:
    """The configuration with the KV pools' classes as numbers, where classes have these names.

    Raises
    ------
    SpecError
        A KV pool is for a class that does not exist.
    """
    pools = kv_pools_of(config)
    wanted = {name for pool in pools for name in pool.classes}
    if not wanted or not isinstance(config, SchedulerConfig):
        return config
    if wanted - set(class_names):
        raise SpecError(
            f"classes {', '.join(sorted(wanted - set(class_names)))}",
            where=POOLS_KNOB,
            allowed=f"those of the workload: {', '.join(class_names)}",
        )
    known = (
        replace(pool, class_indices=tuple(class_names.index(name) for name in pool.classes))
        for pool in pools
    )
    return replace(config, kv_pools=tuple(known))


def _asked_pool(text: str) -> AskedPool:
    written = text.split()
    words = {word.partition("=")[0]: word.partition("=")[2] for word in written}
    is_known = set(words) <= set(_POOL_WORDS) and len(words) == len(written)
    if not is_known or "share" not in words or not all(words.values()):
        allowed = [f"{name}={value}" for name, value in _POOL_WORDS.items()]
        raise SpecError(
            f"a pool of the words {text.strip()!r}",
            where=POOLS_KNOB,
            allowed=f"{allowed[0]}, and perhaps {', '.join(allowed[1:])}, each once",
            try_=f"{POOLS_KNOB}='share=40% class=chat kv_dtype=float8; share=60% block_size=64'",
        )
    dtype = words.get("kv_dtype")
    if dtype is not None and dtype not in DTYPE_BITS:
        raise SpecError(f"kv_dtype = {dtype}", where=POOLS_KNOB, allowed=", ".join(DTYPE_BITS))
    return AskedPool(
        share_millionths=_share_millionths(words["share"]),
        block_size=_whole(words, "block_size"),
        kv_dtype=dtype,
        classes=tuple(words["class"].split("+")) if "class" in words else (),
        max_prompt_tokens=_whole(words, "max_prompt_tokens"),
    )


def _share_millionths(text: str) -> int:
    try:
        percent = float(text.removesuffix("%")) * (1 if text.endswith("%") else 100)
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise SpecError(
            f"share = {text}", where=POOLS_KNOB, allowed="above 0, up to 100%", try_="share=40%"
        )
    return round(percent * 10_000)


def _whole(words: Mapping[str, str], name: str) -> int | None:
    text = words.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_TOKENS:
        raise SpecError(
            f"{name} = {text}", where=POOLS_KNOB, allowed=f"a whole number, 1 to {_MOST_TOKENS:,}"
        )
    return int(text)


class _Engine(NamedTuple):
    config: type[EngineConfig]
    own_names: dict[str, str]
    """vLLM's name of a shared knob -> this engine's, where they differ."""
    counts_tokens: bool = False
    """Is its KV cache counted in tokens, not in blocks?"""
    preset: Mapping[str, object] = MappingProxyType({})
    """Its own defaults, if it uses another engine's configuration."""


_OLD: Final[dict[str, object]] = {"enable_prefix_caching": False, "async_scheduling": False}
_ENGINES: Final = {
    "vllm": _Engine(SchedulerConfig, {}),
    "sglang": _Engine(
        SglangConfig,
        {
            "num_blocks": "max_total_num_tokens",
            "max_num_seqs": "max_running_requests",
            "max_num_batched_tokens": "chunked_prefill_size",
            "max_model_len": "context_length",
            "block_size": "page_size",
        },
        counts_tokens=True,
    ),
    "trtllm": _Engine(
        TrtllmConfig,
        {
            "max_num_seqs": "max_batch_size",
            "max_num_batched_tokens": "max_num_tokens",
            "max_model_len": "max_seq_len",
            "block_size": "tokens_per_block",
        },
    ),
    "static": _Engine(StaticBatching, {"max_num_seqs": "max_batch_size"}),
    "dynamic": _Engine(DynamicBatching, {"max_num_seqs": "max_batch_size"}),
    "none": _Engine(NoBatching, {}),
    "sarathi": _Engine(
        SchedulerConfig,
        {},
        preset=_OLD
        | {
            "rules": "sarathi",
            "max_num_batched_tokens": 512,
            "max_num_seqs": 128,
            "watermark_fraction": 0.01,
        },
    ),
    "orca": _Engine(
        SchedulerConfig,
        {},
        preset=_OLD | {"rules": "orca", "enable_chunked_prefill": False, "max_num_seqs": 128},
    ),
    "vllm-v0": _Engine(
        SchedulerConfig,
        {},
        preset=_OLD
        | {
            "rules": "vllm-v0",
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 4096,
            "watermark_fraction": 0.01,
        },
    ),
}
ENGINE_NAMES: Final = tuple(_ENGINES)
POOLS_KNOB: Final = "--set kv_pools"
_POOL_WORDS: Final = {
    "share": "PERCENT",
    "class": "NAME+NAME",
    "max_prompt_tokens": "N",
    "block_size": "TOKENS",
    "kv_dtype": "FORMAT",
}
_WHOLE: Final = 1_000_000
_MOST_TOKENS: Final = 2**30
_WORDS: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "nothing",
}


def default_block_size(engine: str) -> int:
    """Default block size of this engine's KV cache, in tokens."""
    name = own_name(engine, "block_size")
    default = next(
        (field.default for field in fields(_ENGINES[engine].config) if field.name == name), 1
    )
    return default if isinstance(default, int) else 1


def has_knob(engine: str, name: str) -> bool:
    """Does this engine have a setting of this name, vLLM's or its own?

    Example
    -------
    >>> has_knob("static", "max_num_seqs"), has_knob("none", "max_num_seqs")
    (True, False)
    """
    return own_name(engine, name) in {field.name for field in fields(_ENGINES[engine].config)}


def own_name(engine: str, name: str) -> str:
    """Name in this engine of the setting that vLLM calls ``name``.

    Example
    -------
    >>> own_name("sglang", "max_model_len")
    'context_length'
    """
    return _ENGINES[engine].own_names.get(name, name)


def check_knob(engine: str, name: str, *, where: str) -> None:
    """Refuse a name that is not a setting of this engine."""
    known = [field.name for field in fields(_ENGINES[engine].config)]
    if name not in known:
        usual = next(one for one in (own_name(engine, "max_num_seqs"), *known) if one in known)
        nearest = suggestions.nearest_setting("--set", name, known)
        raise SpecError(
            f"{engine} has no {name}",
            where=where,
            allowed=", ".join(known),
            try_=nearest or suggestions.flags("--set", f"{usual}=64")
            if where == "--set"
            else f"the same command without {where}",
        )


def with_defaults(
    limits: BatchLimits, shared: Mapping[str, int], own: Mapping[str, str]
) -> dict[str, int]:
    """The common settings with vLLM's defaults: a step has a token for each of ``max_num_seqs``."""
    budget = own.get("max_num_batched_tokens", str(shared.get("max_num_batched_tokens", limits[1])))
    n_most = min(limits.max_num_seqs, int(budget)) if budget.isdecimal() else limits.max_num_seqs
    usual = limits._replace(max_num_seqs=n_most)._asdict()
    return {name: value for name, value in usual.items() if name not in own} | dict(shared)


def check_positions(
    model: ModelSpec, engine: str, shared: Mapping[str, int], own: Mapping[str, str]
) -> None:
    """Refuse contexts that are longer than the model's positions."""
    name, most = own_name(engine, "max_model_len"), model.max_position_tokens
    text = own.get(name, str(shared.get("max_model_len", 0)))
    if text.isdecimal() and int(text) > most:
        raise SpecError(
            f"{name} = {text}",
            where="--set" if name in own else "--max-model-len",
            allowed=f"up to {most:,}, the positions of {model.model_id!r} (max_position_embeddings)",
            try_=f"{suggestions.flags('--max-model-len', most)}, or a model with longer contexts",
        )


def check_states(
    model: ModelSpec, engine: str, own: Mapping[str, str], kv_names: Sequence[str]
) -> None:
    """Refuse, for a model without attention, settings of a cache of keys and values."""
    stated = [name for name in kv_names if name in own]
    if engine != "vllm" or stated:
        what = ", ".join(stated) if engine == "vllm" else f"the scheduler of {engine}"
        raise SpecError(
            f"{what} for {model.model_id!r}, which has a state and no keys and values",
            where="--set" if engine == "vllm" else "--policy",
            allowed="vLLM's scheduler without settings of the KV cache",
            try_=f"the same command without {'--set' if engine == 'vllm' else '--policy'}",
        )


def engine_config(
    engine: str,
    shared: Mapping[str, int],
    own: Mapping[str, str],
    *,
    where: str,
    origins: Mapping[str, str] | None = None,
) -> EngineConfig:
    """The configuration of ``engine`` with these settings; others are the engine's defaults.

    ``shared`` has vLLM's names (num_blocks, max_model_len, max_num_seqs, max_num_batched_tokens,
    block_size); those that the engine does not have are refused. ``own`` has the engine's names and
    their values as text, several with commas between, and wins. Errors name the place that a value
    came from: ``origins`` of a shared knob, ``where`` of all others.

    Raises
    ------
    SpecError
        An unknown name or an invalid value for this engine; the message has the allowed ones.

    Example
    -------
    >>> shared = {"num_blocks": 1000, "max_model_len": 4096}
    >>> config = engine_config("vllm", shared, {"watermark_fraction": "0.01"}, where="--set")
    >>> config.n_kv_blocks
    999
    """
    kind = _ENGINES[engine]
    if kind.counts_tokens and "num_blocks" in shared:
        block_size = shared.get("block_size", default_block_size(engine))
        n_tokens = shared["num_blocks"] * block_size
        page = own.get(own_name(engine, "block_size"), "")
        # a server rounds what its memory holds to whole pages
        n_tokens -= n_tokens % int(page) if page.isdecimal() and int(page) else 0
        shared = {**shared, "num_blocks": n_tokens}
    known = {field.name: field for field in fields(kind.config)}
    values: dict[str, object] = dict(kind.preset)
    places = {
        kind.own_names.get(name, name): place
        for name, place in (origins or {}).items()
        if name in shared
    }
    places |= dict.fromkeys(own, where)
    for name, value in (
        *((kind.own_names.get(name, name), value) for name, value in shared.items()),
        *own.items(),
    ):
        check_knob(engine, name, where=places.get(name, where))
        is_several = isinstance(value, str) and (
            "," in value or get_origin(known[name].type) is tuple
        )
        values[name] = str(value).split(",") if is_several else value
    lacking = [
        name for name, field in known.items() if field.default is MISSING and name not in values
    ]
    if lacking:
        raise SpecError(
            f"{engine} needs {', '.join(lacking)}", where=where, allowed=", ".join(known)
        )
    converted = _converted(engine, values, own, where=where, places=places)
    for name in known:
        value = getattr(converted, name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                check_number(number, name, where=places.get(name, where))
    return converted


def _converted(
    engine: str,
    values: Mapping[str, object],
    own: Mapping[str, str],
    *,
    where: str,
    places: Mapping[str, str],
) -> EngineConfig:
    """The configuration with these values; errors name the place that a value came from."""
    kind = _ENGINES[engine]
    known = {field.name: field for field in fields(kind.config)}
    try:
        return msgspec.convert(values, type=kind.config, strict=False)
    except SpecError as problem:
        name = problem.what.partition(" = ")[0]
        place = (
            places.get(name, where)
            if name in values and name not in kind.preset
            else f"the default of {engine}"
        )
        raise SpecError(
            problem.what, where=place, allowed=problem.allowed, try_=problem.try_
        ) from problem
    except msgspec.ValidationError as problem:
        refused = [name for name in values if re.search(rf"\$\.{name}\b", str(problem))]
        if not refused:
            raise SpecError(
                f"{engine}: {problem}", where=where, allowed=", ".join(known)
            ) from problem
        name = refused[0]
        text = f"{engine}: {name} = {own.get(name, values[name])}"
        raise SpecError(
            text,
            where=places.get(name, where),
            allowed=_allowed(known[name]),
            try_=_default(known[name]),
        ) from problem


def _default(knob: Field[Any]) -> str | None:
    """The setting with its default value; None where it has none."""
    is_plain = isinstance(knob.default, int | float | str)
    return suggestions.flags("--set", f"{knob.name}={knob.default}".lower()) if is_plain else None


def _allowed(knob: Field[Any]) -> str:
    """Allowed values of a setting, in words."""
    kind: Any = knob.type
    if get_origin(kind) is tuple:
        return "whole numbers with commas between"
    kinds: tuple[Any, ...] = (
        get_args(kind) if get_args(kind) and get_origin(kind) is not Literal else (kind,)
    )
    other = "several with commas between"
    return " or ".join(
        ", ".join(get_args(one)) if get_origin(one) is Literal else _WORDS.get(one, other)
        for one in kinds
    )
