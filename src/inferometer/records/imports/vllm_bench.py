"""How are result files of ``vllm bench serve`` and SGLang's ``bench_serving`` read?

One JSON object; with ``--save-detailed`` it has lists with a value for each request. vLLM's
latencies start just before it connects, after the wait for a free slot under
``--max-concurrency``, which is in ``queue_times``. Its ITL is of chunks. Where it has no samples
it writes 0, which is left out here. Checked against files of vLLM 0.32.

SGLang's JSON lines, and the block of results that both tools print, come from the same original
script: they are converted to the fields of ``vllm bench serve`` and read as its summary. SGLang
writes a line for each run, without send times even with ``--output-details``, so there is no run
of requests. Printed blocks are found in any text, such as a log or an issue. Checked against
SGLang 0.5.23's source.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.errors import RecordError
from inferometer.inputs.types import Source
from inferometer.records.imports.imported import (
    DEFINITIONS,
    RAMP,
    Imported,
    ImportedRequest,
    ImportFacts,
    PublishedLatency,
    PublishedLatencyName,
    PublishedSummary,
    Tool,
    file_source,
    imported_run,
    known_count,
    percentiles_of,
    published,
    same_length,
)
from inferometer.records.imports.json_fields import DOOR, Json, JsonFields, parse_json, read_object
from inferometer.records.types import RequestStatus, Run
from inferometer.units import ns_from_s

LATENCIES: Final[dict[PublishedLatencyName, str]] = {
    "ttft": "ttft",
    "tpot": "tpot",
    "chunk_gap": "itl",
    "e2e": "e2el",
}
"""Our name of each latency -> vLLM's."""

_SETTINGS: Final = (
    "backend",
    "endpoint_type",
    "burstiness",
    "tokenizer_id",
    RAMP,
    "ramp_up_start_rps",
    "ramp_up_end_rps",
)
_STATISTIC: Final = re.compile(r"(mean|median|std|p(\d+(?:\.\d+)?))_(ttft|tpot|itl|e2el)(_ms)?")
"""Field names of statistics; without a unit (InferenceX) they are in seconds."""


def read_vllm_bench(path: Path) -> Imported:
    """The summary, and the run where the file is detailed.

    Raises
    ------
    RecordError
        A field is missing or holds something else; the message names it.
    """
    return _imported([read_object(path)], file_source(path, "vllm-bench"))


def read_vllm_lines(path: Path) -> Imported:
    """The summaries and runs of each line (``--append-result``), or of each object of a list.

    Raises
    ------
    RecordError
        A line is no JSON, or a field holds something else; the message names it.
    """
    return _imported(list(_objects(path)), file_source(path, "vllm-bench"))


def _imported(contents: list[JsonFields], source: Source) -> Imported:
    return Imported(
        tool="vllm-bench",
        runs=tuple(_run(one, source) for one in contents if one.has("start_times")),
        summaries=tuple(summary_of(one, source, "vllm-bench") for one in contents),
    )


def _objects(path: Path) -> Iterator[JsonFields]:
    """The objects of a list, of the lines that are not blank, or of the rows of a table."""
    text = DOOR.text_of(path)
    found: list[tuple[str, Json]]
    if text.lstrip()[:1] not in {"[", "{"}:
        rows = enumerate(DOOR.csv_records(text.splitlines(), where=str(path)), start=2)
        found = [
            (f"{path}, line {number}", {name: cell or None for name, cell in row.items()})
            for number, row in rows
        ]
    elif text.lstrip().startswith("["):
        whole = parse_json(text, str(path))
        items = whole if isinstance(whole, list) else [whole]
        found = [(f"{path}, object {number}", one) for number, one in enumerate(items, start=1)]
    else:
        named = ((f"{path}, line {n}", line) for n, line in enumerate(text.splitlines(), start=1))
        found = [(where, parse_json(line, where)) for where, line in named if line.strip()]
    for where, content in found:
        if not isinstance(content, dict):
            raise RecordError(
                "this is no object",
                where=where,
                allowed="a JSON object with the names of vllm bench serve",
                try_="a file that vllm bench serve saved",
            )
        yield JsonFields(content=content, where=where)


def summary_of(content: JsonFields, source: Source, tool: Tool) -> PublishedSummary:
    """The statistics under vLLM's names, as ``tool`` wrote or printed them.

    Raises
    ------
    RecordError
        The number of completed requests is missing, or a field holds something else.
    """
    n_completed = content.required("completed").whole("completed") or 0
    inputs, outputs = content.number("total_input_tokens"), content.number("total_output_tokens")
    tokens_per_s = _tokens_per_s(content)
    return PublishedSummary(
        tool=tool,
        source=source,
        label=content.text("label") or "",
        model=content.text("model_id"),
        engine=content.text("backend"),
        offered_requests_per_s=None  # vLLM then writes "inf", though the rate grew
        if content.text(RAMP)
        else content.number("request_rate"),
        concurrency=content.whole("max_concurrency"),
        settings=tuple(sorted(content.pairs(_SETTINGS))),
        duration_s=content.number("duration"),
        n_requested=content.whole("num_prompts"),
        n_completed=n_completed,
        n_failed=content.whole("failed"),
        mean_prompt_tokens=None if not n_completed or inputs is None else inputs / n_completed,
        mean_output_tokens=None if not n_completed or outputs is None else outputs / n_completed,
        completed_requests_per_s=content.number("request_throughput"),
        good_requests_per_s=content.number(
            "request_goodput" if content.has("request_goodput") else _OLD_GOODPUT
        ),
        input_tokens_per_s=tokens_per_s.input,
        output_tokens_per_s=tokens_per_s.output,
        total_tokens_per_s=tokens_per_s.total,
        latencies=published(_latency(content, name, theirs) for name, theirs in LATENCIES.items()),
    )


def _latency(
    content: JsonFields, name: PublishedLatencyName, theirs: str
) -> PublishedLatency | None:
    found: dict[str, float | None] = {}
    for key in content.content:
        if (match := _STATISTIC.fullmatch(key)) is not None and match[3] == theirs:
            found[match[1]] = _seconds(content, key, has_unit=match[4] is not None)
    if found.get("mean") == 0 or not any(found.values()):
        return None
    std_s, mean_s = (found.pop(one, None) for one in ("std", "mean"))
    median_s = found.pop("median", None)
    percentiles = {float(one[1:]) / 100: value_s for one, value_s in found.items()}
    percentiles[0.5] = percentiles.get(0.5) or median_s
    return PublishedLatency(
        name=name,
        named=theirs.upper(),
        definition=DEFINITIONS[name],
        mean_s=mean_s,
        std_s=std_s,
        percentiles=percentiles_of(sorted(percentiles.items())),
    )


def _seconds(content: JsonFields, key: str, *, has_unit: bool) -> float | None:
    value, duration_s = content.number(key), content.number("duration")
    if value is None or has_unit:
        return None if value is None else value / 1e3
    if duration_s is not None and value > duration_s:
        raise content.refuse(key, f"seconds, as the name has no unit: {duration_s:.4g} at most")
    return value


def _run(content: JsonFields, source: Source) -> Run:
    names = ("start_times", "ttfts", "input_lens", "output_lens")
    for name in names:
        content.required(name)
    start_s, ttft_s, prompts, outputs = (content.numbers(name) or [] for name in names)
    itls_s, errors = content.lists("itls"), content.texts("errors")
    latencies_s, waits_s = content.numbers("latencies"), content.numbers("queue_times")
    cached = content.numbers("cached_tokens")
    _check_durations(
        {"ttfts": ttft_s, "latencies": latencies_s, "queue_times": waits_s}
        | {f"itls[{i}]": gaps_s for i, gaps_s in enumerate(itls_s or ())},
        content.where,
    )
    columns: dict[str, Sequence[object] | None] = {
        "ttfts": ttft_s,
        "input_lens": prompts,
        "output_lens": outputs,
        "itls": itls_s,
        "errors": errors,
    }
    columns |= {"latencies": latencies_s, "queue_times": waits_s, "cached_tokens": cached}
    n = same_length({"start_times": start_s, **columns}, content)
    rows = [
        _request(
            start_s[i],
            0.0 if waits_s is None else waits_s[i],
            _token_times_s(ttft_s[i], [] if itls_s is None else itls_s[i]),
            None if latencies_s is None else latencies_s[i],
            (int(prompts[i]), int(outputs[i])),
            is_failed=bool(errors and errors[i]),
        )._replace(cached_tokens=_cached(cached, i, content))
        for i in range(n)
    ]
    facts = ImportFacts(
        tool="vllm-bench",
        tool_version="unknown",
        created_utc=_utc(content.text("date")),
        source=source,
    )
    return imported_run(rows, facts)


def _cached(cached: list[float] | None, index: int, content: JsonFields) -> int:
    """Cached prompt tokens, which forks of the tool write; null for a request is unknown."""
    one = None if cached is None else cached[index]
    return known_count(
        JsonFields(content={"cached_tokens": one}, where=content.where), "cached_tokens"
    )


def _check_durations(columns: Mapping[str, list[float] | None], where: str) -> None:
    for name, values_s in columns.items():
        for i, value_s in enumerate(values_s or ()):
            if value_s < 0:
                raise RecordError(
                    f"{name}[{i}] is {value_s:g}",
                    where=where,
                    allowed="0 or more",
                    try_="measure again: the client's clock was set back",
                )


def _token_times_s(ttft_s: float, itls_s: list[float]) -> list[float]:
    """Arrival of each chunk since the send; none if TTFT is 0, as vLLM writes without a token."""
    return list(accumulate([ttft_s, *itls_s])) if ttft_s > 0 else []


def _request(
    start_s: float,
    wait_s: float,
    chunks_s: list[float],
    latency_s: float | None,
    tokens: tuple[int, int],
    *,
    is_failed: bool,
) -> ImportedRequest:
    sent_ns = ns_from_s(start_s)
    chunks_ns = tuple(sent_ns + ns_from_s(chunk_s) for chunk_s in chunks_s)
    ended_ns = (
        sent_ns + ns_from_s(latency_s) if latency_s else (chunks_ns[-1] if chunks_ns else None)
    )
    return ImportedRequest(
        intended_ns=sent_ns - ns_from_s(wait_s),
        sent_ns=sent_ns,
        first_token_ns=chunks_ns[0] if chunks_ns else None,
        finished_ns=ended_ns,
        prompt_tokens=tokens[0],
        output_tokens=tokens[1],
        status=RequestStatus.FAILED if is_failed else RequestStatus.LENGTH,
        chunks_ns=chunks_ns,
    )


def _utc(date: str | None) -> str:
    """The file's date as UTC; it is local time of an unknown zone."""
    try:
        return (
            "unknown"
            if date is None
            else f"{datetime.strptime(date, '%Y%m%d-%H%M%S').isoformat()} (local time)"  # noqa: DTZ007
        )
    except ValueError:
        return "unknown"


_OLD_GOODPUT: Final = "request_goodput:"
"""Name of goodput's field in vLLM 0.6.3 to 0.7."""


class _TokensPerS(NamedTuple):
    input: float | None
    output: float | None
    total: float | None


def _tokens_per_s(content: JsonFields) -> _TokensPerS:
    """The input, output and total rates, one of them from the other two if it is missing."""
    found_input, output = content.number("input_throughput"), content.number("output_throughput")
    total = content.number("total_token_throughput")
    if found_input is None and total is not None and output is not None:
        found_input = total - output if total >= output else None
    if total is None and found_input is not None and output is not None:
        total = found_input + output
    return _TokensPerS(found_input, output, total)


_TITLE: Final = "Serving Benchmark Result"
_BLOCK: Final = re.compile(rf"={{3,}}[^\n=]*{_TITLE}[^\n]*\n(.*?)(?:={{10,}}|\Z)", re.DOTALL)
_LINE: Final = re.compile(r"([A-Z][A-Za-z0-9 ()/.]{3,60}?):\s+(\S+)\s*$", re.MULTILINE)
_LATENCY: Final = re.compile(
    r"(Mean|Median|Std|Max|P\d{1,2}(?:\.\d+)?) (TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)"
)
_LABELS: Final = {
    "backend": "backend",
    "traffic request rate": "request_rate",
    "request rate configured (rps)": "request_rate",
    "max request concurrency": "max_concurrency",
    "maximum request concurrency": "max_concurrency",
    "successful requests": "completed",
    "failed requests": "failed",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "request goodput (req/s)": "request_goodput",
    "input token throughput (tok/s)": "input_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "total token throughput (tok/s)": "total_token_throughput",
    "total throughput (tok/s)": "total_token_throughput",
}
"""Printed labels in lower case -> vLLM's fields."""
_LATENCIES: Final = {"e2e_latency": "e2el", "e2e latency": "e2el"}


def read_sglang_lines(path: Path) -> Imported:
    """The summary of each line.

    Raises
    ------
    RecordError
        A line is no JSON, or a field holds something else; the message names it.
    """
    source = file_source(path, "sglang-bench")
    found = [
        summary_of(
            JsonFields(content=_as_vllm(one.content), where=one.where), source, "sglang-bench"
        )
        for one in _objects(path)
    ]
    return Imported(tool="sglang-bench", summaries=tuple(found))


def has_blocks(text: str) -> bool:
    """Is there a printed block of results in the text?"""
    return _TITLE in text and _BLOCK.search(text) is not None


def read_blocks(path: Path) -> Imported:
    """The summary of each block, in the order of the text.

    Raises
    ------
    RecordError
        A block lacks the number of completed requests, or the duration.
    """
    text = DOOR.text_of(path)
    is_sglang = "retokenized" in text
    tool: Tool = "sglang-bench" if is_sglang else "vllm-bench"
    source = file_source(path, tool)
    found = list[PublishedSummary]()
    for block in _BLOCK.finditer(text):
        where = f"{path}, line {text.count(chr(10), 0, block.start()) + 1}"
        fields = JsonFields(content=_fields(block[1]), where=where)
        found.append(summary_of(fields.required("completed"), source, tool))
    return Imported(tool=tool, summaries=tuple(found))


def _fields(block: str) -> dict[str, Json]:
    """The block's numbers under vLLM's names."""
    fields = dict[str, Json]()
    for label, value in _LINE.findall(block):
        latency = _LATENCY.fullmatch(label)
        name = _LABELS.get(label.lower())
        if latency is not None:
            what = latency[2].lower()
            name = f"{latency[1].lower()}_{_LATENCIES.get(what, what)}_ms"
        if name is not None and name not in fields and value.lower() != "n/a":
            fields[name] = None if value == "not" else value
    return fields


def _as_vllm(content: dict[str, Json]) -> dict[str, Json]:
    """SGLang's fields under vLLM's names."""
    fields: dict[str, Json] = {
        name.replace("e2e_latency", "e2el"): value
        for name, value in content.items()
        if not isinstance(value, list | dict)
    }
    if fields.get("request_rate") == "trace":
        del fields["request_rate"]
    into, out = fields.get("input_throughput"), fields.get("output_throughput")
    if isinstance(into, int | float) and isinstance(out, int | float):
        fields.setdefault("total_token_throughput", into + out)
    return fields
