"""A server that answers each request in another of many wrong ways: bytes on a socket, no library between.

``python bench/faulty_server.py`` prints its port and serves until its standard input ends. Which
way is the number at the end of ``X-Request-Id``, modulo the number of kinds. Floods are bounded, so
that the machine under test is the client and not the kernel.
"""

import asyncio
import json
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Final

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

_HOLD_S: Final = 4.0
"""Longer than the client waits."""
_FLOOD_BYTES: Final = 4 * 2**20
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
_CHUNKED: Final = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_END: Final = b"0\r\n\r\n"
_DONE: Final = b"data: [DONE]\n\n"
N_TOKENS: Final = 12


def _event(text: str | None = "tok ", *, finish: str | None = None, **more: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices} | more).encode() + b"\n\n"


def _usage(output: object, prompt: object = 20) -> dict[str, object]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": output}}


_TOKENS: Final = _event() * (N_TOKENS - 1) + _event(finish="length")
_GOOD: Final = _TOKENS + _event(None, **_usage(N_TOKENS)) + _DONE


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _stream(body: bytes) -> Answer:
    return _bytes(_CHUNKED + _chunk(body) + _END)


def _ended(*events: bytes) -> Answer:
    """The usual tokens, and these events after them."""
    return _stream(_TOKENS + b"".join(events) + _DONE)


def _bytes(data: bytes, *, closes: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if closes:
            writer.close()

    return answer


def _held(data: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await asyncio.sleep(_HOLD_S)
        writer.close()

    return answer


def _flood(first: bytes, again: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        for _ in range(max(_FLOOD_BYTES // len(again), 1)):
            if writer.is_closing():
                return
            writer.write(again)
            await writer.drain()
        writer.close()

    return answer


def _drip(first: bytes, again: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        for _ in range(round(_HOLD_S / 0.1)):
            if writer.is_closing():
                return
            writer.write(again)
            await asyncio.sleep(0.1)
        writer.close()

    return answer


def _reset(first: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER of 0
        writer.transport.abort()

    return answer


def _status(line: bytes, *fields: bytes, body: bytes = b'{"error":{"message":"no"}}') -> Answer:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (
        line,
        len(body),
    )
    return _bytes(head + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body)


def _sized(n_bytes: bytes, body: bytes = _GOOD) -> bytes:
    return _HEAD + b"Content-Length: %b\r\n\r\n%b" % (n_bytes, body)


def _bytewise(data: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(_CHUNKED)
        for index in range(len(data)):
            writer.write(_chunk(data[index : index + 1]))
        writer.write(_END)
        await writer.drain()

    return answer


FAULTS: Final[dict[str, Answer]] = {
    "good": _stream(_GOOD),
    # no answer, or none of HTTP
    "closes at once": _bytes(b"", closes=True),
    "resets at once": _reset(b""),
    "never answers": _held(b""),
    "random bytes": _bytes(bytes(range(256)) * 8, closes=True),
    "a TLS alert": _bytes(b"\x15\x03\x03\x00\x02\x02\x28", closes=True),
    "text without a head": _bytes(b"hello\n" * 10, closes=True),
    "half a status line": _bytes(b"HTTP/1.1 2", closes=True),
    "an unknown version": _bytes(b"HTTP/7.3 200 OK\r\n\r\n", closes=True),
    "a status of 999": _status(b"999 Odd"),
    # the head
    "100 Continue for ever": _flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "103 without an end": _flood(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100),
    "a head without an end": _flood(b"HTTP/1.1 200 OK\r\n", b"x-more: and more\r\n" * 500),
    "one header without an end": _flood(b"HTTP/1.1 200 OK\r\nx: ", b"y" * 65536),
    "a head that drips": _drip(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "a head, then nothing": _held(_CHUNKED),
    "compressed": _bytes(_HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd"),
    "HTML": _bytes(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    ),
    "JSON for a stream": _status(b"200 OK", body=b'{"choices":[{"text":"a"}]}'),
    "429": _status(b"429 Too Many Requests", b"Retry-After: 1"),
    "500": _status(b"500 Internal Server Error", body=b"x" * 200_000),
    "503": _status(b"503 Service Unavailable", b"Retry-After: never"),
    "404": _status(b"404 Not Found"),
    "a redirect": _status(b"307 Temporary Redirect", b"Location: /v1/completions"),
    "204": _bytes(b"HTTP/1.1 204 No Content\r\n\r\n"),
    # framing of the body
    "a negative length": _bytes(_sized(b"-5")),
    "two lengths": _bytes(_HEAD + b"Content-Length: 5\r\nContent-Length: 500\r\n\r\n" + _GOOD),
    "a length and chunks": _bytes(
        _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunk(_GOOD) + _END
    ),
    "a length beyond the body": _bytes(_sized(b"999999"), closes=True),
    "a length beyond the body, held": _held(_sized(b"999999")),
    "a length below the body": _bytes(_sized(b"50")),
    "an extension without an end": _flood(_CHUNKED + b"10;x=", b"a" * 65536),
    "a chunk size of zeros": _flood(_CHUNKED, b"0" * 65536),
    "a chunk size beyond 64 bits": _bytes(_CHUNKED + b"fffffffffffffffff\r\n" + _GOOD),
    "a chunk shorter than it says": _bytes(_CHUNKED + b"ffff\r\n" + _GOOD, closes=True),
    "trailers without an end": _flood(
        _CHUNKED + _chunk(_GOOD) + b"0\r\n", b"x-more: and more\r\n" * 500
    ),
    "more than was asked for": _flood(_CHUNKED, _chunk(_event("word " * 12_000))),
    "reset in the stream": _reset(_CHUNKED + _chunk(_TOKENS[:200])),
    "cut in the stream": _bytes(_CHUNKED + _chunk(_TOKENS[:200]), closes=True),
    "a stall in the stream": _held(_CHUNKED + _chunk(_TOKENS[:200])),
    "a second answer behind the first": _bytes(2 * (_CHUNKED + _chunk(_GOOD) + _END)),
    "byte by byte": _bytewise(_GOOD),
    # the content
    "false usage": _ended(_event(None, **_usage(12_000_000))),
    "false usage with each event": _stream(
        b"".join(_event(**_usage(1_000_000 * n)) for n in range(1, N_TOKENS + 1)) + _DONE
    ),
    "usage past 32 bits": _ended(_event(None, **_usage(2**40))),
    "usage past 64 bits": _ended(_event(None, **_usage(10**30))),
    "negative usage": _ended(_event(None, **_usage(-3))),
    "usage of a fraction": _ended(_event(None, **_usage(1.5))),
    "usage as a text": _ended(_event(None, **_usage("twelve"))),
    "usage as a list": _ended(_event(None, usage=[12])),
    "false prompt tokens": _ended(_event(None, **_usage(N_TOKENS, prompt=2**31 - 1))),
    "usage without a choice": _stream(_event(None, **_usage(N_TOKENS)) + _DONE),
    "no choice at all": _stream(_event(None) * N_TOKENS + _DONE),
    "a million token ids": _stream(
        b'data: {"choices":[{"text":"a","token_ids":[' + b"1," * 100_000 + b"1]}]}\n\n" + _DONE
    ),
    "no end": _stream(_TOKENS[: _TOKENS.rindex(b"data:")]),
    "an end at once": _stream(_DONE),
    "an error in the stream": _stream(
        _TOKENS[:200] + b'data: {"error":{"message":"no","code":500}}\n\n' + _DONE
    ),
    "no JSON": _stream(b"data: {choices: [}\n\n" + _DONE),
    "nested JSON": _stream(
        b'data: {"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n" + _DONE
    ),
    "no UTF-8": _stream(b'data: {"choices":[{"text":"\xff\xfe"}]}\n\n' + _DONE),
    "NUL bytes": _stream(b"\0" * 5_000 + _GOOD),
    "comments alone": _stream(b": keep-alive\n\n" * 5_000),
    "ten thousand events": _stream(_event("") * 10_000 + _DONE),
    "one event of a megabyte": _stream(_event("x" * 900_000) + _DONE),
}


def _kind_of(head: bytes) -> str:
    number = next(
        (line for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id:")), b"0"
    ).rpartition(b"-")[2]
    return list(FAULTS)[int(number) % len(FAULTS) if number.isdigit() else 0]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while not writer.is_closing():
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            await reader.readexactly(length)
            await FAULTS[_kind_of(head)](writer)
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until standard input ends."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(main())
