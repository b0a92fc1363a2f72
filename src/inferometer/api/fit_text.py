"""How does a fitted model, or server, look in the terminal?"""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer import suggestions
from inferometer.api.fit_views import parameter_row
from inferometer.api.kernel_fitting import ServedFit
from inferometer.fit.loads import conclusions
from inferometer.fit.loads.conclusions import Refusal
from inferometer.fit.loads.server import KnobFit
from inferometer.fit.loads.server_fit import ServerFit
from inferometer.fit.sweeps.diagnostics import at_bounds
from inferometer.perfmodel import steptime_limits, types
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.report.cells import ABSENT_TEXT, LEAST_FOR_P95, error_text
from inferometer.report.request_words import duration_cell
from inferometer.units import format_duration, format_fraction

_CAUTION_SCATTER: Final = 2.0
_AT_PEAK: Final = 1.01
_TYPICAL_TOKENS: Final = 512
_TYPICAL_BATCH: Final = 16


def fit_text(
    model: StepTimeModel, model_file: str, served: ServedFit | None = None
) -> RenderableType:
    """Error on points held out, parameters with intervals, and the box in which the model was checked.

    Of published loads, which know no single step, the held-out errors are those of what clients
    saw.
    """
    seen = _seen_as(model)
    errors = Table(
        "held out",
        "points",
        "median error",
        "95th percentile",
        "in the 90 % interval",
        box=None,
        pad_edge=False,
    )
    for error in model.held_out:
        p95 = (
            format_fraction(error.p95_fraction) if error.n_points >= LEAST_FOR_P95 else ABSENT_TEXT
        )
        shares = (
            format_fraction(error.median_fraction),
            p95,
            format_fraction(error.coverage_fraction),
        )
        errors.add_row(seen.get(error.phase, error.phase), str(error.n_points), *shares)
    fitted = Table("parameter", "value", "90 % interval", "told by", box=None, pad_edge=False)
    for row in (parameter_row(parameter) for parameter in model.parameters):
        fitted.add_row(row.name, row.value, row.interval, row.told_by)
    box = Table("valid box", "from", "to", box=None, pad_edge=False)
    for side in model.box:
        box.add_row(side.quantity, f"{side.low:,.0f}", f"{side.high:,.0f}")
    trained = model.trained_on
    unit = "latencies of" if seen else "step times of"
    what = f"{trained.n_observations} {unit} {trained.n_configurations} points"
    what += "" if model.subject is None else f": {model.subject.text}"
    next_ = (
        "\nNEXT  "
        + suggestions.command(
            "simulate", model.model.model_id, "--fit", model_file, "--concurrency", "16"
        )
        if seen
        else ""
    )
    checked = (
        [_agreement_table(served)]
        if served is not None and served.held_out
        else [errors]
        if model.held_out
        else []
    )
    tables = (*((table, Text("")) for table in checked), (fitted, Text("")), (box,))
    cautions = [Text(f"CAUTION {one.why} – {one.remedy}") for one in at_bounds(model)]
    head = (Text(_answer(model), style="bold"), Text(f"FROM   {what}\n"))
    body = (part for parts in tables for part in parts)
    return Group(*head, *body, Text(""), *cautions, Text(f"MODEL  {model_file}{next_}"))


def _agreement_table(served: ServedFit) -> Table:
    table = Table(served.held_out_words, "measured", "simulated", "error", box=None, pad_edge=False)
    for one in served.held_out:
        table.add_row(
            f"{one.latency.upper()} {one.statistic}",
            format_duration(one.measured_s),
            format_duration(one.simulated_s),
            f"{one.simulated_s / one.measured_s - 1:+.1%}",
        )
    return table


def _seen_as(model: StepTimeModel) -> dict[str, str]:
    """What clients call the phases, where their latencies were fitted."""
    return {"decode": "TPOT", "prefill": "TTFT"} if model.front_end_s is not None else {}


def _answer(model: StepTimeModel) -> str:
    """How long do a prefill and decode steps take, and how far off was that on points held out?"""
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
    steps = zip(shapes, model.predict_all(list(shapes.values())), strict=True)
    takes = ", ".join(f"{what} {duration_cell(step.duration_s)}" for what, step in steps)
    where = (
        f"{model.model.model_id} on {model.trained_on.hardware or 'a machine that is not named'}"
    )
    off = ", ".join(
        error_text(
            _seen_as(model).get(error.phase, error.phase), error.median_fraction, error.n_points
        )
        for error in model.held_out
    )
    return f"ANSWER {where}: {takes}" + (f"; error on points held out: {off}" if off else "")


def server_fit_text(fit: ServerFit, fit_file: str) -> RenderableType:
    """What the server is, how sure that is, and which load tests would tell more."""
    limits = Table(
        "limit or switch",
        "taken as",
        "90 % interval",
        "told by",
        "in words",
        box=None,
        pad_edge=False,
    )
    for knob in fit.knobs:
        limits.add_row(knob.name, _value(knob.value), _interval(knob), knob.told_by, knob.said)
    fitted = Table("of a step", "value", "90 % interval", "told by", box=None, pad_edge=False)
    for row in (parameter_row(parameter) for parameter in fit.parameters):
        fitted.add_row(row.name, row.value, row.interval, row.told_by)
    seen = fit.seen
    head = (
        f"{seen.n_requests:,} requests in {len(seen.run_ids)} load tests, {seen.n_answers_at_once}"
        " answers at once"
    )
    head += "" if fit.subject is None else f": {fit.subject.text}"
    parts: list[RenderableType] = [
        Text(_server_answer(fit), style="bold"),
        Text(f"FROM   {head}\nTRUST  {_residual(fit)}"),
    ]
    parts += [Text(caution) for caution in _cautions(fit)]
    parts += [Text(""), limits, Text(""), fitted, Text("")]
    probes = [f"  {knob.name}: {knob.probe}" for knob in fit.knobs if knob.probe is not None]
    if probes:
        parts.append(
            Text(
                "What these load tests leave open, a further one would tell:\n" + "\n".join(probes)
            )
        )
    parts.append(
        Text(
            f"SERVER {fit_file}\nNEXT   "
            + suggestions.command("simulate", fit.served_model, "--fit", fit_file, "--rate", "R")
        )
    )
    return Group(*parts)


def refused_text(fit: ServerFit, refusal: Refusal) -> RenderableType:
    """Why the load tests were not fitted, and what would settle it."""
    seen = fit.seen
    lines = [
        (
            f"FROM   {seen.n_requests:,} requests in {len(seen.run_ids)} load tests,"
            f" {seen.n_answers_at_once} answers at once"
        ),
        f"TRUST  none: {_residual(fit)}; nothing was written",
        "What would settle it:",
        *(f"  {fact}" for fact in refusal.facts),
        f"  {refusal.probe}",
    ]
    return Group(Text(f"ANSWER UNDECIDED: {refusal.reason}", style="bold"), Text("\n".join(lines)))


def _residual(fit: ServerFit) -> str:
    """How far is the simulation of the fitted server from the load tests?"""
    tpot, ttft = (
        format_fraction(share) for share in (fit.tpot_residual_fraction, fit.ttft_residual_fraction)
    )
    return (
        f"simulated again, the mean TPOT of like requests is off by {tpot}, TTFT by {ttft}:"
        f" {fit.scatter_ratio:.2g} times what is expected"
    )


def _cautions(fit: ServerFit) -> list[str]:
    """What makes this fit less good."""
    cautions: list[str] = []
    if fit.scatter_ratio > _CAUTION_SCATTER:
        cautions.append(
            "CAUTION the residual is large: prompts that begin alike (--workload FILE), a machine"
            " that does other work, or a limit that is named wrongly; the intervals are wider"
            " for it"
        )
    at_peak = [
        one.name
        for one, floor_s in zip(fit.parameters, fit.floors_s, strict=False)
        if floor_s and one.estimate.value < _AT_PEAK * floor_s
    ]
    if at_peak:
        cautions.append(
            f"CAUTION {', '.join(at_peak)} at the device's peak, as fast as can be: check"
            " --hardware, --dtype and --tp"
        )
    return cautions


def _server_answer(fit: ServerFit) -> str:
    """How long does a prompt take, its way in and out included, and a decode step, and within which limits?"""
    seen, n_decodes = fit.seen, max(fit.seen.n_answers_at_once // 2, 1)
    prefill = types.prefill_shape(batch_size=1, prompt_tokens=seen.median_prompt_tokens)
    decode = types.decode_shape(batch_size=n_decodes, context_tokens=seen.median_context_tokens)
    prompt, token = fit.step_estimate(prefill, further_s=fit.front_end_s), fit.step_estimate(decode)
    limits = [
        f"{_interval(knob) or _value(knob.value)} {conclusions.LIMIT_WORDS[knob.name]}"
        for knob in fit.knobs
        if knob.name in conclusions.LIMIT_WORDS
    ]
    prompt_takes, step_takes = duration_cell(prompt), duration_cell(token)
    takes = (
        f"a prompt of {seen.median_prompt_tokens:,} tokens {prompt_takes}, a decode step at batch"
        f" {n_decodes} {step_takes}"
    )
    return f"ANSWER {fit.served_model}: {takes}; {', '.join(limits)}"


def _value(value: int | bool) -> str:  # noqa: FBT001 -- a limit or a switch
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:,}"


def _interval(knob: KnobFit) -> str:
    if isinstance(knob.value, bool) or knob.low is None:
        return ""
    if knob.low == knob.high:
        return f"{knob.low:,}"
    return f"{knob.low:,} or more" if knob.high is None else f"{knob.low:,} to {knob.high:,}"
