"""What is answered without the engine: list of models, version, tokenisation, some faults?"""

import asyncio
import gzip
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from inferometer import __version__
from inferometer.serve.emulator_plan import FaultKind, FaultRule
from inferometer.serve.emulator_requests import (
    Limits,
    Message,
    Refusal,
    chat_texts,
    check_model,
    decoded_body,
)
from inferometer.serve.emulator_words import Tokenizer
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
    """The pages of one server that need no engine."""

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
        """Content of this page as JSON.

        Raises
        ------
        Refusal
            The page does not exist, or the request is invalid.
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
        """The version page, which names this tool, so that nobody takes it for a real server."""
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
        ids = self._tokenizer.ids(tokens)
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
    """Answer with this fault if it needs no engine; True if it did."""
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
    """Answer with a gzip bomb: a thousand times larger when unpacked."""
    del request
    line.reply(200, gzip.compress(bytes(rule.size_bytes)), headers={"content-encoding": "gzip"})


def _silence(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    """Answer nothing: the client waits until it gives up."""
    del rule, line, request


def _endless(rule: FaultRule, line: Line, request: HttpRequest) -> None:
    """Send headers without an end, until the client leaves or the limit is reached."""
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


# What does vLLM reply: the events of a stream, a whole reply, log-probabilities, counts of tokens?
#
# Mirrors the field order of vLLM 0.32.0 (`entrypoints/openai`), so that a client cannot tell. Each
# word of the vocabulary is equally likely, because words are drawn so; log-probabilities have the
# shapes of OpenAI's completions and chats.


DONE: Final = b"data: [DONE]\n\n"


class Usage(NamedTuple):
    """Token counts of a reply."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int

    def counts(self) -> dict[str, Any]:
        """The counts as JSON, without the cached tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
        }

    @property
    def details(self) -> dict[str, Any]:
        """The cached tokens as JSON."""
        return {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}


class End(NamedTuple):
    """Why a choice ended."""

    finish_reason: str
    stop_reason: str | int | None


class Delta(NamedTuple):
    """New text of one choice, as an event carries it."""

    choice_index: int
    text: str
    logprobs: dict[str, Any] | None = None


class Wording:
    """Writes replies in OpenAI's format; the emulator's words need no escaping in JSON."""

    def __init__(
        self,
        *,
        reply_id: str,
        model_name: str,
        created_s: int,
        is_chat: bool,
        has_details: bool,
    ) -> None:
        self._is_chat = is_chat
        self._has_details = has_details
        self._head = {
            "id": reply_id,
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": created_s,
            "model": model_name,
        }
        self._opened = b"data: " + msgspec.json.encode(self._head)[:-1] + b',"choices":['
        self._before = b'{"index":%d,"delta":{"content":' if is_chat else b'{"index":%d,"text":'
        self._behind = b"}" if is_chat else b""
        self._nothing: dict[str, Any] = (
            {"token_ids": None} if is_chat else {"prompt_token_ids": None, "token_ids": None}
        )
        self._after = (
            b',"finish_reason":null'
            + (b"" if is_chat else b',"stop_reason":null,"prompt_token_ids":null')
            + b',"token_ids":null}]'
        )

    def opening(self, index: int, usage: Usage | None) -> bytes:
        """First event of a chat, with the role; empty for a completion."""
        if not self._is_chat:
            return b""
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            % index
        )
        return (
            self._opened
            + choice
            + _counts(usage)
            + b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        )

    def tokens(self, delta: Delta, usage: Usage | None) -> bytes:
        """Event of tokens that are not the last; with ``usage`` where requested for each."""
        return self._opened + self._content(delta) + self._after + _counts(usage) + b"}\n\n"

    def last(self, delta: Delta, end: End, usage: Usage | None) -> bytes:
        """The event of a choice's last tokens."""
        reasons = {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        after = msgspec.json.encode({**reasons, **self._nothing})[1:]
        return self._opened + self._content(delta) + b"," + after + b"]" + _counts(usage) + b"}\n\n"

    def _content(self, delta: Delta) -> bytes:
        logprobs = b"null" if delta.logprobs is None else msgspec.json.encode(delta.logprobs)
        return (
            self._before % delta.choice_index
            + msgspec.json.encode(delta.text)
            + self._behind
            + b',"logprobs":'
            + logprobs
        )

    def usage(self, usage: Usage) -> bytes:
        """The event after the last token, where counts were requested."""
        return (
            self._opened
            + b'],"usage":'
            + msgspec.json.encode(usage.counts() | (usage.details if self._has_details else {}))
            + b"}\n\n"
        )

    def whole(self, choices: Sequence[tuple[Delta, End]], usage: Usage | None) -> bytes:
        """The body of a reply that is no stream."""
        head = self._head | {"object": "chat.completion"} if self._is_chat else self._head
        body = head | {
            "choices": [self._choice(*one) for one in choices],
            "service_tier": None,
            "system_fingerprint": None,
        }
        if usage is None:
            return msgspec.json.encode(body)
        details = usage.details if self._has_details else {"prompt_tokens_details": None}
        return msgspec.json.encode(body | {"usage": usage.counts() | details})

    def _choice(self, delta: Delta, end: End) -> dict[str, Any]:
        ended: dict[str, Any] = {
            "logprobs": delta.logprobs,
            "finish_reason": end.finish_reason,
            "stop_reason": end.stop_reason,
            "token_ids": None,
        }
        if not self._is_chat:
            return {"index": delta.choice_index, "text": delta.text} | ended
        message = {
            "role": "assistant",
            "content": delta.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        return {"index": delta.choice_index, "message": message | {"reasoning": None}} | ended


def error_event(message: str, kind: str, status: int) -> bytes:
    """Event of a failed stream."""
    error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return b"data: " + msgspec.json.encode(error) + b"\n\n"


def _counts(usage: Usage | None) -> bytes:
    return b"" if usage is None else b',"usage":' + msgspec.json.encode(usage.counts())


class Likelihoods(NamedTuple):
    """Writes logprobs, with this number of the likeliest tokens at each place."""

    n_top: int
    vocabulary: tuple[str, ...]

    def of_completion(
        self, tokens: Sequence[str], *, n_chars_before: int, is_from_start: bool
    ) -> dict[str, Any]:
        """Logprobs of tokens that begin after ``n_chars_before`` characters.

        ``is_from_start``: they begin the text, and the first token has no logprob, as in vLLM.
        """
        offsets = [n_chars_before]
        for token in tokens[:-1]:
            offsets.append(offsets[-1] + len(token))
        likely: list[float | None] = [self._each] * len(tokens)
        top: list[dict[str, float] | None] = [self._top(token) for token in tokens]
        if is_from_start and tokens:
            likely[0] = top[0] = None
        return {
            "text_offset": offsets[: len(tokens)],
            "token_logprobs": likely,
            "tokens": list(tokens),
            "top_logprobs": top,
        }

    def of_chat(self, tokens: Sequence[str]) -> dict[str, Any]:
        """Logprobs of the tokens of an answer."""
        return {
            "content": [
                _logprob_row(token, self._each)
                | {"top_logprobs": [_logprob_row(*one) for one in self._top(token).items()]}
                for token in tokens
            ]
        }

    @property
    def _each(self) -> float:
        return -math.log(len(self.vocabulary))

    def _top(self, token: str) -> dict[str, float]:
        """The token itself and other words, all equally likely."""
        others = (" " + word for word in self.vocabulary if " " + word != token)
        return {
            word: self._each for _, word in zip(range(self.n_top), (token, *others), strict=False)
        }


def _logprob_row(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
