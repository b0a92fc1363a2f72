"""Which step-time model do the chosen rows of published tables carry?"""

from inferometer.cli.answer import talk
from inferometer.cli.published_tables import TableChoice, chosen_loads
from inferometer.cli.runs import RunRequest
from inferometer.fit.published_model import published_step_time
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.report.cells import estimate_cell


def published_fit(request: RunRequest, choice: TableChoice) -> StepTimeModel:
    """The model of the rows that were meant; what a request spends outside of the engine is said beside it.

    Raises
    ------
    SpecError, ModelError
        No rows were meant, too few, or rows of several kinds.
    """
    chosen = chosen_loads(request, choice)
    model, front_end_s = published_step_time(chosen.loads, chosen.hardware, n_tensor=chosen.n_tensor)
    outside = f"{estimate_cell(front_end_s, 1e3)} ms"
    talk(f"{len(chosen.loads)} published loads; a request spends {outside} outside of the engine, which the model leaves out")
    return model


__all__ = ["published_fit"]
