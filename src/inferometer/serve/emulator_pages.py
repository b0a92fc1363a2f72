"""What do the pages say that need no engine: which model is served, and what are the tokens of a text?"""

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
from inferometer.serve.http_line import HttpRequest

COMPLETIONS_PATH: Final = "/v1/completions"
CHAT_PATH: Final = "/v1/chat/completions"
GENERATION_PATHS: Final = (COMPLETIONS_PATH, CHAT_PATH)


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
            There is no such page, or it cannot be asked so.
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
        asked = decoded_body(body, TokenizeBody)
        check_model(asked.model, self._limits)
        text = asked.prompt if asked.messages is None else " ".join(chat_texts(asked.messages))
        if text is None:
            raise Refusal(400, "prompt or messages must be given", param="prompt")
        tokens = self._tokenizer.tokens(text)
        ids = [
            token if isinstance(token, int) else zlib.crc32(str(token).encode()) for token in tokens
        ]
        said = {"count": len(ids), "max_model_len": self._limits.max_model_len, "tokens": ids}
        return msgspec.json.encode(
            said
            | {"token_strs": [str(token) for token in tokens] if asked.return_token_strs else None}
        )

    def _detokenize(self, body: bytes) -> bytes:
        asked = decoded_body(body, DetokenizeBody)
        check_model(asked.model, self._limits)
        return msgspec.json.encode({"prompt": self._tokenizer.text(asked.tokens)})
