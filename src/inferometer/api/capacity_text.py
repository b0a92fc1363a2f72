"""How does a capacity look in the terminal: the bracket, what breaks, and every probe?"""

import math
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.api.answer import Answer
from inferometer.decide.capacity import Capacity, Probe
from inferometer.simulate.cluster_config import Router
from inferometer.stats.estimate import Verdict
from inferometer.units import format_duration, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One question that was asked, in order."""

    offered_load: float
    effort: int
    n_requests: int
    took_s: float
    """Simulated or measured."""
    verdict: Verdict
    margin_ratio: float | None
    """What was seen of the weakest link / its limit; None where the server cannot keep up, or
    refuses."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """The highest load that meets the SLO, and the loads that were shown to meet and to miss it."""

    located_load: float | None
    """The estimate: where the weakest latency reaches its limit, by the longest probes."""
    kept_load: float | None
    """The highest load that was shown to meet the SLO, the noise of its requests considered."""
    broken_load: float | None
    """The lowest load that was shown to miss it."""
    is_located: bool
    """The estimate is as close as requested for the simulated requests."""
    is_resolved: bool
    """The two loads that were shown are as close to one another as requested."""
    why: str
    weakest: str | None
    """What breaks first."""
    probes: tuple[ProbeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedCapacity:
    """The capacity if steps take so long.

    Or of one of the servers that may be the one, where a fit of load tests offers draws.
    """

    step_times: str
    capacity: CapacityRow
    probe_s: float
    """Simulated or measured seconds of all probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer(Answer):
    """The capacity at likely step times, and at both ends of what they may be, or in draws."""

    table: ClassVar[str | None] = "levels"

    model_id: str
    workload_name: str
    objective: str
    unit: str
    is_resolved: bool
    """At likely step times."""
    is_located: bool
    """At likely step times."""
    levels: tuple[PacedCapacity, ...]
    engine: str
    step_times_from: str
    n_replicas: int | None = None
    """Together; None where nobody knows: a server that was measured."""
    router: Router | None = None
    """None where there is one replica, or nobody knows."""
    next_step: str | None = None
    """What would answer more, or what would meet an SLO that no load meets."""


def paced(step_times: str, found: Capacity) -> PacedCapacity:
    """What was found at this pace."""
    row = CapacityRow(
        located_load=found.located_load,
        kept_load=found.kept_load,
        broken_load=found.broken_load,
        is_located=found.is_located,
        is_resolved=found.is_resolved,
        why=found.why,
        weakest=found.weakest,
        probes=tuple(_row(probe) for probe in found.probes),
    )
    return PacedCapacity(step_times=step_times, capacity=row, probe_s=found.probe_s)


def _row(probe: Probe) -> ProbeRow:
    said = probe.reading
    return ProbeRow(
        offered_load=probe.offered_load,
        effort=probe.effort,
        n_requests=said.n_requests,
        took_s=said.took_s,
        verdict=said.verdict,
        margin_ratio=said.margin_ratio if math.isfinite(said.margin_ratio) else None,
        why=said.why,
    )


def capacity_text(answer: CapacityAnswer) -> RenderableType:
    """The estimate and its interval first, then what misses first, then every probe."""
    likely = answer.levels[0]
    found = likely.capacity
    parts: list[RenderableType] = [
        Text(f"ANSWER {headline(answer)}", style="bold"),
        Text(f"WHY    {_why(found)}"),
    ]
    parts += [Text(f"MISSES first: {found.weakest}")] if found.weakest else []
    if (
        answer.router is not None
        and answer.n_replicas is not None
        and found.located_load is not None
    ):
        each = format_number(found.located_load / answer.n_replicas)
        parts.append(
            Text(
                f"EACH   {each} {answer.unit} of {answer.n_replicas} replicas behind a"
                f" {answer.router} router, simulated together"
            )
        )
    parts.append(Text(f"STEPS  {_ends(answer.levels)} {answer.unit}: {answer.step_times_from}"))
    parts += [Text(f"NEXT   {answer.next_step}")] if answer.next_step else []
    parts += [Text(""), _probes(found, answer.unit), Text("")] if found.probes else []
    n_probes = sum(len(level.capacity.probes) for level in answer.levels)
    parts.append(
        Text(
            f"SPENT  {n_probes} probes,"
            f" {format_duration(sum(level.probe_s for level in answer.levels))} of traffic"
        )
    )
    return Group(*parts)


def _why(found: CapacityRow) -> str:
    """How sure is the estimate?"""
    if found.is_resolved:
        return f"located and shown {found.why}"
    n_requests = max((probe.n_requests for probe in found.probes), default=0)
    if not found.is_located:
        return f"not located: {found.why}"
    return f"located; the interval is the noise of {n_requests:,} requests ({found.why})"


def _ends(levels: tuple[PacedCapacity, ...]) -> str:
    located = [level.capacity.located_load for level in levels]
    if any(level.step_times == "draw" for level in levels):
        drawn = sorted(located[1:], key=lambda load: -math.inf if load is None else load)
        return (
            f"likely {_number(located[0])}, {_number(drawn[0])} to {_number(drawn[-1])} in"
            f" {len(drawn)} draws"
        )
    return ", ".join(
        f"{level.step_times} {_number(load)}" for level, load in zip(levels, located, strict=True)
    )


def headline(answer: CapacityAnswer) -> str:
    """The estimate and its interval in words."""
    found = answer.levels[0].capacity
    replicas = "" if answer.router is None else f", {answer.n_replicas} replicas"
    asked = f"{answer.model_id}{replicas}, {answer.workload_name}:"
    shown = (("shown to meet it", found.kept_load), ("to miss it", found.broken_load))
    bracket = "; ".join(
        f"{words}: {format_number(load)}" for words, load in shown if load is not None
    )
    if found.located_load is None:
        meets = (
            "no load was shown to meet"
            if found.kept_load is None
            else f"{format_number(found.kept_load)} {answer.unit} meet"
        )
        misses = (
            ""
            if found.broken_load is None or found.kept_load is None
            else f", {format_number(found.broken_load)} miss it"
        )
        return f"{asked} {meets} {answer.objective}{misses}"
    return (
        f"{asked} up to {format_number(found.located_load)} {answer.unit} meet"
        f" {answer.objective}{f' ({bracket})' if bracket else ''}"
    )


def _probes(found: CapacityRow, unit: str) -> RenderableType:
    table = Table(unit, "requests", "verdict", "seen / limit", "weakest", box=None, pad_edge=False)
    for probe in found.probes:
        margin = "–" if probe.margin_ratio is None else format_number(probe.margin_ratio)
        table.add_row(
            format_number(probe.offered_load),
            f"{probe.n_requests:,}",
            probe.verdict,
            margin,
            probe.why,
        )
    return table


def _number(value: float | None) -> str:
    return "nowhere" if value is None else format_number(value)
