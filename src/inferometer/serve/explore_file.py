"""How is the explorer written as one file, for people without Python: with the answers of a grid?"""

from pathlib import Path
from typing import Final

from inferometer.api.explore import choices
from inferometer.api.explore_page import CHART_IDS
from inferometer.api.explore_states import Started, around
from inferometer.api.explore_teaching import CHAPTERS
from inferometer.api.explored import refined
from inferometer.api.progress import PartsDone, talk
from inferometer.measure.executors.local import Inline
from inferometer.records.durability import make_folder, replace_file
from inferometer.report.explore_html import render_file
from inferometer.serve.explore_server import answer_parts, start_of

_STAGE: Final = "refined"


def write_file(started: Started, path: Path) -> int:
    """Write the page with the answers of the states around its start; gives back how many.

    Raises
    ------
    SpecError, ModelError
        The first state cannot be answered.
    RecordError
        The file cannot be written.
    """
    states, executor = tuple(around(started.question)), Inline(lambda _done, _all: None)
    grid = list[object]()
    for state in states:
        grid.append(answer_parts(_STAGE, refined(state, executor), started.measured))
        talk(PartsDone("states", len(grid), len(states)))
    start = {**start_of(started.question), "grid": grid}
    text = render_file(start, choices(), CHAPTERS, CHART_IDS)
    make_folder(path.parent)
    replace_file(path, text.encode())
    return len(states)
