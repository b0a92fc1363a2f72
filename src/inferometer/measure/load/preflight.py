"""Would this server answer the test's requests at all?

One request of one token is sent before the run, on the very way of the run.

What no later request could do better (a wrong model, path, key or kind of answer) ends the test
before it begins, with what the server says and offers. What may pass (429, 5xx, a stall) does not:
the run is there to measure it.
"""

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from inferometer import suggestions
from inferometer.errors import MeasureError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.plans import LoadPlan, texts_of
from inferometer.measure.load import bodies, connections, messages, target
from inferometer.measure.load.answers import JSON_TYPE, STREAM_TYPE, Answer, AnswerLimits
from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.units import NS_PER_S

T = TypeVar("T")
_ANSWER: Final = Door(noun="answer", allowed="JSON", refusal=MeasureError)

PATIENCE_S: Final = 10.0
"""Longest wait; then the run starts, as a server may be slow at its first request."""
_LASTING: Final = frozenset(
    {
        "redirected",
        "bad_http",
        "compressed",
        "wrong_content_type",
        "tls_failed",
        "not_tls",
        "proxy_refused",
    }
)
_OF_CONTENT: Final = frozenset({"redirected", "compressed", "wrong_content_type"})
"""Of them, what a server that is there may do at /v1/models alone."""
_LASTING_STATUS: Final = frozenset({400, 401, 403, 404, 405, 411, 413, 415, 422, 501})
_KEY_STATUS: Final = frozenset({401, 403})
_MOST_NAMES: Final = 8
_KEY: Final = "export INFEROMETER_API_KEY=…, or --header 'Name: $VARIABLE'"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = msgspec.field(default_factory=list[_Model])


class _Error(msgspec.Struct):
    message: str = ""


class _Refused(msgspec.Struct):
    error: _Error | str | None = None
    message: str = ""
    detail: object = None


def check_server(
    load: LoadPlan,
    secrets: target.Secrets,
    limits: messages.ClientLimits,
    addresses: tuple[str, ...],
) -> str | None:
    """None if the server answers as the run needs it; else the problem, if it may pass.

    Raises
    ------
    MeasureError
        It refuses what the run will ask, and would go on to.
    """
    return _finished(_check(load, _Asker(load, secrets, limits, addresses)))


def served_models(
    load: LoadPlan,
    secrets: target.Secrets,
    limits: messages.ClientLimits,
    addresses: tuple[str, ...],
) -> tuple[str, ...]:
    """Names of the models that the server lists; empty where it lists none.

    Raises
    ------
    MeasureError
        Nothing at the address can be talked to in this way: a port without TLS, a proxy that refuses;
        or the server wants another key.
    """
    asker = _Asker(load, secrets, limits, addresses)
    answer = _finished(asker.models())
    if answer is not None and (
        answer.error in _LASTING - _OF_CONTENT or answer.status in _KEY_STATUS
    ):
        raise MeasureError(
            asker.hider.text(_said(answer)),
            where=f"GET /v1/models at {asker.place.server.host_and_port}",
            try_=_remedy(load, answer, ()),
        )
    return _names(answer)


def _finished(asking: Coroutine[Any, Any, T]) -> T:
    """The result; in a thread where an event loop runs already, such as a notebook's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asking)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, asking).result()


class _Asker:
    """Sends the server one request at a time, each on a new connection."""

    def __init__(
        self,
        load: LoadPlan,
        secrets: target.Secrets,
        limits: messages.ClientLimits,
        addresses: tuple[str, ...],
    ) -> None:
        self.place = target.target_of(load)
        self.hider = target.Hider(
            secrets, [text for _, value in load.extra_body for text in texts_of(value)]
        )
        self._load, self._secrets, self._limits, self._addresses = load, secrets, limits, addresses

    async def probe(self) -> Answer | None:
        """The answer to a request of the run's kind; None: none in time."""
        is_streaming = self._load.is_streaming
        head = target.request_head(self.place, self._secrets, is_streaming=is_streaming)
        return await self._answer(
            head, bodies.probe_body(self._load), STREAM_TYPE if is_streaming else JSON_TYPE
        )

    async def model_names(self) -> tuple[str, ...]:
        """Names of the models that the server lists; empty where it lists none."""
        return _names(await self.models())

    async def models(self) -> Answer | None:
        """The answer to the request for its models; None: none in time."""
        return await self._answer(target.models_head(self.place, self._secrets), b"", JSON_TYPE)

    async def _answer(
        self, head: tuple[bytes, bytes], body: bytes, wanted_type: str
    ) -> Answer | None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_over(_: connections.Exchange, __: int) -> None:
            if not over.done():
                over.set_result(None)

        pool = connections.ConnectionPool(
            self.place,
            self._secrets,
            self._addresses,
            connect_s=self._limits.connect_s,
            most=1,
            on_over=on_over,
        )
        message = head[0] + b"preflight" + head[1] + str(len(body)).encode() + b"\r\n\r\n" + body
        answer = Answer(
            AnswerLimits(head_bytes=self._limits.head_bytes, body_bytes=bodies.LEAST_ANSWER_BYTES),
            wanted_type,
        )
        pool.send(connections.Exchange(0, time.monotonic_ns(), message, answer))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await over
        except TimeoutError:
            return None
        finally:
            await pool.close()
        return answer


def _names(answer: Answer | None) -> tuple[str, ...]:
    if answer is None or answer.error:
        return ()
    try:
        listed = _ANSWER.json(b"".join(answer.parts), _Models, where="/v1/models").data
    except MeasureError:
        return ()
    return tuple(one.id for one in listed)


async def _check(load: LoadPlan, asker: _Asker) -> str | None:
    began_ns = time.monotonic_ns()
    answer = await asker.probe()
    if answer is None:
        return (
            "one request of one token had no answer after"
            f" {(time.monotonic_ns() - began_ns) / NS_PER_S:.0f} s"
        )
    if not answer.error:
        return None
    text = asker.hider.text(_said(answer))
    is_lasting = answer.error in _LASTING or (
        answer.error == "http_error" and answer.status in _LASTING_STATUS
    )
    if not is_lasting:
        return f"one request of one token ended with {answer.error}: {text}"
    names = await asker.model_names()
    raise MeasureError(
        f"the server refuses the run's requests: {text}",
        where=f"POST {asker.place.path} at {asker.place.server.host_and_port}, before the run",
        allowed=_offered(load, names),
        try_=_remedy(load, answer, names),
    )


def _said(answer: Answer) -> str:
    """The server's own words, in one line."""
    meaning = answer.detail or EXCHANGE_ERRORS[answer.error].meaning
    if answer.error != "http_error":
        return (
            f"{EXCHANGE_ERRORS[answer.error].meaning} ({answer.detail})"
            if answer.detail
            else meaning
        )
    text = b"".join(answer.parts).decode("utf-8", "replace")
    try:
        refused = _ANSWER.json(text, _Refused, where="the answer")
    except MeasureError:
        words = text
    else:
        inner = refused.error.message if isinstance(refused.error, _Error) else refused.error
        words = inner or refused.message or (str(refused.detail) if refused.detail else text)
    return (
        f"{answer.status}, {' '.join(words.split())[:300]}"
        if words.strip()
        else f"status {answer.status}"
    )


def _offered(load: LoadPlan, names: tuple[str, ...]) -> str | None:
    if not names or load.served_model in names:
        return None
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"the server offers {', '.join(names[:_MOST_NAMES])}{more}"


def _remedy(load: LoadPlan, answer: Answer, names: tuple[str, ...]) -> str:
    if answer.status in _KEY_STATUS:
        return _KEY
    if (
        answer.error == "wrong_content_type"
        and load.is_streaming
        and answer.content_type.startswith(JSON_TYPE)
    ):
        return "--no-stream: it answers in one piece"
    if answer.error != "http_error":
        is_plain = answer.error == "not_tls"
        plain_url = load.url.replace("https://", "http://", 1)
        return plain_url if is_plain else EXCHANGE_ERRORS[answer.error].remedy
    if names and load.served_model not in names:
        return suggestions.flags("--model", names[0])
    if answer.status in {404, 405, 501}:
        return (
            "another URL (the address before /v1), or --endpoint"
            f" {'completions' if load.endpoint == 'chat' else 'chat'}"
        )
    return (
        "--respect-eos for servers that refuse unknown keys, other --body keys; --no-preflight to"
        " send the run all the same"
    )
