"""What is asked of runs of requests that are shown, beside the runs?"""

import functools
from collections.abc import Callable

import click

from inferometer.cli.request_view import RequestQuestion
from inferometer.cli.server_device import server_device
from inferometer.spec.objectives import parse_objective

_OPTIONS = (
    click.option(
        "--slo", metavar="TEXT", help="Judge runs of requests: 'ttft:p95<500ms, tpot:p95<50ms'."
    ),
    click.option(
        "--server-hardware",
        metavar="ID[:FORMAT]",
        help="Of the server that was loaded: MFU and MBU by its own counters. [:bfloat16]",
    ),
)


def takes_question(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags; the command gets ``question: RequestQuestion``."""

    @functools.wraps(command)
    def with_question(*, slo: str | None, server_hardware: str | None, **flags: object) -> None:
        command(question=question_of(slo, server_hardware), **flags)

    wrapped: Callable[..., None] = with_question
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def question_of(slo: str | None, server_hardware: str | None) -> RequestQuestion:
    """What the flags ask of each run.

    Raises
    ------
    SpecError
        An objective that is none, or a device or format that is not known.
    """
    return RequestQuestion(
        objective=None if slo is None else parse_objective(slo),
        device=server_device(server_hardware),
    )
