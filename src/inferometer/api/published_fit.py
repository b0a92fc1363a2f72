"""Which step-time model do the chosen rows of published tables carry?"""

from inferometer.api.progress import talk
from inferometer.api.published_rows import reasons
from inferometer.api.published_tables import TableChoice, chosen_loads
from inferometer.api.runs import RunRequest
from inferometer.fit.published.step_time import published_step_time
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.report.cells import estimate_cell


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
