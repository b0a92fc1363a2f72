"""What does a table of inference-perf's stages say, one line for each engine setting and rate?

Such a table is made of several lifecycle reports; times are in milliseconds. At KubeCon NA 2025
*reported* TPOT and ITL are half of the truth, because the server sent two events a token;
``tpot_from_e2e_mean_ms`` beside them was made from E2E, TTFT and length.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from inferometer.records.imports.imported import Imported, file_source
from inferometer.records.imports.json_fields import DOOR, read_text
from inferometer.records.published import (
    DEFINITIONS,
    PublishedLatency,
    PublishedLatencyName,
    PublishedPercentile,
    PublishedSummary,
)
from inferometer.spec.types import Source

_HEADER: Final = frozenset(
    {
        "config",
        "stage",
        "requested_rate",
        "n_success",
        "n_fail",
        "ttft_mean_ms",
        "e2e_mean_ms",
        "requests_per_sec",
    }
)
_LATENCIES: Final[dict[str, tuple[PublishedLatencyName, str]]] = {
    "ttft": ("ttft", DEFINITIONS["ttft"]),
    "tpot_from_e2e": ("tpot", "(mean E2E - mean TTFT) / (mean output tokens - 1)"),
    "itl_reported": (
        "chunk_gap",
        "gaps between stream events as reported: two events a token halve it",
    ),
    "e2e": ("e2e", DEFINITIONS["e2e"]),
}
_PERCENTILES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99}


def is_stages(header: Sequence[str]) -> bool:
    """Does it look like one?"""
    return set(header) >= _HEADER


def read_stages(path: Path) -> Imported:
    """A summary of each line.

    Raises
    ------
    RecordError
        A line is broken; the message has its number and the column.
    """
    source = file_source(path, "inference-perf")
    rows = DOOR.csv_records(read_text(path).splitlines(), where=str(path))
    summaries = tuple(
        _Line(row, number, str(path)).summary(source) for number, row in enumerate(rows, start=2)
    )
    return Imported(tool="inference-perf", summaries=summaries)


class _Line:
    def __init__(self, row: Mapping[str, str | None], number: int, where: str) -> None:
        self._row = row
        self._number = number
        self._where = where

    def summary(self, source: Source) -> PublishedSummary:
        n_completed, n_failed = self._value("n_success"), self._value("n_fail")
        return PublishedSummary(
            tool="inference-perf",
            source=source,
            label=f"{self._row.get('config')}, stage {self._row.get('stage')}",
            offered_requests_per_s=self._value("requested_rate"),
            n_completed=None if n_completed is None else round(n_completed),
            n_failed=None if n_failed is None else round(n_failed),
            mean_prompt_tokens=self._value("prompt_len_mean"),
            mean_output_tokens=self._value("output_len_mean"),
            completed_requests_per_s=self._value("requests_per_sec"),
            input_tokens_per_s=self._value("input_tokens_per_sec"),
            output_tokens_per_s=self._value("output_tokens_per_sec"),
            total_tokens_per_s=self._value("total_tokens_per_sec"),
            latencies=tuple(self._latency(theirs, *ours) for theirs, ours in _LATENCIES.items()),
        )

    def _latency(
        self, theirs: str, name: PublishedLatencyName, definition: str
    ) -> PublishedLatency:
        percentiles = (
            (at, self._seconds(f"{theirs}_{key}_ms")) for key, at in _PERCENTILES.items()
        )
        return PublishedLatency(
            name=name,
            named=theirs,
            definition=definition,
            mean_s=self._seconds(f"{theirs}_mean_ms"),
            percentiles=tuple(
                PublishedPercentile(at, value_s)
                for at, value_s in percentiles
                if value_s is not None
            ),
        )

    def _seconds(self, name: str) -> float | None:
        value = self._value(name)
        return None if value is None else value / 1e3

    def _value(self, name: str) -> float | None:
        text = self._row.get(name)
        return (
            DOOR.number(text, name, where=f"{self._where}, line {self._number}") if text else None
        )
