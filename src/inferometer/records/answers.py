"""Decoding of one response: its text, the time and token count of each chunk, and how it ended.

Token counts are the server's ``usage``, else those of a local tokenizer, else one per chunk;
``token_source`` names the source. A usage above what is possible (``max_tokens``, the bytes) is
false: it is ignored, and the answer is marked ``too_many_tokens``. The tokens of each chunk come
from usage sent with every chunk, from token ids, from one token per chunk if the counts agree, or
from the tokenizer; if none of these applies, the chunks' counts are ABSENT.

A body (text/event-stream) comes in reads that end anywhere: within a line, within a character,
between CR and LF. An event's arrival is the end of the read with the first byte of the line end
of its blank line. Arbitrary bytes are accepted without an error.

Source: WHATWG HTML, section 9.2.6, interpreting an event stream. One difference: an event that is
cut off by the end of the body is returned too, with ``is_whole`` False, because its bytes arrived.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import msgspec

from inferometer.records.raw_log import RequestFrame, int32s, int64s
from inferometer.records.types import ABSENT, ChunkKind

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_COMMENT: Final = ord(":")
# Parsing of one event of a response: text, finish reason, the server's token counts, error.
# Both endpoints of OpenAI's protocol as vLLM, SGLang, llama.cpp, TensorRT-LLM and TGI speak it,
# streamed or whole. Arbitrary bytes are accepted without an error.


DONE: Final = b"[DONE]"


class Event(NamedTuple):
    """One event of a server-sent event stream."""

    end: int
    """Bytes of the body up to the end of the event."""
    name: bytes
    """b'' where the stream gives it none."""
    data: bytes
    """Data lines, joined by line feeds."""
    is_whole: bool
    """False where the body ended before the event did."""


def events_of(body: bytes) -> list[Event]:
    r"""All events with data, in order; comments, keep-alives and unknown fields are skipped.

    Example
    -------
    >>> [event.data for event in events_of(b"data: a\n\n: keep-alive\n\ndata: b\ndata: c\n\n")]
    [b'a', b'b\nc']
    """
    usual = _usual_events(body)
    return _events_by_lines(body) if usual is None else usual


def _usual_events(body: bytes) -> list[Event] | None:
    """Fast path of ``events_of`` if every event is one line of data; else None."""
    *pieces, rest = body.split(b"\n\n")
    if rest or b"\r" in body:
        return None
    events: list[Event] = []
    end = 0
    for piece in pieces:
        if piece[:6] != b"data: " or b"\n" in piece:
            return None
        end += len(piece) + 2
        events.append(Event(end, b"", piece[6:], is_whole=True))
    return events


def _events_by_lines(body: bytes) -> list[Event]:
    start = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    events: list[Event] = []
    name, lines = b"", list[bytes]()
    for match in _LINE_END.finditer(body, start):
        line_end, line_start, start = match.start(), start, match.end()
        if line_end > line_start:
            name = _taken(body[line_start:line_end], lines, name)
            continue
        if lines:
            events.append(Event(line_end + 1, name, b"\n".join(lines), is_whole=True))
        name, lines = b"", []
    if start < len(body):
        name = _taken(body[start:], lines, name)
    if lines:
        events.append(Event(len(body), name, b"\n".join(lines), is_whole=False))
    return events


def reads_of(ends: Sequence[int], read_bytes: Sequence[int]) -> list[int]:
    """The index of the read that brought the last byte of each (rising) end offset.

    Offsets beyond all reads belong to the last read.

    Example
    -------
    >>> reads_of([3, 4, 9], [3, 0, 4, 2])
    [0, 2, 3]
    """
    found: list[int] = []
    index, arrived, last = 0, read_bytes[0] if read_bytes else 0, len(read_bytes) - 1
    for end in ends:
        while arrived < end and index < last:
            index += 1
            arrived += read_bytes[index]
        found.append(index)
    return found


def _taken(line: bytes, lines: list[bytes], name: bytes) -> bytes:
    """Add a line to the event that is being read; returns the event's name."""
    if line[0] == _COMMENT:
        return name
    field, _, value = line.partition(b":")
    value = value.removeprefix(b" ")
    if field == b"data":
        lines.append(value)
    return value if field == b"event" else name


class Usage(NamedTuple):
    """Token counts reported by the server; ABSENT where it reports none."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Payload(NamedTuple):
    """Parsed content of an event."""

    text: str = ""
    kind: ChunkKind = ChunkKind.CONTENT
    is_delta: bool = False
    """It has a delta with more than a role: even with empty text it may carry a token, such as half
    of a character."""
    n_token_ids: int = ABSENT
    """Number of token ids, where the server sends them (vLLM's ``return_token_ids``)."""
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
_NOTHING: Final = Payload()
_UNREADABLE: Final = Payload(is_readable=False)
_MAX_TOKENS: Final = 2**31 - 1
"""More tokens than any answer has: larger reported counts are false, and are cut to this."""


def said_by(data: bytes, name: bytes = b"") -> Payload:
    """Parse the data of an event, or a whole JSON body.

    Example
    -------
    >>> said_by(b'{"choices":[{"delta":{"content":"Hi"},"finish_reason":null}]}').text
    'Hi'
    """
    if data.strip() == DONE:
        return Payload(is_done=True)
    if name == b"error":
        return Payload(is_error=True)
    body = _decoded(data)
    if body is None:
        repaired = data.decode("utf-8", "replace").encode()
        return _UNREADABLE if repaired == data else said_by(repaired)._replace(is_utf8=False)
    return Payload(is_error=True) if _is_error(body) else _said(body)


def _said(body: _Body) -> Payload:
    usage = None if body.usage is None else _usage(body.usage)
    if not body.choices:
        return _NOTHING if usage is None else Payload(usage=usage)
    # With several choices each is a response of its own; together they are the server's output at
    # this instant.
    payload = _of_choice(body.choices[0], usage)
    for choice in body.choices[1:]:
        other = _of_choice(choice, usage)
        payload = payload._replace(
            text=payload.text + other.text, is_delta=payload.is_delta or other.is_delta
        )
    return payload


def _decoded(data: bytes) -> _Body | None:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_error(body: _Body) -> bool:
    return bytes(body.error) != b"null" or body.object == "error"


def _of_choice(choice: _Choice, usage: Usage | None) -> Payload:
    delta = choice.delta if choice.delta is not None else choice.message
    text, kind = (choice.text or "", ChunkKind.CONTENT) if delta is None else _text_of(delta)
    is_delta = (
        bool(text)
        or choice.text is not None
        or choice.message is not None
        or (delta is not None and delta.role is None)
    )
    n_token_ids = ABSENT if choice.token_ids is None else len(choice.token_ids)
    return Payload(text, kind, is_delta, n_token_ids, choice.finish_reason or "", usage)


def _text_of(delta: _Delta) -> tuple[str, ChunkKind]:
    thought = delta.reasoning or delta.reasoning_content or ""
    content = (delta.content or "") + (delta.refusal or "")
    called = (
        "" if not delta.tool_calls else "".join(_text_of_call(call) for call in delta.tool_calls)
    )
    kind = (
        ChunkKind.CONTENT
        if content
        else (
            ChunkKind.REASONING if thought else ChunkKind.TOOL_CALL if called else ChunkKind.CONTENT
        )
    )
    return thought + content + called, kind


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


TokenEnds: TypeAlias = Callable[[str], Sequence[int]]
"""A function that gives the end of each token of a text, in characters."""

_NO_USAGE: Final = Usage(ABSENT, ABSENT, ABSENT)
_MOST_ADDED_TOKENS: Final = 131_072
"""Most tokens that a server adds to a prompt: template, and a long system prompt."""
_HTTP_OK: Final = range(200, 300)


class Chunk(NamedTuple):
    """One event with tokens."""

    arrived_ns: int
    n_tokens: int
    """ABSENT: unknown."""
    n_characters: int
    kind: int
    read_index: int


class Answer(NamedTuple):
    """One answer, as far as it was received."""

    chunks: tuple[Chunk, ...]
    output_tokens: int
    token_source: str
    """usage, tokenizer or chunks; '' without tokens."""
    usage: Usage
    finish_reason: str
    error: str
    """'' or a code of ``records.exchange_errors``: the wire's, else what is wrong with the
    content."""
    is_stream: bool = True
    """False: sent whole, not streamed, so the time of the first token is unknown."""

    @property
    def first_token_ns(self) -> int:
        """Arrival of the first chunk with a token; ABSENT without one, or if not streamed."""
        if not self.is_stream:
            return ABSENT
        return next((chunk.arrived_ns for chunk in self.chunks if chunk.n_tokens != 0), ABSENT)

    @property
    def last_token_ns(self) -> int:
        """Arrival of the last chunk with a token; ABSENT without one."""
        return next(
            (chunk.arrived_ns for chunk in reversed(self.chunks) if chunk.n_tokens != 0), ABSENT
        )

    @property
    def n_coalesced(self) -> int:
        """Number of chunks that arrived in the same read as the chunk before."""
        return sum(one.read_index == other.read_index for one, other in pairwise(self.chunks))


class _Heard(NamedTuple):
    payload: Payload
    arrived_ns: int
    read_index: int

    @property
    def may_be_token(self) -> bool:
        return bool(self.payload.text) or self.payload.is_delta


def answer_of(frame: RequestFrame, token_ends: TokenEnds | None = None) -> Answer:
    """Parse this request's answer.

    ``token_ends`` is called only where the server's counts do not suffice.
    """
    if frame.http_status not in _HTTP_OK or not frame.body:
        error = frame.error or "empty_answer"
        return Answer((), 0, "", _NO_USAGE, "", error)
    is_stream = not (
        frame.content_type.startswith("application/json") or frame.body.lstrip().startswith(b"{")
    )
    events = (
        events_of(frame.body)
        if is_stream
        else [Event(len(frame.body), b"", frame.body, is_whole=not frame.error)]
    )
    heard = _heard(frame, events)
    if not is_stream and heard:
        heard = [heard[-1]._replace(read_index=0)]
    usage = _last_usage(heard)
    has_false_count = _has_false_count(frame, heard, usage, is_stream=is_stream)
    if has_false_count:
        heard = [
            one._replace(payload=one.payload._replace(usage=None, n_token_ids=ABSENT))
            for one in heard
        ]
        usage = usage._replace(prompt_tokens=ABSENT, cached_tokens=ABSENT)
    text_ends = None if token_ends is None else _asker(heard, token_ends)
    total, source = _total(heard, text_ends)
    chunks = _chunks(heard, total, source, text_ends)
    reason = next(
        (one.payload.finish_reason for one in reversed(heard) if one.payload.finish_reason), ""
    )
    error = frame.error or _content_error(
        heard, events, total, is_stream=is_stream, has_reason=bool(reason)
    )
    error = error or ("too_many_tokens" if has_false_count else "")
    return Answer(chunks, total, source if total else "", usage, reason, error, is_stream)


def _heard(frame: RequestFrame, events: Sequence[Event]) -> list[_Heard]:
    read_ns = int64s(frame.read_ns).tolist()
    if not read_ns:
        return []
    at = reads_of([event.end for event in events], int32s(frame.read_bytes).tolist())
    return [
        _Heard(said_by(event.data, event.name), read_ns[min(read, len(read_ns) - 1)], read)
        for event, read in zip(events, at, strict=True)
    ]


def _last_usage(heard: Sequence[_Heard]) -> Usage:
    return next(
        (one.payload.usage for one in reversed(heard) if one.payload.usage is not None), _NO_USAGE
    )


def _asker(heard: Sequence[_Heard], token_ends: TokenEnds) -> Callable[[], list[int]]:
    """A function that counts the tokens of each event with the tokenizer, when called."""

    def per_event() -> list[int]:
        ends = token_ends("".join(one.payload.text for one in heard))
        counts: list[int] = []
        done, length = 0, 0
        for one in heard:
            length += len(one.payload.text)
            before = done
            while done < len(ends) and ends[done] <= length:
                done += 1
            counts.append(done - before)
        return counts

    return per_event


def _has_false_count(
    frame: RequestFrame, heard: Sequence[_Heard], usage: Usage, *, is_stream: bool
) -> bool:
    """Does the server report more tokens than possible?

    The limit of output tokens is the requested number and, in a stream, one per byte; that of
    prompt tokens is one per byte sent, plus the server's own additions.
    """
    most = (
        min(frame.asked_output_tokens, frame.received_bytes)
        if is_stream
        else frame.asked_output_tokens
    )
    n_ids = sum(max(one.payload.n_token_ids, 0) for one in heard)
    return (
        max(usage.output_tokens, n_ids) > most
        or usage.prompt_tokens > frame.sent_bytes + _MOST_ADDED_TOKENS
    )


def _total(
    heard: Sequence[_Heard], by_tokenizer: Callable[[], list[int]] | None
) -> tuple[int, str]:
    usage = _last_usage(heard)
    if usage.output_tokens != ABSENT:
        return usage.output_tokens, "usage"
    ids = [one.payload.n_token_ids for one in heard if one.may_be_token]
    if ids and ABSENT not in ids:
        return sum(ids), "usage"
    if by_tokenizer is not None:
        return sum(by_tokenizer()), "tokenizer"
    return sum(bool(one.payload.text) for one in heard), "chunks"


def _chunks(
    heard: Sequence[_Heard], total: int, source: str, by_tokenizer: Callable[[], list[int]] | None
) -> tuple[Chunk, ...]:
    counts = _counts(heard, total, source, by_tokenizer)
    return tuple(
        Chunk(
            one.arrived_ns, n_tokens, len(one.payload.text), int(one.payload.kind), one.read_index
        )
        for one, n_tokens in zip(heard, counts, strict=True)
        if one.payload.text or n_tokens > 0 or (n_tokens == ABSENT and total > 0)
    )


def _counts(
    heard: Sequence[_Heard], total: int, source: str, by_tokenizer: Callable[[], list[int]] | None
) -> list[int]:
    """Tokens of each event; ABSENT for those with text whose count is unknown."""
    counts = _by_running_usage(heard) or _by_token_ids(heard)
    if counts is not None:
        return counts
    if source == "tokenizer" and by_tokenizer is not None:
        return by_tokenizer()
    may_be = [one.may_be_token for one in heard]
    has_text = (
        [bool(one.payload.text) for one in heard]
        if any(one.payload.text for one in heard)
        else may_be
    )
    n_text = sum(has_text)
    if n_text in {1, total}:
        return [total // max(n_text, 1) if has else 0 for has in has_text]
    if total == sum(may_be):
        return [int(may) for may in may_be]
    if by_tokenizer is not None:
        counts = by_tokenizer()
        # The token that ends an answer has no text.
        if total - sum(counts) in {0, 1}:
            return _with_rest(counts, total - sum(counts), has_text)
    return [ABSENT if has else 0 for has in has_text]


def _by_running_usage(heard: Sequence[_Heard]) -> list[int] | None:
    """Tokens of each event, from the running total that each reports; None if any lacks it."""
    counts: list[int] = []
    before = 0
    for one in heard:
        so_far = ABSENT if one.payload.usage is None else one.payload.usage.output_tokens
        if one.may_be_token and so_far < before:
            return None  # ABSENT is the least of all
        now = max(so_far, before) if one.may_be_token else before
        counts.append(now - before)
        before = now
    is_running = sum(one.may_be_token and one.payload.usage is not None for one in heard) > 1
    return counts if is_running else None


def _by_token_ids(heard: Sequence[_Heard]) -> list[int] | None:
    counts = [one.payload.n_token_ids if one.may_be_token else 0 for one in heard]
    return counts if any(counts) and ABSENT not in counts else None


def _with_rest(counts: Sequence[int], rest: int, has_text: Sequence[bool]) -> list[int]:
    given = list(counts)
    if rest and any(has_text):
        given[len(has_text) - 1 - list(reversed(has_text)).index(True)] += rest
    return given


def _content_error(
    heard: Sequence[_Heard],
    events: Sequence[Event],
    total: int,
    *,
    is_stream: bool,
    has_reason: bool,
) -> str:
    if any(one.payload.is_error for one in heard):
        return "error_event"
    if any(
        not one.payload.is_readable and event.is_whole
        for one, event in zip(heard, events, strict=True)
    ):
        return "bad_event"
    if any(not one.payload.is_utf8 for one in heard):
        return "invalid_utf8"
    if is_stream and not has_reason and not any(one.payload.is_done for one in heard):
        return "no_end"
    has_answer = total and any(one.may_be_token for one in heard)  # a usage alone is none
    return "" if has_answer else "empty_answer"
