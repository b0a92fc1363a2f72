"""What is shown of sweeps, and what are the five lines that sum them up?

Every surface (terminal, HTML, JSON) draws this one view. The lines are ANSWER, LIMIT, NEXT,
TRUST, REPORT; each says only what the data carry.
"""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inferometer import __version__, suggestions
from inferometer.api import fit_views, provenance
from inferometer.api.analysis import (
    Analysis,
    decode_shape_of,
    fewer_bytes,
    point_rows,
    prefill_shape_of,
    work_of,
)
from inferometer.inputs.types import Caution, EngineMode, SweepPlan, SweepPoint
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.types import BatchShape
from inferometer.records.findings import findings_of
from inferometer.records.repetitions import noise_cautions, noise_of
from inferometer.records.summaries import limit_sentence
from inferometer.records.types import ProbeKind
from inferometer.report.tables import held_out_text
from inferometer.report.views import (
    CeilingKind,
    CeilingMoment,
    FiveLines,
    PhaseName,
    PointRow,
    RoofCeiling,
    RooflinePoint,
    RooflineView,
    Statement,
    SweepReportView,
)
from inferometer.stats.estimate import Estimate
from inferometer.units import (
    NS_PER_S,
    format_duration,
    format_fraction,
    format_number,
    format_rate,
    parse_duration_s,
)

_KNEE_GAIN_RATIO = 1.5
_DEFAULT_BUDGET = "2min"
"""Time budget of ``quick``."""


def five_lines(
    analysis: Analysis, rows: Sequence[PointRow], cautions: Sequence[Caution], *, files: str
) -> FiveLines:
    """The run in five lines, with the places of report and data."""
    measured = [row for row in rows if row.status == "ok"]
    n_open = _n_open(analysis)
    if not measured:
        answer = "No point is measured yet." if n_open else "No point could be measured."
        following = (
            _going_on(analysis, n_open) if n_open else "A smaller point: --seq 32 --batch-sizes 1"
        )
        return FiveLines(
            answer=answer,
            limit=_undecided(),
            next=following,
            trust=_trust(analysis, cautions),
            report=files,
        )
    return FiveLines(
        answer=_answer(measured),
        limit=_limit(analysis, measured),
        next=_going_on(analysis, n_open) if n_open else _next(analysis, measured),
        trust=_trust(analysis, cautions),
        report=files,
    )


def _n_open(analysis: Analysis) -> int:
    """Points of the plan that lack repetitions, because the sweep was stopped.

    One that failed lacks none.
    """
    manifest = analysis.run.manifest
    if manifest.plan is None or manifest.origin != "measured":
        return 0
    done = {
        one.point
        for one in analysis.points
        if one.status != "ok" or one.n_reps >= manifest.plan.n_reps
    }
    return sum(point not in done for point in manifest.plan.points)


def _going_on(analysis: Analysis, n_open: int) -> str:
    """How to measure the open points: the same command again, or with a longer ``--budget``."""
    manifest = analysis.run.manifest
    n_points = 0 if manifest.plan is None else len(manifest.plan.points)
    if any(one.code == "TIME_OVER" for one in manifest.cautions):
        sentence = (
            f"{n_open} of {n_points} points were left out when --budget was over; a larger one"
            " measures them, in a folder of its own."
        )
        return sentence + (f"\ntry: {_with_larger_budget(analysis)}" if manifest.command else "")
    command = shlex.join(manifest.command)
    sentence = (
        f"The sweep was stopped: {n_open} of {n_points} points lack repetitions. The same command"
        " goes on where it was."
    )
    return sentence + (f"\ntry: {command}" if command else "")


def _with_larger_budget(analysis: Analysis) -> str:
    """The command of the run with twice its budget."""
    budget, kept = _DEFAULT_BUDGET, list[str]()
    words = iter(analysis.run.manifest.command[1:])
    for word in words:
        name, has_value, value = word.partition("=")
        if name not in {"--budget", "--out"}:
            kept.append(word)
            continue
        value = value if has_value else next(words, "")
        budget = value if name == "--budget" else budget
    twice_s = math.ceil(2 * parse_duration_s(budget))
    return suggestions.command(
        kept[0], *kept[1:], "--budget", f"{twice_s}s", "--out", f"{analysis.path}-longer"
    )


def _answer(rows: Sequence[PointRow]) -> str:
    single = max(
        (row for row in rows if row.batch_size == min(row.batch_size for row in rows)),
        key=lambda row: row.prompt_tokens,
    )
    users = "1 user" if single.batch_size == 1 else f"{single.batch_size} at once"
    parts: list[str] = []
    if single.ttft_s is not None:
        parts.append(
            f"first token after {single.ttft_s.text(format_duration)}"
            f" ({single.prompt_tokens}-token prompt)"
        )
    if single.decode_tokens_per_s is not None:
        parts.append(f"{'then ' if parts else ''}{_speed(single.decode_tokens_per_s)}")
    sentence = f"{users}: {', '.join(parts) or 'no time was measured'}"
    best = useful_load(rows)
    if best is None or best.decode_tokens_per_s is None or best.batch_size == single.batch_size:
        return f"{sentence}."
    each = best.decode_tokens_per_s.value / best.batch_size
    return (
        f"{sentence}.\nBest useful load: {best.batch_size} at once, {_speed(best.decode_tokens_per_s)}"
        f" of output in total, {format_number(each)} tok/s each ({best.prompt_tokens}-token"
        " prompts)."
    )


def useful_load(rows: Sequence[PointRow]) -> PointRow | None:
    """The largest batch up to which each doubling gave 1.5x throughput, on the longest series."""
    lines: dict[int, list[PointRow]] = {}
    for row in rows:
        if row.decode_tokens_per_s is not None:
            lines.setdefault(row.prompt_tokens, []).append(row)
    if not lines:
        return None
    longest = max(lines.values(), key=len)
    line = sorted(longest, key=lambda row: row.batch_size)
    best = line[0]
    for row in line[1:]:
        if best.decode_tokens_per_s is None or row.decode_tokens_per_s is None:
            continue
        needed_ratio = _KNEE_GAIN_RATIO ** math.log2(row.batch_size / best.batch_size)
        if row.decode_tokens_per_s.value >= needed_ratio * best.decode_tokens_per_s.value:
            best = row
    return best


def _limit(analysis: Analysis, rows: Sequence[PointRow]) -> str:
    first = min(rows, key=lambda row: (row.batch_size, row.prompt_tokens))
    last = max(rows, key=lambda row: (row.batch_size, -row.prompt_tokens))
    steps = analysis.steps
    is_like = first.batch_size == 1 and steps is not None
    sentence = limit_sentence(steps) if is_like and steps else _decode_limit(analysis, first)
    fitted = fit_views.fitted_beside(fit_views.single_decode(fit_views.explained(analysis)))
    sentence += f" {fitted}: see `explain`." if fitted and is_like else ""
    if last.batch_size != first.batch_size and last.decode_limited_by not in {
        None,
        first.decode_limited_by,
    }:
        sentence += f" At batch {last.batch_size} {_limit_words(last.decode_limited_by)}."
    longest = max(rows, key=lambda row: row.prompt_tokens * row.batch_size)
    if longest.prefill_limited_by is not None:
        used = (
            f": MFU {format_fraction(longest.mfu_fraction.value)} of the measured peak"
            if longest.mfu_fraction is not None
            else ""
        )
        sentence += (
            f"\nIn prefill of {longest.batch_size} x {longest.prompt_tokens} tokens"
            f" {_limit_words(longest.prefill_limited_by)}{used}."
        )
    return sentence


def _decode_limit(analysis: Analysis, row: PointRow) -> str:
    if row.decode_limited_by is None:
        return _undecided(analysis.why_no_model)
    used = ""
    if row.mbu_fraction is not None:
        used = (
            f" (MBU {format_fraction(row.mbu_fraction.value)} of the measured"
            f" bandwidth{_peak_words(analysis, row)})"
        )
    return (
        f"In decode at batch {row.batch_size}"
        f" {_limit_words(row.decode_limited_by)}{_leading_causes(analysis, row)}{used}."
    )


def _leading_causes(analysis: Analysis, row: PointRow) -> str:
    """The two largest parts of the step where they are too close to call, so that the reader sees how close."""
    if analysis.model is None or row.decode_limited_by != "undecided":
        return ""
    point = SweepPoint(
        prompt_tokens=row.prompt_tokens, batch_size=row.batch_size, gen_tokens=row.gen_tokens
    )
    prediction = analysis.model.predict(decode_shape_of(point))
    parts = sorted(prediction.terms, key=lambda term: -term.duration_s)[:2]
    return ": " + ", ".join(
        f"{part.name} {format_fraction(part.duration_s / prediction.duration_s.value)}"
        for part in parts
    )


def _peak_words(analysis: Analysis, row: PointRow) -> str:
    summary = next(
        (
            s
            for s in analysis.points
            if (s.point.prompt_tokens, s.point.batch_size) == (row.prompt_tokens, row.batch_size)
        ),
        None,
    )
    if summary is None or summary.read_bytes_per_s is None:
        return ""
    return f", {format_rate(summary.read_bytes_per_s.value, 'B/s')}"


def _limit_words(limit: str | None) -> str:
    return (
        "the limit is undecided, no cause is clearly ahead"
        if limit in {None, "undecided"}
        else f"the limit is {limit}"
    )


def _undecided(why: str | None = None) -> str:
    return "Undecided" + (f": {why}." if why else ".")


def _next(analysis: Analysis, rows: Sequence[PointRow]) -> str:
    """What would help most by the fitted model, and the command that shows it."""
    model, plan = analysis.model, analysis.run.manifest.plan
    if plan is None:
        return (
            "Say what the table measured, so that a model can be fitted: --model MODEL --dtype"
            " DTYPE, and --hardware ID"
        )
    if model is None:
        return (
            "A sweep over more batch sizes and prompt lengths, so that a model can be"
            " fitted.\ntry: " + suggestions.command("sweep", "--help")
        )
    return "\ntry: ".join(_next_of_model(analysis, model, plan, rows))


def _next_of_model(
    analysis: Analysis, model: StepTimeModel, plan: SweepPlan, rows: Sequence[PointRow]
) -> tuple[str, str]:
    """What would help most by the model, and the command that shows it."""
    row = min(rows, key=lambda row: (row.batch_size, row.prompt_tokens))
    point = SweepPoint(
        prompt_tokens=row.prompt_tokens, batch_size=row.batch_size, gen_tokens=row.gen_tokens
    )
    if (
        row.decode_limited_by == "launch overhead"
        and plan.engine.engine == "transformers"
        and plan.engine.mode != "compiled"
    ):
        return _fewer_launches(analysis, model, plan, point)
    if row.decode_limited_by == "weight bandwidth":
        steps = analysis.steps if row.batch_size == 1 else None
        gain_ratio = (
            steps.half_ratio  # as the line of the limit says
            if steps is not None and steps.half_ratio is not None
            else _gain_with_weights_shrunk(model, point, 2.0)
        )
        if gain_ratio is not None and row.decode_tokens_per_s is not None:
            return (
                (
                    "Half the weight bytes would give about"
                    f" {format_number(row.decode_tokens_per_s.value * gain_ratio)} tok/s"
                    f" ({gain_ratio:.1f}x) at batch {row.batch_size}, if the kernels keep their"
                    " efficiency."
                ),
                _prediction_of(plan, row, *fewer_bytes(plan.engine, analysis.hardware)),
            )
    best = useful_load(rows)
    top = max(rows, key=lambda row: row.batch_size)
    if best is not None and best.batch_size == top.batch_size > row.batch_size:
        larger = f"{top.batch_size},{2 * top.batch_size},{4 * top.batch_size}"
        return (
            (
                f"Up to batch {top.batch_size} each doubling bought {_KNEE_GAIN_RATIO:g}x the"
                " throughput or more: larger batches are worth measuring."
            ),
            _sweep_of(
                plan,
                plan.engine.mode,
                *("--seq", top.prompt_tokens, "--batch-sizes", larger),
                *("--gen-tokens", top.gen_tokens),
            ),
        )
    return "Predict other batches, lengths and formats.", _prediction_of(plan, top)


def _fewer_launches(
    analysis: Analysis, model: StepTimeModel, plan: SweepPlan, point: SweepPoint
) -> tuple[str, str]:
    """The share of launches, and the same points in the mode that has fewer of them."""
    share = _launch_share(analysis, model, point)
    return (
        f"Launch overhead is {share} of a step: fewer launches would help.",
        _sweep_of(plan, "compiled", *provenance.sweep_options_of(plan.points)),
    )


def _prediction_of(plan: SweepPlan, row: PointRow, *more: object) -> str:
    """The prediction of this point, as a command to complete."""
    words: list[object] = [plan.model, "--hardware", "this", "--batch", row.batch_size]
    words += ["--prompt", row.prompt_tokens, "--output", row.gen_tokens]
    n_devices = plan.engine.tensor_parallel_size
    words += ["--tp", n_devices] if n_devices > 1 else []
    return suggestions.command("predict", *words, *more)


def _sweep_of(plan: SweepPlan, mode: EngineMode, *more: object) -> str:
    """The sweep of the same model on the same engine, as a command to complete; defaults are left out."""
    engine = plan.engine
    words = ["--model", plan.model, "--dtype", engine.dtype]
    words += ["--load-format", "dummy"] if engine.load_format == "dummy" else []
    words += ["--engine", engine.engine] if engine.engine != "transformers" else []
    words += ["--mode", mode] if mode != "eager" else []
    words += ["--quantization", engine.quantization] if engine.quantization is not None else []
    words += ["--tp", str(engine.tensor_parallel_size)] if engine.tensor_parallel_size > 1 else []
    return suggestions.command("sweep", *words, *more)


def _launch_share(analysis: Analysis, model: StepTimeModel, point: SweepPoint) -> str:
    """Share of launches: by paired steps of one sequence, else by the model."""
    if point.batch_size == 1 and analysis.steps is not None:
        parts = {part.cause: part.fraction.value for part in analysis.steps.parts}
        if "launch overhead" in parts:
            return format_fraction(parts["launch overhead"])
    prediction = model.predict(decode_shape_of(point))
    seconds = sum(term.duration_s for term in prediction.terms if term.name == "launch")
    return format_fraction(seconds / prediction.duration_s.value)


def _gain_with_weights_shrunk(
    model: StepTimeModel, point: SweepPoint, factor_ratio: float
) -> float | None:
    """Speed-up of a step whose weights are read ``factor_ratio`` times faster."""
    prediction = model.predict(decode_shape_of(point))
    saved_s = sum(term.duration_s for term in prediction.terms if term.name == "weights") * (
        1 - 1 / factor_ratio
    )
    after_s = prediction.duration_s.value - saved_s
    return prediction.duration_s.value / after_s if after_s > 0 else None


def _trust(analysis: Analysis, cautions: Sequence[Caution]) -> str:
    reps = [summary.n_reps for summary in analysis.points if summary.n_reps]
    parts = ["no repeats" if not reps else "1 repeat" if min(reps) == 1 else f"{min(reps)} repeats"]
    held_out = fit_views.held_out_rows(analysis)
    if held_out:
        parts.append(f"error on points held out: {held_out_text(held_out)}")
    elif analysis.why_no_model:
        parts.append(f"no model: {analysis.why_no_model}")
    noise = noise_of(analysis.run)
    if noise.median_spread_ratio is not None:
        parts.append(f"spread between repeats {format_fraction(noise.median_spread_ratio)}")
    parts.append(
        f"{len(cautions)} caution{'' if len(cautions) == 1 else 's'}"
        if cautions
        else "machine steady"
    )
    return " · ".join(parts)


def _speed(estimate: Estimate) -> str:
    return estimate.text(unit=" tok/s", bare=f" (n={estimate.n_samples})")


def sweep_view(analyses: Sequence[Analysis], *, report_path: Path | None = None) -> SweepReportView:
    """Data of one run or several: the first run gives the head, all give points and charts."""
    first = analyses[0]
    rows = [point_rows(analysis) for analysis in analyses]
    cautions = tuple(
        dict.fromkeys(
            c
            for analysis in analyses
            for c in (*analysis.run.manifest.cautions, *noise_cautions(analysis.run))
        )
    )
    is_single = len(analyses) == 1
    return SweepReportView(
        title=_title(first),
        subtitle=_subtitle(analyses),
        five_lines=five_lines(first, rows[0], cautions, files=_files_line(first, report_path)),
        points=tuple(row for group in rows for row in group),
        curves=tuple(curve for analysis in analyses for curve in fit_views.curves(analysis)),
        roofline=roofline(tuple(analyses)),
        predictions=tuple(
            point for analysis in analyses for point in fit_views.predictions(analysis)
        ),
        explained=tuple(row for analysis in analyses for row in fit_views.explained(analysis)),
        ceilings=tuple(moment for analysis in analyses for moment in ceiling_moments(analysis)),
        statements=tuple(
            statement
            for analysis in analyses
            for statement in _statements(analysis, is_single=is_single)
        ),
        cautions=cautions,
        parameters=fit_views.parameters(first),
        step_shares=first.steps,
        held_out=tuple(row for analysis in analyses for row in fit_views.held_out_rows(analysis)),
        fact_groups=tuple(
            group
            for analysis in analyses
            for group in provenance.fact_groups(analysis.run, analysis.label)
        ),
        files=tuple(file for analysis in analyses for file in provenance.data_files(analysis.path)),
        rerun_command=provenance.rerun_command(first.run),
        tool_version=__version__,
    )


def _statements(analysis: Analysis, *, is_single: bool) -> list[Statement]:
    prefix = "" if is_single else f"{analysis.label}: "
    return [
        Statement(sentence=prefix + finding.sentence, support=finding.support)
        for finding in findings_of(analysis.run)
    ]


def _title(analysis: Analysis) -> str:
    model = analysis.run.manifest.model
    return model.model_id if model is not None else analysis.label


def _subtitle(analyses: Sequence[Analysis]) -> str:
    host = analyses[0].run.manifest.host
    where = "" if host is None else f" · {host.accelerator or host.cpu_model or 'this machine'}"
    threads = (
        f" ({host.n_threads_used} threads)"
        if host is not None and host.accelerator is None and host.n_threads_used
        else ""
    )
    if len(analyses) == 1 and analyses[0].label == _title(analyses[0]):
        return f"a table that names neither model nor engine{where}"
    return " against ".join(analysis.label for analysis in analyses) + where + threads


def _files_line(analysis: Analysis, report_path: Path | None) -> str:
    shown = report_path or provenance.page_beside(analysis.path)
    return (
        f"{shown or 'none yet: ' + suggestions.command('report', analysis.path)}\nDATA"
        f" {analysis.path}"
    )


# How are the ceilings of the machine shown: over the time of a run, and as roofs above its
# points?


def ceiling_moments(analysis: Analysis) -> tuple[CeilingMoment, ...]:
    """The machine's ceilings over the run."""
    table = analysis.run.ceilings
    if table is None:
        return ()
    names: dict[ProbeKind, CeilingKind] = {
        ProbeKind.READ: "read",
        ProbeKind.COPY: "copy",
        ProbeKind.MATMUL: "matmul",
    }
    return tuple(
        CeilingMoment(
            run_label=analysis.label,
            elapsed_s=started / NS_PER_S,
            kind=names[ProbeKind(kind)],
            value_per_s=value,
        )
        for started, kind, value in zip(
            table.started_ns.tolist(), table.kind.tolist(), table.value_per_s.tolist(), strict=True
        )
        if kind in names
    )


def roofline(analyses: tuple[Analysis, ...]) -> RooflineView | None:
    """Each phase of each point under the measured roofs, and the datasheet's where named."""
    points = [point for analysis in analyses for point in _roofline_points(analysis)]
    roofs = [roof for analysis in analyses for roof in _roofs(analysis)]
    return RooflineView(ceilings=tuple(roofs), points=tuple(points)) if points and roofs else None


def _roofline_points(analysis: Analysis) -> list[RooflinePoint]:
    found: list[RooflinePoint] = []
    for summary in analysis.points:
        phases: tuple[tuple[PhaseName, Estimate | None, BatchShape], ...] = (
            ("prefill", summary.prefill_s, prefill_shape_of(summary.point)),
            ("decode", summary.decode_step_s, decode_shape_of(summary.point)),
        )
        for phase, taken_s, shape in phases:
            work = work_of(analysis, shape)
            if taken_s is None or work is None:
                continue
            found.append(
                RooflinePoint(
                    run_label=analysis.label,
                    phase=phase,
                    prompt_tokens=summary.point.prompt_tokens,
                    batch_size=summary.point.batch_size,
                    intensity_flop_per_byte=work.total_flop / work.memory_bytes,
                    achieved_flop_per_s=taken_s.inverted(work.total_flop),
                )
            )
    return found


def _roofs(analysis: Analysis) -> list[RoofCeiling]:
    roofs: list[RoofCeiling] = []
    reads = [
        summary.read_bytes_per_s.value for summary in analysis.points if summary.read_bytes_per_s
    ]
    matmuls = [
        summary.matmul_flop_per_s.value for summary in analysis.points if summary.matmul_flop_per_s
    ]
    if reads and matmuls:
        roofs.append(
            _roof(
                f"measured, {analysis.label}",
                "measured",
                float(np.median(reads)),
                float(np.median(matmuls)),
            )
        )
    plan, hardware = analysis.run.manifest.plan, analysis.hardware
    peak = (
        hardware.peak_flop_per_s(plan.engine.dtype)
        if hardware is not None and plan is not None
        else None
    )
    if hardware is not None and peak is not None:
        roofs.append(
            _roof(
                f"datasheet, {hardware.name}",
                "datasheet",
                hardware.memory_bytes_per_s.value,
                peak.value,
            )
        )
    return roofs


def _roof(label: str, kind: str, read_bytes_per_s: float, peak_flop_per_s: float) -> RoofCeiling:
    return RoofCeiling(
        label=label,
        kind="measured" if kind == "measured" else "datasheet",
        read_bytes_per_s=read_bytes_per_s,
        peak_flop_per_s=peak_flop_per_s,
    )
