"""How is a fitted model shown: curves, predictions against measurements, where the time goes, parameters?"""

from collections.abc import Callable
from functools import partial

import numpy as np

from inferometer.api.analysis import Analysis, decode_shape_of, held_out_estimate, prefill_shape_of
from inferometer.fit.sweeps.diagnostics import explain
from inferometer.fit.sweeps.step_time import is_judged
from inferometer.inputs.types import SweepPoint
from inferometer.perfmodel.roofline import exact
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel
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
    prompts, batches = (
        sorted({point.prompt_tokens for point in points}),
        sorted({point.batch_size for point in points}),
    )
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
    """Predictions of each point by a model that had not seen it, beside the measurements."""
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
                is_judged=is_judged(point),
            )
        )
    return tuple(found)


def explained(analysis: Analysis) -> tuple[Explained, ...]:
    """Where the time of each phase of each point goes; what the model does not account for is *unexplained*."""
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
            explain(analysis.run, analysis.model),
            key=lambda step: (step.phase, step.prompt_tokens, step.batch_size),
        )
    )


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
    """How wrong the model was on points that it had not seen."""
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
