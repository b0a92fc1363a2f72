"""Did the server do what the workload asks, and can its answers tell what is asked of them?

Chunks that come together, lengths that are not honoured, prompts that were remembered, failures,
requests that were not done, too few for the percentile.
"""

from typing import Final

import numpy as np

from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.records.columns import I64, Bools
from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.load_types import ValidityReason
from inferometer.records.types import ABSENT, RequestStatus
from inferometer.records.validity_client import Limits, LoadEvidence, reason, share_text
from inferometer.stats.quantiles import min_samples
from inferometer.units import format_fraction, format_number

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
"""From 1 % on p99 is that of the survivors."""
_UNDONE: Final = Limits(suspect=0.01, invalid=2.0)
"""They count as lower bounds, so that nothing is wrong: p99 just has no upper end."""
_MEANT: Final = "aborted"
"""The workload's own users who go away."""
_BY_CHUNKS: Final = "chunks"


def coalescing(evidence: LoadEvidence) -> ValidityReason | None:
    """How many chunks came in one read with the chunk before?"""
    n_chunks, n_coalesced = (
        int(evidence.exchanges.n_chunks.sum()),
        int(evidence.exchanges.n_coalesced_chunks.sum()),
    )
    if not n_chunks:
        return None
    text = f"{share_text(n_coalesced, n_chunks)} chunks came together with the one before"
    remedy = (
        "turn buffering off on the way (proxy, gzip), or fewer streams per client: gaps between"
        " chunks are not the server's"
    )
    return reason("chunks", _COALESCED.verdict(n_coalesced / n_chunks), text, remedy)


def token_count(evidence: LoadEvidence) -> ValidityReason | None:
    """Who counted the tokens, and does anybody know how they are spread over chunks?"""
    source = evidence.exchanges.token_source
    n_counted = int((source != "").sum())
    if not n_counted:
        return None
    n_by_chunks = int((source == _BY_CHUNKS).sum())
    tokens = evidence.chunks.n_tokens
    unknown = int((tokens == ABSENT).sum())
    counted = f"tokens of {share_text(n_by_chunks, n_counted)} answers were counted by their chunks"
    spread = f"of {share_text(unknown, len(tokens))} chunks the number of tokens is unknown"
    text = "; ".join(
        said for said, is_so in ((counted, n_by_chunks or not unknown), (spread, unknown)) if is_so
    )
    remedy = "a server that sends usage in its streams: a chunk may hold several tokens"
    return reason("token count", "SUSPECT" if n_by_chunks or unknown else "VALID", text, remedy)


def false_counts(evidence: LoadEvidence) -> ValidityReason | None:
    """Did the server report more tokens than an answer can have?

    Then none of its counts can be relied on.
    """
    n, n_false = (
        len(evidence.exchanges.error),
        int((evidence.exchanges.error == "too_many_tokens").sum()),
    )
    if not n_false:
        return reason("false counts", "VALID", "no answer has more tokens than can be", "")
    text = f"the server reports more tokens than can be for {share_text(n_false, n)} answers"
    return reason("false counts", "INVALID", text, EXCHANGE_ERRORS["too_many_tokens"].remedy)


def output_length(evidence: LoadEvidence) -> ValidityReason | None:
    """Are answers as long as was asked, where that was asked?"""
    if evidence.load is None or not evidence.load.ignores_eos:
        return None
    is_told = is_one_of(evidence.requests, COMPLETED) & (
        evidence.exchanges.token_source != _BY_CHUNKS
    )
    asked = int(evidence.exchanges.asked_output_tokens[is_told].sum(dtype=np.int64))
    if not asked:
        return None
    given = int(evidence.requests.output_tokens[is_told].sum(dtype=np.int64))
    text = (
        f"{given:,} output tokens came of {asked:,} that were asked for"
        f" ({format_fraction(given / asked)})"
    )
    remedy = (
        "a server that knows ignore_eos or min_tokens, or --respect-eos where answers may end by"
        " themselves"
    )
    return reason("output length", _LENGTHS.verdict(abs(given / asked - 1)), text, remedy)


def cache_hits(evidence: LoadEvidence) -> ValidityReason | None:
    """Did the server remember more of the prompts than the workload repeats?"""
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
    """Tokens that every chat's prompt has besides what was asked.

    The template, which each request repeats. 0 where nobody can tell.
    """
    if evidence.plan is None or evidence.load is None or evidence.load.endpoint != "chat":
        return 0
    asked = evidence.plan.prompt_tokens[evidence.requests.request_index[is_told]]
    return min(max(int((prompt_tokens[is_told] - asked).min()), 0), _MOST_FRAMING_TOKENS)


def errors(evidence: LoadEvidence) -> ValidityReason | None:
    """How many requests failed or were refused?"""
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
    """How many requests were not done when the run ended, or when the client's patience did?"""
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


def enough(evidence: LoadEvidence) -> ValidityReason | None:
    """Are there enough requests for the percentiles that were asked for?"""
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
    """Which share of prompt tokens did an earlier request of the workload hold?

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
    has_own = all(one.sessions is None and one.system_prompts is None for one in workload.classes)
    return 0.0 if has_own else None
