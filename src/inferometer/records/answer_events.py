"""What does one event of an answer say: text, a reason to end, the server's count, an error?

Both endpoints of OpenAI's protocol as vLLM, SGLang, llama.cpp, TensorRT-LLM and TGI speak it,
streamed or whole. No bytes make this fail.
"""

from typing import Final, NamedTuple

import msgspec

from inferometer.records.load_types import ChunkKind
from inferometer.records.types import ABSENT

DONE: Final = b"[DONE]"


class Usage(NamedTuple):
    """Tokens as the server counts them; ABSENT where it does not say."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Said(NamedTuple):
    """What an event says."""

    text: str = ""
    kind: ChunkKind = ChunkKind.CONTENT
    is_delta: bool = False
    """It has a delta that is more than a role: where the text is empty, a token may hide behind
    it, such as half of a character."""
    n_token_ids: int = ABSENT
    """Where the server tells the ids of a chunk's tokens (vLLM's ``return_token_ids``)."""
    finish_reason: str = ""
    usage: Usage | None = None
    is_error: bool = False
    is_done: bool = False
    """``[DONE]``."""
    is_readable: bool = True
    """False where the event is no such JSON."""
    is_utf8: bool = True


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    role: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: str | None = None


_decoder: Final = msgspec.json.Decoder(_Body)
_NOTHING: Final = Said()
_UNREADABLE: Final = Said(is_readable=False)
_MAX_TOKENS: Final = 2**31 - 1
"""More than any answer has: what is reported beyond it is false, and is not needed to the last
digit."""


def said_by(data: bytes, name: bytes = b"") -> Said:
    """What does the data of an event, or a whole JSON body, say?

    Example
    -------
    >>> said_by(b'{"choices":[{"delta":{"content":"Hi"},"finish_reason":null}]}').text
    'Hi'
    """
    if data.strip() == DONE:
        return Said(is_done=True)
    if name == b"error":
        return Said(is_error=True)
    body = _decoded(data)
    if body is None:
        repaired = data.decode("utf-8", "replace").encode()
        return _UNREADABLE if repaired == data else said_by(repaired)._replace(is_utf8=False)
    return Said(is_error=True) if _is_error(body) else _said(body)


def _said(body: _Body) -> Said:
    usage = None if body.usage is None else _usage(body.usage)
    if not body.choices:
        return _NOTHING if usage is None else Said(usage=usage)
    # With several choices each is an answer of its own; together they are what the server gave at
    # this instant.
    said = _of_choice(body.choices[0], usage)
    for choice in body.choices[1:]:
        other = _of_choice(choice, usage)
        said = said._replace(text=said.text + other.text, is_delta=said.is_delta or other.is_delta)
    return said


def _decoded(data: bytes) -> _Body | None:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_error(body: _Body) -> bool:
    return bytes(body.error) != b"null" or body.object == "error"


def _of_choice(choice: _Choice, usage: Usage | None) -> Said:
    delta = choice.delta if choice.delta is not None else choice.message
    text, kind = (choice.text or "", ChunkKind.CONTENT) if delta is None else _text_of(delta)
    is_delta = (
        bool(text)
        or choice.text is not None
        or choice.message is not None
        or (delta is not None and delta.role is None)
    )
    n_token_ids = ABSENT if choice.token_ids is None else len(choice.token_ids)
    return Said(text, kind, is_delta, n_token_ids, choice.finish_reason or "", usage)


def _text_of(delta: _Delta) -> tuple[str, ChunkKind]:
    thought = delta.reasoning or delta.reasoning_content or ""
    told = (delta.content or "") + (delta.refusal or "")
    called = (
        "" if not delta.tool_calls else "".join(_text_of_call(call) for call in delta.tool_calls)
    )
    kind = (
        ChunkKind.CONTENT
        if told
        else (
            ChunkKind.REASONING if thought else ChunkKind.TOOL_CALL if called else ChunkKind.CONTENT
        )
    )
    return thought + told + called, kind


def _text_of_call(call: _ToolCall) -> str:
    return (
        ""
        if call.function is None
        else (call.function.name or "") + (call.function.arguments or "")
    )


def _usage(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=_count(usage.prompt_tokens),
        cached_tokens=_count(None if details is None else details.cached_tokens),
        output_tokens=_count(usage.completion_tokens),
    )


def _count(value: int | None) -> int:
    return ABSENT if value is None or value < 0 else min(value, _MAX_TOKENS)
