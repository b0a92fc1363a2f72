"""How does a fitted model, or server, look in the terminal?"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.cli.fit_views import parameter_row
from inferometer.fit.knob_fit import KnobFit
from inferometer.fit.server_fit import ServerFit
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.units import format_fraction


def fit_text(model: StepTimeModel, model_file: str) -> RenderableType:
    """Error on points held out, parameters with intervals, and the box in which the model was checked.

    Of published loads, which know no single step, the held-out errors are those of what clients saw.
    """
    seen = {"decode": "TPOT", "prefill": "TTFT"} if model.front_end_s is not None else {}
    errors = Table("held out", "points", "median error", "95th percentile", "in the 90 % interval", box=None, pad_edge=False)
    for error in model.held_out:
        shares = (error.median_fraction, error.p95_fraction, error.coverage_fraction)
        errors.add_row(seen.get(error.phase, error.phase), str(error.n_points), *(format_fraction(share) for share in shares))
    fitted = Table("parameter", "value", "90 % interval", "told by", box=None, pad_edge=False)
    for row in (parameter_row(parameter) for parameter in model.parameters):
        fitted.add_row(row.name, row.value, row.interval, row.told_by)
    box = Table("valid box", "from", "to", box=None, pad_edge=False)
    for side in model.box:
        box.add_row(side.quantity, f"{side.low:,.0f}", f"{side.high:,.0f}")
    trained = model.trained_on
    unit = "latencies of" if seen else "step times of"
    what = f"{trained.n_observations} {unit} {trained.n_configurations} points"
    head = f"{model.model.model_id} on {trained.hardware or 'a machine that is not named'}: {what}"
    next_ = f"\nNEXT  inferometer simulate {model.model.model_id} --fit {model_file} --hardware ID --concurrency N" if seen else ""
    return Group(Text(head, style="bold"), errors, Text(""), fitted, Text(""), box, Text(f"\nMODEL {model_file}{next_}"))


def server_fit_text(fit: ServerFit, fit_file: str) -> RenderableType:
    """What the server is, how sure that is, and which load tests would tell more."""
    limits = Table("limit or switch", "taken as", "90 % interval", "told by", "in words", box=None, pad_edge=False)
    for knob in fit.knobs:
        limits.add_row(knob.name, _value(knob.value), _interval(knob), knob.told_by, knob.said)
    fitted = Table("of a step", "value", "90 % interval", "told by", box=None, pad_edge=False)
    for row in (parameter_row(parameter) for parameter in fit.parameters):
        fitted.add_row(row.name, row.value, row.interval, row.told_by)
    seen = fit.seen
    head = f"{fit.served_model}: {seen.n_requests:,} requests in {len(seen.run_ids)} load tests, {seen.n_answers_at_once} answers at once"
    parts: list[RenderableType] = [Text(head, style="bold"), limits, Text(""), fitted, Text("")]
    probes = [f"  {knob.name}: {knob.probe}" for knob in fit.knobs if knob.probe is not None]
    if probes:
        parts.append(Text("What these load tests leave open, a further one would tell:\n" + "\n".join(probes)))
    parts.append(Text(f"SERVER {fit_file}\nNEXT   inferometer simulate {fit.served_model} --fit {fit_file} --rate R"))
    return Group(*parts)


def _value(value: int | bool) -> str:  # noqa: FBT001 -- a limit or a switch
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:,}"


def _interval(knob: KnobFit) -> str:
    if isinstance(knob.value, bool) or knob.low is None:
        return ""
    return f"{knob.low:,} or more" if knob.high is None else f"{knob.low:,} to {knob.high:,}"


__all__ = ["fit_text", "server_fit_text"]
