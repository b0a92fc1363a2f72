"""What can go wrong with a request over the wire: code, remedy, and the request's status.

The client writes the codes of the wire; those of the answer's content are found when the raw log is
decoded.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.records.types import ExchangeTable, RequestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeError:
    """Meaning and remedy of an error code."""

    meaning: str
    remedy: str
    status: RequestStatus = RequestStatus.FAILED
    """ABORTED where the client gave up: the time until then is a lower bound of the request's
    latency, and must count."""


_SERVER_LOG: Final = "read the server's log of that instant"
_LESS: Final = "a lower rate, or more servers"

EXCHANGE_ERRORS: Final[dict[str, ExchangeError]] = {
    # opening a connection
    "name_unknown": ExchangeError(
        meaning="the host's name could not be resolved", remedy="check the URL's host"
    ),
    "connect_refused": ExchangeError(
        meaning="nothing listens on the server's port",
        remedy="start the server, or check the URL's port",
    ),
    "connect_timeout": ExchangeError(
        meaning="no connection stood in time",
        remedy=(
            "check the network, and that the port speaks TLS where the URL says https; is the"
            " server's backlog full?"
        ),
    ),
    "connect_failed": ExchangeError(
        meaning="no connection could be opened",
        remedy="check the network, and open files (ulimit -n)",
    ),
    "tls_failed": ExchangeError(
        meaning="the TLS handshake failed",
        remedy="check the certificate, or --insecure on a network you trust",
    ),
    "not_tls": ExchangeError(
        meaning="the port does not speak TLS",
        remedy="http:// in place of https://, or the port that speaks TLS",
    ),
    "proxy_refused": ExchangeError(
        meaning="the proxy did not let the connection through",
        remedy="check --proxy and its credentials",
    ),
    # the response on the wire
    "reset": ExchangeError(meaning="the connection was reset", remedy=_SERVER_LOG),
    "no_response": ExchangeError(
        meaning="the server closed the connection without an answer", remedy=_SERVER_LOG
    ),
    "truncated": ExchangeError(
        meaning="the connection ended before the answer did", remedy=_SERVER_LOG
    ),
    "head_timeout": ExchangeError(
        meaning="the answer's head did not come in time",
        remedy="--head-timeout, or a lower rate",
        status=RequestStatus.ABORTED,
    ),
    "read_timeout": ExchangeError(
        meaning="the answer stood still for too long",
        remedy="--read-timeout, or read the server's log",
        status=RequestStatus.ABORTED,
    ),
    "total_timeout": ExchangeError(
        meaning="the answer was not whole in time",
        remedy="--timeout, or a lower rate",
        status=RequestStatus.ABORTED,
    ),
    "bad_http": ExchangeError(
        meaning="the answer is no HTTP/1.1", remedy="check the URL: scheme and port"
    ),
    "head_too_long": ExchangeError(
        meaning="the answer's head does not end",
        remedy="check proxies and load balancers between this machine and the server",
    ),
    "body_too_long": ExchangeError(
        meaning="the answer went past the cap of its bytes",
        remedy="--max-body, if it is meant to be so long",
    ),
    "compressed": ExchangeError(
        meaning="the answer is compressed, though none was requested",
        remedy="turn compression off on the way",
    ),
    "wrong_content_type": ExchangeError(
        meaning="the answer is of another kind than requested",
        remedy="check the URL and the endpoint",
    ),
    "foreign_answer": ExchangeError(
        meaning="the answer is another request's, as its id says",
        remedy="check proxies and load balancers between this machine and the server",
    ),
    # errors reported by the server
    "redirected": ExchangeError(
        meaning="the server points elsewhere; it was not followed", remedy="give the final URL"
    ),
    "rate_limited": ExchangeError(
        meaning="the server asks for fewer requests (429)",
        remedy=_LESS,
        status=RequestStatus.REJECTED,
    ),
    "overloaded": ExchangeError(
        meaning="the server cannot serve now (503)", remedy=_LESS, status=RequestStatus.REJECTED
    ),
    "http_error": ExchangeError(
        meaning="the server answered with an error's status",
        remedy=(
            "check --model, --endpoint and the token; the server's own words stand with the cautions"
        ),
    ),
    # the answer's content, found when it is decoded
    "invalid_utf8": ExchangeError(meaning="the answer's text is no UTF-8", remedy=_SERVER_LOG),
    "bad_event": ExchangeError(
        meaning="an event of the answer is no JSON of the API's form", remedy=_SERVER_LOG
    ),
    "error_event": ExchangeError(
        meaning="the server reported an error inside the stream", remedy=_SERVER_LOG
    ),
    "no_end": ExchangeError(meaning="the stream ended without its last event", remedy=_SERVER_LOG),
    "empty_answer": ExchangeError(meaning="the answer has no token", remedy=_SERVER_LOG),
    "too_many_tokens": ExchangeError(
        meaning="the server reports more tokens than max_tokens, or than there were bytes",
        remedy="check who counts: the server's usage, or a proxy that drops max_tokens",
    ),
    # caused by the client itself
    "aborted": ExchangeError(
        meaning="its user went away, as the workload has it",
        remedy="none",
        status=RequestStatus.ABORTED,
    ),
    "drain_over": ExchangeError(
        meaning="it was not done when the run ended",
        remedy="--drain",
        status=RequestStatus.UNFINISHED,
    ),
    "interrupted": ExchangeError(
        meaning="the run was stopped before it was done",
        remedy="resume",
        status=RequestStatus.UNFINISHED,
    ),
}


# Number of requests of a load test by kind of error.


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """One kind of error, and its number."""

    code: str
    n_requests: int
    share_fraction: float
    """Share of all requests."""
    http_statuses: tuple[int, ...]
    """HTTP statuses that came with it."""
    meaning: str
    remedy: str


def error_counts(exchanges: ExchangeTable) -> tuple[ErrorCount, ...]:
    """Requests by error code, the most frequent first."""
    codes, counts = np.unique(exchanges.error[exchanges.error != ""], return_counts=True)
    found = [_counted(exchanges, str(code), int(n)) for code, n in zip(codes, counts, strict=True)]
    return tuple(sorted(found, key=lambda one: (-one.n_requests, one.code)))


def _counted(exchanges: ExchangeTable, code: str, n_requests: int) -> ErrorCount:
    known = EXCHANGE_ERRORS.get(code)
    statuses = np.unique(exchanges.http_status[exchanges.error == code])
    return ErrorCount(
        code=code,
        n_requests=n_requests,
        share_fraction=n_requests / len(exchanges.error),
        http_statuses=tuple(int(status) for status in statuses if status > 0),
        meaning="not known to this version" if known is None else known.meaning,
        remedy="" if known is None else known.remedy,
    )
