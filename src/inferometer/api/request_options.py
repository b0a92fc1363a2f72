"""What is asked of runs of requests that are shown, beside the runs?"""

from dataclasses import dataclass
from typing import Annotated

from inferometer.api.question import Option
from inferometer.api.request_view import RequestQuestion
from inferometer.api.server_device import server_device
from inferometer.inputs.objectives import parse_objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """By which SLO, and as a use of which device, runs of requests are judged."""

    slo: Annotated[
        str | None,
        Option(
            "Judge runs of requests: 'ttft:p95<500ms, tpot:p95<50ms'.",
            heading="Limits",
            is_common=True,
            metavar="TEXT",
        ),
    ] = None
    server_hardware: Annotated[
        str | None,
        Option(
            "Of the server that was loaded: MFU and MBU by its own counters. [:bfloat16]",
            heading="Limits",
            is_common=True,
            metavar="ID[:FORMAT]",
        ),
    ] = None


def question_of(options: Judged) -> RequestQuestion:
    """The SLO and the device by which runs are judged.

    Raises
    ------
    SpecError
        An objective that is none, or a device or format that is not known.
    """
    return RequestQuestion(
        objective=None if options.slo is None else parse_objective(options.slo),
        device=server_device(options.server_hardware),
    )
