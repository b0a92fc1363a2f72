"""Unknowns of a server: limits and switches of its scheduler, step times, and what bounds them.

A limit that was never reached has no upper end: beyond what all requests in flight need together,
every value does the same. Step times are the few numbers of the closed form that a simulator takes
(``StepTimeArrays``): seconds per step, row, context token, attention pair and sequence. A known
architecture or device narrows their prior. Letters of shapes: K unknowns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.loads.load_tests import PeakLoad, StepPace
from inferometer.fit.map import Prior
from inferometer.inputs import catalog
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.scenario import BEST
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import F64
from inferometer.simulate.scheduler_config import SchedulerConfig

Limit: TypeAlias = Literal["max_num_seqs", "max_num_batched_tokens", "n_kv_blocks"]
Switch: TypeAlias = Literal["async_scheduling", "enable_chunked_prefill", "enable_prefix_caching"]

LIMITS: Final[tuple[Limit, ...]] = ("max_num_seqs", "n_kv_blocks", "max_num_batched_tokens")
SWITCHES: Final[tuple[Switch, ...]] = (
    "enable_prefix_caching",
    "async_scheduling",
    "enable_chunked_prefill",
)
BLOCK_TOKENS: Final = 16
"""vLLM's default; another size rounds the tokens of a request a little more, or less."""

_LEAST_BUDGET: Final = 32
_SURE_FRACTION: Final = 0.95
"""Share of the peak load: clients see ends and starts a little early or late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSettings:
    """Limits and switches that the server itself reports, in metrics or in the log of its start."""

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
        """The settings with another limit."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)

    def with_switch(self, name: Switch, *, value: bool) -> "ServerKnobs":
        """The settings with a switch on or off."""
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)


class Range(NamedTuple):
    """Range of a limit: lower values contradict the load, higher ones make no difference."""

    low: int
    high: int

    def candidates(self, n_values: int) -> list[int]:
        """``n_values`` values at most, evenly spaced in their logarithm."""
        return sorted(
            {round(value) for value in np.geomspace(self.low, self.high, n_values).tolist()}
        )

    def within(self, value: int) -> int:
        """The nearest value of the range."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Ranges of the limits, and what all simulations of the server share."""

    ranges: Mapping[Limit, Range]
    block_tokens: int
    max_model_len: int
    """The server's where it is known, else enough for the longest request."""
    switches: Mapping[Switch, bool]
    """Switches that the server reported."""
    held_blocks: int = 0
    """KV blocks of all prompts whose answers were streaming at the peak, if none shared any."""
    most_blocks: int | None = None
    """KV blocks that fit into the device's memory beside the weights; None: device or model is not
    known."""


def search_space(
    most: PeakLoad, reported: ReportedSettings, most_blocks: int | None = None
) -> SearchSpace:
    """Ranges of the limits that hold the peak load, narrowed by reports and the device's memory.

    All prompts whose answers stream at once are in the KV cache, for vLLM admits no request
    while a preempted one waits. But prompts that begin alike may share blocks: where that is not
    known, only the longest request is a sure lower bound.

    Raises
    ------
    ModelError
        A known limit is one that the load tests show to be exceeded.
    """
    block_tokens = reported.block_tokens or BLOCK_TOKENS
    held_blocks = int(_SURE_FRACTION * most.n_held_tokens) // block_tokens
    is_held = most.has_known_prefixes or reported.switches.get("enable_prefix_caching") is False
    least_blocks = max(
        -(-max(most.longest_tokens, reported.max_model_len or 0) // block_tokens),
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
    _check_known(reported, ranges)
    named: dict[Limit, Range] = {
        name: Range(value, value) for name, value in reported.limits.items()
    }
    return SearchSpace(
        ranges=ranges | named,
        block_tokens=block_tokens,
        max_model_len=max(reported.max_model_len or 0, most.longest_tokens + 1),
        switches=reported.switches,
        held_blocks=held_blocks,
        most_blocks=most_blocks,
    )


def _check_known(reported: ReportedSettings, ranges: Mapping[Limit, Range]) -> None:
    """A reported limit must hold the peak load."""
    for name, value in reported.limits.items():
        least = ranges[name].low
        if value < least:
            raise ModelError(
                f"{name} = {value:,} cannot be: the load tests show {least:,} or more at once",
                where="--known, the server's log or metrics, or the imported run",
                allowed=f"{least:,} or more",
                try_="load tests of one replica, and the limits of that server",
            )


def config_of(knobs: ServerKnobs, space: SearchSpace, *, has_contents: bool) -> SchedulerConfig:
    """The scheduler with these knobs; without known contents a prefix cache finds nothing."""
    budget = knobs.max_num_batched_tokens
    if not knobs.enable_chunked_prefill:
        budget = max(budget, space.max_model_len)
    return SchedulerConfig(
        num_blocks=max(knobs.n_kv_blocks, -(-space.max_model_len // space.block_tokens)) + 1,
        max_model_len=space.max_model_len,
        max_num_seqs=min(knobs.max_num_seqs, budget),
        max_num_batched_tokens=budget,
        block_size=space.block_tokens,
        enable_prefix_caching=knobs.enable_prefix_caching and has_contents,
        enable_chunked_prefill=knobs.enable_chunked_prefill,
        async_scheduling=knobs.async_scheduling,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFit:
    """A limit or switch of the server's scheduler, under vLLM's name, and its interval."""

    name: str
    value: int | bool
    """Value for simulations."""
    low: int | None
    high: int | None
    """Ends of the 90 % interval; None: the load tests set no end on that side."""
    informed_by: Literal["load", "server", "assumed"]
    text: str
    """The same in words."""
    probe: str | None
    """A load test that would narrow it."""


_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "launch_s": ("launch_s", "prefill_launch_s", "captured_launch_s"),
    "read_s": ("read_s", "head_read_s"),
    "row_s": ("matmul_row_s", "head_row_s"),
    "kv_token_s": ("kv_token_s",),
    "pair_s": ("attention_pair_s",),
    "per_sequence_s": ("per_sequence_s",),
    "blend_ratio": ("blend_ratio",),
}
"""Each unknown, and the fields of the closed form that it scales, in proportion to the first."""

STEP_NAMES: Final = tuple(_FIELDS)
FRONT_END: Final = "front_end_s"

_FRONT_END_BELIEF: Final = (math.log(4e-3), 1.0)
_REFERENCE_DEVICE: Final = "h100_sxm"
"""Ratios of bytes and of FLOP depend on the model alone, so any device gives them."""
_FAR: Final = 1e15
"""Tokens of an unlimited attention window: JSON has no infinity."""
_PAIR_OF_ROW: Final = 1.5e-4
_KV_OF_READ: Final = 2e-5
"""Time of an attention pair in that of a row, and of a context token in that of the weights:
typical of the catalogue's models."""
_OVERLAP: Final = 1.5
"""Between a host that runs ahead of the device and one that adds to it: load tests cannot tell the
two from a shorter launch."""
_LEAST_S: Final = 1e-12


class StepPrior(NamedTuple):
    """The shape of the closed form, and the prior of its scales."""

    base: StepTimeArrays
    prior: Prior
    """Prior of the logarithms of the steps' parameters, then of the front end's delay."""


def step_prior(
    pace: StepPace,
    ttft_s: F64,
    model: ModelSpec | None,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
) -> StepPrior:
    """Prior from the pace of the answers; a known model and device narrow it.

    ``ttft_s`` are the times to first token of the quietest run.
    """
    base = _formula_of(model, engine, hardware)
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
    candidates = [math.log(max(centre[name], _LEAST_S)) for name in STEP_NAMES]
    return StepPrior(
        base=base,
        prior=Prior(
            names=(*STEP_NAMES, FRONT_END),
            mean=np.array([*candidates, _FRONT_END_BELIEF[0]]),
            sd=np.array([*(deviation[name] for name in STEP_NAMES), _FRONT_END_BELIEF[1]]),
            lower=_at_peaks(model, engine, hardware),
        ),
    )


def steps_at(base: StepTimeArrays, x: F64) -> StepTimeArrays:
    """The closed form with these numbers (logarithms, in the order of ``STEP_NAMES``)."""
    changes: dict[str, Any] = {}
    for (first, *others), candidate in zip(_FIELDS.values(), x.tolist(), strict=False):
        was = getattr(base, first)
        ratio = math.exp(candidate) / (float(was[0]) if isinstance(was, np.ndarray) else was)
        changes |= {field: getattr(base, field) * ratio for field in (first, *others)}
    return base._replace(**changes)


def not_below(steps: StepTimeArrays, floors_s: Sequence[float]) -> StepTimeArrays:
    """The same steps, none faster than the device's peaks allow.

    ``floors_s`` in the order of ``STEP_NAMES``; 0: no bound.
    """
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
    """Lower bounds of the unknowns at the device's peaks; None: model or device is not known."""
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


def _from_pace(pace: StepPace, quick_ttft_s: float) -> tuple[dict[str, float], dict[str, float]]:
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


def _formula_of(
    model: ModelSpec | None, engine: EngineSpec, hardware: HardwareSpec | None
) -> StepTimeArrays:
    """Structure of the step-time formula: the model's, or the plainest if it is unknown.

    A model determines how experts are read with the rows, attention windows, and logits.
    """
    if model is None:
        return plainest()
    device = hardware or catalog.find_hardware(_REFERENCE_DEVICE)
    arrays = arrays_of(datasheet_step_time(model, engine, device))
    return arrays._replace(
        window_tokens=min(arrays.window_tokens, _FAR),
        per_sequence_s=_LEAST_S,
        blend_ratio=1.0,
        overlap_ratio=_OVERLAP,
        sag_ratio=0.0,
    )


def plainest() -> StepTimeArrays:
    """Step-time formula of an unknown model: every number 1 or 0."""
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
