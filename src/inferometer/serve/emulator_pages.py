"""What is answered without the engine: the model's page, a text's tokens, a refusal by a fault?"""

import asyncio
import gzip
import math
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from inferometer import __version__
from inferometer.serve.emulator_requests import (
    Limits,
    Message,
    Refusal,
    chat_texts,
    check_model,
    decoded_body,
)
from inferometer.serve.emulator_tokens import Tokenizer
from inferometer.serve.fault_specs import FaultKind, FaultRule
from inferometer.serve.http_line import HttpRequest, Line
from inferometer.units import s_from_ns

COMPLETIONS_PATH: Final = "/v1/completions"
CHAT_PATH: Final = "/v1/chat/completions"
GENERATION_PATHS: Final = (COMPLETIONS_PATH, CHAT_PATH)
_PAUSE_S: Final = 0.01
_HEADER_BYTES: Final = 1024


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /tokenize``: of a text or of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None


class Pages:
    """The pages of one server."""

    def __init__(self, limits: Limits, tokenizer: Tokenizer, emulated: str) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self._emulated = emulated
        self._created_s = int(datetime.now(UTC).timestamp())
        self._pages: dict[tuple[str, str], Callable[[bytes], bytes]] = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/version"): self._version,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
        }

    def page(self, request: HttpRequest) -> bytes:
        """What does this page say, as JSON?

        Raises
        ------
        Refusal
            There is no such page, or it cannot be parsed so.
        """
        page = self._pages.get((request.method, request.path))
        if page is not None:
            return page(request.body)
        known = {path for _, path in self._pages} | {*GENERATION_PATHS, "/health", "/metrics"}
        if request.path in known:
            raise Refusal(405, "Method Not Allowed", kind="MethodNotAllowedError")
        raise Refusal(
            404, f"{request.path} is none of {', '.join(sorted(known))}", kind="NotFoundError"
        )

    def _models(self, body: bytes) -> bytes:
        del body
        name = self._limits.model_name
        card = {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "inferometer",
            "root": name,
            "parent": None,
        }
        return msgspec.json.encode(
            {
                "object": "list",
                "data": [card | {"max_model_len": self._limits.max_model_len, "permission": []}],
            }
        )

    def _version(self, body: bytes) -> bytes:
        """Names the tool: nobody shall take an emulation for a server."""
        del body
        return msgspec.json.encode(
            {"version": f"inferometer {__version__} emulating {self._emulated}"}
        )

    def _tokenize(self, body: bytes) -> bytes:
        parsed = decoded_body(body, TokenizeBody)
        check_model(parsed.model, self._limits)
        text = parsed.prompt if parsed.messages is None else " ".join(chat_texts(parsed.messages))
        if text is None:
            raise Refusal(400, "prompt or messages must be given", param="prompt")
        tokens = self._tokenizer.tokens(text)
        ids = [
            token if isinstance(token, int) else zlib.crc32(str(token).encode()) for token in tokens
        ]
        reply = {"count": len(ids), "max_model_len": self._limits.max_model_len, "tokens": ids}
        return msgspec.json.encode(
            reply
            | {"token_strs": [str(token) for token in tokens] if parsed.return_token_strs else None}
        )

    def _detokenize(self, body: bytes) -> bytes:
        parsed = decoded_body(body, DetokenizeBody)
        check_model(parsed.model, self._limits)
        return msgspec.json.encode({"prompt": self._tokenizer.text(parsed.tokens)})


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
