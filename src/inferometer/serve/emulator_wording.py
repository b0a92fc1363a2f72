"""How does vLLM say it: the events of a stream, the whole of a reply, and the counts of tokens?

Mirrors the field order of vLLM 0.32.0 (``entrypoints/openai``), so that a client cannot tell.
"""

from typing import Any, Final, NamedTuple

import msgspec

DONE: Final = b"data: [DONE]\n\n"


class Usage(NamedTuple):
    """How many tokens?"""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int

    def said(self, *, has_details: bool) -> dict[str, Any]:
        """As JSON has it."""
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
        }
        return counts | {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}} if has_details else counts


class End(NamedTuple):
    """Why was it the last token?"""

    finish_reason: str
    stop_reason: str | None


class Wording:
    """One reply in OpenAI's words; words of the emulator need no escape, other texts get one."""

    def __init__(self, *, reply_id: str, model_name: str, created_s: int, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._head = {
            "id": reply_id,
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": created_s,
            "model": model_name,
        }
        opened = b"data: " + msgspec.json.encode(self._head)[:-1] + b',"choices":['
        self._before = opened + (b'{"index":0,"delta":{"content":' if is_chat else b'{"index":0,"text":')
        tail = b',"token_ids":null}]' if is_chat else b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        self._after = (b"}" if is_chat else b"") + b',"logprobs":null,"finish_reason":null' + tail
        self._opened = opened

    def opening(self, usage: Usage | None) -> bytes:
        """The event that says who speaks, before the first token of a chat; nothing for a completion."""
        if not self._is_chat:
            return b""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._opened + choice + _counts(usage) + b',"prompt_token_ids":null,"prompt_text":null}\n\n'

    def tokens(self, text: str, usage: Usage | None) -> bytes:
        """The event of tokens that are not the last; ``usage`` where counts come with each."""
        return self._before + msgspec.json.encode(text) + self._after + _counts(usage) + b"}\n\n"

    def last(self, text: str, end: End, usage: Usage | None) -> bytes:
        """The event of the last tokens."""
        reasons = {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        nothing = {"token_ids": None} if self._is_chat else {"prompt_token_ids": None, "token_ids": None}
        after = msgspec.json.encode({"logprobs": None, **reasons, **nothing})[1:]
        return self._before + msgspec.json.encode(text) + (b"}," if self._is_chat else b",") + after + b"]" + _counts(usage) + b"}\n\n"

    def usage(self, usage: Usage) -> bytes:
        """The event after the last token, where counts were asked for."""
        return self._opened + b'],"usage":' + msgspec.json.encode(usage.said(has_details=True)) + b"}\n\n"

    def whole(self, text: str, end: End, usage: Usage | None) -> bytes:
        """The reply that is no stream."""
        nothing: dict[str, Any] = {"logprobs": None, "finish_reason": end.finish_reason, "stop_reason": end.stop_reason, "token_ids": None}
        said: dict[str, Any] = {"index": 0, "text": text}
        if self._is_chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None, "function_call": None}
            said = {"index": 0, "message": message | {"reasoning": None}}
        head = self._head | {"object": "chat.completion"} if self._is_chat else self._head
        body = head | {"choices": [said | nothing], "service_tier": None, "system_fingerprint": None}
        return msgspec.json.encode(body if usage is None else body | {"usage": usage.said(has_details=True)})


def error_event(message: str, kind: str, status: int) -> bytes:
    """The event that says that a stream failed."""
    error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return b"data: " + msgspec.json.encode(error) + b"\n\n"


def _counts(usage: Usage | None) -> bytes:
    return b"" if usage is None else b',"usage":' + msgspec.json.encode(usage.said(has_details=False))


__all__ = ["DONE", "End", "Usage", "Wording", "error_event"]
