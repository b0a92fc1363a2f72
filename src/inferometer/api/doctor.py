"""What would make numbers bad on this machine?"""

from dataclasses import dataclass

from inferometer.api.answer import Answer
from inferometer.inputs.types import Caution
from inferometer.measure.host import examine_machine, host_facts, placement
from inferometer.records.pitfalls import judged_all
from inferometer.records.types import HostFacts
from inferometer.report.page import Page
from inferometer.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorAnswer(Answer):
    """The machine, and what about it would make numbers less good."""

    host: HostFacts
    cautions: tuple[Caution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Nothing to choose: the machine that runs the command."""

    given: frozenset[str] = frozenset()


def doctor(_question: Doctor) -> DoctorAnswer:
    """Watch this machine for half a second."""
    checks = judged_all(placement())
    cautions = (one.caution for one in checks if one.finding == "found")
    return DoctorAnswer(
        host=host_facts(n_threads=None, uses_device=True), cautions=(*examine_machine(), *cautions)
    )


def doctor_page(answer: DoctorAnswer) -> Page:
    """The machine in one line, and a caution for each finding."""
    host = answer.host
    memory = f", {format_bytes(host.memory_bytes)}" if host.memory_bytes is not None else ""
    n_found = len(answer.cautions)
    return Page(
        title=(
            f"{n_found} thing{'s' * (n_found > 1)} found that would make numbers bad"
            if n_found
            else "Nothing found that would make numbers bad"
        ),
        subtitle=(
            f"{host.cpu_model or 'unknown CPU'}, {host.n_cores} cores{memory},"
            f" {host.accelerator or 'no accelerator'}"
        ),
        cautions=answer.cautions,
    )
