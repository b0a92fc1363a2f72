"""What does a quick look answer? The second half of ``inferometer quick``."""

from inferometer.api.measured import MeasuredAnswer, measured_page
from inferometer.api.quick import quick
from inferometer.cli.answer import give
from inferometer.cli.progress import heard
from inferometer.cli.quick import QuickQuestion

ANSWER = MeasuredAnswer


def answer(made: QuickQuestion) -> None:
    """Measure, and say what was found."""
    with heard():
        found = quick(made.question)
    give(found, as_json=made.as_json, show=measured_page)
