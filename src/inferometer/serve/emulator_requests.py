"""Which request do a client's headers and JSON make, with which tokens, and when is it refused?

Unknown keys are ignored, as vLLM does.
"""

import ipaddress
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.serve.emulator_words import Tokenizer
from inferometer.serve.http_line import HttpRequest

_BODY: Final = Door(noun="body", allowed="JSON of OpenAI's interface")

_DEFAULT_COMPLETION_TOKENS: Final = 16
"""vLLM's default for completions; chats run to the end of the context."""

_MOST_ANSWERS: Final = 1024
_MOST_LOGPROBS: Final = 20
"""vLLM's default of ``--max-logprobs``."""
_LEAST_TEMPERATURE: Final = 0.01

Body = TypeVar("Body")


class Refusal(Exception):
    """A request that is answered with an error, in OpenAI's shape and vLLM's words."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error as JSON."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "param": self.param,
                    "code": self.status,
                }
            }
        )


def check_head(request: HttpRequest, listens_on: str) -> None:
    """Refuse other hosts and content types, as a careful server on loopback does.

    A web page whose name resolves to this machine (DNS rebinding) sends another ``Host``; one that
    posts without permission (CORS) sends text in place of JSON.

    Raises
    ------
    Refusal
        The host is another one, or a body is of another type.
    """
    host = request.headers.get("host")
    if host is not None and _is_loopback(listens_on) and not _is_loopback(_host_name(host)):
        raise Refusal(
            421,
            f"this server listens on {listens_on} and answers no request for another host",
            kind="MisdirectedRequestError",
        )
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and media_type != "application/json":
        raise Refusal(
            400, "Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request"
        )


def _host_name(authority: str) -> str:
    """The host of ``HOST:PORT`` or ``[IPV6]:PORT``."""
    return (
        authority.partition("]")[0].lstrip("[")
        if authority.startswith("[")
        else authority.partition(":")[0]
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


class StreamOptions(msgspec.Struct, frozen=True):
    """Token counts to send with a stream."""

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
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    n: int | None = None
    priority: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    echo: bool | None = None
    logprobs: int | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat: a text, or parts, of which those of type text are used."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request that can be served."""

    is_chat: bool
    is_streaming: bool
    includes_usage: bool
    has_continuous_usage: bool
    prompts: tuple[Sequence[Hashable], ...]
    """Token ids of each prompt."""
    n_choices: int
    """Answers to each prompt."""
    echoes: bool
    """``echo``: does each answer begin with its prompt?"""
    is_silent: bool
    """Is the echoed prompt all that is wanted (``max_tokens`` 0)?"""
    n_top_logprobs: int | None
    """Number of likeliest tokens beside each; None: no log-probabilities."""
    most_tokens: tuple[int, ...]
    """Most tokens generated for each prompt."""
    least_tokens: int
    ignores_eos: bool
    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    """``stop_token_ids``: ids as ``/tokenize`` gives them."""
    includes_stop: bool
    priority: int
    temperature_ratio: float
    """Only for trace spans, as top_p: the emulator does not sample by them."""
    top_p_fraction: float


class Limits(NamedTuple):
    """Limits of the server on requests."""

    model_name: str
    max_model_len: int


def read_completion(body: bytes, limits: Limits, tokenizer: Tokenizer) -> ParsedRequest:
    """Parse the body of a completion.

    Raises
    ------
    Refusal
        It cannot be read, is too long, names another model, or asks for what the emulator does not
        do.
    """
    read = decoded_body(body, CompletionBody)
    most = _DEFAULT_COMPLETION_TOKENS if read.max_tokens is None else read.max_tokens
    parsed = _asked(
        read,
        _prompts(read.prompt, tokenizer),
        max(most, 1) if read.echo else most,
        limits,
        is_chat=False,
    )
    _check_logprobs(read.logprobs, "logprobs")
    return replace(
        parsed,
        echoes=bool(read.echo),
        is_silent=bool(read.echo and most == 0),
        n_top_logprobs=read.logprobs,
    )


def read_chat(body: bytes, limits: Limits, tokenizer: Tokenizer) -> ParsedRequest:
    """Parse the body of a chat.

    Its prompt is the words of all its messages, one after the other.

    Raises
    ------
    Refusal
        See ``read_completion``.
    """
    read = decoded_body(body, ChatBody)
    if not read.messages:
        raise Refusal(400, "messages must not be empty", param="messages")
    tokens = tokenizer.tokens(" ".join(chat_texts(read.messages))) or (
        "",
    )  # a real template says something at least
    most = read.max_tokens if read.max_completion_tokens is None else read.max_completion_tokens
    parsed = _asked(read, (tokens,), most, limits, is_chat=True)
    if read.top_logprobs and not read.logprobs:
        raise Refusal(
            400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs"
        )
    _check_logprobs(read.top_logprobs, "top_logprobs")
    return replace(parsed, n_top_logprobs=(read.top_logprobs or 0) if read.logprobs else None)


def chat_texts(messages: Sequence[Message]) -> list[str]:
    """The texts of these messages."""
    texts = list[str]()
    for message in messages:
        if isinstance(message.content, str):
            texts.append(message.content)
        elif message.content is not None:
            texts += [
                str(part.get("text", "")) for part in message.content if part.get("type") == "text"
            ]
    return texts


def decoded_body(body: bytes, kind: type[Body]) -> Body:
    """Decode the body as this kind of request; refused where it is invalid.

    Numbers may be written as ``4.0`` or ``"4"``, as vLLM's pydantic takes them.
    """
    try:
        return _BODY.json(body, kind, where="the request", is_strict=False)
    except SpecError as problem:
        raise Refusal(400, problem.what) from problem


def check_model(name: str | None, limits: Limits) -> None:
    """Refuse a model that is not served; None means the served one."""
    if name and name != limits.model_name:
        raise Refusal(
            404, f"The model `{name}` does not exist.", kind="NotFoundError", param="model"
        )


def _prompts(prompt: str | list[Any], tokenizer: Tokenizer) -> tuple[Sequence[Hashable], ...]:
    """The tokens of each prompt: of a text, of ids, or of several of either."""
    if isinstance(prompt, str):
        return (tokenizer.tokens(prompt),)
    if any(id_ < 0 for one in prompt for id_ in _ids(one)):
        raise Refusal(400, "a token id in prompt is negative", param="prompt")
    if not prompt or all(type(one) is int for one in prompt):
        return (prompt,)
    if not all(
        isinstance(one, str) or (isinstance(one, list) and all(type(token) is int for token in one))
        for one in prompt
    ):
        raise Refusal(
            400, "prompt must be a text, a list of token ids, or a list of either", param="prompt"
        )
    return tuple(tokenizer.tokens(one) if isinstance(one, str) else one for one in prompt)


def _ids(one: object) -> list[int]:
    """The token ids in an item of a prompt's list: itself, or those in it."""
    items = cast("list[object]", one) if isinstance(one, list) else [one]
    return [item for item in items if isinstance(item, int)]


def _asked(
    read: CompletionBody | ChatBody,
    prompts: tuple[Sequence[Hashable], ...],
    most: int | None,
    limits: Limits,
    *,
    is_chat: bool,
) -> ParsedRequest:
    check_model(read.model, limits)
    _check_counts(read, most, n_answers=len(prompts) * (1 if read.n is None else read.n))
    _check_ranges(read)
    if most is not None and most > limits.max_model_len:
        is_new = isinstance(read, ChatBody) and read.max_completion_tokens is not None
        name = "max_completion_tokens" if is_new else "max_tokens"
        text = f"{name}={most} cannot be greater than max_model_len={limits.max_model_len}. "
        raise Refusal(400, f"{text}Please request fewer output tokens.", param=name)
    for tokens in prompts:
        if not tokens:
            raise Refusal(400, "the prompt is empty", param="prompt")
        if len(tokens) >= limits.max_model_len:
            raise _too_long(len(tokens), limits)
    options = read.stream_options or StreamOptions()
    return ParsedRequest(
        is_chat=is_chat,
        is_streaming=bool(read.stream),
        includes_usage=bool(options.include_usage),
        has_continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        prompts=prompts,
        n_choices=1 if read.n is None else read.n,
        echoes=False,
        is_silent=False,
        n_top_logprobs=None,
        most_tokens=tuple(_left(tokens, most, limits) for tokens in prompts),
        least_tokens=read.min_tokens or 0,
        ignores_eos=bool(read.ignore_eos),
        stops=(read.stop,) if isinstance(read.stop, str) else tuple(read.stop or ()),
        stop_ids=frozenset(read.stop_token_ids or ()),
        includes_stop=bool(read.include_stop_str_in_output),
        priority=read.priority or 0,
        **_sampling(read),
    )


def _sampling(read: CompletionBody | ChatBody) -> dict[str, float]:
    """Temperature and top_p as vLLM samples with them; refused where it refuses them.

    Source: vLLM 0.32.0, ``vllm/sampling_params.py``, ``__post_init__`` and ``_verify_args``.
    """
    temperature = 1.0 if read.temperature is None else read.temperature
    top_p = 1.0 if read.top_p is None else read.top_p
    if not 0 <= temperature <= 2:
        text = f"temperature must be in [0, 2], got {temperature}."
        raise Refusal(400, text, param="temperature")
    if not 0 < top_p <= 1:
        raise Refusal(400, f"top_p must be in (0, 1], got {top_p}.", param="top_p")
    if temperature == 0 and (read.n or 1) > 1:
        text = f"n must be 1 when using greedy sampling, got {read.n}."
        raise Refusal(400, text, param="n")
    if temperature == 0:
        return {"temperature_ratio": 0.0, "top_p_fraction": 1.0}
    return {"temperature_ratio": max(temperature, _LEAST_TEMPERATURE), "top_p_fraction": top_p}


def _check_ranges(read: CompletionBody | ChatBody) -> None:
    """Refuse what vLLM refuses of values that change nothing here.

    Source: vLLM 0.32.0, ``vllm/sampling_params.py``, ``_verify_args``.
    """
    checks = (
        (-2 <= (read.presence_penalty or 0) <= 2, "presence_penalty", "in [-2, 2]"),
        (-2 <= (read.frequency_penalty or 0) <= 2, "frequency_penalty", "in [-2, 2]"),
        (
            read.repetition_penalty is None or read.repetition_penalty > 0,
            "repetition_penalty",
            "greater than zero",
        ),
        ((read.top_k or 0) >= -1, "top_k", "0 (disable), or at least 1"),
        (0 <= (read.min_p or 0) <= 1, "min_p", "in [0, 1]"),
        ((read.min_tokens or 0) >= 0, "min_tokens", "greater than or equal to 0"),
    )
    for is_right, name, allowed in checks:
        if not is_right:
            raise Refusal(400, f"{name} must be {allowed}, got {getattr(read, name)}.", param=name)
    if "" in (read.stop if isinstance(read.stop, list) else [read.stop]):
        raise Refusal(400, "stop cannot contain an empty string.", param="stop")


def _check_logprobs(n_logprobs: int | None, name: str) -> None:
    """Refuse a number of likeliest tokens that vLLM refuses; -1 is its whole vocabulary."""
    if n_logprobs is None or 0 <= n_logprobs <= _MOST_LOGPROBS:
        return
    if n_logprobs < -1:
        raise Refusal(400, f"`{name}` must be a positive value or -1.", param=name)
    wanted = "the whole vocabulary" if n_logprobs == -1 else n_logprobs
    text = f"Requested sample logprobs of {wanted}, which is greater than max allowed: "
    raise Refusal(400, f"{text}{_MOST_LOGPROBS}", param="logprobs")


def _left(tokens: Sequence[Hashable], most: int | None, limits: Limits) -> int:
    left = limits.max_model_len - len(tokens)
    return left if most is None else min(most, left)


def _check_counts(read: CompletionBody | ChatBody, most: int | None, *, n_answers: int) -> None:
    """Refuse numbers that vLLM refuses."""
    if not 1 <= n_answers <= _MOST_ANSWERS:
        raise Refusal(
            400,
            f"n must be at least 1, and there may be {_MOST_ANSWERS} answers to a request, got"
            f" {n_answers}.",
            param="n",
        )
    if most is not None and most < 1:
        raise Refusal(400, f"max_tokens must be at least 1, got {most}.", param="max_tokens")
    if most is not None and (read.min_tokens or 0) > most:
        text = f"min_tokens must be less than or equal to max_tokens={most}, got {read.min_tokens}."
        raise Refusal(400, text, param="min_tokens")
    if read.stream_options is not None and not read.stream:
        raise Refusal(
            400, "Stream options can only be defined when `stream=True`.", param="stream_options"
        )


def _too_long(n_prompt: int, limits: Limits) -> Refusal:
    text = (
        f"This model's maximum context length is {limits.max_model_len} tokens. However, your"
        f" prompt contains {n_prompt} input tokens, "
    )
    text += (
        "which exceeds this limit even without any output tokens. Please reduce the length of the"
        " input prompt."
    )
    return Refusal(400, text, param="input_tokens")
