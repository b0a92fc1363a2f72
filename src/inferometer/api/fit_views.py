"""How is a fitted model shown: curves, predictions against measurements, where the time goes, parameters?"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from inferometer import suggestions
from inferometer.api.analysis import Analysis, decode_shape_of, held_out_estimate, prefill_shape_of
from inferometer.api.fitted_steps import ServedFit
from inferometer.fit.loads import estimation, server_fit
from inferometer.fit.loads.server import KnobFit
from inferometer.fit.sweeps import regression, step_time
from inferometer.inputs.types import Caution, SweepPoint
from inferometer.perfmodel import scenario, steptime_limits, types
from inferometer.perfmodel.roofline import exact
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel
from inferometer.report.page import Chip, Page, Section, duration_number, lines_of
from inferometer.report.request_tables import duration_cell
from inferometer.report.tables import ABSENT_TEXT, LEAST_FOR_P95, TextTable, error_text
from inferometer.report.views import (
    Curve,
    CurvePoint,
    Explained,
    HeldOutRow,
    ParameterRow,
    PhaseName,
    PredictedPoint,
    TimePart,
)
from inferometer.stats.estimate import Estimate
from inferometer.units import (
    format_bytes,
    format_duration,
    format_fraction,
    format_number,
    format_rate,
)

_CURVE_POINTS_PER_DOUBLING = 2
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_bytes_per_s", partial(format_rate, unit="B/s")),
    ("_flop_per_s", partial(format_rate, unit="FLOP/s")),
    ("_bytes", format_bytes),
    ("_fraction", format_fraction),
    ("_ratio", format_number),
    ("_s", format_duration),
)


def curves(analysis: Analysis) -> tuple[Curve, ...]:
    """Predicted prefill and decode steps over prompt length and batch, a little past the points."""
    if analysis.model is None:
        return ()
    points = [summary.point for summary in analysis.points]
    gen_tokens = max((point.gen_tokens for point in points), default=1)
    prompts = sorted({point.prompt_tokens for point in points})
    batches = sorted({point.batch_size for point in points})
    along_prompts = [
        [(prompt, batch) for prompt in _between(prompts)] for batch in batches if len(prompts) > 1
    ]
    along_batches = [
        [(prompt, batch) for batch in _between(batches)] for prompt in prompts if len(batches) > 1
    ]
    phases: tuple[PhaseName, ...] = ("prefill", "decode")
    return tuple(
        _curve(
            analysis,
            analysis.model,
            phase,
            [SweepPoint(prompt_tokens=p, batch_size=b, gen_tokens=gen_tokens) for p, b in line],
        )
        for phase in phases
        for line in (*along_prompts, *along_batches)
    )


def predictions(analysis: Analysis) -> tuple[PredictedPoint, ...]:
    """Held-out prediction of each point, with its measurement."""
    by_place = {
        (summary.point.prompt_tokens, summary.point.batch_size): summary
        for summary in analysis.points
    }
    found: list[PredictedPoint] = []
    for point in analysis.held_out:
        summary = by_place.get((point.prompt_tokens, point.batch_size))
        measured = (
            None
            if summary is None
            else summary.prefill_s
            if point.phase == "prefill"
            else summary.decode_step_s
        )
        if measured is None:
            continue
        found.append(
            PredictedPoint(
                run_label=analysis.label,
                phase=point.phase,
                prompt_tokens=point.prompt_tokens,
                batch_size=point.batch_size,
                measured_s=_around(point.measured_s, measured),
                predicted_s=held_out_estimate(point),
                is_held_out=True,
                is_judged=step_time.is_judged(point),
            )
        )
    return tuple(found)


_WEIGHTS_OF_FIT: Final = {
    "weights": "weights",
    "logits": "logits with the head's weights",
    "launch": "launches",
    "unexplained": "a rest that it does not explain",
}
"""Parts of a fitted decode step beside what paired rounds call reading weights, and launches."""


def explained(analysis: Analysis) -> tuple[Explained, ...]:
    """Parts of the time of each phase of each point; the rest is *unexplained*."""
    if analysis.model is None:
        return ()
    measured = {
        (p.point.prompt_tokens, p.point.batch_size): {
            "prefill": p.prefill_s,
            "decode": p.decode_step_s,
        }
        for p in analysis.points
    }
    return tuple(
        Explained(
            run_label=analysis.label,
            phase=step.phase,
            prompt_tokens=step.prompt_tokens,
            batch_size=step.batch_size,
            measured_s=_around(
                step.measured_s,
                measured.get((step.prompt_tokens, step.batch_size), {}).get(step.phase),
            ),
            parts=tuple(
                TimePart(name=term.name, duration_s=term.duration_s)
                for term in step.terms
                if term.duration_s
            ),
            limited_by=step.limited_by,
        )
        for step in sorted(
            regression.explain(analysis.run, analysis.model),
            key=lambda step: (step.phase, step.prompt_tokens, step.batch_size),
        )
    )


def single_decode(rows: Sequence[Explained]) -> Explained | None:
    """Decode of one sequence after the shortest prompt, which paired rounds measure too."""
    return min(
        (row for row in rows if row.phase == "decode" and row.batch_size == 1),
        key=lambda row: row.prompt_tokens,
        default=None,
    )


def fitted_beside(row: Explained | None) -> str:
    """Prediction for the step that paired rounds measure; '' without one.

    Paired rounds compare steps of a wide and a narrow model, to tell launches from weights. The
    fit, of whole steps of few sizes, counts the head's weights as logits and leaves a rest.
    """
    if row is None:
        return ""
    shares = {part.name: part.duration_s / row.measured_s.value for part in row.parts}
    said = ", ".join(
        f"{word} {format_fraction(shares[name])}"
        for name, word in _WEIGHTS_OF_FIT.items()
        if name in shares
    )
    return f"The fitted model says {said} ({row.prompt_tokens}×1)" if said else ""


def _around(measured_s: float, summary: Estimate | None) -> Estimate:
    """The median of a segment of the point's steps, with the relative interval of the whole point."""
    return (
        exact(measured_s, method="median over repetitions")
        if summary is None
        else summary.scaled(measured_s / summary.value)
    )


def parameters(analysis: Analysis) -> tuple[ParameterRow, ...]:
    """The fitted parameters in the units of people."""
    if analysis.model is None:
        return ()
    return tuple(parameter_row(parameter) for parameter in analysis.model.parameters)


def held_out_rows(analysis: Analysis) -> tuple[HeldOutRow, ...]:
    """Errors of the model on held-out points."""
    if analysis.model is None:
        return ()
    return tuple(
        HeldOutRow(
            run_label=analysis.label,
            phase=error.phase,
            n_points=error.n_points,
            median_fraction=error.median_fraction,
            p95_fraction=error.p95_fraction,
            coverage_fraction=error.coverage_fraction,
        )
        for error in analysis.model.held_out
    )


def _curve(
    analysis: Analysis, model: StepTimeModel, phase: PhaseName, line: list[SweepPoint]
) -> Curve:
    predictions = model.predict_all(
        [
            prefill_shape_of(point) if phase == "prefill" else decode_shape_of(point)
            for point in line
        ]
    )
    return Curve(
        run_label=analysis.label,
        phase=phase,
        points=tuple(
            CurvePoint(
                prompt_tokens=point.prompt_tokens,
                batch_size=point.batch_size,
                duration_s=prediction.duration_s,
                is_inside_box=prediction.is_inside_box,
            )
            for point, prediction in zip(line, predictions, strict=True)
        ),
    )


def _between(counts: list[int]) -> list[int]:
    """The counts themselves and steps between them, up to one doubling past the largest."""
    low, high = min(counts), 2 * max(counts)
    n_steps = max(2, int(_CURVE_POINTS_PER_DOUBLING * np.log2(high / low)) + 1)
    return sorted(
        {*counts, *np.unique(np.geomspace(low, high, n_steps).round().astype(int)).tolist()}
    )


def parameter_row(parameter: FittedParameter) -> ParameterRow:
    """A fitted parameter in the units of people."""
    show = next((show for suffix, show in _UNITS if parameter.name.endswith(suffix)), format_number)
    estimate = parameter.estimate
    interval = (
        "not fitted"
        if estimate.low is None or estimate.high is None
        else f"{show(estimate.low)} to {show(estimate.high)}"
    )
    return ParameterRow(
        name=parameter.name,
        value=show(estimate.value),
        interval=interval,
        informed_by=parameter.informed_by,
    )


_CAUTION_SCATTER: Final = 2.0
_AT_PEAK: Final = 1.01
_TYPICAL_TOKENS: Final = 512
_TYPICAL_BATCH: Final = 16


def fit_page(model: StepTimeModel, model_file: str, served: ServedFit | None = None) -> Page:
    """A page of held-out errors, parameters with intervals, and the valid box.

    Of published loads, which know no single step, the held-out errors are those of what clients
    saw.
    """
    trained, is_seen = model.trained_on, bool(_seen_as(model))
    unit = "latencies of" if is_seen else "step times of"
    what = f"{trained.n_observations} {unit} {trained.n_configurations} points"
    what += "" if model.subject is None else f": {model.subject.text}"
    checked = (
        (_agreement_table(served),)
        if served is not None and served.held_out
        else (_errors(model),)
        if model.held_out
        else ()
    )
    words = (model.model.model_id, "--fit", model_file, "--concurrency", "16")
    steps = _steps(model)
    return Page(
        title=(
            f"{model.model.model_id} on {trained.hardware or 'a machine that is not named'}:"
            f" {steps[-1][0]} takes {duration_cell(steps[-1][1]).partition(' [')[0]}"
        ),
        subtitle=f"fitted to {what}",
        numbers=tuple(number for name, found in steps for number in duration_number(name, found)),
        table=checked[0] if checked else None,
        lines=lines_of(
            ("TRUST", _off_halves(served) if served and served.held_out else _off(model)),
            ("NEXT", suggestions.command("simulate", *words) if is_seen else ""),
            ("DATA", model_file),
        ),
        cautions=tuple(
            Caution(code="at a bound", text=one.why, remedy=one.remedy)
            for one in regression.at_bounds(model)
        ),
        sections=(
            Section(
                id="parameters",
                title="What was fitted, and where does it hold?",
                nav="Parameters",
                tables=(*checked, _parameters(model.parameters), _box(model)),
            ),
        ),
    )


def _errors(model: StepTimeModel) -> TextTable:
    seen = _seen_as(model)
    rows = tuple(
        (
            seen.get(error.phase, error.phase),
            str(error.n_points),
            format_fraction(error.median_fraction),
            format_fraction(error.p95_fraction) if error.n_points >= LEAST_FOR_P95 else ABSENT_TEXT,
            format_fraction(error.coverage_fraction),
        )
        for error in model.held_out
    )
    header = ("held out", "points", "median error", "95th percentile", "in the 90 % interval")
    return TextTable(caption="Error on points held out", header=header, rows=rows)


def _parameters(parameters: tuple[FittedParameter, ...]) -> TextTable:
    rows = tuple(
        (row.name, row.value, row.interval, row.informed_by)
        for row in map(parameter_row, parameters)
    )
    header = ("parameter", "value", "90 % interval", "based on")
    return TextTable(caption="Parameters of a step", header=header, rows=rows)


def _box(model: StepTimeModel) -> TextTable:
    rows = tuple((side.quantity, f"{side.low:,.0f}", f"{side.high:,.0f}") for side in model.box)
    return TextTable(
        caption="Shapes in which it holds", header=("valid box", "from", "to"), rows=rows
    )


def _agreement_table(served: ServedFit) -> TextTable:
    rows = tuple(
        (
            f"{one.latency.upper()} {one.statistic}",
            format_duration(one.measured_s),
            format_duration(one.simulated_s),
            f"{one.simulated_s / one.measured_s - 1:+.1%}",
        )
        for one in served.held_out
    )
    header = (served.held_out_words, "measured", "simulated", "error")
    return TextTable(caption="Simulated against measured", header=header, rows=rows)


def _seen_as(model: StepTimeModel) -> dict[str, str]:
    """Names of the latencies by which the phases were fitted."""
    return {"decode": "TPOT", "prefill": "TTFT"} if model.front_end_s is not None else {}


def _steps(model: StepTimeModel) -> list[tuple[str, Estimate]]:
    """Times of a prefill and of decode steps."""
    context = steptime_limits.nearest(
        model.box, "context tokens per decoding request", _TYPICAL_TOKENS
    )
    prompt = steptime_limits.nearest(model.box, "prompt tokens per request", _TYPICAL_TOKENS)
    batches = sorted(
        {
            steptime_limits.nearest(model.box, "decoding requests", batch)
            for batch in (1, _TYPICAL_BATCH)
        }
    )
    shapes = {
        f"a prefill of {prompt:,} tokens": types.prefill_shape(batch_size=1, prompt_tokens=prompt)
    }
    shapes |= {
        f"a decode step at batch {batch}": types.decode_shape(
            batch_size=batch, context_tokens=context
        )
        for batch in batches
    }
    steps = model.predict_all(list(shapes.values()))
    return [(name, step.duration_s) for name, step in zip(shapes, steps, strict=True)]


def _off(model: StepTimeModel) -> str:
    """Held-out error, in words."""
    seen = _seen_as(model)
    off = ", ".join(
        error_text(
            seen.get(error.phase, error.phase),
            error.median_fraction,
            error.n_points,
            error.coverage_fraction,
        )
        for error in model.held_out
    )
    text = f"error on points held out: {off}" if off else "no points were held out"
    if not model.machine_ratio:
        return text
    wide = format_fraction(model.other_times_fraction)
    return (
        f"{text}; intervals hold at other times, when this machine may be {wide} slower or faster"
    )


def _off_halves(served: ServedFit) -> str:
    """Error on the held-out half's statistics, in words."""
    errors = {
        f"{one.latency.upper()} {one.statistic}": one.simulated_s / one.measured_s - 1
        for one in served.held_out
    }
    worst = max(errors, key=lambda name: abs(errors[name]))
    middle = float(np.median(np.abs(list(errors.values()))))
    return (
        f"{len(errors)} statistics of the {served.held_out_words}: median error"
        f" {format_fraction(middle)}, worst {errors[worst]:+.1%} ({worst})"
    )


def server_fit_page(fit: server_fit.ServerFit, fit_file: str) -> Page:
    """A page on the fitted server, its uncertainty, and load tests that would reduce it."""
    words = (fit.served_model, "--fit", fit_file, "--rate", "R")
    steps = _server_steps(fit)
    probes = [f"{knob.name}: {knob.probe}" for knob in fit.knobs if knob.probe is not None]
    of = "" if fit.subject is None else f" · {fit.subject.text}"
    limits = [
        f"{_interval(knob) or _value(knob.value)} {estimation.LIMIT_WORDS[knob.name]}"
        for knob in fit.knobs
        if knob.name in estimation.LIMIT_WORDS
    ]
    return Page(
        title=f"{fit.served_model}: {steps[1][0]} takes {format_duration(steps[1][1].value)}",
        subtitle=f"fitted to {_seen_words(fit)}{of}",
        numbers=tuple(number for name, found in steps for number in duration_number(name, found)),
        table=_knobs(fit),
        lines=lines_of(
            ("LIMIT", ", ".join(limits)),
            ("OR", f"a further load test would tell {'; '.join(probes)}" if probes else ""),
            ("TRUST", _residual(fit)),
            ("NEXT", suggestions.command("simulate", *words)),
            ("DATA", fit_file),
        ),
        cautions=tuple(_cautions(fit)),
        sections=(
            Section(
                id="parameters",
                title="What was fitted?",
                nav="Parameters",
                tables=(_knobs(fit), _parameters(fit.parameters)),
            ),
        ),
    )


def refused_page(fit: server_fit.ServerFit, refusal: estimation.Refusal) -> Page:
    """A page on why the load tests were not fitted, and what would help."""
    return Page(
        title=f"Undecided: {refusal.reason}",
        subtitle=_seen_words(fit),
        chips=(Chip(verdict="undecided", text="no server explains these load tests"),),
        lines=lines_of(
            ("WHY", "\n".join(refusal.facts)),
            ("TRUST", f"none: {_residual(fit)}; nothing was written"),
            ("NEXT", refusal.probe),
        ),
    )


def _seen_words(fit: server_fit.ServerFit) -> str:
    seen = fit.seen
    return (
        f"{seen.n_requests:,} requests in {len(seen.run_ids)} load tests, {seen.n_answers_at_once}"
        " answers at once"
    )


def _knobs(fit: server_fit.ServerFit) -> TextTable:
    rows = tuple(
        (knob.name, _value(knob.value), _interval(knob), knob.informed_by, knob.text)
        for knob in fit.knobs
    )
    header = ("limit or switch", "taken as", "90 % interval", "based on", "in words")
    return TextTable(caption="Limits and switches of the server", header=header, rows=rows)


def _residual(fit: server_fit.ServerFit) -> str:
    """Deviation of the fitted server's simulation from the load tests."""
    tpot, ttft = (
        format_fraction(share) for share in (fit.tpot_residual_fraction, fit.ttft_residual_fraction)
    )
    return (
        f"simulated again, the mean TPOT of like requests is off by {tpot}, TTFT by {ttft}:"
        f" {fit.scatter_ratio:.2g} times what is expected"
    )


def _cautions(fit: server_fit.ServerFit) -> list[Caution]:
    """Cautions that limit this fit."""
    cautions = list[Caution]()
    if fit.scatter_ratio > _CAUTION_SCATTER:
        cautions.append(
            Caution(
                code="residual",
                text=(
                    "the residual is large: prompts that begin alike, a machine that does other"
                    " work, or a limit that is named wrongly; the intervals are wider for it"
                ),
                remedy="name the workload (--workload FILE)",
            )
        )
    at_peak = [
        one.name
        for one, floor_s in zip(fit.parameters, fit.floors_s, strict=False)
        if floor_s and one.estimate.value < _AT_PEAK * floor_s
    ]
    if at_peak:
        cautions.append(
            Caution(
                code="at the peak",
                text=f"{', '.join(at_peak)} at the device's peak, as fast as can be",
                remedy="check --hardware, --dtype and --tp",
            )
        )
    return cautions


def _server_steps(fit: server_fit.ServerFit) -> list[tuple[str, Estimate]]:
    """Times of a prompt (front end included) and of a decode step."""
    seen, n_decodes = fit.seen, max(fit.seen.n_answers_at_once // 2, 1)
    prefill = types.prefill_shape(batch_size=1, prompt_tokens=seen.median_prompt_tokens)
    decode = types.decode_shape(batch_size=n_decodes, context_tokens=seen.median_context_tokens)
    n_steps = fit.n_prompt_steps(batch_size=1, prompt_tokens=seen.median_prompt_tokens)
    return [
        (
            f"a prompt of {seen.median_prompt_tokens:,} tokens",
            fit.step_estimate(
                scenario.mean_step(prefill, n_steps), n_steps=n_steps, further_s=fit.front_end_s
            ),
        ),
        (f"a decode step at batch {n_decodes}", fit.step_estimate(decode)),
    ]


def _value(value: int | bool) -> str:  # noqa: FBT001 -- a limit or a switch
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:,}"


def _interval(knob: KnobFit) -> str:
    if isinstance(knob.value, bool) or knob.low is None:
        return ""
    if knob.low == knob.high:
        return f"{knob.low:,}"
    return f"{knob.low:,} or more" if knob.high is None else f"{knob.low:,} to {knob.high:,}"
