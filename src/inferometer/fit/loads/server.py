"""Which limits may a server have that we cannot see into, and how is its scheduler simulated with them?

A limit that was never reached has no upper end: beyond what all requests inside would need
together, every value does the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.loads.load_tests import Crowd, FirstPace
from inferometer.fit.map import Unknowns
from inferometer.perfmodel.scenario import BEST
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, arrays_of
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.records.columns import F64
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.spec import catalog
from inferometer.spec.types import EngineSpec, HardwareSpec, ModelSpec

Limit: TypeAlias = Literal["max_num_seqs", "max_num_batched_tokens", "n_kv_blocks"]
Switch: TypeAlias = Literal["async_scheduling", "enable_chunked_prefill", "enable_prefix_caching"]

LIMITS: Final[tuple[Limit, ...]] = ("max_num_seqs", "n_kv_blocks", "max_num_batched_tokens")
SWITCHES: Final[tuple[Switch, ...]] = (
    "enable_prefix_caching",
    "async_scheduling",
    "enable_chunked_prefill",
)
BLOCK_TOKENS: Final = 16
"""vLLM's default; another size rounds what a request holds a little more, or less."""

_LEAST_BUDGET: Final = 32
_SURE_FRACTION: Final = 0.95
"""Of what was seen at once: ends and beginnings are seen a little early and late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldByServer:
    """What the server itself named: in its metrics, or in the log of its start."""

    limits: Mapping[Limit, int] = field(default_factory=dict["Limit", int])
    switches: Mapping[Switch, bool] = field(default_factory=dict["Switch", bool])
    block_tokens: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKnobs:
    """Limits and switches of a server's scheduler, under vLLM's names.

    ``n_kv_blocks`` can hold tokens (vLLM has one more).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    n_kv_blocks: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True

    def with_limit(self, name: Limit, value: int) -> "ServerKnobs":
        """The same with another limit."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)

    def with_switch(self, name: Switch, *, value: bool) -> "ServerKnobs":
        """The same with a switch in this position."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)


class Range(NamedTuple):
    """Where a limit is looked for: below, what was seen could not be; at ``high`` and beyond nothing was held back."""

    low: int
    high: int

    def candidates(self, n_values: int) -> list[int]:
        """So many values, evenly in their logarithm."""
        return sorted(
            {round(value) for value in np.geomspace(self.low, self.high, n_values).tolist()}
        )

    def within(self, value: int) -> int:
        """The nearest value that is looked at."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every simulation of the server shares."""

    ranges: Mapping[Limit, Range]
    block_tokens: int
    max_model_len: int
    """The server's where it is known, else enough for the longest request: what the server
    allows beyond it was not requested."""
    switches: Mapping[Switch, bool]
    """Those whose position the server itself named."""
    held_blocks: int = 0
    """KV blocks of all prompts whose answers were under way at once, if none of them shared any."""
    most_blocks: int | None = None
    """KV blocks that the device's memory has room for beside the weights; None: the device or
    the model is not known."""


def terms_of(most: Crowd, told: ToldByServer, most_blocks: int | None = None) -> Terms:
    """The ranges that leave open all that the crowd does, but for what the server itself named and the device's memory allows.

    Prompts under way at once were all in the KV cache, for vLLM admits nobody while a preempted
    request waits. But prompts that begin alike may share blocks: where that is not known, only the
    longest request is a sure lower bound.

    Raises
    ------
    ModelError
        A known limit is one that the load tests show to be exceeded.
    """
    block_tokens = told.block_tokens or BLOCK_TOKENS
    held_blocks = int(_SURE_FRACTION * most.n_held_tokens) // block_tokens
    is_held = most.has_known_prefixes or told.switches.get("enable_prefix_caching") is False
    least_blocks = max(
        -(-max(most.longest_tokens, told.max_model_len or 0) // block_tokens),
        held_blocks if is_held else 0,
    )
    least_budget = max(
        _LEAST_BUDGET, most.n_streaming - 1
    )  # vLLM does not start with a budget below max_num_seqs
    inside_blocks = max(most.n_inside_tokens // block_tokens + 2 * most.n_inside, least_blocks + 2)
    if most_blocks is not None and most_blocks <= least_blocks:
        raise ModelError(
            f"the requests held {least_blocks:,} KV blocks of {block_tokens} tokens at once",
            where="the load tests",
            allowed=f"{most_blocks:,}, which is what the device's memory leaves beside the weights",
            try_="the server's own --model, --dtype, --hardware and --tp",
        )
    ranges: dict[Limit, Range] = {
        "max_num_seqs": Range(
            max(most.n_streaming - 1, 1), max(most.n_inside, most.n_streaming, 2)
        ),
        "max_num_batched_tokens": Range(least_budget, max(most.n_prompt_tokens, 2 * least_budget)),
        "n_kv_blocks": Range(
            least_blocks, inside_blocks if most_blocks is None else min(inside_blocks, most_blocks)
        ),
    }
    _check_known(told, ranges)
    named: dict[Limit, Range] = {name: Range(value, value) for name, value in told.limits.items()}
    return Terms(
        ranges=ranges | named,
        block_tokens=block_tokens,
        max_model_len=max(told.max_model_len or 0, most.longest_tokens + 1),
        switches=told.switches,
        held_blocks=held_blocks,
        most_blocks=most_blocks,
    )


def _check_known(told: ToldByServer, ranges: Mapping[Limit, Range]) -> None:
    """A limit that somebody named must hold what was seen."""
    for name, value in told.limits.items():
        least = ranges[name].low
        if value < least:
            raise ModelError(
                f"{name} = {value:,} cannot be: the load tests show {least:,} or more at once",
                where="--known, the server's log or metrics, or the imported run",
                allowed=f"{least:,} or more",
                try_="load tests of one replica, and the limits of that server",
            )


def config_of(knobs: ServerKnobs, terms: Terms, *, has_contents: bool) -> SchedulerConfig:
    """The scheduler with these knobs; without contents of prompts there is nothing for a prefix cache to find."""
    budget = knobs.max_num_batched_tokens
    if not knobs.enable_chunked_prefill:
        budget = max(budget, terms.max_model_len)
    return SchedulerConfig(
        num_blocks=max(knobs.n_kv_blocks, -(-terms.max_model_len // terms.block_tokens)) + 1,
        max_model_len=terms.max_model_len,
        max_num_seqs=min(knobs.max_num_seqs, budget),
        max_num_batched_tokens=budget,
        block_size=terms.block_tokens,
        enable_prefix_caching=knobs.enable_prefix_caching and has_contents,
        enable_chunked_prefill=knobs.enable_chunked_prefill,
        async_scheduling=knobs.async_scheduling,
    )


# What is known of one limit or switch of a server that was loaded, not opened?


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFit:
    """A limit or a switch of the server's scheduler, under vLLM's name, and what the load tests say of it."""

    name: str
    value: int | bool
    """What a simulation takes."""
    low: int | None
    high: int | None
    """Ends of the interval of 90 %; None: the load tests set none on that side."""
    told_by: Literal["load", "server", "assumed"]
    said: str
    """In words."""
    probe: str | None
    """A load test that would tell more."""


# Which step times may a server have that we cannot see into?
# A few numbers, whatever model runs there on whatever device.
# The numbers are those of the closed form as a simulator takes it (``StepTimeArrays``): seconds
# per step, per row, per context token, per pair, per sequence. An architecture or a device that
# is known narrows what is believed of them; without either they stay wide. Letters of shapes: K
# unknowns.


_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "launch_s": ("launch_s", "prefill_launch_s"),
    "read_s": ("read_s", "head_read_s"),
    "row_s": ("matmul_row_s", "head_row_s"),
    "kv_token_s": ("kv_token_s",),
    "pair_s": ("attention_pair_s",),
    "per_sequence_s": ("per_sequence_s",),
    "blend_ratio": ("blend_ratio",),
}
"""Each unknown, and the fields of the closed form that go with it, in proportion to the first."""

STEP_NAMES: Final = tuple(_FIELDS)
FRONT_END: Final = "front_end_s"

_FRONT_END_BELIEF: Final = (math.log(4e-3), 1.0)
_REFERENCE_DEVICE: Final = "h100_sxm"
"""Bytes over bytes and FLOP over FLOP are the model's alone: any device tells them."""
_FAR: Final = 1e15
"""Tokens of a window that is none: JSON has no infinity."""
_PAIR_OF_ROW: Final = 1.5e-4
_KV_OF_READ: Final = 2e-5
"""What (query, key) pairs take of a row's time, and a context token of the weights': amid the
catalogue's models."""
_OVERLAP: Final = 1.5
"""A host that runs ahead hides behind the device, one that does not adds to it: load tests do
not tell the two from a shorter launch."""
_LEAST_S: Final = 1e-12


class StepBelief(NamedTuple):
    """The shape that is scaled, and what is believed of the scales before anything was simulated."""

    base: StepTimeArrays
    unknowns: Unknowns
    """The steps' numbers as logarithms, then the front end's delay."""


def step_belief(
    pace: FirstPace,
    ttft_s: F64,
    model: ModelSpec | None,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
) -> StepBelief:
    """What to believe of a server whose answers come at this pace.

    ``ttft_s`` are the times to the first token of its quietest run.
    """
    base = _base(model, engine, hardware)
    centre, deviation = _from_pace(pace, float(np.nanquantile(ttft_s, 0.2)))
    if model is not None:
        centre["kv_token_s"], deviation["kv_token_s"] = (
            1.5 * centre["read_s"] * base.kv_token_s / float(base.read_s[0]),
            0.8,
        )
        centre["pair_s"], deviation["pair_s"] = (
            2 * centre["row_s"] * base.attention_pair_s / base.matmul_row_s,
            0.8,
        )
    if model is not None and hardware is not None:
        for name, value in (("read_s", float(base.read_s[0])), ("row_s", base.matmul_row_s)):
            centre[name], deviation[name] = value, 0.5
    places = [math.log(max(centre[name], _LEAST_S)) for name in STEP_NAMES]
    return StepBelief(
        base=base,
        unknowns=Unknowns(
            names=(*STEP_NAMES, FRONT_END),
            centre=np.array([*places, _FRONT_END_BELIEF[0]]),
            deviation=np.array([*(deviation[name] for name in STEP_NAMES), _FRONT_END_BELIEF[1]]),
            floor=_at_peaks(model, engine, hardware),
        ),
    )


def steps_at(base: StepTimeArrays, x: F64) -> StepTimeArrays:
    """The closed form with these numbers (logarithms, in the order of ``STEP_NAMES``)."""
    changes: dict[str, Any] = {}
    for (first, *others), place in zip(_FIELDS.values(), x.tolist(), strict=False):
        was = getattr(base, first)
        ratio = math.exp(place) / (float(was[0]) if isinstance(was, np.ndarray) else was)
        changes |= {field: getattr(base, field) * ratio for field in (first, *others)}
    return base._replace(**changes)


def not_below(steps: StepTimeArrays, floors_s: Sequence[float]) -> StepTimeArrays:
    """The same steps, none faster than the device's peaks allow (seconds, in the order of ``STEP_NAMES``; 0: no bound)."""
    changes: dict[str, Any] = {}
    for (first, *others), floor_s in zip(
        _FIELDS.values(), floors_s, strict=False
    ):  # neither the front end, nor where none is known
        was = getattr(steps, first)
        ratio = max(floor_s / (float(was[0]) if isinstance(was, np.ndarray) else was), 1.0)
        changes |= {field: getattr(steps, field) * ratio for field in (first, *others)}
    return steps._replace(**changes)


def _at_peaks(
    model: ModelSpec | None, engine: EngineSpec, hardware: HardwareSpec | None
) -> F64 | None:
    """The least that the unknowns can be on this device; None where the model or the device is not known."""
    if model is None or hardware is None:
        return None
    peak = arrays_of(datasheet_step_time(model, engine, hardware, BEST))
    at_peak = {
        "read_s": float(peak.read_s[0]),
        "row_s": peak.matmul_row_s,
        "kv_token_s": peak.kv_token_s,
        "pair_s": peak.attention_pair_s,
    }
    return np.array(
        [
            math.log(at_peak[name]) if at_peak.get(name, 0.0) > 0 else -math.inf
            for name in (*STEP_NAMES, FRONT_END)
        ]
    )


def _from_pace(pace: FirstPace, quick_ttft_s: float) -> tuple[dict[str, float], dict[str, float]]:
    row_s = pace.prompt_token_s or max(quick_ttft_s - pace.base_s, 0.1 * quick_ttft_s) / 1000
    centre = {
        "launch_s": 0.3 * pace.base_s,
        "read_s": 0.7 * pace.base_s,
        "row_s": row_s,
        "kv_token_s": pace.context_token_s or _KV_OF_READ * pace.base_s,
        "pair_s": _PAIR_OF_ROW * row_s,
        "per_sequence_s": pace.sequence_s or pace.base_s / 300,
        "blend_ratio": 2.0,
    }
    wide = dict.fromkeys(STEP_NAMES, 1.2) | {
        "kv_token_s": 1.5,
        "pair_s": 1.5,
        "per_sequence_s": 1.5,
        "blend_ratio": 0.3,
    }
    return centre, wide


def _base(
    model: ModelSpec | None, engine: EngineSpec, hardware: HardwareSpec | None
) -> StepTimeArrays:
    """The shape of the closed form.

    Of the model where it is known (experts read with the rows, windows, logits), else the plainest.
    """
    if model is None:
        return _plainest()
    device = hardware or catalog.find_hardware(_REFERENCE_DEVICE)
    arrays = arrays_of(datasheet_step_time(model, engine, device))
    return arrays._replace(
        window_tokens=min(arrays.window_tokens, _FAR),
        per_sequence_s=_LEAST_S,
        blend_ratio=1.0,
        overlap_ratio=_OVERLAP,
        sag_ratio=0.0,
    )


def _plainest() -> StepTimeArrays:
    return StepTimeArrays(
        launch_s=1.0,
        prefill_launch_s=1.0,
        overlap_ratio=_OVERLAP,
        blend_ratio=1.0,
        sag_ratio=0.0,
        per_sequence_s=1.0,
        read_log_rows=np.zeros(1),
        read_s=np.ones(1),
        matmul_row_s=1.0,
        head_read_s=_LEAST_S,
        head_row_s=0.0,
        kv_token_s=1.0,
        attention_pair_s=1.0,
        message_s=0.0,
        link_row_s=0.0,
        link_logit_s=0.0,
        window_tokens=_FAR,
        full_share_ratio=1.0,
        staircase_log_rows=np.zeros(1),
        staircase_log_ratio=np.zeros(1),
        computes_all_logits=False,
    )
