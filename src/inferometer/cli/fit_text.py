"""How does a fitted model look in the terminal?"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.cli.fit_views import parameter_row
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.units import format_fraction


def fit_text(model: StepTimeModel, model_file: str) -> RenderableType:
    """Error on points held out, parameters with intervals, and the box in which the model was checked."""
    errors = Table("held out", "points", "median error", "95th percentile", "in the 90 % interval", box=None, pad_edge=False)
    for error in model.held_out:
        shares = (error.median_fraction, error.p95_fraction, error.coverage_fraction)
        errors.add_row(error.phase, str(error.n_points), *(format_fraction(share) for share in shares))
    fitted = Table("parameter", "value", "90 % interval", "told by", box=None, pad_edge=False)
    for row in (parameter_row(parameter) for parameter in model.parameters):
        fitted.add_row(row.name, row.value, row.interval, row.told_by)
    box = Table("valid box", "from", "to", box=None, pad_edge=False)
    for side in model.box:
        box.add_row(side.quantity, f"{side.low:,.0f}", f"{side.high:,.0f}")
    trained = model.trained_on
    what = f"{trained.n_observations} step times of {trained.n_configurations} points"
    head = f"{model.model.model_id} on {trained.hardware or 'a machine that is not named'}: {what}"
    return Group(Text(head, style="bold"), errors, Text(""), fitted, Text(""), box, Text(f"\nMODEL {model_file}"))


__all__ = ["fit_text"]
