"""What did the server, or the way to it, say when a request went wrong, in its own words?"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from inferometer.records.raw_log import RequestFrame
from inferometer.records.sse import events_of

_HTTP_OK: Final = range(200, 300)
_ERROR: Final = b'"error"'
_MOST_LETTERS: Final = 200
_NO_WORDS: Final = re.compile(r"[\x00-\x20\x7f-\x9f]+")


class _Error(msgspec.Struct):
    message: str


class _Body(msgspec.Struct):
    """OpenAI's protocol has an object with a message; others a text under one of these names."""

    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


_decoder: Final = msgspec.json.Decoder(_Body)


def error_words(frame: RequestFrame, code: str) -> str:
    """The client's own note of what happened, else what the refusal or the error event says.

    '' where neither says anything.

    Example
    -------
    >>> _of_body(b'{"error": {"message": "no model m", "code": 404}}')
    'no model m'
    """
    text = frame.detail or _of_body(_refusal(frame, code))
    one_line = _NO_WORDS.sub(" ", text).strip()
    return one_line if len(one_line) <= _MOST_LETTERS else one_line[:_MOST_LETTERS] + " …"


def most_said(words: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The most frequent message of each error code; of equally frequent ones, the first."""
    counts = Counter(one for one in words if one[1])
    said: dict[str, str] = {}
    for (code, text), _ in counts.most_common():
        said.setdefault(code, text)
    return said


def _refusal(frame: RequestFrame, code: str) -> bytes:
    """The part of the body about the error: all, an event of a stream, or nothing if it is fine."""
    if code == "error_event":
        return next(
            (event.data for event in reversed(events_of(frame.body)) if _ERROR in event.data), b""
        )
    return frame.body if frame.http_status not in _HTTP_OK else b""


def _of_body(body: bytes) -> str:
    try:
        said = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body[: 4 * _MOST_LETTERS].decode("utf-8", "replace")
    told = said.error.message if isinstance(said.error, _Error) else said.error
    return told or said.message or said.detail or body.decode("utf-8", "replace")
