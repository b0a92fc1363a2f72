"""A view of the recorded run of requests that ``tests/records/record_requests.py`` makes."""

from pathlib import Path

from inferometer.api.request_view import RequestQuestion, request_view
from inferometer.inputs.objectives import parse_objective
from inferometer.records.reading import read_run

FOLDER = Path(__file__).parents[1] / "records" / "fixtures" / "version_2"
QUESTION = RequestQuestion(
    objective=parse_objective("ttft:p95<500ms, tpot:p95<50ms"),
    class_names=("chat", "batch"),
    n_kv_blocks=139,
    first_step=3000,
)


def recorded_run():
    return read_run(FOLDER)


def request_example():
    return request_view(recorded_run(), QUESTION, path=Path("runs/example"))
