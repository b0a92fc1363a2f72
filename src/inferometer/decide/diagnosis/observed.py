"""Which causes do a server's metrics show without a simulation?

Each check compares one number of the window with a threshold that has a reason. A check is *found*,
*ruled out* by its number, or *not reported* where the server has no such metric: absent is never 0.
Flags are those of vLLM 0.33 and SGLang 0.5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.records.server_names import Counter
from inferometer.records.server_series import counter_series, gauge_series, series_of

CheckFinding: TypeAlias = Literal["found", "ruled out", "not reported"]
CheckName: TypeAlias = Literal[
    "refused",
    "aborted",
    "failed",
    "preemption_thrash",
    "deferred",
    "front_end_bound",
    "speculation_not_paying",
    "uneven_engines",
    "prefix_cache_evicted",
    "too_little_load",
]

_LEAST_PER_ENGINE: Final = 2.0
"""Running requests of each engine, on average: below it one request more or less is uneven."""
_BUSY_CACHE_HITS: Final = 0.5
"""Of looked-up prompt tokens: where this much is found, eviction is no concern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One cause that a number of the window shows."""

    name: CheckName
    words: str
    """What is the matter where it is found."""
    measure: Callable[[ServerWindow], float | None]
    """None: the server does not report it, or it does not apply to this window."""
    number: str
    """How the measured number reads, with ``{value}``."""
    limit_ratio: float
    why: str
    """The reason for this limit."""
    change: str
    refuted_by: str
    """A measurement that would show that this is not the cause."""
    is_above: bool = True
    """Found above the limit; else below it."""
    is_loss: bool = False
    """Does it lose requests? Then it matters whatever the latency is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A check of one window."""

    check: Check
    measured_ratio: float | None

    @property
    def finding(self) -> CheckFinding:
        """Is it the matter?"""
        if self.measured_ratio is None:
            return "not reported"
        is_beyond = self.measured_ratio > self.check.limit_ratio
        is_found = (
            is_beyond if self.check.is_above else self.measured_ratio < self.check.limit_ratio
        )
        return "found" if is_found else "ruled out"

    @property
    def evidence(self) -> str:
        """The number; '' where there is none."""
        return (
            ""
            if self.measured_ratio is None
            else self.check.number.format(value=self.measured_ratio)
        )


def checked(window: ServerWindow) -> tuple[Checked, ...]:
    """Every check of this window, in the order of the table."""
    return tuple(Checked(check=one, measured_ratio=one.measure(window)) for one in CHECKS)


def _grown(window: ServerWindow, counter: Counter) -> float | None:
    series = counter_series(window.record, counter)
    return None if series is None else float(series.value[-1] - series.value[0])


def _per_request(counter: Counter) -> Callable[[ServerWindow], float | None]:
    def measure(window: ServerWindow) -> float | None:
        n = _grown(window, counter)
        n_ended = float(window.finished[-1])
        if counter == "rejected" and n is not None:
            n_ended += n
        return None if n is None or n_ended <= 0 else n / n_ended

    return measure


def _idle_fraction(window: ServerWindow) -> float:
    return float((window.running + window.waiting == 0).mean())


def _deferred(window: ServerWindow) -> float | None:
    series = gauge_series(window.record, "deferred")
    return None if series is None else float(np.nanmean(series.value))


def _front_end_fraction(window: ServerWindow) -> float | None:
    """Of the mean time of a request, what passes neither in the queue nor in the engine."""
    means = [window.summary.time(name) for name in ("e2e", "queue", "inference")]
    if any(one is None for one in means):
        return None
    whole_s, *parts_s = [one.mean_s for one in means if one is not None]
    return max(whole_s - sum(parts_s), 0.0) / max(whole_s, 1e-9)


def _accepted_length(window: ServerWindow) -> float | None:
    """Tokens of a step, for each request: what is accepted of its draft, and one more."""
    drafts, accepted = _grown(window, "drafts"), _grown(window, "accepted_tokens")
    if drafts and accepted is not None:
        return 1 + accepted / drafts
    series = gauge_series(window.record, "accepted_length")
    if series is None:
        return None
    used = series.value[series.value > 0]
    return float(used.mean()) if used.size else None


def _unevenness(window: ServerWindow) -> float | None:
    """Running requests of the fullest engine in those of the mean one."""
    means = [float(np.nanmean(one.value)) for one in series_of(window.record, "running")]
    if len(means) < 2 or np.mean(means) < _LEAST_PER_ENGINE:
        return None
    return max(means) / float(np.mean(means))


def _times_overwritten(window: ServerWindow) -> float | None:
    """How often was the whole KV cache written in the window?

    None where the server does not report it, or most prompts are found in the cache: then what was
    evicted was not missed.
    """
    summary = window.summary
    if window.is_cache_off or summary.prefix_hit_fraction is None:
        return None
    if not summary.n_kv_blocks or not summary.kv_block_tokens:
        return None
    if summary.prefix_hit_fraction > _BUSY_CACHE_HITS:
        return None
    written = float(window.prompt_tokens[-1]) * (1 - window.hit_fraction)
    written += float(window.output_tokens[-1])
    return written / (summary.n_kv_blocks * summary.kv_block_tokens)


CHECKS: Final = (
    Check(
        name="refused",
        is_loss=True,
        words="requests are refused at the door: its queue limits are reached",
        measure=_per_request("rejected"),
        number="{value:.2%} of requests refused",
        limit_ratio=0.01,
        why="one in a hundred: an availability of 99 %",
        change=(
            "more replicas (inferometer size), or --max-num-queued-reqs and"
            " --max-num-queued-tokens up (vLLM 0.33; SGLang: --max-queued-requests)"
        ),
        refuted_by="the counter stands still at the same traffic with the limit raised",
    ),
    Check(
        name="aborted",
        is_loss=True,
        words="clients go away before their answer is whole",
        measure=_per_request("aborted"),
        number="{value:.2%} of requests aborted",
        limit_ratio=0.01,
        why="one in a hundred: people seldom stop answers, timeouts of clients and proxies do",
        change="timeouts of clients and proxies above the latency that the SLO allows",
        refuted_by="as many aborted where the latency is a tenth",
    ),
    Check(
        name="failed",
        is_loss=True,
        words="requests end in an error of the server",
        measure=_per_request("failed"),
        number="{value:.2%} of requests failed",
        limit_ratio=0.001,
        why="one in a thousand: no error is a setting's price",
        change="the server's log says why",
        refuted_by="the counter stands still",
    ),
    Check(
        name="preemption_thrash",
        words="requests are thrown out of the KV cache and computed again",
        measure=_per_request("preemptions"),
        number="{value:.2f} preemptions a request",
        limit_ratio=0.02,
        why="a request that is preempted is computed twice: 2 % of requests are 2 % of the work",
        change=(
            "--max-num-seqs down, --watermark 0.02 (vLLM 0.33), more KV blocks (SGLang:"
            " --schedule-conservativeness 1.3)"
        ),
        refuted_by="the same throughput with half as many sequences at once and no preemption",
    ),
    Check(
        name="deferred",
        words="requests wait for a LoRA slot, a KV transfer, or their grammar, not for the batch",
        measure=_deferred,
        number="{value:.2f} requests deferred on average",
        limit_ratio=0.5,
        why="half the time one request waits for something other than a place in the batch",
        change=(
            "--max-loras and --max-cpu-loras up, or a faster KV transfer (SGLang:"
            " --max-loras-per-batch; of grammars fewer distinct schemas)"
        ),
        refuted_by="vllm:num_requests_waiting_by_reason of capacity is as large",
    ),
    Check(
        name="front_end_bound",
        words="requests wait for the front end: tokenising, the API server, or streaming",
        measure=_front_end_fraction,
        number="{value:.0%} of a request's time outside queue and engine",
        limit_ratio=0.1,
        why="a tenth of the latency, as of every cause; a front end with time to spare takes ms",
        change=(
            "--api-server-count up, a faster tokeniser (SGLang: --tokenizer-worker-num), fewer"
            " threads of other programs on its cores"
        ),
        refuted_by="the API server's process uses less than half of a core",
    ),
    Check(
        name="speculation_not_paying",
        words="speculation hardly yields tokens: the draft does not match",
        measure=_accepted_length,
        number="{value:.2f} tokens a step of each request",
        limit_ratio=1.25,
        is_above=False,
        why=(
            "drafting and verifying take a fifth of a step or more (an assumption; drafts of"
            " another model cost more)"
        ),
        change=(
            "fewer num_speculative_tokens in --speculative-config, or none (SGLang:"
            " --speculative-num-steps)"
        ),
        refuted_by="TPOT rises where the same server runs without --speculative-config",
    ),
    Check(
        name="uneven_engines",
        words="one data-parallel engine is fuller than the others",
        measure=_unevenness,
        number="the fullest engine runs {value:.2f} times the mean",
        limit_ratio=1.25,
        why="its steps are the ones that the others wait for; below it the gain is within noise",
        change="route by load (SGLang: --load-balance-method total_tokens)",
        refuted_by="TPOT of the fullest engine is that of the others",
    ),
    Check(
        name="prefix_cache_evicted",
        words="the prefix cache is written over before prompts come again, or none comes again",
        measure=_times_overwritten,
        number="the whole KV cache is written {value:.2f} times within the window",
        limit_ratio=1.0,
        why="below one time nothing of the window's own prompts has left the cache",
        change=(
            "more KV blocks, --kv-offloading-size (SGLang: --enable-hierarchical-cache), or a"
            " router that keeps sessions together"
        ),
        refuted_by=(
            "--kv-cache-metrics: vllm:kv_block_idle_before_evict above vllm:kv_block_reuse_gap"
        ),
    ),
    Check(
        name="too_little_load",
        words="the server is mostly idle",
        measure=_idle_fraction,
        number="{value:.0%} of the time nothing to do",
        limit_ratio=0.5,
        why="a replica that is idle half the time could do the work of two",
        change="fewer replicas (inferometer size says how few)",
        refuted_by="an hour of the day at which it is busy",
    ),
)
"""What loses requests first, then what costs time, then waste."""
