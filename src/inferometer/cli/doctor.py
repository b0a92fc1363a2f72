"""inferometer doctor: what would make numbers bad on this machine?"""

import click

from inferometer.api.doctor import Doctor, DoctorAnswer, doctor, doctor_page
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.report.terminal import page_text

ANSWER = DoctorAnswer


@click.command(
    "doctor",
    cls=QuestionCommand,
    epilog="""\b
Example:
  inferometer doctor
""",
)
@asks(Doctor)
def command(question: Doctor, *, as_json: bool) -> None:
    """What would make numbers bad on this machine, and what can be done about it?

    Watches it for half a second.
    """
    with heard():
        answer = doctor(question)
    give(answer, as_json=as_json, show=lambda one: page_text(doctor_page(one), is_verbose=True))
