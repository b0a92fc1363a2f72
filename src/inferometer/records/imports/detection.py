"""Which tool wrote this file of results? Detected from the content, not from the file name."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.records import foreign_sweeps
from inferometer.records.imports import (
    aiperf,
    concurrency_table,
    genai_perf,
    guidellm,
    inference_perf,
    inferencex,
    llmservingsim,
    mlperf,
    own_requests,
    statistics_only,
    vllm_bench,
)
from inferometer.records.imports.imported import Imported, PublishedPointTable
from inferometer.records.imports.json_fields import DOOR, Json, JsonFields, parse_json
from inferometer.records.run_folder import MANIFEST_NAME
from inferometer.records.step_logs import is_server_log, refuse_averages

_SUFFIXES: Final = {".json", ".jsonl", ".csv", ".txt", ".yaml"}
_HEADER_CHARACTERS: Final = 2**16
"""A first line of JSON may be as long as the file."""


class _Format(NamedTuple):
    name: str
    is_it: Callable[[JsonFields], bool]
    read: Callable[[Path], Imported]


def read_results(path: Path) -> Imported:
    """The runs and summaries in a result file of another tool.

    Raises
    ------
    RecordError
        The format is unknown or the file malformed; the message names file and field.
    """
    path = _log_of(path) if path.is_dir() else path
    with DOOR.refusing(str(path)):
        return _read(path)


def _read(path: Path) -> Imported:
    text = _text_of(path)
    header = _header(text)
    if llmservingsim.is_log(header) or llmservingsim.log_of(path.parent) == path:
        llmservingsim.check_place(path)
        return Imported(
            tool="llmservingsim", runs=(llmservingsim.read_llmservingsim(path.parent).run,)
        )
    for is_table, read in _BY_HEADER:
        if is_table(header):
            return read(path)
    if concurrency_table.is_concurrency_table(text[:_HEADER_CHARACTERS]):
        return Imported(tool="table", points=concurrency_table.read_concurrency_table(path))
    if path.suffix.lower() == ".csv" and not foreign_sweeps.is_table(text):
        raise RecordError(
            f"no table that is known has the columns {', '.join(header[:12])}",
            where=str(path),
            allowed=KNOWN,
            try_=foreign_sweeps.unit_wanted(header) or _TABLE,
        )
    for is_it, read in _PRINTED:
        if is_it(text):
            return read(path)
    for format_, first in _candidates(text, path):
        if format_.is_it(first):
            return format_.read(path)
    raise RecordError("the file has no known format", where=str(path), allowed=KNOWN, try_=_TABLE)


def _text_of(path: Path) -> str:
    text = DOOR.text_of(path)
    if not text or text.isspace():
        raise RecordError(
            "the file is empty", where=str(path), allowed=KNOWN, try_="the file of a run that ended"
        )
    return text


def results_in(path: Path) -> tuple[Path, ...]:
    """The result files in a folder, by name; just ``path`` if it is a file or a log's folder."""
    if not path.is_dir() or llmservingsim.log_of(path) is not None:
        return (path,)
    files = tuple(sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES))
    # A manifest is about the files beside it, and none of them.
    return tuple(one for one in files if one.name != MANIFEST_NAME) or files or (path,)


def _log_of(folder: Path) -> Path:
    """The log in a folder of LLMServingSim, the only result format that is a folder."""
    log = llmservingsim.log_of(folder)
    if log is None:
        allowed = (
            "a file of results, a folder of them, or LLMServingSim's requests.csv or requests.jsonl,"
            " and meta.json"
        )
        files = sorted(one for one in folder.iterdir() if one.suffix in _SUFFIXES)
        raise RecordError(
            "this is a folder",
            where=str(folder),
            allowed=allowed,
            try_=suggestions.command("import", files[0])
            + (f", or another of its {len(files)} files" if len(files) > 1 else "")
            if files
            else "a folder or file with results: this one has no .json, .jsonl or .csv",
        )
    return log


def _candidates(text: str, path: Path) -> list[tuple[_Format, JsonFields]]:
    """Each format with its JSON object: the file's, its list's first, or its first line's."""
    where = str(path)
    first_line = text.lstrip().partition("\n")[0]
    try:
        content = parse_json(text, where)
    except RecordError as whole:
        try:
            return [
                (format_, JsonFields(content=_object(parse_json(first_line, where)), where=where))
                for format_ in _LINES
            ]
        except RecordError as error:
            raise RecordError(
                f"the file is neither JSON or YAML ({whole.what}) nor lines of JSON",
                where=where,
                allowed=KNOWN,
                try_=_TABLE,
            ) from error
    if isinstance(content, list):
        return [
            (format_, JsonFields(content=_object(content[0] if content else None), where=where))
            for format_ in _LISTS
        ]
    fields = JsonFields(content=_object(content), where=where)
    return [
        (format_, fields) for format_ in (*_OBJECTS, *_LINES)
    ]  # a log of one line is an object too


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _header(text: str) -> list[str]:
    return next(
        DOOR.csv_rows([text[:_HEADER_CHARACTERS].partition("\n")[0]], where="the first line"), []
    )


def _reading_points(read: Callable[[Path], PublishedPointTable]) -> Callable[[Path], Imported]:
    return lambda path: Imported(tool="inferencex", points=read(path))


def _having(*names: str) -> Callable[[JsonFields], bool]:
    return lambda content: content.content.keys() >= {*names}


_INFERENCEX: Final = _Format(
    "InferenceX agg_*.json",
    inferencex.is_inferencex,
    _reading_points(inferencex.read_inferencex),
)


def _is_vllm_bench(content: JsonFields) -> bool:
    return _has_vllm_names(content.content)


def _has_vllm_names(given: Iterable[str]) -> bool:
    """Does it have vLLM's field names? Before 0.6 vLLM counted input tokens, not all tokens."""
    names = set(given)
    is_of_either = names >= {"request_throughput", "output_throughput", "completed", "duration"}
    is_old = "input_throughput" in names and "total_output_tokens_retokenized" not in names
    return is_of_either and ("total_token_throughput" in names or is_old)


_OBJECTS: Final = (
    _Format("vllm bench serve", _is_vllm_bench, vllm_bench.read_vllm_bench),
    _Format(
        "GenAI-Perf profile_export_genai_perf.json",
        genai_perf.is_genai_perf,
        genai_perf.read_genai_perf,
    ),
    _Format(
        "GenAI-Perf profile_export.json",
        genai_perf.is_profile_export,
        genai_perf.read_profile_export,
    ),
    _Format(
        "AIPerf profile_export_aiperf.json",
        _having("request_throughput", "request_latency", "input_config"),
        aiperf.read_aiperf_summary,
    ),
    _Format("GuideLLM benchmarks.json", guidellm.is_guidellm, guidellm.read_guidellm),
    _Format(
        "inference-perf lifecycle metrics",
        _having("load_summary", "successes", "failures"),
        inference_perf.read_inference_perf_summary,
    ),
    _Format("llm-d Benchmark Report 0.2", _having("run", "results"), statistics_only.read_llmd),
    _Format(
        "llm-d Benchmark Report 0.2",
        _having("version", "scenario", "metrics"),
        statistics_only.read_llmd,
    ),
    _INFERENCEX,
    _Format(
        "LLMPerf *_summary.json",
        _having("num_concurrent_requests", "results_ttft_s_mean"),
        statistics_only.read_llmperf_summary,
    ),
    _Format(
        "trtllm-bench --report_json",
        _having("engine", "world_info", "request_info", "performance"),
        statistics_only.read_trtllm_report,
    ),
    _Format(
        "SGLang genai-bench",
        _having("aggregated_metrics", "individual_request_metrics"),
        statistics_only.read_genai_bench,
    ),
    _Format(
        "vllm bench latency",
        _having("avg_latency", "latencies", "percentiles"),
        statistics_only.read_vllm_latency,
    ),
    _Format(
        "vllm bench throughput",
        _having("elapsed_time", "num_requests", "requests_per_second", "tokens_per_second"),
        statistics_only.read_vllm_throughput,
    ),
)
_LISTS: Final = (
    _Format("vllm bench serve", _is_vllm_bench, vllm_bench.read_vllm_lines),
    _Format(
        "inference-perf per_request_lifecycle_metrics.json",
        _having("start_time", "end_time", "request", "info"),
        inference_perf.read_inference_perf_requests,
    ),
    _INFERENCEX,
    _Format(
        "LLMPerf *_summary.json",
        _having("ttft_s", "end_to_end_latency_s", "number_output_tokens"),
        statistics_only.refuse_llmperf_responses,
    ),
)
_LINES: Final = (
    _Format(
        "SGLang bench_serving's JSON lines",
        _having("total_output_tokens_retokenized", "completed", "duration"),
        vllm_bench.read_sglang_lines,
    ),
    _Format("vllm bench serve", _is_vllm_bench, vllm_bench.read_vllm_lines),
    _Format(
        "AIPerf profile_export.jsonl", _having("metadata", "metrics"), aiperf.read_aiperf_requests
    ),
)
_BY_HEADER: Final[tuple[tuple[Callable[[list[str]], bool], Callable[[Path], Imported]], ...]] = (
    (inference_perf.is_stages, inference_perf.read_stages),
    (own_requests.is_own_requests, own_requests.read_own_requests),
    (_has_vllm_names, vllm_bench.read_vllm_lines),
    (inferencex.is_inferencex_csv, _reading_points(inferencex.read_inferencex_csv)),
    (guidellm.is_guidellm_csv, guidellm.read_guidellm_csv),
    (aiperf.is_statistics_csv, aiperf.read_statistics_csv),
    (inferencex.is_silicon, _reading_points(inferencex.read_silicon)),
)


def _sent_to_fit(path: Path) -> Imported:
    raise RecordError(
        "this is a table of prefill and decode tests, not of requests",
        where=str(path),
        allowed=KNOWN,
        try_=suggestions.command("fit", path),
    )


_PRINTED: Final = (
    (foreign_sweeps.is_table, _sent_to_fit),
    (vllm_bench.has_blocks, vllm_bench.read_blocks),
    (statistics_only.is_trtllm_printed, statistics_only.read_trtllm_printed),
    (mlperf.is_mlperf, mlperf.read_mlperf),
    (is_server_log, refuse_averages),
)
_TABLES: Final = (
    "the block of results that vLLM's and SGLang's bench print",
    "the blocks that trtllm-bench prints",
    f"MLPerf {mlperf.SUMMARY_NAME}",
    "vLLM's fields as CSV",
    "GuideLLM benchmarks.csv",
    "AIPerf profile_export_aiperf.csv",
    "GenAI-Perf profile_export_genai_perf.csv",
    "AIConfigurator silicon_sample.csv",
    "inference-perf stages.csv",
    "LLMServingSim requests.csv",
    "a CSV of inferometer export",
)
_TABLE: Final = (
    "a table of a sweep, llama-bench's, llama-batched-bench's and bench_one_batch's:"
    " inferometer fit reads it;"
    " a trace: --workload of simulate and load"
)
KNOWN: Final = ", ".join(
    dict.fromkeys((*(format_.name for format_ in (*_OBJECTS, *_LISTS, *_LINES)), *_TABLES))
)
"""The known formats, as messages list them."""
