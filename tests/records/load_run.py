"""Load tests as records, made from a few numbers: what a check says of them can be worked out by hand."""

from dataclasses import replace

import numpy as np

from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.workload.distributions import Constant
from inferometer.inputs.workload.types import OpenArrivals, RequestClass, WorkloadSpec
from inferometer.records import tables
from inferometer.records.types import (
    ABSENT,
    ChunkKind,
    ChunkTable,
    ExchangeTable,
    LagTable,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
)

MS = 1_000_000


def load_plan(**changes):
    chat = RequestClass(
        name="chat", prompt_tokens=Constant(value=100), output_tokens=Constant(value=16)
    )
    workload = WorkloadSpec(n_requests=400, arrivals=OpenArrivals(rate_per_s=20), classes=(chat,))
    return replace(
        LoadPlan(
            url="http://127.0.0.1:8000", served_model="a-model", endpoint="chat", workload=workload
        ),
        **changes,
    )


def load_manifest(**changes):
    whole = {
        "run_id": "load-1",
        "origin": "measured",
        "created_utc": "2026-11-21T12:00:00Z",
        "command": ("inferometer", "load", "http://127.0.0.1:8000"),
        "tool_version": "0.1.0",
        "plan": None,
        "model": None,
        "engine": None,
        "host": None,
        "source": None,
        "is_complete": True,
        "load": load_plan(),
    }
    return RunManifest(**whole | changes)


def load_run(
    n=400,
    *,
    rate_per_s=20.0,
    tokens=16,
    tokens_per_chunk=1,
    seed=1,
    ttft_s=None,
    tpot_s=0.005,
    send_lag_s=0.0,
    lag_s=0.001,
):
    """A Poisson run whose every answer has its tokens in chunks; each argument with ``_s`` may be an array (n)."""
    rng = np.random.default_rng(seed)
    intended_ns = np.cumsum(rng.exponential(1e9 / rate_per_s, n)).astype(np.int64)
    sent_ns = intended_ns + np.broadcast_to(np.asarray(np.multiply(send_lag_s, 1e9), np.int64), n)
    ttft_s = 0.02 * rng.lognormal(0, 0.1, n) if ttft_s is None else ttft_s
    first_ns = sent_ns + np.broadcast_to(np.asarray(np.multiply(ttft_s, 1e9), np.int64), n)
    n_chunks = -(-tokens // tokens_per_chunk)
    tpot_ns = np.broadcast_to(np.asarray(np.multiply(tpot_s, 1e9), np.int64), n)
    arrived_ns = first_ns[:, None] + tpot_ns[:, None] * tokens_per_chunk * np.arange(n_chunks)
    chunks = {
        "request_index": np.repeat(np.arange(n, dtype=np.int32), n_chunks),
        "arrived_ns": arrived_ns.ravel(),
        "n_tokens": np.tile(
            np.minimum(tokens_per_chunk, tokens - tokens_per_chunk * np.arange(n_chunks)), n
        ),
        "n_characters": np.full(n * n_chunks, 4 * tokens_per_chunk, np.int32),
        "kind": np.full(n * n_chunks, ChunkKind.CONTENT, np.int8),
    }
    requests = {
        "intended_send_ns": intended_ns,
        "sent_ns": sent_ns,
        "admitted_ns": np.full(n, ABSENT),
        "first_token_ns": first_ns,
        "finished_ns": arrived_ns[:, -1],
        "prompt_tokens": np.full(n, 100, np.int32),
        "cached_tokens": np.zeros(n, np.int32),
        "output_tokens": np.full(n, tokens, np.int32),
        "n_preemptions": np.zeros(n, np.int32),
        "status": np.full(n, RequestStatus.LENGTH, np.int8),
        "priority": np.zeros(n, np.int32),
        "class_index": np.zeros(n, np.int32),
        "request_index": np.arange(n, dtype=np.int32),
    }
    due_ns = np.arange(0, int(arrived_ns.max()), 10 * MS)
    lags = {
        "process_index": np.zeros(len(due_ns), np.int32),
        "due_ns": due_ns,
        "lag_ns": np.broadcast_to(np.asarray(np.multiply(lag_s, 1e9), np.int64), len(due_ns)),
        "n_in_flight": np.ones(len(due_ns), np.int32),
    }
    return Run(
        manifest=load_manifest(),
        sweep=None,
        steps=None,
        ceilings=None,
        requests=tables.from_columns(RequestTable, requests),
        chunks=tables.from_columns(ChunkTable, chunks),
        exchanges=_exchanges(requests, n_chunks),
        lags=tables.from_columns(LagTable, lags),
    )


def changed(run, table, **columns):
    """The run with these columns of one of its tables; a number stands in every row."""
    old = getattr(run, table)
    types = tables.column_types(type(old))
    new = {
        name: np.broadcast_to(np.asarray(value, types[name]), len(old[0]))
        for name, value in columns.items()
    }
    return replace(run, **{table: old._replace(**new)})


def _exchanges(requests, n_chunks):
    n = len(requests["status"])
    columns = {
        "request_index": requests["request_index"],
        "process_index": np.zeros(n, np.int32),
        "connection_index": np.minimum(np.arange(n), 3).astype(np.int32),
        "is_reused": np.arange(n) > 3,
        "connected_ns": np.where(np.arange(n) > 3, ABSENT, requests["sent_ns"]),
        "head_ns": requests["sent_ns"] + MS,
        "last_byte_ns": requests["finished_ns"] + MS,
        "http_status": np.full(n, 200),
        "error": [""] * n,
        "finish_reason": ["length"] * n,
        "asked_output_tokens": requests["output_tokens"],
        "sent_bytes": np.full(n, 600),
        "received_bytes": np.full(n, 4000),
        "n_chunks": np.full(n, n_chunks, np.int32),
        "n_coalesced_chunks": np.zeros(n, np.int32),
        "usage_prompt_tokens": np.full(n, 100),
        "usage_cached_tokens": np.zeros(n, np.int64),
        "usage_output_tokens": requests["output_tokens"].astype(np.int64),
        "token_source": ["usage"] * n,
        "retry_after_s": np.full(n, np.nan),
    }
    return tables.from_columns(ExchangeTable, columns)
