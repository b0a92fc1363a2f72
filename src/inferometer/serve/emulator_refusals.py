"""How are requests answered that never reach the engine: because a fault says so?"""

import asyncio
import gzip
import math
from collections.abc import Callable
from typing import Final

from inferometer.serve.emulator_requests import Refusal
from inferometer.serve.fault_specs import FaultKind, FaultRule
from inferometer.serve.http_line import HttpRequest, Line
from inferometer.units import s_from_ns

_PAUSE_S: Final = 0.01
_HEADER_BYTES: Final = 1024


def refuse_by_fault(rule: FaultRule, line: Line, request: HttpRequest) -> bool:
    """Answer with this fault if it is one that needs no engine; was it?"""
    refuse = _REFUSALS.get(rule.kind)
    if refuse is None:
        return False
    refuse(rule, line, request)
    return True


def _too_many(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    del request
    body = Refusal(429, "the emulator was configured to be busy", kind="RateLimitError").body()
    line.reply(429, body, headers={"retry-after": str(math.ceil(s_from_ns(rule.retry_after_ns)))})


def _broken(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    del rule, request
    line.reply(
        500, Refusal(500, "the emulator was configured to fail", kind="InternalServerError").body()
    )


def _unavailable(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    del rule, request
    line.reply(
        503,
        Refusal(
            503, "the emulator was configured to be away", kind="ServiceUnavailableError"
        ).body(),
    )


def _redirect(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    del rule
    line.reply(307, b"", headers={"location": request.path})


def _bomb(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    """Some hundred bytes that unpack to a thousand times as many."""
    del request
    line.reply(200, gzip.compress(bytes(rule.size_bytes)), headers={"content-encoding": "gzip"})


def _silence(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    """The client waits until it goes away."""
    del rule, line, request


def _endless(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    """Headers without an end, until the client goes or the limit is reached."""
    del request
    line.write(b"HTTP/1.1 200 OK\r\n")
    _more_headers(line, rule.size_bytes)


def _more_headers(line: Line, left_bytes: int) -> None:
    if not line.is_open:
        return
    if left_bytes <= 0:
        line.cut()
        return
    line.write(b"x-more: " + b"y" * (_HEADER_BYTES - 10) + b"\r\n")
    asyncio.get_running_loop().call_later(_PAUSE_S, _more_headers, line, left_bytes - _HEADER_BYTES)


_REFUSALS: Final[dict[FaultKind, Callable[[FaultRule, Line, HttpRequest], None]]] = {
    "http-429": _too_many,
    "http-500": _broken,
    "http-503": _unavailable,
    "redirect-loop": _redirect,
    "gzip-bomb": _bomb,
    "never-answers": _silence,
    "endless-headers": _endless,
}
