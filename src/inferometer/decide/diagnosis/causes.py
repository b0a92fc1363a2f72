"""What may limit a server, how much of a latency does each cause cost, and which is named?

Each cause is a limit that a simulation lifts. What a setting can change names vLLM's flag (0.33)
and SGLang's (0.5); the others are the work itself, or the traffic.

Each draw of the plausible server is simulated with one limit lifted, under the same
requests: what the latency falls by is the cause's share. The lowest and the highest of 19 draws are
the ends of an interval of 90 %.

A cause is named only where its share is above 0 in every draw, and more than a tenth of the
latency; a setting only where it does not lengthen another latency that misses its limit. Settings
come first, since they cost least to change; then the traffic; the work itself is named where the
SLO is missed and nothing else is to blame.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.decide.diagnosis.rebuilding import Rebuilt
from inferometer.decide.diagnosis.traffic import sharing
from inferometer.errors import SpecError
from inferometer.inputs.objectives import Metric
from inferometer.inputs.workload.plan import NONE
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import F64
from inferometer.records.server_names import ServerKind
from inferometer.records.types import ABSENT
from inferometer.simulate.outcome import Simulation
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import NS_PER_S

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
    setting: str = ""
    """The scheduler's, which ``change`` gives a value; '': it has none."""
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
        setting="max_num_seqs",
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
        setting="num_blocks",
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
        setting="max_num_batched_tokens",
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
        setting="max_num_batched_tokens",
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
        setting="long_prefill_token_threshold",
    ),
    Cause(
        name="overload",
        kind="traffic",
        words="the traffic: more requests come than one replica serves in time",
        change="{value} replicas, or fewer requests (inferometer size)",
        costs="devices",
        lifted=_fewer,
        factors=(2, 3, 4),
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
            *("launch_s", "prefill_launch_s", "captured_launch_s", "singly_s"),
            *("read_s", "head_read_s"),
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


Finding: TypeAlias = Literal["healthy", "limited", "undecided"]

_WORTH_FRACTION: Final = 0.1
"""Share of the latency below which a cause is not worth a change."""
_MAY_BE_FRACTION: Final = 0.25
"""Share of the latency from which an uncertain cause is worth a longer window."""
_MOSTLY_FRACTION: Final = 0.5
_A_QUEUE: Final = 1.0
"""Requests that wait, on average."""
_BESIDE_TRAFFIC_FRACTION: Final = 0.5
"""A setting that gains less than this of what fewer requests gain is not the cause."""
_BUDGET_BESIDE_TRAFFIC_FRACTION: Final = 0.7
"""The same of a step budget: of an overloaded server one of thousands of tokens gains a third by its
size alone, one that is too small nearly all."""
_ENOUGH_OF_GAIN: Final = 0.9
"""A smaller change that gains this much of the largest is the better one."""
_METHOD: Final = "least .. most of the draws that show what the server shows"

Percentiles = tuple[tuple[Metric, float], ...]
"""Latencies, each with a percentile (a fraction)."""
Statistics = tuple[tuple[Metric, float | None], ...]
"""The same; None: their mean."""


class Change(NamedTuple):
    """A setting's new value, and the latencies with it."""

    value: int | None
    """None where it is no number."""
    factor: float
    """Factor on the limit."""
    predicted: tuple[Estimate, ...]
    """(percentiles) Seconds, in another window of the same traffic; of the work itself, which no
    setting changes, in the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The latency that one cause explains."""

    cause: Cause
    shares: tuple[Estimate, ...]
    """(percentiles) Seconds by which the latency falls without it; below 0: it rises."""
    change: Change
    """The smallest that gains nearly as much as the largest, of the first percentile."""


def seconds_at(rebuilt: Rebuilt, done: Simulation, percentiles: Statistics) -> F64:
    """(percentiles) Of the requests that came in the window."""
    table = done.requests
    came_ns = table.intended_send_ns
    ended = (table.finished_ns != ABSENT) & (table.first_token_ns != ABSENT)
    rows = ended & (came_ns >= rebuilt.start_ns) & (came_ns < rebuilt.until_ns)
    if not rows.any():  # without the limit a closed loop may be through before the window begins
        rows = ended
    if not rows.any():
        return np.full(len(percentiles), np.nan)
    came, began = table.intended_send_ns[rows], table.admitted_ns[rows]
    first, ended = table.first_token_ns[rows], table.finished_ns[rows]
    gaps = table.output_tokens[rows] - 1
    several = gaps > 0
    seconds: dict[Metric, F64] = {
        "ttft": (first - came) / NS_PER_S,
        "tpot": (ended - first)[several] / NS_PER_S / gaps[several],
        "e2e": (ended - came) / NS_PER_S,
        "queue": (began - came) / NS_PER_S,
    }
    return np.array([_statistic(seconds[metric], fraction) for metric, fraction in percentiles])


def _statistic(seconds: F64, fraction: float | None) -> float:
    if not seconds.size:
        return math.nan
    return float(seconds.mean() if fraction is None else np.quantile(seconds, fraction))


def estimates(seconds: F64) -> tuple[Estimate, ...]:
    """Median draw with the lowest and the highest; ``seconds`` is (draws, percentiles)."""
    return tuple(
        Estimate(
            value=float(np.median(column)),
            low=float(column.min()),
            high=float(column.max()),
            confidence_fraction=0.9,
            n_samples=len(column),
            method=_METHOD,
        )
        for column in seconds.T
    )


def _in_silence(n_done: int, n_causes: int) -> None:
    """A progress callback that does nothing."""


def shares_of(
    draws: Sequence[Rebuilt],
    base: F64,
    percentiles: Percentiles,
    on_done: Callable[[int, int], None] = _in_silence,
    fresh: Sequence[Rebuilt] | None = None,
) -> tuple[Share, ...]:
    """The share of each possible cause; ``base`` (draws, percentiles): latencies with all limits.

    ``fresh`` are the draws under other requests of the same traffic, for which a change is
    predicted; None: it is predicted for those of the window.
    """
    found: list[Share] = []
    causes = [one for one in CAUSES if one.applies(draws[0])]
    for cause in causes:
        by_factor = [_lifted(draws, cause, factor, percentiles) for factor in cause.factors]
        gains = [float(np.median(base[:, 0] - after[:, 0])) for after in by_factor]
        best = int(np.argmax(gains))
        wanted = _ENOUGH_OF_GAIN * gains[best]
        enough = next((i for i, gain in enumerate(gains) if gain >= wanted), best)
        factor = cause.factors[enough]
        change = Change(_value(draws[0], cause, factor), factor, estimates(by_factor[enough]))
        if fresh is not None and cause.kind != "work":
            predicted = predicted_with(fresh, cause, change, percentiles)
            change = change._replace(predicted=predicted)
        found.append(
            Share(
                cause=cause,
                shares=estimates(base - by_factor[best]),
                change=change,
            )
        )
        on_done(len(found), len(causes))
    return tuple(found)


def predicted_with(
    draws: Sequence[Rebuilt], cause: Cause, change: Change, percentiles: Statistics
) -> tuple[Estimate, ...]:
    """(percentiles) Seconds of these servers with the change.

    All get the same value, whichever limit each of them has now.
    """

    def changed(one: Rebuilt) -> Rebuilt:
        if cause.setting and change.value is not None:
            return _with_value(one, cause.setting, change.value)
        return cause.lifted(one, change.factor)

    return estimates(_seconds_of(draws, changed, percentiles))


def _with_value(one: Rebuilt, setting: str, value: int) -> Rebuilt:
    """The server with this value, or the nearest that its other limits allow."""
    config = one.config
    allowed = {
        "max_num_seqs": min(value, config.max_num_batched_tokens),
        "max_num_batched_tokens": max(value, config.max_num_seqs),
        "long_prefill_token_threshold": min(value, config.max_model_len),
    }
    changes: dict[str, Any] = {setting: allowed.get(setting, value)}
    return replace(one, config=replace(config, **changes))


def _lifted(draws: Sequence[Rebuilt], cause: Cause, factor: float, percentiles: Statistics) -> F64:
    """(draws, percentiles) With the limit moved."""
    return _seconds_of(draws, lambda one: cause.lifted(one, factor), percentiles)


def _seconds_of(
    draws: Sequence[Rebuilt], changed: Callable[[Rebuilt], Rebuilt], percentiles: Statistics
) -> F64:
    """(draws, percentiles) After the change; as they are where the server cannot be set so."""
    rows: list[F64] = []
    for one in draws:
        try:
            after = changed(one)
        except SpecError:
            after = one
        rows.append(seconds_at(after, after.simulation(), percentiles))
    return np.stack(rows)


def _value(likely: Rebuilt, cause: Cause, factor: float) -> int | None:
    """The value in ``change`` where the limit of this server is moved by this factor."""
    if cause.kind == "traffic":
        return round(factor)
    if not cause.setting:
        return None
    value: int = getattr(cause.lifted(likely, factor).config, cause.setting)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The cause that is named, and why."""

    finding: Finding
    cause: Share | None
    """The limiting cause; a possible one where undecided; None: nothing worth a change."""


def conclusion(
    shares: Sequence[Share],
    now: Estimate,
    slo: Verdict | None,
    verdicts: Sequence[Verdict] = (),
    *,
    mean_waiting: float = math.inf,
) -> Conclusion:
    """The cause of the first latency (``now``); ``slo``: verdict of the SLO.

    Where hardly a request waits (``mean_waiting``), fewer requests would shorten what they wait for
    each other's steps, but no replica lacks.

    ``verdicts`` (percentiles): of the limit of each latency. A setting that lengthens one that is
    missed is not what limits the server.
    """
    if slo == "met":
        return Conclusion(finding="healthy", cause=None)
    settings = [
        one
        for one in shares
        if one.cause.kind == "setting" and _is_worth(one, now) and not _worsens(one, verdicts)
    ]
    traffic = next((one for one in shares if one.cause.kind == "traffic"), None)
    ranked = sorted(settings, key=lambda one: -one.shares[0].value)
    sure = [one for one in ranked if _is_sure(one)]
    open_ones = [one for one in ranked if one.shares[0].value > _MAY_BE_FRACTION * now.value]
    is_overload = (
        traffic is not None
        and mean_waiting >= _A_QUEUE
        and _is_sure(traffic)
        and traffic.shares[0].value > _MOSTLY_FRACTION * now.value
    )
    if sure and (traffic is None or not is_overload or _rivals(sure[0], traffic)):
        return Conclusion(finding="limited", cause=sure[0])
    rivals = [one for one in open_ones if traffic is not None and _rivals(one, traffic)]
    if is_overload and (sure or not rivals):
        return Conclusion(finding="limited", cause=traffic)
    if open_ones:
        return Conclusion(finding="undecided", cause=open_ones[0])
    if slo is None:
        return Conclusion(finding="healthy", cause=None)
    work = [one for one in shares if one.cause.kind != "setting" and _is_sure(one)]
    largest = max(work, key=lambda one: one.shares[0].value, default=None)
    is_undecided = slo == "undecided" or largest is None
    return Conclusion(finding="undecided" if is_undecided else "limited", cause=largest)


def _is_worth(share: Share, now: Estimate) -> bool:
    return share.shares[0].value > _WORTH_FRACTION * now.value


def _worsens(share: Share, verdicts: Sequence[Verdict]) -> bool:
    return any(
        verdict == "missed" and one.high is not None and one.high < 0
        for one, verdict in zip(share.shares, verdicts, strict=False)
    )


def _rivals(setting: Share, traffic: Share) -> bool:
    is_budget = setting.cause.name == "small_step_budget"
    fraction = _BUDGET_BESIDE_TRAFFIC_FRACTION if is_budget else _BESIDE_TRAFFIC_FRACTION
    return setting.shares[0].value >= fraction * traffic.shares[0].value


def _is_sure(share: Share) -> bool:
    low = share.shares[0].low
    return low is not None and low > 0
