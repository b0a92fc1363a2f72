"""What does a client ask for, in OpenAI's words, and what is it refused with? Keys that nobody knows are let pass, as vLLM does."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from inferometer.serve.emulator_tokens import Tokenizer

_DEFAULT_COMPLETION_TOKENS: Final = 16
"""What vLLM generates for a completion where nobody says; a chat goes on to the end of the context."""

Body = TypeVar("Body")


class Refusal(Exception):
    """A request that is answered with an error, in OpenAI's shape and vLLM's words."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error as JSON."""
        return msgspec.json.encode({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}})


class StreamOptions(msgspec.Struct, frozen=True):
    """Which token counts come with a stream?"""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: bool | int | None = None
    priority: int | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    echo: bool | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat: a text, or parts of which those of type text count."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that can be served."""

    is_chat: bool
    is_streaming: bool
    includes_usage: bool
    has_continuous_usage: bool
    tokens: Sequence[Hashable]
    """Of the prompt."""
    most_tokens: int
    """All that may be generated."""
    least_tokens: int
    ignores_eos: bool
    stops: tuple[str, ...]
    priority: int


class Limits(NamedTuple):
    """What the server can serve."""

    model_name: str
    max_model_len: int


def read_completion(body: bytes, limits: Limits, tokenizer: Tokenizer) -> Asked:
    """What is asked by this body of a completion?

    Raises
    ------
    Refusal
        It cannot be read, is too long, names another model, or asks for what the emulator does not do.
    """
    read = decoded_body(body, CompletionBody)
    if read.echo:
        raise Refusal(400, "echo is not supported by the emulator", param="echo")
    most = _DEFAULT_COMPLETION_TOKENS if read.max_tokens is None else read.max_tokens
    return _asked(read, _prompt_tokens(read.prompt, tokenizer), most, limits, is_chat=False)


def read_chat(body: bytes, limits: Limits, tokenizer: Tokenizer) -> Asked:
    """What is asked by this body of a chat? Its prompt is the words of all its messages, one after the other.

    Raises
    ------
    Refusal
        See ``read_completion``.
    """
    read = decoded_body(body, ChatBody)
    if not read.messages:
        raise Refusal(400, "messages must not be empty", param="messages")
    tokens = tokenizer.tokens(" ".join(chat_texts(read.messages))) or ("",)  # a real template says something at least
    most = read.max_tokens if read.max_completion_tokens is None else read.max_completion_tokens
    return _asked(read, tokens, most, limits, is_chat=True)


def chat_texts(messages: Sequence[Message]) -> list[str]:
    """The texts of these messages."""
    texts = list[str]()
    for message in messages:
        if isinstance(message.content, str):
            texts.append(message.content)
        elif message.content is not None:
            texts += [str(part.get("text", "")) for part in message.content if part.get("type") == "text"]
    return texts


def decoded_body(body: bytes, kind: type[Body]) -> Body:
    """The body as this kind of request; refused where it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Refusal(400, str(problem)) from problem


def check_model(name: str | None, limits: Limits) -> None:
    """Refuse a model that is not served; none named means the one that is."""
    if name and name != limits.model_name:
        raise Refusal(404, f"The model `{name}` does not exist.", kind="NotFoundError", param="model")


def _prompt_tokens(prompt: str | list[Any], tokenizer: Tokenizer) -> Sequence[Hashable]:
    if isinstance(prompt, str):
        return tokenizer.tokens(prompt)
    if prompt and all(type(one) is int for one in prompt):
        return prompt
    if len(prompt) != 1:
        raise Refusal(400, "prompt must be one text or one list of token ids", param="prompt")
    if not isinstance(prompt[0], str | list):
        raise Refusal(400, f"prompt cannot hold {prompt[0]!r}", param="prompt")
    return _prompt_tokens(prompt[0], tokenizer)


def _asked(read: CompletionBody | ChatBody, tokens: Sequence[Hashable], most: int | None, limits: Limits, *, is_chat: bool) -> Asked:
    check_model(read.model, limits)
    if (read.n or 1) != 1 or (read.best_of or 1) != 1:
        raise Refusal(400, "n and best_of must be 1", param="n")
    if read.logprobs is not None and read.logprobs is not False:
        raise Refusal(400, "logprobs are not supported by the emulator", param="logprobs")
    if not tokens:
        raise Refusal(400, "the prompt is empty", param="prompt")
    if most is not None and most < 1:
        raise Refusal(400, f"max_tokens must be at least 1, got {most}.", param="max_tokens")
    if len(tokens) >= limits.max_model_len:
        raise _too_long(len(tokens), limits)
    left = limits.max_model_len - len(tokens)
    options = read.stream_options or StreamOptions()
    return Asked(
        is_chat=is_chat,
        is_streaming=bool(read.stream),
        includes_usage=bool(options.include_usage),
        has_continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        tokens=tokens,
        most_tokens=left if most is None else min(most, left),
        least_tokens=read.min_tokens or 0,
        ignores_eos=bool(read.ignore_eos),
        stops=(read.stop,) if isinstance(read.stop, str) else tuple(read.stop or ()),
        priority=read.priority or 0,
    )


def _too_long(n_prompt: int, limits: Limits) -> Refusal:
    text = f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt contains {n_prompt} input tokens, "
    text += "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    return Refusal(400, text, param="input_tokens")


__all__ = [
    "Asked",
    "ChatBody",
    "CompletionBody",
    "Limits",
    "Message",
    "Refusal",
    "StreamOptions",
    "chat_texts",
    "check_model",
    "decoded_body",
    "read_chat",
    "read_completion",
]
