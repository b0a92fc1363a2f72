"""How are GenAI-Perf's files read: its statistics, and the requests of perf_analyzer's export?

``profile_export_genai_perf.json`` holds statistics under the names that AIPerf took over; where the
answers were not streamed, its TTFT is the whole latency and its ITL 0: both are left out here.
``profile_export.json`` holds the time and the text of each request and of each response, but no
token counts. Token counts are those of the server where a response has its ``usage``; else each
response with text counts as one token, and four characters of a prompt as one. A response without
text (the first of a chat, ``[DONE]``) is no token, as in GenAI-Perf. Checked against
``genai_perf/profile_data_parser`` of triton-inference-server/perf_analyzer, version 0.0.16.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.inputs.types import Caution
from inferometer.records.imports.aiperf import statistics_of
from inferometer.records.imports.imported import (
    Imported,
    ImportedRequest,
    ImportFacts,
    cached_tokens_of,
    file_source,
    imported_run,
)
from inferometer.records.imports.json_fields import Json, JsonFields, parse_json, read_object
from inferometer.records.types import RequestStatus, Run
from inferometer.units import NS_PER_S

_CHARACTERS_PER_TOKEN: Final = 4
_ESTIMATED: Final = Caution(
    code="TOKENS_ESTIMATED",
    text=(
        "the file counts no tokens: a response with text is taken for one output token, four"
        " characters of a prompt for one"
    ),
    remedy="profile_export_genai_perf.json beside it has what GenAI-Perf's tokenizer counted",
)


def is_genai_perf(content: JsonFields) -> bool:
    """Are these statistics GenAI-Perf's, and not those of AIPerf, which came after it?"""
    if not content.content.keys() >= {"request_throughput", "request_latency", "input_config"}:
        return False
    config = content.content["input_config"]
    return isinstance(config, dict) and bool({"perf_analyzer", "service_kind"} & config.keys())


def is_profile_export(content: JsonFields) -> bool:
    """Are these the requests that perf_analyzer exported?"""
    experiments = content.content.get("experiments")
    first = experiments[0] if isinstance(experiments, list) and experiments else None
    return isinstance(first, dict) and {"experiment", "requests"} <= first.keys()


def read_genai_perf(path: Path) -> Imported:
    """The statistics of a run.

    Raises
    ------
    RecordError
        A field holds something else than it should; the message names it.
    """
    content = read_object(path)
    config = content.child("input_config")
    stimulus = config.child("perf_analyzer", "stimulus")
    load = stimulus if stimulus.content else config
    summary = statistics_of(
        content,
        tool="genai-perf",
        source=file_source(path, "genai-perf"),
        model=next(iter(config.texts("model_names") or config.texts("model") or ()), None),
        load=load,
    )
    of_endpoint = config.child("endpoint").content.get("streaming")
    if config.content.get("streaming", of_endpoint) is False:
        whole = tuple(one for one in summary.latencies if one.name == "e2e")
        summary = replace(summary, latencies=whole)
    return Imported(tool="genai-perf", summaries=(summary,))


def read_profile_export(path: Path) -> Imported:
    """A run of each experiment: a concurrency or a request rate.

    Raises
    ------
    RecordError
        A field is missing or holds something else; the message names it.
    """
    content = read_object(path)
    version = content.text("version") or "unknown"
    found = (
        _run(one, path, version) for one in content.children("experiments") if one.has("requests")
    )
    runs = tuple(run for run in found if run is not None)
    if not runs:
        raise RecordError(
            "the file has no request",
            where=str(path),
            allowed="at least one",
            try_="profile_export.json of a run that sent some",
        )
    return Imported(tool="genai-perf", runs=runs)


def _run(experiment: JsonFields, path: Path, version: str) -> Run | None:
    answers = [_answer(one) for one in experiment.children("requests")]
    if not answers:
        return None
    began_ns = min(one.request.sent_ns for one in answers)
    load = experiment.child("experiment")
    source = file_source(path, "genai-perf")
    facts = ImportFacts(
        tool="genai-perf",
        tool_version=version,
        created_utc=datetime.fromtimestamp(began_ns / NS_PER_S, UTC).isoformat(timespec="seconds"),
        source=replace(source, where=f"{source.where}, {load.text('mode')} {load.text('value')}"),
        cautions=(_ESTIMATED,) if any(not one.is_counted for one in answers) else (),
    )
    return imported_run([one.request for one in answers], facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    request: ImportedRequest
    is_counted: bool
    """Does the response have the server's token counts?"""


def _answer(request: JsonFields) -> _Answer:
    sent_ns = round(request.required("timestamp").number("timestamp") or 0)
    instants = [round(one) for one in request.numbers("response_timestamps") or ()]
    outputs = request.children("response_outputs")
    if len(outputs) != len(instants):
        raise RecordError(
            f"{len(outputs)} response_outputs for {len(instants)} response_timestamps",
            where=request.where,
            allowed="one for each",
            try_="the file of a run that ended",
        )
    events = _events(outputs, request.where)
    n_letters = [sum(len(_text(event)) for event in of_one) for of_one in events]
    with_text = [at_ns for at_ns, n in zip(instants, n_letters, strict=True) if n]
    is_streamed = len(instants) > 1
    usage = _usage(events, request.where)
    prompt, output = usage.whole("prompt_tokens"), usage.whole("completion_tokens")
    is_failed = not with_text or any("error" in event for of_one in events for event in of_one)
    return _Answer(
        request=ImportedRequest(
            intended_ns=sent_ns,
            sent_ns=sent_ns,
            first_token_ns=with_text[0] if is_streamed and with_text else None,
            finished_ns=next(iter((with_text or instants)[-1:]), None),
            prompt_tokens=_tokens_of(_n_prompt_letters(request)) if prompt is None else prompt,
            output_tokens=output
            if output is not None
            else len(with_text)
            if is_streamed
            else _tokens_of(sum(n_letters)),
            status=RequestStatus.FAILED if is_failed else RequestStatus.LENGTH,
            chunks_ns=tuple(with_text) if is_streamed else (),
            cached_tokens=cached_tokens_of(usage),
        ),
        is_counted=is_failed or (prompt is not None and output is not None),
    )


def _tokens_of(n_letters: int) -> int:
    return -(-n_letters // _CHARACTERS_PER_TOKEN)


def _events(outputs: tuple[JsonFields, ...], where: str) -> list[list[dict[str, Json]]]:
    """The JSON objects of each response; a split object belongs to its last response."""
    found = list[list[dict[str, Json]]]()
    begun = ""
    for output in outputs:
        response = output.content.get("response")
        if not isinstance(response, str):
            found.append([output.content])
            continue
        of_one = list[dict[str, Json]]()
        *whole, last = (begun + response).split("\n\n")
        of_one += [event for text in whole for event in _event(text, where)]
        begun = ""
        try:
            of_one += _event(last, where)
        except RecordError:
            begun = last
        found.append(of_one)
    if begun:
        raise RecordError(
            f"a response ends within its JSON: {begun[:60]!r}",
            where=where,
            allowed="whole responses",
            try_="the whole file, as the tool wrote it",
        )
    return found


def _event(text: str, where: str) -> list[dict[str, Json]]:
    """The JSON object of one server-sent event, or of a response that was not streamed."""
    body = text.strip().removeprefix("data:").strip()
    if not body.startswith("{"):
        return []
    event = parse_json(body, where)
    return [event] if isinstance(event, dict) else []


def _text(event: dict[str, Json]) -> str:
    """Text of the event's first choice; '' if none."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else event
    if not isinstance(choice, dict):
        return ""
    holders = [choice, choice.get("delta"), choice.get("message")]
    names = ("text", "content", "reasoning_content", "reasoning", "text_output")
    texts = (one.get(name) for one in holders if isinstance(one, dict) for name in names)
    return "".join(text for text in texts if isinstance(text, str))


def _usage(events: list[list[dict[str, Json]]], where: str) -> JsonFields:
    """The server's token counts, from its last event with ``usage``; empty if none has it."""
    counted = (event.get("usage") for of_one in reversed(events) for event in reversed(of_one))
    found = next((one for one in counted if isinstance(one, dict)), {})
    return JsonFields(content=found, where=where, path="usage")


def _n_prompt_letters(request: JsonFields) -> int:
    """Number of characters of a request's messages or prompt."""
    inputs = request.child("request_inputs")
    payload = inputs.content.get("payload")
    body = parse_json(payload, request.where) if isinstance(payload, str) and payload else None
    holder = body if isinstance(body, dict) else inputs.content
    parts = (holder.get(name) for name in ("messages", "prompt", "text_input"))
    return sum(len(text) for part in parts for text in _texts(part))


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
        yield from _texts(value.get("text"))
