"""Which step-time model do sweeps carry, or published tables?"""

from inferometer.cli.published_fit import published_fit
from inferometer.cli.published_rows import are_published
from inferometer.cli.published_tables import TableChoice
from inferometer.cli.runs import RunRequest, load_sweeps
from inferometer.fit.sweep_fit import fit_step_time
from inferometer.perfmodel.steptime import StepTimeModel


def fit_steps(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The model of the runs that were named, whoever measured them."""
    if are_published(request.paths):
        return published_fit(request, choice)
    return fit_step_time(load_sweeps(request, otherwise="inferometer fit --load"), hardware=request.hardware)


__all__ = ["fit_steps"]
