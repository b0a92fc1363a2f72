"""How are the published tables of InferenceX read, and AIConfigurator's collection of them?

``agg_*.json`` holds points of one model and workload (InferenceMAX and InferenceX alike; times in
seconds; also as CSV, one row per point). ``silicon_sample.csv`` holds the points of all (times in
milliseconds, of an unnamed statistic, without throughput; ``_layout`` interprets its columns of
devices). Traps: ``tput_per_gpu`` counts input *and* output tokens; lengths are drawn from 80 to
100 % of the nominal; a mean time to first token may be far above the median, because of warm-up.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.imports.imported import UNKNOWN, PublishedPointTable
from inferometer.records.imports.json_fields import (
    DOOR,
    Json,
    JsonFields,
    parse_json,
    read_object,
    read_objects,
)
from inferometer.units import MOST_COUNT, ungrouped

_NAME: Final = re.compile(r".*?(\d+)k(\d+)k")
_HARDWARE_IDS: Final = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "h100_sxm": "h100_sxm",
    "h200_sxm": "h200_sxm",
    "b200_sxm": "b200_sxm",
    "b300_sxm": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
}
_SECONDS: Final = {
    "ttft_mean_s": "mean_ttft",
    "ttft_median_s": "median_ttft",
    "ttft_p99_s": "p99_ttft",
    "tpot_mean_s": "mean_tpot",
    "tpot_median_s": "median_tpot",
    "tpot_p99_s": "p99_tpot",
    "e2e_mean_s": "mean_e2el",
    "e2e_median_s": "median_e2el",
    "e2e_p99_s": "p99_e2el",
}
_RATES: Final = {
    "device_total_tokens_per_s": "tput_per_gpu",
    "device_output_tokens_per_s": "output_tput_per_gpu",
    "device_input_tokens_per_s": "input_tput_per_gpu",
}
_SILICON_HEADER: Final = frozenset(
    {
        "origin",
        "concurrency",
        "backend",
        "model_path",
        "system",
        "mode",
        "isl",
        "osl",
        "ttft_ms",
        "tpot_ms",
    }
)

_POINT: Final = frozenset({"hw", "tp", "framework", "precision"})
"""Fields that identify a point; the reader names any others that are missing."""
_COLLECTED: Final = frozenset({"backend", "model_path", "system"})
_LENGTHS_OF_LINES: Final = {"isl": "isl_max", "osl": "osl_max"}
"""Column names of the nominal lengths in some CSV files."""

_WITH_REPLICAS: Final = frozenset({"cfg707", "cfg727", "cfg827"})
"""Configurations of vLLM with ``dp-attn: true``, by the end of a row's name: MiniMax in 4 bit on B200
and B300 and in 8 bit on B300 (SemiAnalysisAI/InferenceX@165968ea7, ``nvidia-master.yaml``)."""
_SPECULATING_IMAGE: Final = "1.2.0rc6.post3"
"""TensorRT-LLM's version in the ``dsr1-*-trt-mtp`` configurations, and in no other."""
_SPECULATING_DAY: Final = ("1.1.0rc2.post2", "2026-01-14")
"""The day on which these configurations ran with the version of those without speculation,
which ran on other days."""
_WORKERS: Final = (
    "decode_workers",
    "prefill_workers",
    "prefill_tensor_parallel",
    "prefill_data_parallel",
)
Row = dict[str, str | float | int | bool]
"""A point: its known values, by column of the table."""


def is_inferencex(content: JsonFields) -> bool:
    """Does it look like one point of ``agg_*.json``?"""
    return set(content.content) >= _POINT


def is_inferencex_csv(header: Sequence[str]) -> bool:
    """Does it look like the points of ``agg_*.json`` as lines?"""
    return set(header) >= _POINT


def is_silicon(header: Sequence[str]) -> bool:
    """Does it look like ``silicon_sample.csv``?"""
    return set(header) >= _COLLECTED


def read_inferencex(path: Path) -> PublishedPointTable:
    """The points of ``agg_*.json``: a list of them, or one.

    Raises
    ------
    RecordError
        A field is missing or holds something else, or the workload is neither in the file nor in
        its name.
    """
    content = (
        read_objects(path)
        if isinstance(parse_json(DOOR.text_of(path), str(path)), list)
        else (read_object(path),)
    )
    return point_table([_point(path, number, fields) for number, fields in enumerate(content)])


def read_inferencex_csv(path: Path) -> PublishedPointTable:
    """The points of ``agg_*.json`` as lines.

    Raises
    ------
    RecordError
        A column is missing or holds something else; the message has the line's number.
    """
    rows = DOOR.csv_records(DOOR.text_of(path).splitlines(), where=str(path))
    return point_table(
        [
            _point(
                path, number, JsonFields(content=_json_of(row), where=f"{path}, line {number + 2}")
            )
            for number, row in enumerate(rows)
        ]
    )


def read_silicon(path: Path) -> PublishedPointTable:
    """The points of ``silicon_sample.csv``.

    Raises
    ------
    RecordError
        A line is broken; the message has its number and the column.
    """
    lines = DOOR.text_of(path).splitlines()
    if missing := _SILICON_HEADER - set(next(DOOR.csv_rows(lines, where=str(path)), [])):
        raise RecordError(
            f"the header lacks {', '.join(sorted(missing))}",
            where=str(path),
            allowed=", ".join(sorted(_SILICON_HEADER)),
            try_="the whole file, as AIConfigurator publishes it",
        )
    return point_table(
        [
            _silicon_point(path, number, row)
            for number, row in enumerate(DOOR.csv_records(lines, where=str(path)))
        ]
    )


def _point(path: Path, number: int, fields: JsonFields) -> Row:
    for name in ("hw", "model", "framework", "precision", "tp", "conc"):
        fields.required(name)
    hardware, framework = (fields.text("hw") or "").lower(), fields.text("framework") or ""
    is_disaggregated = fields.content.get("disagg") is True or framework.startswith("dynamo")
    tensor_parallel = _count(fields.whole("tp"))
    has_replicas = (fields.text("dp_attention") or "").lower() == "true"
    prompt_tokens, output_tokens = _workload(path, fields)
    return {
        "source_file": path.name,
        "row": number,
        "hardware": hardware,
        "hardware_id": _HARDWARE_IDS.get(hardware.split("-")[0], ""),
        "model": fields.text("model") or "",
        "precision": fields.text("precision") or "",
        "framework": framework,
        "framework_version": "",
        "is_disaggregated": is_disaggregated,
        "uses_speculation": "on" in {fields.text("mtp"), fields.text("spec_decoding")}
        or fields.text("spec_decoding") == "mtp",
        "is_provisional": False,
        "tensor_parallel": 1 if has_replicas else tensor_parallel,
        "expert_parallel": _count(fields.whole("ep")),
        "data_parallel": tensor_parallel if has_replicas else 1,
        **dict.fromkeys(_WORKERS, UNKNOWN),
        "n_devices": UNKNOWN if is_disaggregated else tensor_parallel,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "concurrency": _count(fields.whole("conc")),
        **{ours: _float(fields.number(theirs)) for ours, theirs in (_RATES | _SECONDS).items()},
    }


def _json_of(line: Mapping[str, str | None]) -> dict[str, Json]:
    """The row's cells as JSON values; empty ones are absent."""
    values: dict[str, Json] = {name: _value(text) for name, text in line.items() if text}
    return values | {
        ours: values[theirs]
        for ours, theirs in _LENGTHS_OF_LINES.items()
        if theirs in values and ours not in values
    }


def _value(text: str) -> Json:
    text = ungrouped(text)
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _workload(path: Path, fields: JsonFields) -> tuple[int, int]:
    if fields.has("isl") and fields.has("osl"):
        return _count(fields.whole("isl")), _count(fields.whole("osl"))
    match = _NAME.match(path.stem)
    if match is None:
        raise RecordError(
            "the point has no isl and osl, and the file's name does not tell them either",
            where=fields.where,
            try_="a name such as agg_dsr1_1k8k.json: 1,024 tokens in, 8,192 out",
        )
    return int(match[1]) * 1024, int(match[2]) * 1024


def _silicon_point(path: Path, number: int, row: Mapping[str, str]) -> Row:
    def value(name: str) -> float:
        text = row.get(name) or ""
        return (
            DOOR.number(text, name, where=f"{path}, line {number + 2}", most=MOST_COUNT)
            if text
            else float("nan")
        )

    def count(name: str) -> int:
        return int(value(name)) if value(name) >= 1 else UNKNOWN

    is_disaggregated = row["mode"] == "disagg"
    layout = _Layout.stated(row, count, "decode_" if is_disaggregated else "")
    n_in_batches = count("batch_size") * max(count("attention_dp_size"), 1)
    n_servers = max(count("concurrency") // n_in_batches, 1) if n_in_batches > 0 else UNKNOWN
    return {
        "source_file": path.name,
        "row": number,
        "hardware": row["system"],
        "hardware_id": _HARDWARE_IDS.get(row["system"], ""),
        "model": row["model_path"],
        "precision": row.get("precision") or "",
        "framework": row["backend"],
        "framework_version": row.get("backend_version") or "",
        "is_disaggregated": is_disaggregated,
        "uses_speculation": _speculates(row, layout),
        "is_provisional": row.get("wip") == "True",
        "tensor_parallel": layout.tensor,
        "expert_parallel": layout.expert_parallel,
        "data_parallel": layout.replicas,
        "decode_workers": count("decode_num_workers") if is_disaggregated else n_servers,
        "prefill_workers": count("prefill_num_workers"),
        "prefill_tensor_parallel": count("prefill_tp_size"),
        "prefill_data_parallel": count("prefill_attention_dp_size"),
        "n_devices": UNKNOWN
        if is_disaggregated
        else layout.tensor * layout.replicas * max(count("pp_size"), 1),
        "prompt_tokens": count("isl"),
        "output_tokens": count("osl"),
        "concurrency": count("concurrency"),
        "ttft_unnamed_s": value("ttft_ms") / 1e3,
        "tpot_unnamed_s": value("tpot_ms") / 1e3,
    }


def _speculates(row: Mapping[str, str], layout: "_Layout") -> bool:
    """Was the row measured with draft tokens (``spec-decoding: mtp``)? The collection does not state it.

    By the configurations of InferenceX at the day of each row (SemiAnalysisAI/InferenceX@843c6254f,
    ``nvidia-master.yaml`` and its history): same devices, half the TPOT. SGLang's DeepSeek-R1 in 8
    bit on eight B200 ran with and without in one version; the later export, under DeepSeek-V3, has
    those without.
    """
    name, version = row["model_path"].lower(), row.get("backend_version") or ""
    is_deepseek, is_8_bit = "deepseek" in name, row.get("precision") == "fp8"
    if row["mode"] == "disagg":
        return False
    if row["backend"] == "trtllm":
        measured = (version, row.get("measured_date") or "")
        return is_deepseek and (version == _SPECULATING_IMAGE or measured == _SPECULATING_DAY)
    if row["backend"] != "sglang" or version != "0.5.9" or not is_8_bit:
        return False
    if is_deepseek:
        return row["system"] == "b200_sxm" and name.endswith("-r1") and layout.tensor == 8
    is_narrow = layout.tensor == 4 and layout.expert_parallel == 1
    return "qwen3.5" in name and row["system"] in {"b200_sxm", "b300_sxm"} and is_narrow


class _Layout(NamedTuple):
    """Devices of one server: attention in ``tensor`` · ``replicas``, experts over the same."""

    tensor: int
    replicas: int
    expert_tensor: int
    expert_parallel: int

    @classmethod
    def stated(cls, row: Mapping[str, str], count: Callable[[str], int], prefix: str) -> "_Layout":
        """The layout in a row, or of its servers with this prefix."""
        names = ("tp", "attention_dp", "moe_tp", "moe_ep")
        layout = cls(*(max(count(f"{prefix}{name}_size"), 1) for name in names))
        if prefix:
            return layout
        if row["origin"].startswith("inferencex"):
            has_replicas = row.get("id", "").rpartition("_")[2] in _WITH_REPLICAS
            return layout.as_started(has_replicas=has_replicas)
        return layout if row.get("attention_dp_size") else layout.with_replicas()

    def with_replicas(self) -> "_Layout":
        """The layout if the attention is replicated over all devices of the experts."""
        return self._replace(
            replicas=max(self.expert_tensor * self.expert_parallel // self.tensor, 1)
        )

    def as_started(self, *, has_replicas: bool) -> "_Layout":
        """The layout that InferenceX started, where the collection states the square of it.

        Its later exports multiply tensor by expert parallelism, which are the same n devices: a
        server with n = 8 has 64. The same measured values stand in the first export with 8. Of vLLM
        they state n replicas of n devices for n devices with expert parallelism, and for n
        replicas (``has_replicas``) of one device alike.
        """
        n_devices = self.tensor * self.replicas
        n_tensor = self.expert_tensor if self.expert_tensor > 1 else self.tensor
        if n_tensor < 2 or n_devices != n_tensor**2 or self.expert_parallel == 1:
            return self
        is_spread = self.replicas > 1 and (self.tensor == 1 or has_replicas)
        return self._replace(
            tensor=1 if is_spread else n_tensor,
            replicas=n_tensor if is_spread else 1,
            expert_tensor=1,
            expert_parallel=n_tensor,
        )


def point_table(rows: Sequence[Row]) -> PublishedPointTable:
    """The table of these rows; float columns that a row lacks are NaN, others are required."""

    def column(name: str) -> np.ndarray:
        values = [row.get(name, float("nan")) for row in rows]
        array = np.array(values)
        return array.astype(np.int32) if array.dtype.kind == "i" else array

    return PublishedPointTable._make(column(name) for name in PublishedPointTable._fields)


def _count(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _float(value: float | None) -> float:
    return float("nan") if value is None else value
