"""inferometer doctor: what would make numbers bad on this machine?"""

from dataclasses import dataclass

import click
from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.cli.answer import give
from inferometer.cli.flags import json_option
from inferometer.measure.host import examine_machine, host_facts
from inferometer.records.types import Caution, HostFacts
from inferometer.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorAnswer:
    """The machine, and what about it would make numbers less good."""

    host: HostFacts
    cautions: tuple[Caution, ...]


ANSWER = DoctorAnswer


@click.command(
    "doctor",
    epilog="""\b
Example:
  inferometer doctor
""",
)
@json_option
def command(*, as_json: bool) -> None:
    """What would make numbers bad on this machine, and what can be done about it?

    Watches it for half a second.
    """
    give(
        DoctorAnswer(host=host_facts(n_threads=None, uses_device=True), cautions=examine_machine()),
        as_json=as_json,
        show=_show,
    )


def _show(answer: DoctorAnswer) -> RenderableType:
    host = answer.host
    memory = f", {format_bytes(host.memory_bytes)}" if host.memory_bytes is not None else ""
    machine = (
        f"{host.cpu_model or 'unknown CPU'}, {host.n_cores} cores{memory},"
        f" {host.accelerator or 'no accelerator'}"
    )
    if not answer.cautions:
        return Group(Text(machine), Text("Nothing found that would make numbers bad."))
    lines = [
        Text(f"{caution.code}: {caution.text}.\n  try: {caution.remedy}")
        for caution in answer.cautions
    ]
    return Group(Text(machine), *lines)
