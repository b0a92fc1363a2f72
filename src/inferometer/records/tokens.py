"""When did each token come, and how long did each wait for its predecessor?

Letters of shapes: T delivered tokens, G gaps between two tokens of one request.
"""

from typing import NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.types import I32, I64, Run


class TokenTable(NamedTuple):
    """One row per delivered token (T rows), in order of time and, at one instant, of the batch."""

    request_index: I32
    """``RequestTable.request_index``"""
    time_ns: I64
    """Since the start of the run."""


class TokenGaps(NamedTuple):
    """One row per token but each request's first (G rows), by request and time: inter-token latencies."""

    request_index: I32
    gap_ns: I64
    """0 between tokens that were delivered together."""


def token_times(run: Run) -> TokenTable:
    """When was each token delivered, and to whom?

    Raises
    ------
    RecordError
        The run does not say who did what in each step.
    """
    if run.steps is None or run.parts is None:
        raise RecordError(
            "the run has no parts of steps", where=run.manifest.run_id, allowed="a simulated run with them", try_="record_parts=True"
        )
    end_ns = run.steps.start_ns + run.steps.duration_ns
    n_tokens = run.parts.n_delivered_tokens
    return TokenTable(
        request_index=np.repeat(run.parts.request_index, n_tokens),
        time_ns=np.repeat(end_ns[run.parts.step_index], n_tokens),
    )


def token_gaps(tokens: TokenTable) -> TokenGaps:
    """How long did each token come after the one before of the same request?"""
    by_request = np.argsort(tokens.request_index, kind="stable")
    request, time_ns = tokens.request_index[by_request], tokens.time_ns[by_request]
    has_predecessor = request[1:] == request[:-1]
    return TokenGaps(request_index=request[1:][has_predecessor], gap_ns=np.diff(time_ns)[has_predecessor])


__all__ = ["TokenGaps", "TokenTable", "token_gaps", "token_times"]
