"""Limits, switches and engine that a server itself reports: in metrics, in its log, in a record.

No metric reports max_num_seqs. But while requests wait and memory is left, the server runs as many
as it may, but for answers that just ended. So the largest number that ran, if it was seen often
enough, is max_num_seqs.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, get_args

import numpy as np

from inferometer.errors import ModelError, RecordError
from inferometer.fit.loads.server import BLOCK_TOKENS, SWITCHES, Limit, ReportedSettings, Switch
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec
from inferometer.perfmodel.types import FitSubject
from inferometer.records.columns import F64
from inferometer.records.server_series import gauge_series, server_record
from inferometer.records.server_summaries import summarise_server
from inferometer.records.types import Run

_MOST_DIGITS: Final = 12
_LIMITS: Final[dict[Limit, tuple[str, ...]]] = {
    "max_num_seqs": (r"'max_num_seqs': (\d+)", r"--max-num-seqs[= ](\d+)"),
    "max_num_batched_tokens": (
        r"max_num_batched_tokens=(\d+)",
        r"'max_num_batched_tokens': (\d+)",
        r"--max-num-batched-tokens[= ](\d+)",
    ),
}
_SWITCHES: Final[dict[Switch, str]] = {
    "enable_prefix_caching": r"enable_prefix_caching=(True|False)",
    "enable_chunked_prefill": r"enable_chunked_prefill=(True|False)",
    "async_scheduling": r"async_scheduling['\"]?[=:] ?(True|False)",
}
_MODEL_LEN: Final = (r"\bmax_seq_len=(\d+)", r"'max_model_len': (\d+)", r"--max-model-len[= ](\d+)")
_BLOCK_SIZE: Final = r"'block_size': (\d+)"
_CACHE_TOKENS: Final = r"KV cache size: (\d[\d,]*) tokens"
_STATUS: Final = (
    r"Running: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs,.*? KV cache usage: (\d{1,3}(?:\.\d{1,9})?)%"
)
"""vLLM 0.32.0: v1/core/kv_cache_utils.py, config/vllm.py (the engine's configuration),
entrypoints (arguments that are no defaults), v1/metrics/loggers.py (every ten seconds)."""

_LEAST_FULL_FRACTION: Final = 0.25
"""Of looks while requests waited: where prompts wait for a step's budget, the peak is seen
seldom."""
_LATE_STEPS: Final = 2
"""A slot is empty in the step that ended its answer, and with asynchronous scheduling in the
next."""
_MISSED_FRACTION: Final = 0.01
"""Probability that no look found all slots taken, at most."""
_ROOM_FRACTION: Final = 0.9
"""Requests may wait for a KV cache that is fuller than this."""


class _Statuses(NamedTuple):
    """At each look: running and waiting requests, and the used share of the KV cache."""

    running: F64
    waiting: F64
    kv_fraction: F64


def reported_by_server(runs: Sequence[Run], log: str | None) -> ReportedSettings:
    """Settings by log, metrics and stored configuration; the log wins, then metrics.

    Raises
    ------
    ModelError
        A run is of several data-parallel replicas: requests do not say which of them answered.

    Example
    -------
    >>> reported_by_server([], "GPU KV cache size: 1,048,576 tokens, Maximum concurrency").limits
    {'n_kv_blocks': 65535}
    """
    from_record, from_metrics = _by_record(runs), _by_metrics(runs)
    from_log = ReportedSettings() if log is None else _by_log(log, from_metrics.block_tokens)
    max_num_seqs = _max_num_seqs(
        [*_scraped(runs), *([] if log is None else [_logged(log)])], _answer_tokens(runs)
    )
    seen: dict[Limit, int] = {} if max_num_seqs is None else {"max_num_seqs": max_num_seqs}
    return ReportedSettings(
        limits={**seen, **from_record.limits, **from_metrics.limits, **from_log.limits},
        switches={**from_record.switches, **from_metrics.switches, **from_log.switches},
        block_tokens=from_log.block_tokens or from_metrics.block_tokens or from_record.block_tokens,
        max_model_len=from_log.max_model_len or from_record.max_model_len,
    )


def _by_record(runs: Sequence[Run]) -> ReportedSettings:
    """Settings in the manifests of imported runs."""
    limits: dict[Limit, int] = {}
    switches: dict[Switch, bool] = {}
    block_tokens: int | None = None
    max_model_len: int | None = None
    for run in runs:
        engine = run.manifest.engine
        if engine is None or engine.scheduler is None:
            continue
        facts = engine.scheduler
        if (facts.data_parallel_size or 1) > 1:
            raise ModelError(
                f"{facts.data_parallel_size} data-parallel replicas",
                where=run.manifest.run_id,
                allowed="load tests of one replica: requests do not record which replica answered",
                try_="a load test of one replica, behind its own port",
            )
        named: dict[Limit, int | None] = {
            "max_num_seqs": facts.max_num_seqs,
            "max_num_batched_tokens": facts.max_num_batched_tokens,
            "n_kv_blocks": None if engine.n_kv_blocks is None else engine.n_kv_blocks - 1,
        }
        limits |= {name: value for name, value in named.items() if value is not None}
        switches |= {
            name: value for name in SWITCHES if (value := getattr(facts, name)) is not None
        }
        block_tokens = engine.kv_block_tokens or block_tokens
        max_model_len = facts.max_model_len or max_model_len
    return ReportedSettings(
        limits=limits, switches=switches, block_tokens=block_tokens, max_model_len=max_model_len
    )


def _by_metrics(runs: Sequence[Run]) -> ReportedSettings:
    limits: dict[Limit, int] = {}
    switches: dict[Switch, bool] = {}
    block_tokens: int | None = None
    for run in runs:
        if run.server is None:
            continue
        try:
            summary = summarise_server(run.server)
        except RecordError:  # pages that are no known server's, or one only
            continue
        if summary.n_kv_blocks is not None:
            limits["n_kv_blocks"], block_tokens = summary.n_kv_blocks - 1, summary.kv_block_tokens
        if (
            summary.kind == "vllm"
            and summary.n_finished
            and summary.prefix_queries_tokens is not None
        ):
            switches["enable_prefix_caching"] = summary.prefix_queries_tokens > 0
    return ReportedSettings(limits=limits, switches=switches, block_tokens=block_tokens)


def _by_log(log: str, block_tokens: int | None) -> ReportedSettings:
    """Settings in the log; ``block_tokens`` is the block size by metrics, which logs lack."""
    limits: dict[Limit, int] = {}
    for name, patterns in _LIMITS.items():
        found = next((match for pattern in patterns if (match := re.search(pattern, log))), None)
        if found is not None:
            limits[name] = _count(found[1])
    switches: dict[Switch, bool] = {
        name: found[1] == "True"
        for name, pattern in _SWITCHES.items()
        if (found := re.search(pattern, log))
    }
    size, tokens = re.search(_BLOCK_SIZE, log), re.findall(_CACHE_TOKENS, log)
    named_tokens = _count(size[1]) if size else block_tokens
    if tokens:  # each rank says its own, and all have as many blocks as the smallest
        limits["n_kv_blocks"] = min(map(_count, tokens)) // (named_tokens or BLOCK_TOKENS) - 1
    longest = next((match for pattern in _MODEL_LEN if (match := re.search(pattern, log))), None)
    return ReportedSettings(
        limits=limits,
        switches=switches,
        block_tokens=named_tokens,
        max_model_len=None if longest is None else _count(longest[1]),
    )


def _count(digits: str) -> int:
    """A number of the log."""
    plain = digits.replace(",", "")
    if len(plain) > _MOST_DIGITS:
        raise ModelError(
            f"a number of {len(plain)} digits",
            where="the server's log",
            allowed=f"{_MOST_DIGITS} digits",
        )
    return int(plain)


def _scraped(runs: Sequence[Run]) -> Iterable[_Statuses]:
    for run in runs:
        if run.server is None:
            continue
        try:
            record = server_record(run.server)
        except RecordError:  # pages that are no known server's
            continue
        running, waiting, kv_fraction = (
            gauge_series(record, gauge) for gauge in ("running", "waiting", "kv_usage")
        )
        if running is not None and waiting is not None and kv_fraction is not None:
            yield _Statuses(running.value, waiting.value, kv_fraction.value)


def _logged(log: str) -> _Statuses:
    lines = np.array(
        [[float(number) for number in found] for found in re.findall(_STATUS, log)]
    ).reshape(-1, 3)
    return _Statuses(lines[:, 0], lines[:, 1], lines[:, 2] / 100)


def _answer_tokens(runs: Sequence[Run]) -> float | None:
    answers = [
        run.requests.output_tokens
        for run in runs
        if run.requests is not None and len(run.requests.output_tokens)
    ]
    return float(np.concatenate(answers).mean()) if answers else None


def _max_num_seqs(statuses: Sequence[_Statuses], answer_tokens: float | None) -> int | None:
    """The largest number that ran, if it ran often while others waited and memory was left."""
    if not statuses or not answer_tokens:
        return None
    running, waiting, kv_fraction = (
        np.concatenate(column) for column in zip(*statuses, strict=True)
    )
    most = float(np.nanmax(running, initial=0.0))
    is_held = (waiting > 0) & (kv_fraction < _ROOM_FRACTION)
    n_full, n_held = int((is_held & (running == most)).sum()), int(is_held.sum())
    some_ended = 1 - math.exp(-_LATE_STEPS * most / answer_tokens)
    is_sure = (
        n_full >= max(_LEAST_FULL_FRACTION * n_held, 1) and some_ended**n_held < _MISSED_FRACTION
    )
    return int(most) if is_sure else None


_VERSION: Final = r"LLM engine \(v([^)]+)\)"
_DTYPE: Final = r"\bdtype=torch\.(\w+)"
_TENSOR: Final = r"\btensor_parallel_size=(\d+)"
"""vLLM 0.32.0, v1/engine/core.py and config/vllm.py: "Initializing a V1 LLM engine (v0.32.0)
with config: model='…', dtype=torch.bfloat16, tensor_parallel_size=1, …"."""


class StatedServer(NamedTuple):
    """Device, engine and tensor parallelism given on the command line; None: not given."""

    hardware: HardwareSpec | None
    engine: EngineSpec | None
    n_tensor: int | None


def server_subject(runs: Sequence[Run], log: str | None, stated: StatedServer) -> FitSubject:
    """Device, format and engine: from the command line, else log, metrics or an imported record."""
    recorded = next((run.manifest.engine for run in runs if run.manifest.engine is not None), None)
    scheduler = None if recorded is None else recorded.scheduler
    hardware, engine, text = stated.hardware, stated.engine, log or ""
    version, dtype, tensor = (re.search(pattern, text) for pattern in (_VERSION, _DTYPE, _TENSOR))
    named = dtype[1] if dtype is not None else None if recorded is None else recorded.compute_dtype
    logged = next((one for one in get_args(DType) if named == one), None)
    return FitSubject(
        hardware_id=None if hardware is None else hardware.hardware_id,
        device=None if hardware is None else hardware.name,
        engine=(
            "vllm"
            if version is not None
            else _kind_of(runs) or (None if recorded is None else recorded.engine)
        ),
        engine_version=(
            version[1] if version is not None else None if recorded is None else recorded.version
        ),
        dtype=logged if engine is None else engine.dtype,
        kv_cache_dtype=None if engine is None else engine.kv_cache_dtype,
        quantization=None if engine is None else engine.quantization,
        tensor_parallel_size=stated.n_tensor
        or (
            int(tensor[1])
            if tensor is not None
            else None
            if scheduler is None
            else scheduler.tensor_parallel_size
        ),
    )


def server_engine(subject: FitSubject, stated: StatedServer) -> EngineSpec:
    """The engine as far as its facts are known, else vLLM's defaults."""
    is_cpu = stated.hardware is not None and stated.hardware.kind == "cpu"
    usual = stated.engine or EngineSpec(
        engine="vllm",
        mode="compiled",
        dtype="bfloat16" if stated.hardware is None else stated.hardware.usual_dtype,
        device="cpu" if is_cpu else "cuda",
    )
    return replace(
        usual,
        dtype=subject.dtype or usual.dtype,
        tensor_parallel_size=subject.tensor_parallel_size or 1,
    )


def _kind_of(runs: Sequence[Run]) -> str | None:
    """Kind of the server whose metrics were scraped beside the load tests."""
    kinds = set[str]()
    for run in runs:
        if run.server is not None:
            try:
                kinds.add(summarise_server(run.server).kind)
            except RecordError:  # pages that are no known server's, or one only
                continue
    return kinds.pop() if len(kinds) == 1 else None
