"""Table of serving mistakes that one number shows, each with its limit and remedy.

All verbs with such a number share the table: ``diagnose`` (a window of metrics), ``explain`` (a
sweep, a trace), ``tune`` (simulated requests) and ``doctor`` (this machine). A pitfall is *found*,
*ruled out* by its number, *undecided* where the number's interval includes the limit, or *not
reported* without the number: absent is never 0. The module is in
this layer because the checks of the machine may not import ``decide``. Flags are those of vLLM 0.33
and SGLang 0.5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from inferometer.inputs.types import Caution
from inferometer.units import format_number

CheckFinding: TypeAlias = Literal["found", "ruled out", "undecided", "not reported"]
PitfallName: TypeAlias = Literal[
    "refused",
    "aborted",
    "failed",
    "outside",
    "preemption_thrash",
    "deferred",
    "out_of_order",
    "front_end_bound",
    "speculation_not_paying",
    "uneven_engines",
    "prefix_cache_evicted",
    "kv_fragmentation",
    "too_little_load",
    "too_much_tp",
    "launch_bound",
    "all_logits",
    "padding",
    "wide_window",
    "synchronisation",
    "throttled",
    "waits_for_cores",
    "oversubscribed_threads",
    "unbound_numa",
    "unlike_providers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pitfall:
    """One mistake of a deployment that a number shows."""

    name: PitfallName
    words: str
    """The problem in words."""
    number: str
    """Text of the measured number, with ``{value}``."""
    limit_ratio: float
    why: str
    """The reason for this limit."""
    change: str
    refuted_by: str
    """A measurement that would refute this cause."""
    is_above: bool = True
    """True: found above the limit; False: below it."""
    is_loss: bool = False
    """Does it lose requests, and so matter at any latency?"""
    is_slow_work: bool = False
    """Does it lengthen each step, which then is not due to other settings?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """Verdict on one pitfall, with the number that shows it."""

    name: PitfallName
    finding: CheckFinding
    words: str
    measured_ratio: float | None
    """None: not reported."""
    low_ratio: float | None = None
    """Ends of its interval; None: it was counted, or has none."""
    high_ratio: float | None = None
    evidence: str
    """The measured number in words."""
    limit_ratio: float
    why: str
    change: str
    refuted_by: str
    is_loss: bool
    """Does it lose requests?"""
    is_slow_work: bool
    """Does it lengthen each step?"""

    @property
    def sentence(self) -> str:
        """Problem, number and limit, remedy, and what would refute it."""
        return (
            f"{self.words}: {self.evidence} (limit {format_number(self.limit_ratio)}: {self.why})."
            f" Change: {self.change}. Not so if {self.refuted_by}"
        )

    @property
    def caution(self) -> Caution:
        """The pitfall as a caution, with its code and remedy."""
        text = f"{self.words}: {self.evidence}"
        return Caution(code=self.name.upper(), text=text, remedy=self.change)


def judged(
    name: PitfallName,
    value: float | None,
    evidence: str = "",
    interval: tuple[float, float] | None = None,
) -> CheckRow:
    """Verdict on the pitfall by this number; ``evidence`` replaces the number's text.

    One with an interval is judged by its ends.

    Example
    -------
    >>> judged("preemption_thrash", 0.5).finding, judged("preemption_thrash", None).finding
    ('found', 'not reported')
    >>> judged("launch_bound", 0.2, interval=(0.05, 0.6)).finding
    'undecided'
    """
    one = _BY_NAME[name]
    finding: CheckFinding = "not reported"
    if value is not None:
        beyond = {
            end > one.limit_ratio if one.is_above else end < one.limit_ratio
            for end in interval or (value,)
        }
        finding = "undecided" if len(beyond) > 1 else "found" if beyond == {True} else "ruled out"
        evidence = evidence or one.number.format(value=value)
    return CheckRow(
        name=name,
        finding=finding,
        words=one.words,
        measured_ratio=value,
        low_ratio=None if interval is None else interval[0],
        high_ratio=None if interval is None else interval[1],
        evidence=evidence,
        limit_ratio=one.limit_ratio,
        why=one.why,
        change=one.change,
        refuted_by=one.refuted_by,
        is_loss=one.is_loss,
        is_slow_work=one.is_slow_work,
    )


def judged_all(values: Mapping[PitfallName, float | None]) -> tuple[CheckRow, ...]:
    """Verdict on each pitfall with a value here, in the order of the table."""
    return tuple(judged(one.name, values[one.name]) for one in PITFALLS if one.name in values)


def found_sentence(checks: Sequence[CheckRow]) -> str:
    """Sentences of the pitfalls found; '' without any."""
    return "; ".join(one.sentence for one in checks if one.finding == "found")


def empty_share(block_tokens: int, held_tokens: float) -> float:
    """Empty share of the KV blocks: each sequence's last block is half full on average.

    ``held_tokens`` is the mean context of a sequence.

    Example
    -------
    >>> empty_share(16, 484.5), empty_share(1, 100.0)
    (0.015..., 0.0)
    """
    empty_tokens = (block_tokens - 1) / 2
    return empty_tokens / max(held_tokens + empty_tokens, 1e-9)


PITFALLS: Final = (
    Pitfall(
        name="refused",
        is_loss=True,
        words="requests are refused at the door: its queue limits are reached",
        number="{value:.2%} of requests refused",
        limit_ratio=0.01,
        why="one in a hundred: an availability of 99 %",
        change=(
            "more replicas (inferometer size), or --max-num-queued-reqs and"
            " --max-num-queued-tokens up (vLLM 0.33; SGLang: --max-queued-requests)"
        ),
        refuted_by="the counter stands still at the same traffic with the limit raised",
    ),
    Pitfall(
        name="aborted",
        is_loss=True,
        words="clients go away before their answer is whole",
        number="{value:.2%} of requests aborted",
        limit_ratio=0.01,
        why="one in a hundred: people seldom stop answers, timeouts of clients and proxies do",
        change="timeouts of clients and proxies above the latency that the SLO allows",
        refuted_by="as many aborted where the latency is a tenth",
    ),
    Pitfall(
        name="failed",
        is_loss=True,
        words="requests end in an error of the server",
        number="{value:.2%} of requests failed",
        limit_ratio=0.001,
        why="one in a thousand: no error is a setting's price",
        change="the server's log says why",
        refuted_by="the counter stands still",
    ),
    Pitfall(
        name="outside",
        words="the latency passes outside the server: a slow client, a proxy, or the network",
        number="{value:.0%} of the client's mean TTFT, or E2E, before and after the server",
        limit_ratio=0.5,
        why="most of it: what the server's settings change is the smaller part",
        change="a client that reads at once, a proxy that does not buffer, a connection that stays",
        refuted_by="the same load from the server's own host is as slow",
    ),
    Pitfall(
        name="preemption_thrash",
        words="requests are thrown out of the KV cache and computed again",
        number="{value:.2f} preemptions a request",
        limit_ratio=0.02,
        why="a request that is preempted is computed twice: 2 % of requests are 2 % of the work",
        change=(
            "--max-num-seqs down, --watermark 0.02 (vLLM 0.33), more KV blocks (SGLang:"
            " --schedule-conservativeness 1.3)"
        ),
        refuted_by="the same throughput with half as many sequences at once and no preemption",
    ),
    Pitfall(
        name="deferred",
        words="requests wait for a LoRA slot, a KV transfer, or their grammar, not for the batch",
        number="{value:.2f} requests deferred on average",
        limit_ratio=0.5,
        why="half the time one request waits for something other than a place in the batch",
        change=(
            "--max-loras and --max-cpu-loras up, or a faster KV transfer (SGLang:"
            " --max-loras-per-batch; of grammars fewer distinct schemas)"
        ),
        refuted_by="vllm:num_requests_waiting_by_reason of capacity is as large",
    ),
    Pitfall(
        name="out_of_order",
        words="requests are not admitted in the order in which they come: some wait for others",
        number="the farthest queue time is {value:.1f} times the bound of an order of arrival",
        limit_ratio=1.5,
        why="scrapes tell to an interval when requests came and were admitted; half more is beyond",
        change=(
            "--scheduling-policy fcfs, or priorities whose waits are meant (SGLang: no"
            " --enable-priority-scheduling, --schedule-policy fcfs)"
        ),
        refuted_by="the server starts with --scheduling-policy fcfs and waits are as long",
    ),
    Pitfall(
        name="front_end_bound",
        words="requests wait for the front end: tokenising, the API server, or streaming",
        number="{value:.0%} of a request's time outside queue and engine",
        limit_ratio=0.1,
        why="a tenth of the latency, as of every cause; a front end with time to spare takes ms",
        change=(
            "--api-server-count up, a faster tokeniser (SGLang: --tokenizer-worker-num), fewer"
            " threads of other programs on its cores"
        ),
        refuted_by="the API server's process uses less than half of a core",
    ),
    Pitfall(
        name="speculation_not_paying",
        words="speculation hardly yields tokens: the draft does not match",
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
        is_slow_work=True,
    ),
    Pitfall(
        name="uneven_engines",
        words="one data-parallel engine is fuller than the others",
        number="the fullest engine runs {value:.2f} times the mean",
        limit_ratio=1.25,
        why="its steps are the ones that the others wait for; below it the gain is within noise",
        change="route by load (SGLang: --load-balance-method total_tokens)",
        refuted_by="TPOT of the fullest engine is that of the others",
    ),
    Pitfall(
        name="prefix_cache_evicted",
        words="the prefix cache is written over before prompts come again, or none comes again",
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
    Pitfall(
        name="kv_fragmentation",
        words="blocks of the KV cache are too large for such short sequences",
        number="{value:.1%} of the held blocks' tokens empty, if each sequence leaves half a block",
        limit_ratio=0.1,
        why="a tenth of the memory, which as many more sequences could have",
        change="--block-size 16 (SGLang: --page-size 1 or 16)",
        refuted_by="the same KV usage with smaller blocks",
    ),
    Pitfall(
        name="too_little_load",
        words="the server is mostly idle",
        number="{value:.0%} of the time nothing to do",
        limit_ratio=0.5,
        why="a replica that is idle half the time could do the work of two",
        change="fewer replicas (inferometer size says how few)",
        refuted_by="an hour of the day at which it is busy",
    ),
    Pitfall(
        name="too_much_tp",
        words="tensor parallelism is higher than this load needs",
        number="{value:+.1%} with fewer devices for each replica",
        limit_ratio=0.02,
        why="the least gain that tune takes: what communication costs is more than what it saves",
        change="--tensor-parallel-size down, replicas up (SGLang: --tp-size, --dp-size)",
        refuted_by="the same devices as more replicas miss the SLO",
    ),
    Pitfall(
        name="launch_bound",
        words="software holds the device up: it waits for the host's launches",
        number="{value:.0%} of the time",
        limit_ratio=0.1,
        why="a tenth of the time, as of every cause; bandwidth that is not used does not show why",
        change=(
            "fewer launches and less host work for each: CUDA graphs (vLLM: no --enforce-eager),"
            " compiled steps, larger batches, asynchronous scheduling"
        ),
        refuted_by="step times do not fall with CUDA graphs",
    ),
    Pitfall(
        name="all_logits",
        words="prefills compute the logits of every position, and the last one alone is sampled",
        number="{value:.0%} of the prefill time",
        limit_ratio=0.05,
        why="one part in twenty, which a single argument gives back",
        change="the logits of the last position alone (transformers: logits_to_keep=1)",
        refuted_by="prefill times do not fall with the logits of one position",
    ),
    Pitfall(
        name="padding",
        words="batches are padded: rows are computed that nobody wants",
        number="{value:.0%} of the rows that are computed are padding or of answers that have ended",
        limit_ratio=0.1,
        why="a tenth of the work, as of every cause; continuous batching computes no such rows",
        change=(
            "continuous batching (--policy vllm), else smaller batches, or requests of one length"
            " in one batch"
        ),
        refuted_by="a batch of equal lengths takes as long for each of its tokens",
    ),
    Pitfall(
        name="wide_window",
        words="requests wait longer for their batch to fill than batches save",
        number="{value:.0%} of the mean TTFT passes in waiting for the batch to fill",
        limit_ratio=0.5,
        why="most of it: no faster step takes away what is waited before the first",
        change=(
            "a narrower window (max_queue_delay_microseconds, a gate's window_s), a smaller"
            " preferred batch, or continuous batching, which has none"
        ),
        refuted_by="fewer requests/s are served with half the window",
    ),
    Pitfall(
        name="synchronisation",
        words="the host waits for the device within steps, as where it samples on the CPU",
        number="{value:.0%} of the time",
        limit_ratio=0.1,
        why="a tenth of the time, as of every cause; asynchronous scheduling leaves next to none",
        change=(
            "no copy to the host within a step: sampling on the device, no .item(),"
            " asynchronous scheduling"
        ),
        refuted_by="a trace with asynchronous scheduling has as much idle time",
    ),
    Pitfall(
        name="throttled",
        words="the accelerator runs below its clocks",
        number="{value:.0f} reasons",
        limit_ratio=0.0,
        why="the driver names a reason only while it holds clocks down",
        change="cool it or raise its limit",
        refuted_by="the clock under load is the card's highest",
        is_slow_work=True,
    ),
    Pitfall(
        name="waits_for_cores",
        words="the server's threads wait for a core of this machine",
        number="{value:.0%} of the time that its threads wanted a core they waited for one",
        limit_ratio=0.2,
        why="a step ends with its last thread: it takes a quarter longer than with a free core",
        change=(
            "fewer threads (OMP_NUM_THREADS, VLLM_CPU_OMP_THREADS_BIND), more cores, or the other"
            " programs of this machine elsewhere"
        ),
        refuted_by="step times do not fall with fewer threads, or with nothing else running",
        is_slow_work=True,
    ),
    Pitfall(
        name="oversubscribed_threads",
        words="more threads compute than there are cores",
        number="{value:.2g} threads for each core",
        limit_ratio=1.0,
        why="a step ends with its last thread, and two threads of a core take turns",
        change="OMP_NUM_THREADS no higher than the cores that the process may use",
        refuted_by="step times do not fall with fewer threads",
        is_slow_work=True,
    ),
    Pitfall(
        name="unbound_numa",
        words="threads may run far from their memory: nothing binds them to a NUMA node",
        number="{value:.0f} NUMA nodes",
        limit_ratio=1.0,
        why="memory of another node is read at a fraction of the bandwidth",
        change="numactl --cpunodebind=0 --membind=0, one server for each node",
        refuted_by="step times do not fall on one node",
    ),
    Pitfall(
        name="unlike_providers",
        words="two servers of one model answer the same requests at different paces",
        number="TPOT of one is at least {value:.2f} times that of the other",
        limit_ratio=1.1,
        why="clocks and the order of requests make a few per cent between equal devices",
        change=(
            "the slower one as the faster is: engine version, flags, precision, clocks, neighbours"
            " (inferometer diagnose says of each what limits it)"
        ),
        refuted_by="the two change places when they change devices",
    ),
)
"""Ordered: lost requests, lost time, waste, then the machine below the server."""
_BY_NAME: Final = {one.name: one for one in PITFALLS}
