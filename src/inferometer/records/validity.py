"""May the numbers of a load test be trusted? One verdict with its reasons; the worst check decides.

VALID: nothing speaks against them. SUSPECT: some of them are doubtful, and the reason says which.
INVALID: they are not the server's.

Checked here, of the server and its answers: chunks that come together, lengths that are not
honoured, cached prompts, failures, unfinished requests, too few requests for the percentile.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.errors import MeasureError, RecordError
from inferometer.inputs.objectives import percentile_name
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.records import validity_client
from inferometer.records.columns import I64, Bools
from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.server_summaries import TtftParts, summarise_server, ttft_parts
from inferometer.records.steady_state import SteadyState, steady_state
from inferometer.records.types import (
    ABSENT,
    RequestStatus,
    RequestTable,
    Run,
    Validity,
    ValidityReason,
    ValidityVerdict,
)
from inferometer.records.validity_client import (
    Limits,
    LoadEvidence,
    percentile_of,
    reason,
    share_text,
)
from inferometer.stats.autocorrelated import run_quantile_estimate
from inferometer.stats.quantiles import min_samples
from inferometer.units import NS_PER_S, format_duration, format_fraction, format_number

_COALESCED: Final = Limits(suspect=0.10, invalid=2.0)
"""Each makes one gap too long and one too short: from a tenth on p90 is not the server's. TTFT
and TPOT stand: never INVALID."""
_LENGTHS: Final = Limits(suspect=0.01, invalid=0.10)
"""Work goes with tokens: a tenth more or fewer is another workload."""
_HITS: Final = Limits(suspect=0.02, invalid=0.10)
"""Prefill that is not done: TTFT 49 times too good was seen (vllm#54227)."""
_MOST_FRAMING_TOKENS: Final = 128
"""Templates with a system prompt of their own have some 30 (SmolLM2) to 70 (gpt-oss); more is
words that the client miscounted."""
_FAILED: Final = Limits(suspect=0.01, invalid=0.10)
"""From 1 % on, p99 is that of the successful requests only."""
_UNDONE: Final = Limits(suspect=0.01, invalid=2.0)
"""They count as lower bounds, so that nothing is wrong: p99 just has no upper end."""
_MEANT: Final = "aborted"
"""The workload's own users who go away."""
_BY_CHUNKS: Final = "chunks"
# Did the run take a course whose numbers stand for more than itself: no warm-up in them, and no
# drift after it?


_MOVED: Final = Limits(suspect=1.1, invalid=math.inf)
"""A percentile that is a tenth off is another answer; the steady state's stands beside it: never
INVALID."""
_MOVED_PERCENTILES: Final = (0.5, 0.75, 0.9, 0.95)
"""Percentiles that count, where the steady state has enough requests for them."""


def coalescing(evidence: LoadEvidence) -> ValidityReason | None:
    """The number of chunks that came in one read with the chunk before."""
    n_chunks = int(evidence.exchanges.n_chunks.sum())
    n_coalesced = int(evidence.exchanges.n_coalesced_chunks.sum())
    if not n_chunks:
        return None
    text = f"{share_text(n_coalesced, n_chunks)} chunks came together with the one before"
    remedy = (
        "turn buffering off on the way (proxy, gzip), or fewer streams per client: gaps between"
        " chunks are not the server's"
    )
    return reason("chunks", _COALESCED.verdict(n_coalesced / n_chunks), text, remedy)


def token_count(evidence: LoadEvidence) -> ValidityReason | None:
    """Where token counts come from, and whether tokens per chunk are known."""
    source = evidence.exchanges.token_source
    n_counted = int((source != "").sum())
    if not n_counted:
        return None
    n_by_chunks = int((source == _BY_CHUNKS).sum())
    tokens = evidence.chunks.n_tokens
    unknown = _several_at_once(evidence)
    counted = f"tokens of {share_text(n_by_chunks, n_counted)} answers were counted by their chunks"
    spread = (
        f"up to {share_text(unknown, len(tokens))} chunks hold several tokens, nobody knows which"
    )
    text = "; ".join(
        said for said, is_so in ((counted, n_by_chunks or not unknown), (spread, unknown)) if is_so
    )
    remedy = "a server that sends usage in its streams: a chunk may hold several tokens"
    verdict = _COALESCED.verdict(unknown / max(len(tokens), 1))
    return reason("token count", "SUSPECT" if n_by_chunks else verdict, text, remedy)


def _several_at_once(evidence: LoadEvidence) -> int:
    """Chunks that may hold several tokens, in answers without counts per chunk.

    An answer of T tokens in C chunks has T − C of them at most.
    """
    chunks, requests = evidence.chunks, evidence.requests
    is_unknown = chunks.n_tokens == ABSENT
    if not is_unknown.any():
        return 0
    row = {int(index): n for n, index in enumerate(requests.request_index)}
    indices, n_chunks = np.unique(chunks.request_index[is_unknown], return_counts=True)
    tokens = requests.output_tokens[[row[int(index)] for index in indices]]
    return int(np.where(tokens == ABSENT, n_chunks, np.clip(tokens - n_chunks, 0, n_chunks)).sum())


def false_counts(evidence: LoadEvidence) -> ValidityReason | None:
    """Did the server report more tokens than an answer can have?

    Then none of its counts can be relied on.
    """
    n = len(evidence.exchanges.error)
    n_false = int((evidence.exchanges.error == "too_many_tokens").sum())
    if not n_false:
        return reason("false counts", "VALID", "no answer has more tokens than can be", "")
    text = f"the server reports more tokens than can be for {share_text(n_false, n)} answers"
    return reason("false counts", "INVALID", text, EXCHANGE_ERRORS["too_many_tokens"].remedy)


def output_length(evidence: LoadEvidence) -> ValidityReason | None:
    """Are answers as long as was requested, where that was requested?"""
    if evidence.load is None or not evidence.load.ignores_eos:
        return None
    is_told = is_one_of(evidence.requests, COMPLETED) & (
        evidence.exchanges.token_source != _BY_CHUNKS
    )
    requested = int(evidence.exchanges.asked_output_tokens[is_told].sum(dtype=np.int64))
    if not requested:
        return None
    given = int(evidence.requests.output_tokens[is_told].sum(dtype=np.int64))
    text = (
        f"{given:,} output tokens came of {requested:,} that were asked for"
        f" ({format_fraction(given / requested)})"
    )
    remedy = (
        "a server that knows ignore_eos or min_tokens, or --respect-eos where answers may end by"
        " themselves"
    )
    return reason("output length", _LENGTHS.verdict(abs(given / requested - 1)), text, remedy)


def cache_hits(evidence: LoadEvidence) -> ValidityReason | None:
    """Did the server find more of the prompts in its cache than the workload repeats?"""
    exchanges = evidence.exchanges
    is_told = (exchanges.usage_cached_tokens != ABSENT) & (exchanges.usage_prompt_tokens != ABSENT)
    n_prompt = int(exchanges.usage_prompt_tokens[is_told].sum())
    repeated = _repeated_fraction(evidence)
    if not n_prompt or repeated is None:
        return None
    found = int(exchanges.usage_cached_tokens[is_told].sum()) / n_prompt
    framed = (
        _framing_tokens(evidence, exchanges.usage_prompt_tokens, is_told)
        * int(is_told.sum())
        / n_prompt
    )
    frame = f", and the chat's own frame around it is {format_fraction(framed)}" if framed else ""
    text = (
        f"{format_fraction(found)} of prompt tokens were cached; the workload repeats"
        f" {format_fraction(repeated)}{frame}"
    )
    remedy = "another --seed, or reset the server's prefix cache: it remembers an earlier run"
    return reason("cache hits", _HITS.verdict(found - repeated - framed), text, remedy)


def _framing_tokens(evidence: LoadEvidence, prompt_tokens: I64, is_told: Bools) -> int:
    """Tokens of every chat's prompt besides the requested ones.

    Each request repeats the chat template. 0 where its length is unknown.
    """
    if evidence.plan is None or evidence.load is None or evidence.load.endpoint != "chat":
        return 0
    requested = evidence.plan.prompt_tokens[evidence.requests.request_index[is_told]]
    return min(max(int((prompt_tokens[is_told] - requested).min()), 0), _MOST_FRAMING_TOKENS)


def errors(evidence: LoadEvidence) -> ValidityReason | None:
    """The number of failed and refused requests."""
    requests = evidence.requests
    n, n_failed = len(requests.status), int(is_one_of(requests, (RequestStatus.FAILED,)).sum())
    n_refused = int(is_one_of(requests, (RequestStatus.REJECTED,)).sum())
    if not bool(is_one_of(requests, COMPLETED).any()):
        return reason(
            "errors", "INVALID", f"none of {n:,} requests was completed", "read the errors by code"
        )
    verdict = _FAILED.verdict(n_failed / n)
    if verdict == "VALID" and n_refused > _FAILED.suspect * n:
        verdict = "SUSPECT"
    text = (
        f"{share_text(n_failed, n)} requests failed and {share_text(n_refused, n)} were refused;"
        " they have no latency"
    )
    return reason("errors", verdict, text, "read the errors by code, and the server's log")


def undone(evidence: LoadEvidence) -> ValidityReason | None:
    """Requests that were unfinished at the end of the run, or at the client's timeout."""
    n = len(evidence.requests.status)
    given_up = is_one_of(evidence.requests, (RequestStatus.ABORTED,)) & (
        evidence.exchanges.error != _MEANT
    )
    n_undone = int((is_one_of(evidence.requests, (RequestStatus.UNFINISHED,)) | given_up).sum())
    text = f"{share_text(n_undone, n)} requests were given up or not done when the run ended"
    return reason(
        "not done",
        _UNDONE.verdict(n_undone / n),
        text,
        "a longer --drain or --timeout: percentiles above them have no upper end",
    )


def other_clients(evidence: LoadEvidence) -> ValidityReason | None:
    """Did the server, by its own counters, answer more than this test sent?"""
    parts = evidence.parts
    if parts is None or not parts.has_others:
        return None
    text = (
        f"others use the server: it counted {parts.n_server_requests:,} first tokens, and"
        f" {parts.n_requests:,} of them are of this test; its times and counters are of all of them"
    )
    return reason("other clients", "SUSPECT", text, "a server, or a time, that nobody else uses")


def _parts(run: Run, requests: RequestTable) -> TtftParts | None:
    if run.server is None:
        return None
    try:
        return ttft_parts(requests, summarise_server(run.server))
    except RecordError:  # too few scrapes, or a server whose names are not known: it tells nothing
        return None


def enough(evidence: LoadEvidence) -> ValidityReason | None:
    """Are there enough requests for the requested percentiles?"""
    n = int(is_one_of(evidence.requests, COMPLETED).sum())
    short = [fraction for fraction in evidence.percentiles if n < min_samples(fraction)]
    if short:
        needed = min_samples(max(short))
        text = (
            f"{n:,} completed requests do not carry p{format_number(100 * max(short))}, which needs"
            f" {needed:,}"
        )
        return reason("requests", "SUSPECT", text, f"--requests {needed}, or a longer run")
    carried = [fraction for fraction in (0.5, 0.9, 0.95, 0.99, 0.999) if n >= min_samples(fraction)]
    up_to = (
        f"carry up to p{format_number(100 * carried[-1])}"
        if carried
        else "carry no percentile's interval"
    )
    return reason("requests", "VALID", f"{n:,} completed requests {up_to}", "")


def _repeated_fraction(evidence: LoadEvidence) -> float | None:
    """Share of prompt tokens that an earlier request of the workload contains.

    None where the record cannot tell.
    """
    plan = evidence.plan
    if plan is not None:
        rows = evidence.requests.request_index
        total = int(plan.prompt_tokens[rows].sum(dtype=np.int64))
        return int(plan.prefix_tokens[rows].sum(dtype=np.int64)) / total if total else None
    workload: WorkloadSpec | None = None if evidence.load is None else evidence.load.workload
    if workload is None or workload.replay is not None:
        return None
    has_own = all(
        one.sessions is None and one.fan_out is None and one.system_prompts is None
        for one in workload.classes
    )
    return 0.0 if has_own else None


def warm_up(evidence: LoadEvidence) -> ValidityReason | None:
    """Do requests of the warm-up and the drain change the results of the whole run?"""
    steady = evidence.steady
    if steady is None:
        return None
    n_cut = steady.n_warm_up + steady.n_drain
    share = f"{share_text(n_cut, len(evidence.requests.status))} requests are of warm-up and drain"
    moved = _moved_most(evidence, steady) if n_cut else None
    if moved is None:
        return reason(
            "warm-up", "VALID", f"{share}; they move no percentile by more than its interval", ""
        )
    factor = max(moved.whole_s / moved.steady_s, moved.steady_s / moved.whole_s)
    text = (
        f"{share}: {moved.name} is {format_duration(moved.whole_s)} with them and"
        f" {format_duration(moved.steady_s)} without"
    )
    return reason(
        "warm-up", _MOVED.verdict(factor), text, "read the steady state's numbers, or a longer run"
    )


def stationarity(evidence: LoadEvidence) -> ValidityReason | None:
    """Did latency stay the same after the warm-up?"""
    steady = evidence.steady
    if steady is None:
        return reason(
            "steady state", "VALID", "too few requests to tell a steady state from chance", ""
        )
    remedy = (
        "a lower rate where the queue grows, or a longer run: these numbers depend on how long it"
        " took"
    )
    if steady.drifting:
        changes = (
            f"{one.latency.upper()} became {format_number(one.trend.ratio)} times as long"
            for one in steady.drifting
        )
        return reason(
            "steady state",
            "SUSPECT",
            f"no steady state: {', '.join(changes)} from the first third to the last",
            remedy,
        )
    if not steady.is_reached:
        return reason(
            "steady state",
            "SUSPECT",
            "no steady state: more than half of the run would have to be cut",
            remedy,
        )
    return reason(
        "steady state", "VALID", f"latency stayed the same over {steady.n_steady:,} requests", ""
    )


class _Moved(NamedTuple):
    name: str
    whole_s: float
    steady_s: float


def _moved_most(evidence: LoadEvidence, steady: SteadyState) -> _Moved | None:
    """The percentile that differs most between the whole run and its steady state."""
    requests, is_steady = evidence.requests, steady.holds(evidence.requests)
    has_first = requests.first_token_ns != ABSENT
    has_tpot = (
        has_first
        & is_one_of(requests, COMPLETED)
        & (requests.output_tokens > 1)
        & (requests.finished_ns > requests.first_token_ns)
    )
    ttft_s = (requests.first_token_ns - requests.intended_send_ns) / NS_PER_S
    tpot_s = (
        (requests.finished_ns - requests.first_token_ns)
        / np.maximum(requests.output_tokens - 1, 1)
        / NS_PER_S
    )
    found: list[_Moved] = []
    for name, values_s, has_it in (("TTFT", ttft_s, has_first), ("TPOT", tpot_s, has_tpot)):
        for fraction in _MOVED_PERCENTILES:
            estimate = run_quantile_estimate(values_s[has_it & is_steady], fraction)
            if estimate is None or estimate.low is None or estimate.high is None:
                continue
            whole_s = percentile_of(values_s[has_it], fraction)
            if not estimate.low <= whole_s <= estimate.high:
                found.append(_Moved(f"{name} {percentile_name(fraction)}", whole_s, estimate.value))
    known = [one for one in found if one.whole_s > 0 and one.steady_s > 0]
    return max(known, key=lambda one: abs(math.log(one.whole_s / one.steady_s)), default=None)


Check: TypeAlias = Callable[[LoadEvidence], ValidityReason | None]

CHECKS: Final[tuple[Check, ...]] = (
    validity_client.client_delay,
    validity_client.send_lag,
    validity_client.loop_lag,
    validity_client.host_clocks,
    validity_client.rate,
    validity_client.dispersion,
    validity_client.connections,
    errors,
    undone,
    false_counts,
    output_length,
    cache_hits,
    coalescing,
    token_count,
    other_clients,
    warm_up,
    stationarity,
    enough,
)

_ORDER: Final[dict[ValidityVerdict, int]] = {"INVALID": 0, "SUSPECT": 1, "VALID": 2}


def validity_of(
    run: Run, *, plan: RequestPlan | None = None, percentiles: Sequence[float] = ()
) -> Validity | None:
    """The verdict on a load test; None for a run that is none, which has no exchanges.

    ``plan`` shows which prompts the workload repeats; ``percentiles`` are the requested fractions,
    such as 0.99.
    """
    if run.requests is None or run.exchanges is None or run.chunks is None:
        return None
    if not len(run.requests.status):
        empty = ValidityReason(
            check="requests",
            verdict="INVALID",
            text="no request was made",
            remedy="a longer run, or a higher rate",
        )
        return Validity(verdict="INVALID", reasons=(empty,))
    evidence = LoadEvidence(
        requests=run.requests,
        exchanges=run.exchanges,
        chunks=run.chunks,
        lags=run.lags,
        load=run.manifest.load,
        plan=plan,
        steady=steady_state(run),
        percentiles=tuple(percentiles),
        clocks=run.manifest.clocks,
        parts=_parts(run, run.requests),
    )
    found = [one for check in CHECKS if (one := check(evidence)) is not None]
    reasons = tuple(sorted(found, key=lambda one: _ORDER[one.verdict]))
    return Validity(verdict=reasons[0].verdict, reasons=reasons)


def is_invalid(run: Run) -> bool:
    """Is it a load test with the verdict INVALID?"""
    return run.manifest.validity is not None and run.manifest.validity.verdict == "INVALID"


def require_valid(run: Run, *, forced: bool = False) -> None:
    """Refuse an INVALID load test; ``forced``: accept it all the same."""
    verdict = run.manifest.validity
    if forced or verdict is None or not is_invalid(run):
        return
    worst = [one for one in verdict.reasons if one.verdict == "INVALID"]
    raise MeasureError(
        f"the load test is INVALID: {'; '.join(one.text for one in worst)}",
        where=run.manifest.run_id,
        allowed="a run that is VALID or SUSPECT",
        try_=worst[0].remedy if worst else None,
    )
