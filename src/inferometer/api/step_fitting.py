"""Which step-time model do sweeps carry, published tables, or tables of kernels?"""

from inferometer import suggestions
from inferometer.api.kernel_fitting import are_kernels, fit_kernels
from inferometer.api.progress import talk
from inferometer.api.published_rows import are_published, reasons
from inferometer.api.published_tables import TableChoice, chosen_loads
from inferometer.api.runs import RunRequest, load_sweeps
from inferometer.errors import SpecError
from inferometer.fit.published.step_time import published_step_time
from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.records.imports import llmservingsim
from inferometer.report.cells import estimate_cell


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
            "a published run of requests, whose steps were not timed",
            where=str(served),
            allowed="with --kernels: the tables of its device's kernels, from which its fit starts",
            try_="--load, after " + suggestions.command("import", served, "--out", "runs/NAME"),
        )
    if are_published(request.paths):
        return published_fit(request, choice)
    return fit_step_time(
        load_sweeps(request, otherwise="inferometer fit --load"), hardware=request.hardware
    )


# Which step-time model do the chosen rows of published tables carry?


def published_fit(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The model of the rows that were meant, with what a request spends outside of the engine.

    Raises
    ------
    SpecError, ModelError
        No rows were meant, too few, or rows of several kinds.
    """
    chosen = chosen_loads(request, choice)
    if chosen.left_out:
        talk(f"rows of the tables left out: {reasons(chosen.left_out)}")
    devices = sorted({one.hardware.name for one in chosen.loads} - {chosen.hardware.name})
    if devices:
        talk(
            f"{chosen.hardware.name} has few rows or none: its datasheet, and rows of"
            f" {', '.join(devices)}, tell of it"
        )
    talk(f"simulating {len(chosen.loads)} published loads, and fitting them: up to some minutes")
    model = published_step_time(chosen.loads, chosen.hardware, n_tensor=chosen.n_tensor)
    n_held = model.trained_on.n_configurations
    if n_held < len(chosen.loads):
        talk(
            f"{len(chosen.loads) - n_held} rows left out: the engine would not have room for such"
            " requests"
        )
    if model.front_end_s is not None:
        talk(
            f"a request spends {estimate_cell(model.front_end_s, 1e3)} ms outside of the engine;"
            " simulations add that"
        )
    return model
