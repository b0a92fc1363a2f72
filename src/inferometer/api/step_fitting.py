"""Which step-time model do sweeps carry, published tables, or tables of kernels?"""

from inferometer import suggestions
from inferometer.api.kernel_fitting import are_kernels, fit_kernels
from inferometer.api.published_fit import published_fit
from inferometer.api.published_rows import are_published
from inferometer.api.published_tables import TableChoice
from inferometer.api.runs import RunRequest, load_sweeps
from inferometer.errors import SpecError
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.records.imports import llmservingsim


def fit_steps(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The model of the runs that were named, whoever measured them.

    Raises
    ------
    SpecError
        They are runs of requests.
    """
    if are_kernels(request):
        return fit_kernels(request, choice)
    served = next(
        (
            path
            for path in request.paths
            if path.is_dir() and llmservingsim.log_of(path) is not None
        ),
        None,
    )
    if served is not None:
        raise SpecError(
            "a published run of requests, whose steps nobody timed",
            where=str(served),
            allowed="with --kernels: the tables of its device's kernels, from which its fit starts",
            try_="--load, after " + suggestions.command("import", served, "--out", "runs/NAME"),
        )
    if are_published(request.paths):
        return published_fit(request, choice)
    return fit_step_time(
        load_sweeps(request, otherwise="inferometer fit --load"), hardware=request.hardware
    )
