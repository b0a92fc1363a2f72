"""How does a capacity look in the terminal: the bracket, what breaks, and every probe?"""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.decide.capacity import Capacity
from inferometer.units import format_duration, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedCapacity:
    """The capacity if steps take so long."""

    step_times: str
    capacity: Capacity
    probe_s: float
    """Simulated seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer:
    """The capacity at likely step times, and at both ends of what they may be."""

    model_id: str
    workload_name: str
    objective: str
    unit: str
    is_resolved: bool
    """At likely step times."""
    levels: tuple[PacedCapacity, ...]
    engine: str
    step_times_from: str


def capacity_text(answer: CapacityAnswer) -> RenderableType:
    """The bracket first, then what breaks, then every probe."""
    likely = answer.levels[0]
    found = likely.capacity
    parts: list[RenderableType] = [Text(_headline(answer), style="bold")]
    parts.append(Text(f"WHY    {'resolved' if found.is_resolved else 'unresolved'}: {found.why}"))
    parts += [Text(f"BREAKS {found.weakest}")] if found.weakest else []
    ends = ", ".join(f"{level.step_times} {_number(level.capacity.located_load)}" for level in answer.levels)
    parts.append(Text(f"DOUBT  located at {ends} {answer.unit}: step times of {answer.step_times_from}"))
    parts += [Text(""), _probes(found, answer.unit), Text("")]
    n_probes = sum(len(level.capacity.probes) for level in answer.levels)
    parts.append(Text(f"SPENT  {n_probes} probes, {format_duration(sum(level.probe_s for level in answer.levels))} simulated"))
    return Group(*parts)


def _headline(answer: CapacityAnswer) -> str:
    found = answer.levels[0].capacity
    kept = "no load was shown to keep" if found.kept_load is None else f"{format_number(found.kept_load)} {answer.unit} keep"
    broken = "" if found.broken_load is None else f", {format_number(found.broken_load)} break it"
    return f"ANSWER {answer.model_id}, {answer.workload_name}: {kept} {answer.objective}{broken}"


def _probes(found: Capacity, unit: str) -> RenderableType:
    table = Table(unit, "requests", "verdict", "seen / limit", "weakest", box=None, pad_edge=False)
    for probe in found.probes:
        reading = probe.reading
        table.add_row(
            format_number(probe.offered_load), f"{reading.n_requests:,}", reading.verdict, format_number(reading.margin_ratio), reading.why
        )
    return table


def _number(value: float | None) -> str:
    return "nowhere" if value is None else format_number(value)


__all__ = ["CapacityAnswer", "PacedCapacity", "capacity_text"]
