"""What came back for one request: bytes with their instants, until the answer is over or is given up?

No socket and no clock here: bytes and instants come in. Nothing is decoded; a read costs the parser
and two appends.
"""

from dataclasses import dataclass
from typing import Final

import httptools

JSON_TYPE: Final = "application/json"
STREAM_TYPE: Final = "text/event-stream"
_NO_STATUS: Final = 0
_KEPT_OF_ERRORS_BYTES: Final = 64 * 1024
_FRAMING_RATIO: Final = 8
"""Chunks of one byte take five bytes more each; a sane server's framing stays far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Largest size of an answer that is read."""

    head_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024
    """Past it the answer is given up."""

    def is_framing(self, framing_bytes: int, body_bytes: int) -> bool:
        """Is there more framing (head, chunk headers, trailers) than in any valid answer?"""
        return framing_bytes > 2 * self.head_bytes + _FRAMING_RATIO * body_bytes


class Answer:
    """One answer while it arrives.

    ``error`` is '' or a code of ``records.exchange_errors`` once ``is_over``.
    """

    __slots__ = (
        "_encoding",
        "_fed_bytes",
        "_head_bytes",
        "_limits",
        "_location",
        "_new_bytes",
        "_parser",
        "_wanted_type",
        "content_type",
        "detail",
        "error",
        "has_length",
        "has_surplus",
        "head_ns",
        "is_begun",
        "is_over",
        "keeps_alive",
        "parts",
        "read_bytes",
        "read_ns",
        "received_bytes",
        "request_id",
        "retry_after",
        "status",
    )

    def __init__(self, limits: AnswerLimits, wanted_type: str) -> None:
        self._limits = limits
        self._wanted_type = wanted_type
        self._parser = httptools.HttpResponseParser(self)
        self._fed_bytes = 0
        self._head_bytes = 0
        self._new_bytes = 0
        self._encoding = ""
        self._location = ""
        self.status = _NO_STATUS
        self.head_ns: int | None = None
        self.content_type = ""
        self.retry_after = ""
        self.request_id = ""
        self.error = ""
        self.detail = ""
        self.is_begun = False
        self.is_over = False
        self.has_length = False
        self.has_surplus = False
        self.keeps_alive = False
        self.parts: list[bytes] = []
        self.read_ns: list[int] = []
        self.read_bytes: list[int] = []
        self.received_bytes = 0

    def feed(self, data: bytes, now_ns: int) -> None:
        """Process the bytes of one read."""
        self.is_begun = True
        self._new_bytes = 0
        had_head = self.head_ns is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._give_up("bad_http", "the answer changes the protocol")
        except httptools.HttpParserError as error:
            self._on_parser_error(error)
        if self._new_bytes:
            self.read_ns.append(now_ns)
            self.read_bytes.append(self._new_bytes)
        if not had_head:
            self._take_head(len(data), now_ns)
        self._fed_bytes += len(data)
        framing_bytes = self._fed_bytes - self.received_bytes
        if (
            framing_bytes > self._limits.head_bytes
            and self._limits.is_framing(framing_bytes, self.received_bytes)
            and not self.is_over
        ):
            self._give_up(
                "bad_http",
                f"{framing_bytes:,} bytes of framing around {self.received_bytes:,} of the body",
            )

    def end(self, why: str) -> None:
        """The connection is lost; ``why`` is '' if the server closed it, else the error."""
        if self.is_over:
            return
        if self.status and self.head_ns is not None and not self.has_length and not why:
            self.keeps_alive = False
            self._judge()
        elif not self.is_begun and not why:
            self._give_up("no_response", "closed before the first byte")
        else:
            self._give_up(
                "reset" if why else "truncated",
                why or f"after {self.received_bytes:,} bytes of the body",
            )

    def give_up(self, error: str, detail: str) -> None:
        """End the answer for a reason outside its bytes: a timeout, a user who left."""
        if not self.is_over:
            self._give_up(error, detail)

    # The parser calls these.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store the few headers that matter; trailers come after the status and change nothing."""
        if self.status:
            return
        match name.lower():
            case b"content-type":
                self.content_type = _text(value)
            case b"retry-after":
                self.retry_after = _text(value)
            case b"content-encoding":
                self._encoding = _text(value).lower()
            case b"location":
                self._location = _text(value)
            case b"x-request-id":
                self.request_id = _text(value)
            case b"content-length" | b"transfer-encoding":
                self.has_length = True
            case _:
                pass

    def on_headers_complete(self) -> None:
        """A head is complete: the answer's, or an interim one (1xx)."""
        if not self.is_over:
            self.status = self._parser.get_status_code()
            if 200 <= self.status < 300 and self._is_encoded:
                self._give_up("compressed", self._encoding)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, up to the cap."""
        if self.is_over:
            return
        self.received_bytes += len(body)
        if self.received_bytes > self._limits.body_bytes:
            self._give_up("body_too_long", f"past {self._limits.body_bytes:,} bytes")
        elif self.status < 300 or self.received_bytes <= _KEPT_OF_ERRORS_BYTES:
            self.parts.append(body)
            self._new_bytes += len(body)

    def on_message_begin(self) -> None:
        """Anything after the answer's end is not ours."""
        if self.is_over:
            self.has_surplus = True

    def on_message_complete(self) -> None:
        """The answer is whole, or it was a 1xx and the real one follows."""
        if self.is_over:
            return
        if 100 <= self.status < 200 and self.status != 101:
            self.status = _NO_STATUS
            return
        self.keeps_alive = self._parser.should_keep_alive()
        self._judge()

    @property
    def _is_encoded(self) -> bool:
        return self._encoding not in {"", "identity"}

    def _take_head(self, n_bytes: int, now_ns: int) -> None:
        if self.status:
            self.head_ns = now_ns
            return
        self._head_bytes += n_bytes
        if self._head_bytes > self._limits.head_bytes and not self.is_over:
            self._give_up("head_too_long", f"no end after {self._head_bytes:,} bytes")

    def _on_parser_error(self, error: httptools.HttpParserError) -> None:
        if self.is_over:
            self.has_surplus = True
        else:
            self._give_up("bad_http", str(error))

    def _judge(self) -> None:
        """Check the head of an answer that was sent whole."""
        self.is_over = True
        status = self.status
        if status == 429:
            self.error = "rate_limited"
        elif status == 503:
            self.error = "overloaded"
        elif 300 <= status < 400:
            self.error, self.detail = "redirected", self._location
        elif not 200 <= status < 300:
            self.error = "http_error"
        elif self.content_type.partition(";")[0].strip().lower() != self._wanted_type:
            self.error, self.detail = (
                "wrong_content_type",
                f"{self.content_type or 'none'} instead of {self._wanted_type}",
            )

    def _give_up(self, error: str, detail: str) -> None:
        self.is_over = True
        self.keeps_alive = False
        self.error = error
        self.detail = detail


def _text(value: bytes) -> str:
    return value.decode("latin-1")[:200]
