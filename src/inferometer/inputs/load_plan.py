"""Plan of a load test: server, requests, duration, and the making of prompts.

It has no secrets: bearer tokens and header values come from the environment and are neither printed
nor stored.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec

from inferometer.inputs.workload.types import WorkloadSpec

Endpoint: TypeAlias = Literal["chat", "completions"]
PromptForm: TypeAlias = Literal["token-ids", "tokenizer", "trace", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load test of one server, with all that is needed to repeat it."""

    url: str
    """Scheme, host, port and path prefix, such as ``http://127.0.0.1:8000``."""
    served_model: str
    """The model's name on the server."""
    endpoint: Endpoint
    workload: WorkloadSpec
    is_streaming: bool = True
    for_s: float | None = None
    """Requests are sent for this time; those then in flight have ``drain_s`` to finish."""
    drain_s: float = 60.0
    timeout_s: float = 600.0
    """A longer request is cancelled and recorded as such."""
    n_processes: int = 1
    max_connections: int | None = None
    """Most connections at once; None: one for each request in flight."""
    max_concurrency: int | None = None
    """Most requests in flight of an open loop; others wait at the client. None: no limit."""
    prompt_form: PromptForm = "words"
    """token-ids: exact lengths, if the server accepts ids; tokenizer: text of exact lengths by a
    local tokenizer; words: one word per requested token, whose true token count only the server's
    usage has; trace: the texts of the replayed file."""
    tokenizer: str | None = None
    """Folder or file of the local tokenizer."""
    text_seed: int | None = None
    """Seed of the prompts' words and token ids; None: the workload's."""
    repeats_prompts: bool = True
    """Prompts have the same words in each run; else new ones, which no server's prefix cache
    has from an earlier run."""
    ignores_eos: bool = True
    """Request answers of exactly the workload's lengths, as engines' own benchmarks do."""
    sends_priorities: bool = False
    """Does each body have the request's priority (smaller is more urgent)?"""
    extra_body: tuple[tuple[str, str], ...] = ()
    """Further keys of the request's body and their values as JSON, sorted; texts in them as
    ``without_secrets`` stores them."""
    header_names: tuple[str, ...] = ()
    """Names of the custom headers that were sent; values are not stored."""
    sends_bearer_token: bool = False
    verifies_tls: bool = True
    proxy: str | None = None
    """Without its credentials."""
    metrics_url: str | None = None
    """Where the server's metrics were scraped, without credentials and query."""


def most_in_flight(load: LoadPlan, n_processes: int, process_index: int) -> int | None:
    """A process's share of the concurrent requests, at least one; each has its connection."""
    caps = [cap for cap in (load.max_connections, load.max_concurrency) if cap is not None]
    if not caps:
        return None
    most = min(caps)
    return max(most // n_processes + (process_index < most % n_processes), 1)


_DIGEST_CHARACTERS: Final = 8


def without_secrets(load: LoadPlan) -> LoadPlan:
    """The plan without secrets, for the record.

    Texts in the body's extra keys may be tokens, so only a digest of each is stored.
    """
    return replace(
        load,
        extra_body=tuple(
            (name, body_value_without_secrets(value)) for name, value in load.extra_body
        ),
    )


def body_value_without_secrets(value: str) -> str:
    """A JSON value with texts replaced by short digests: they compare, but reveal nothing.

    >>> body_value_without_secrets('{"a": 0.5, "b": "token"}')
    '{"a":0.5,"b":"…3c469e9d"}'
    """
    return msgspec.json.encode(_without_texts(msgspec.json.decode(value))).decode()


def texts_of(value: str) -> tuple[str, ...]:
    """All texts in a JSON value, which may be secrets.

    >>> texts_of('{"a": 0.5, "b": ["one", {"c": "two"}]}')
    ('one', 'two')
    """
    return tuple(_texts(msgspec.json.decode(value)))


def _without_texts(value: object) -> object:
    match value:
        case str():
            return f"…{hashlib.sha256(value.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"
        case list():
            return [_without_texts(one) for one in value]
        case dict():
            return {name: _without_texts(one) for name, one in value.items()}
        case _:
            return value


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for one in value for text in _texts(one)]
        case dict():
            return [text for one in value.values() for text in _texts(one)]
        case _:
            return []
