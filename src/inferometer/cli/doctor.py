"""inferometer doctor: what would make numbers bad on this machine?"""

import click

from inferometer.api.doctor import Doctor, DoctorAnswer, doctor
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks

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
    give_answer(doctor, question, as_json=as_json, is_whole=True)
