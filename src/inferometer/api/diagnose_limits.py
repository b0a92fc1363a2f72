"""Limits of a server that are stated (command line, own report, user), and which statement wins."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.api.diagnose_source import Source
from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.decide.tuning.start_command import command_of
from inferometer.fit.loads.server import Limit
from inferometer.records.server_series import gauge_series
from inferometer.records.types import SchedulerFacts

LimitSource: TypeAlias = Literal["known", "server", "command", "metrics", "identified"]
_GAUGES: Final = ("max_num_seqs", "max_num_batched_tokens")


class StatedLimit(NamedTuple):
    """A limit that need not be identified."""

    value: int
    source: LimitSource


def stated_limits(source: Source, known: Mapping[Limit, int]) -> dict[Limit, StatedLimit]:
    """Limits by the server's command line, by its own report, and by ``known``; later ones win.

    For several data-parallel ranks whose metrics are added up only ``known`` counts, since the
    rebuilt server is all ranks together. Where ranks are separated, each
    has the stated limits.
    """
    engine = source.identity.facts
    facts = source.identity.scheduler or SchedulerFacts()
    stated: dict[Limit, StatedLimit] = {
        name: StatedLimit(value, "known") for name, value in known.items()
    }
    command = command_of(source.command)
    n_ranks = facts.data_parallel_size or _count(command.value("dp")) or 1
    if n_ranks > 1 and source.window.replica is None:
        return stated
    n_blocks = None if engine is None else engine.n_kv_blocks
    is_reported = source.window.summary.n_kv_blocks is not None
    found: tuple[tuple[Limit, LimitSource, int | None], ...] = (
        ("max_num_seqs", "command", _count(command.value("max_num_seqs"))),
        ("max_num_batched_tokens", "command", _count(command.value("max_num_batched_tokens"))),
        *((name, "metrics", _gauge(source.window, name)) for name in _GAUGES),
        ("max_num_seqs", "server", facts.max_num_seqs),
        ("max_num_batched_tokens", "server", facts.max_num_batched_tokens),
        ("n_kv_blocks", "server", None if is_reported else n_blocks),
    )
    limits: dict[Limit, StatedLimit] = {
        name: StatedLimit(value, source) for name, source, value in found if value
    }
    return limits | stated


def _gauge(
    window: ServerWindow, name: Literal["max_num_seqs", "max_num_batched_tokens"]
) -> int | None:
    """A limit that the server reports among its metrics (TensorRT-LLM)."""
    series = gauge_series(window.record, name)
    return None if series is None or not np.isfinite(series.value[-1]) else round(series.value[-1])


def _count(text: str | None) -> int | None:
    """A whole number; None for other values of a flag."""
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None
