"""What do other tools' result files say, as runs and in our words?"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

from inferometer import suggestions
from inferometer.api.answer import Answer
from inferometer.api.question import Option, option
from inferometer.errors import RecordError
from inferometer.inputs.types import Caution
from inferometer.records.imports.detection import read_results, results_in
from inferometer.records.imports.imported import Imported, PublishedLatency, PublishedSummary, Tool
from inferometer.records.run_folder import MANIFEST_NAME, is_run
from inferometer.records.store import write_run
from inferometer.records.types import Run
from inferometer.units import format_duration, format_number

_FEWEST_LOADS = 4
"""Closed loops that a fit of their statistics needs."""
_SHOWN = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRunAnswer:
    """A run that a file holds."""

    run_id: str
    n_requests: int
    folder: str | None
    """Folder of the written run; None without --out."""
    cautions: tuple[Caution, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PointCount:
    """The number of published points of a model on a device."""

    hardware: str
    model: str
    n_points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFile:
    """Contents of a file."""

    file: str
    """Name of the file."""
    path: str
    """Path as given."""
    tool: Tool
    runs: tuple[ImportedRunAnswer, ...]
    summaries: tuple[PublishedSummary, ...]
    points: tuple[PointCount, ...]
    cautions: tuple[Caution, ...]
    """Cautions on its statistics; runs have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportAnswer(Answer):
    """Contents of the files, in their order."""

    table = "files"

    files: tuple[ImportedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Files to read, and a folder for their runs."""

    files: Annotated[tuple[Path, ...], Option("", is_argument=True, metavar="FILE...")]
    out: Path | None = option(
        None,
        "Write the runs: one into DIR, several into folders in it.",
        is_common=True,
        metavar="DIR",
    )
    given: frozenset[str] = frozenset()


def _refuse_own(path: Path) -> None:
    """Refuse a run of ours, or a file of one: all verbs read it as it is."""
    folder = path if path.is_dir() else path.parent
    is_of_it = path.is_dir() or path.name == MANIFEST_NAME or path.suffix == ".parquet"
    if is_of_it and is_run(folder):
        raise RecordError(
            "this is a run of inferometer: it needs no import",
            where=str(path),
            allowed="files of other tools",
            try_=suggestions.command("show", str(folder)),
        )


def imported(question: Import) -> ImportAnswer:
    """Read the files; write their runs where --out names a folder.

    Raises
    ------
    RecordError
        A file cannot be read, or there is no run to write.
    """
    for path in question.files:
        _refuse_own(path)
    files = tuple(one for path in question.files for one in results_in(path))
    out = question.out
    results = tuple(read_results(path) for path in files)
    runs = [run for one in results for run in one.runs]
    if out is not None and not runs:
        raise RecordError(
            "the files have statistics but no requests: there is no run to write",
            where=", ".join(path.name for path in files),
            allowed=(
                "vllm bench serve --save-detailed, AIPerf's profile_export.jsonl, inference-perf's"
                " per_request_lifecycle_metrics.json"
            ),
            try_="their statistics, without --out: " + suggestions.command("import", *files),
        )
    folders = _write(runs, out)
    return ImportAnswer(
        files=tuple(
            _answer_of(path, one, folders) for path, one in zip(files, results, strict=True)
        )
    )


def _write(runs: list[Run], out: Path | None) -> dict[str, Path]:
    """Run id -> its folder."""
    if out is None:
        return {}
    folders = {
        run.manifest.run_id: out if len(runs) == 1 else out / run.manifest.run_id for run in runs
    }
    if len(folders) < len(runs):
        raise RecordError(
            "two of the files hold the same run",
            where=", ".join(sorted(folders)),
            try_="each file once",
        )
    for run in runs:
        write_run(folders[run.manifest.run_id], run)
    return folders


def _answer_of(path: Path, imported: Imported, folders: dict[str, Path]) -> ImportedFile:
    return ImportedFile(
        file=path.name,
        path=str(path),
        tool=imported.tool,
        runs=tuple(_run_of(run, folders.get(run.manifest.run_id)) for run in imported.runs),
        summaries=tuple(
            replace(one, is_all_at_once=one.offered_requests_per_s == math.inf)
            for one in imported.summaries
        ),
        points=_counted(imported),
        cautions=(
            *_contradictions(path.name, imported.summaries),
            *_left_out(path.name, imported.summaries),
        ),
    )


def _run_of(run: Run, folder: Path | None) -> ImportedRunAnswer:
    n_requests = 0 if run.requests is None else len(run.requests.status)
    return ImportedRunAnswer(
        run_id=run.manifest.run_id,
        n_requests=n_requests,
        folder=None if folder is None else str(folder),
        cautions=run.manifest.cautions,
    )


def _counted(imported: Imported) -> tuple[PointCount, ...]:
    if imported.points is None:
        return ()
    pairs = zip(imported.points.hardware.tolist(), imported.points.model.tolist(), strict=True)
    return tuple(
        PointCount(hardware=hardware, model=model, n_points=n)
        for (hardware, model), n in sorted(Counter(pairs).items())
    )


def import_text(answer: ImportAnswer) -> str:
    """Contents of each file, and what to do with it."""
    parts: list[str] = []
    for file in answer.files:
        parts.append(f"{file.file}: {file.tool}")
        parts += [
            f"  run {run.run_id}, {run.n_requests} request{'s' * (run.n_requests != 1)}"
            + ("" if run.folder is None else f" -> {run.folder}")
            for run in file.runs
        ]
        parts += [
            part
            for summary in file.summaries
            for part in (_facts(summary), *map(_latency, summary.latencies))
        ]
        parts += [_points(file.points)] if file.points else []
    follow = _next_step(answer)
    parts += [f"NEXT   {follow}"] if follow else []
    runs = (run for file in answer.files for run in file.runs)
    cautions = dict.fromkeys(
        (
            *(caution for run in runs for caution in run.cautions),
            *(caution for file in answer.files for caution in file.cautions),
        )
    )
    return "\n".join((*parts, *(f"CAUTION {one.text} – {one.remedy}" for one in cautions)))


def _next_step(answer: ImportAnswer) -> str:
    """A command: show the written runs, write them, or fit the statistics."""
    files = [Path(one.path) for one in answer.files]
    runs = [run for file in answer.files for run in file.runs]
    written = next((run.folder for run in runs if run.folder is not None), None)
    if written:
        return suggestions.command("show", written)
    if runs:
        folder = Path("runs") / files[0].stem
        keep = suggestions.command("import", *files, "--out", folder)
        return f"to keep the run{'s' * (len(runs) > 1)}: {keep}"
    points = [point for file in answer.files for point in file.points]
    loads = [one for file in answer.files for one in file.summaries if one.concurrency is not None]
    if not points and len(loads) < _FEWEST_LOADS:
        return ""
    is_named = points and all(point.model and point.hardware for point in points)
    named = () if is_named else ("--model", "ID", "--hardware", "ID")
    return f"to learn step times: {suggestions.command('fit', *files, *named)}"


def _facts(summary: PublishedSummary) -> str:
    told = {
        "model": summary.model,
        "hardware": summary.hardware,
        "requested req/s": _number(summary.offered_requests_per_s),
        "concurrency": summary.concurrency,
        "completed": summary.n_completed
        if not (n_left := _n_left_out(summary))
        else f"{summary.n_completed} of {n_left + (summary.n_completed or 0)}",
        "failed": summary.n_failed,
        "tokens in / out": None
        if summary.mean_prompt_tokens is None and summary.mean_output_tokens is None
        else (
            f"{_number(summary.mean_prompt_tokens) or '?'} /"
            f" {_number(summary.mean_output_tokens) or '?'}"
        ),
        "req/s": _number(summary.completed_requests_per_s),
        "output tok/s": _number(summary.output_tokens_per_s),
        "tok/s of prompts and answers": None
        if summary.output_tokens_per_s is not None
        else _number(summary.total_tokens_per_s),
        "good req/s": _number(summary.good_requests_per_s),
    }
    facts = ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)
    return f"  {summary.label or 'as published'}: {facts}"


def _contradictions(file: str, summaries: tuple[PublishedSummary, ...]) -> Iterator[Caution]:
    """Statistics of a file that no measurement can have: below 0, or in the wrong order."""
    for summary in summaries:
        for latency in summary.latencies:
            problem = _contradiction(latency)
            if problem is not None:
                named = " of ".join(filter(None, (latency.named, summary.label)))
                yield Caution(
                    code="CONTRADICTION",
                    text=f"{file}: {named}: {problem}, as published",
                    remedy="the tool's rows of single requests, if there are any",
                )


def _left_out(file: str, summaries: tuple[PublishedSummary, ...]) -> Iterator[Caution]:
    """Requests that a tool was to send and says nothing more of."""
    n_each = [n_left for one in summaries if (n_left := _n_left_out(one) - (one.n_failed or 0)) > 0]
    if n_each:
        yield Caution(
            code="REQUESTS_LEFT_OUT",
            text=(
                f"{file}: {sum(n_each):,} requests that were to be sent are neither completed nor"
                " counted as failed: they failed or were never sent, and no statistic is of them"
            ),
            remedy="the tool's log; rates and latencies are of the completed ones alone",
        )


def _n_left_out(summary: PublishedSummary) -> int:
    """How many of the requests that were to be sent did not complete? 0 where nothing tells."""
    n_requested, n_completed = summary.n_requested, summary.n_completed
    return 0 if n_requested is None or n_completed is None else max(n_requested - n_completed, 0)


def _contradiction(latency: PublishedLatency) -> str | None:
    ordered = [
        (f"p{one.percentile_fraction * 100:g}", one.value_s)
        for one in sorted(latency.percentiles, key=lambda one: one.percentile_fraction)
    ]
    ends = ("min", latency.min_s), ("max", latency.max_s)
    inner = ordered, [("mean", latency.mean_s)]
    for middle in inner:
        known = [
            (name, value_s) for name, value_s in (ends[0], *middle, ends[1]) if value_s is not None
        ]
        for name, value_s in known:
            if value_s < 0:
                return f"{name} is below 0 ({format_duration(value_s)})"
        for (low, low_s), (high, high_s) in pairwise(known):
            if high_s < low_s * (1 - _ROUNDED):
                shown = format_duration(high_s), format_duration(low_s)
                return f"{high} ({shown[0]}) is below {low} ({shown[1]})"
    return None


_ROUNDED: Final = 0.005
"""Tools print statistics with three digits."""


def _latency(latency: PublishedLatency) -> str:
    values = {"mean": latency.mean_s} | {
        f"p{at * 100:g}": latency.percentile_s(at) for at in _SHOWN
    }
    measured = ", ".join(
        f"{name} {format_duration(value_s)}"
        for name, value_s in values.items()
        if value_s is not None
    )
    return f"    {latency.name} (its {latency.named}): {measured}\n      {latency.definition}"


def _points(points: tuple[PointCount, ...]) -> str:
    total = sum(point.n_points for point in points)
    return "\n".join(
        (
            f"  {total} points",
            *(
                f"    {point.n_points} of {point.model or 'an unnamed model'}"
                f" on {point.hardware or 'an unnamed device'}"
                for point in points
            ),
        )
    )


def _number(value: float | None) -> str | None:
    return None if value is None else format_number(value)
