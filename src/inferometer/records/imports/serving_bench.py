"""What do SGLang's ``bench_serving`` JSON lines say, and the block of results that it and vLLM's bench print?

Both descend from the same script, so that a block and a line become the fields of
``vllm bench serve`` and are read as its summary. SGLang writes a line for each run; even with
``--output-details`` it does not write when a request was sent, so there is no run of requests.
Blocks are found in any text, such as a log or an issue. Checked against SGLang 0.5.23's source.
"""

import re
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.records.imports.imported import Imported, PublishedSummary, Tool, file_source
from inferometer.records.imports.json_fields import Json, JsonFields, parse_json, read_text
from inferometer.records.imports.vllm_bench import summary_of

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
"""Printed labels in small letters -> vLLM's fields."""
_LATENCIES: Final = {"e2e_latency": "e2el", "e2e latency": "e2el"}


def is_sglang_line(content: JsonFields) -> bool:
    """Does it look like a line of SGLang's ``bench_serving``?"""
    return {"total_output_tokens_retokenized", "completed", "duration"} <= set(content.content)


def read_sglang_lines(path: Path) -> Imported:
    """The summary of each line.

    Raises
    ------
    RecordError
        A line is no JSON, or a field holds something else; the message names it.
    """
    source = file_source(path, "sglang-bench")
    found = list[PublishedSummary]()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            content = parse_json(line, where)
            if not isinstance(content, dict):
                raise RecordError("this is no object", where=where)
            fields = JsonFields(content=_as_vllm(content), where=where)
            found.append(summary_of(fields, source, "sglang-bench"))
    return Imported(tool="sglang-bench", summaries=tuple(found))


def has_blocks(text: str) -> bool:
    """Is there a printed block of results in the text?"""
    return _TITLE in text and _BLOCK.search(text) is not None


def read_blocks(path: Path) -> Imported:
    """The summary of each block, in the order in which they stand.

    Raises
    ------
    RecordError
        A block does not say how many requests were completed, or in what time.
    """
    text = read_text(path)
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
