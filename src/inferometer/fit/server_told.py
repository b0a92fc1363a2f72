"""What does a server itself name of its limits: in the metrics that were scraped beside a load test, or in the log of its start?"""

import re
from collections.abc import Sequence
from typing import Final

from inferometer.errors import RecordError
from inferometer.fit.server_knobs import BLOCK_TOKENS, Limit, Switch, ToldByServer
from inferometer.records.server_summaries import summarise_server
from inferometer.records.types import Run

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
_BLOCK_SIZE: Final = r"'block_size': (\d+)"
_CACHE_TOKENS: Final = r"KV cache size: ([\d,]+) tokens"
"""vLLM 0.32.0: v1/core/kv_cache_utils.py, config/vllm.py (the engine's configuration), entrypoints (arguments that are no defaults)."""


def told_by_server(runs: Sequence[Run], log: str | None) -> ToldByServer:
    """What metrics and log name; where both do, the log.

    Example
    -------
    >>> told_by_server([], "GPU KV cache size: 1,048,576 tokens, Maximum concurrency").limits
    {'n_kv_blocks': 65536}
    """
    from_metrics, from_log = _by_metrics(runs), ToldByServer() if log is None else _by_log(log)
    return ToldByServer(
        limits={**from_metrics.limits, **from_log.limits},
        switches={**from_metrics.switches, **from_log.switches},
        block_tokens=from_log.block_tokens or from_metrics.block_tokens,
    )


def _by_metrics(runs: Sequence[Run]) -> ToldByServer:
    for run in runs:
        if run.server is None:
            continue
        try:
            said = summarise_server(run.server)
        except RecordError:  # pages that are no known server's, or one only
            continue
        if said.n_kv_blocks is not None:
            return ToldByServer(limits={"n_kv_blocks": said.n_kv_blocks - 1}, block_tokens=said.kv_block_tokens)
    return ToldByServer()


def _by_log(log: str) -> ToldByServer:
    limits: dict[Limit, int] = {}
    for name, patterns in _LIMITS.items():
        found = next((match for pattern in patterns if (match := re.search(pattern, log))), None)
        if found is not None:
            limits[name] = int(found[1])
    switches: dict[Switch, bool] = {name: found[1] == "True" for name, pattern in _SWITCHES.items() if (found := re.search(pattern, log))}
    size, tokens = re.search(_BLOCK_SIZE, log), re.search(_CACHE_TOKENS, log)
    block_tokens = int(size[1]) if size else None
    if tokens is not None:
        limits["n_kv_blocks"] = int(tokens[1].replace(",", "")) // (block_tokens or BLOCK_TOKENS)
    return ToldByServer(limits=limits, switches=switches, block_tokens=block_tokens)


__all__ = ["told_by_server"]
