"""Frames of a load test's raw log, made by hand."""

import json

import numpy as np

from inferometer.inputs.workload.plan import request_plan
from inferometer.records.raw_log import EndFrame, LagFrame, RequestFrame, SessionFrame

MS = 1_000_000
SESSION = SessionFrame(
    session_index=0,
    process_index=0,
    n_processes=1,
    begins_ns=0,
    origin_monotonic_ns=0,
    started_utc="2026-11-21T12:00:00+00:00",
)


def sse(*events):
    """Each event's JSON as a server sends it."""
    return [
        b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"
        for event in events
    ]


def delta(text=None, finish=None, usage=None, **more):
    body = {
        "choices": [
            {
                "index": 0,
                "delta": ({} if text is None else {"content": text}) | more,
                "finish_reason": finish,
            }
        ]
    }
    return body | (
        {} if usage is None else {"usage": {"prompt_tokens": 7, "completion_tokens": usage}}
    )


def usage(n_output, n_prompt=7, n_cached=None):
    details = {} if n_cached is None else {"prompt_tokens_details": {"cached_tokens": n_cached}}
    return {
        "choices": [],
        "usage": {"prompt_tokens": n_prompt, "completion_tokens": n_output} | details,
    }


ROLE = {
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
}


def request_frame(reads, *, every_ms=10, first_ms=100, **fields):
    """A frame whose reads came every so many milliseconds; ``reads`` are bytes."""
    sizes = [len(read) for read in reads]
    at_ns = (np.arange(len(reads)) * every_ms + first_ms) * MS
    if "read_ms" in fields:
        at_ns = np.array(fields.pop("read_ms")) * MS
    whole = {
        "request_index": 0,
        "process_index": 0,
        "connection_index": 0,
        "is_reused": False,
        "intended_ns": 0,
        "sent_ns": 1 * MS,
        "connected_ns": None,
        "head_ns": 50 * MS,
        "finished_ns": int(at_ns[-1]) if len(reads) else 60 * MS,
        "http_status": 200,
        "error": "",
        "detail": "",
        "content_type": "text/event-stream",
        "retry_after": "",
        "asked_prompt_tokens": 5,
        "asked_output_tokens": 100,
        "sent_bytes": 300,
        "received_bytes": sum(sizes),
        "read_ns": at_ns.astype("<i8").tobytes(),
        "read_bytes": np.array(sizes, "<i4").tobytes(),
        "body": b"".join(reads),
    }
    return RequestFrame(**whole | fields)


def lag_frame(due_ms, lag_ms, n_in_flight=1):
    n = len(due_ms)
    return LagFrame(
        process_index=0,
        due_ns=(np.array(due_ms) * MS).astype("<i8").tobytes(),
        lag_ns=(np.array(lag_ms) * MS).astype("<i8").tobytes(),
        n_in_flight=np.full(n, n_in_flight, "<i4").tobytes(),
    )


def end_frame(**fields):
    return EndFrame(
        **{
            "process_index": 0,
            "ended_ns": 10**9,
            "is_interrupted": False,
            "n_unsent": 0,
            "cpu_s": 0.1,
        }
        | fields
    )


def plan_of(n, every_ms=10, **columns):
    whole = {
        "arrival_ns": np.arange(n) * every_ms * MS,
        "prompt_tokens": np.full(n, 5),
        "output_tokens": np.full(n, 100),
    }
    return request_plan("test", **whole | columns)


PIECES = [
    b"data:",
    b"data: ",
    b"\ndata: ",
    b"\n",
    b"\n\n",
    b"\r",
    b"\r\n\r\n",
    b":",
    b"event: error",
    b"[DONE]",
    b"\xef\xbb\xbf",
    b"\xff",
]
PIECES += [
    b'\n\ndata: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    b'{"choices":[{"delta":{"content":"x"}}]}',
    b"{}",
    b" ",
    b"\x00",
    b"1",
]
PIECES += [b'{"usage":{"completion_tokens":', b"9" * 30, b"[" * 40, b'"', b"}", b"\\ud800"]


def fuzzed_bodies(n, seed):
    """Bytes that are nearly streams: pieces of the grammar, put together anyhow, then damaged."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        body = b"".join(PIECES[i] for i in rng.integers(0, len(PIECES), rng.integers(0, 14)))
        if len(body) and rng.random() < 0.3:
            damaged = bytearray(body)
            damaged[rng.integers(0, len(body))] = rng.integers(0, 256)
            body = bytes(damaged)
        yield body, rng
