"""Pages of capacities and sizings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inferometer.api.answer import Answer, row_of
from inferometer.api.progress import talk
from inferometer.api.question import Option
from inferometer.api.size_page import size_page
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.decide import curves, sizing_types
from inferometer.decide.capacity import TIME_LIMIT, Capacity, Probe
from inferometer.errors import EXIT_ANSWERED, EXIT_SLO_MISSED, EXIT_UNDECIDED
from inferometer.inputs.types import Caution
from inferometer.report import decision_page, html, views
from inferometer.report.page import Chip, Number, Page, lines_of, spanned
from inferometer.report.tables import TextTable
from inferometer.simulate.fleet import Router
from inferometer.units import counted, format_duration, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """The highest load that meets the SLO, and the loads that were shown to meet and to miss it."""

    located_load: float | None
    """The estimate: where the weakest latency reaches its limit, by the longest probes."""
    met_load: float | None
    """The highest load that was shown to meet the SLO, the noise of its requests considered."""
    missed_load: float | None
    """The lowest load that was shown to miss it."""
    is_located: bool
    """The estimate is as close as requested for the simulated requests."""
    is_resolved: bool
    """The two loads that were shown are as close to one another as requested."""
    why: str
    weakest: str | None
    """The limit that is missed first."""
    probes: tuple[views.ProbeRow, ...]
    n_needed: int | None = None
    """Requests that would tell about higher loads, at which those of the longest probe are one
    burst; None: no load was left open for that."""

    @property
    def meets_nowhere(self) -> bool:
        """Is the SLO missed even at the lowest load?"""
        is_shown_nowhere = self.met_load is None and self.located_load is None
        lowest = min(
            self.probes, key=lambda probe: (probe.offered_load, -probe.effort), default=None
        )
        return (
            is_shown_nowhere
            and self.why != TIME_LIMIT
            and (lowest is None or lowest.verdict == "missed")
        )

    @property
    def highest_load(self) -> float | None:
        """The estimate; 0 where no load meets the SLO, None where the search ended before it knew."""
        return 0.0 if self.meets_nowhere else self.located_load


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedCapacity:
    """The capacity if steps take so long.

    Or of one of the plausible servers, where a fit of load tests offers draws.
    """

    step_times: str
    capacity: CapacityRow
    probe_s: float
    """Simulated or measured seconds of all probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer(Answer):
    """Capacity at likely step times, and at both ends of their interval or in draws."""

    table = "levels"

    model_id: str
    """The model; for groups of replicas, all groups in words."""
    workload_name: str
    objective: str
    unit: str
    is_resolved: bool
    """At likely step times."""
    is_located: bool
    """At likely step times."""
    levels: tuple[PacedCapacity, ...]
    engine: str
    step_times_basis: Literal["fitted", "published", "datasheet"] | None
    """For groups the least certain one; None for a measured server."""
    step_times_from: str
    n_replicas: int | None = None
    """All replicas; None for a measured server, where it is unknown."""
    n_devices: int | None = None
    """Devices of all replicas, prefill replicas included."""
    n_simulated: int | None = None
    """Of more than 8 replicas, those simulated with their share of the load; None: all."""
    router: Router | None = None
    """None with one replica, or where it is unknown."""
    n_kv_blocks_low: int | None = None
    """The fewest KV blocks of the plausible servers; None where their number is known."""
    n_kv_blocks_high: int | None = None
    next_step: str | None = None
    """What would narrow the answer, or meet an SLO that no load meets."""
    cautions: tuple[Caution, ...] = ()
    assumptions: tuple[str, ...] = ()
    """What was taken to be so without having been given, in words."""
    machine_share_fraction: float | None = None
    """Share of the variance of a step's log time that all layouts on the device have alike;
    None: of a datasheet, by which it is not known."""

    @property
    def exit_code(self) -> int:
        """0 located (of a server: resolved), 10 no load meets the SLO, 11 not located."""
        likely = self.levels[0]
        is_measured = likely.step_times == "measured"
        if self.is_resolved if is_measured else self.is_located:
            return EXIT_ANSWERED
        is_missed = likely.capacity.meets_nowhere and not is_measured
        return EXIT_SLO_MISSED if is_missed else EXIT_UNDECIDED


def paced(step_times: str, found: Capacity) -> PacedCapacity:
    """The capacity that was found for these step times (likely, fast, slow)."""
    row = row_of(
        CapacityRow,
        found,
        probes=tuple(_row(probe) for probe in found.probes),
    )
    return PacedCapacity(step_times=step_times, capacity=row, probe_s=found.probe_s)


def _row(probe: Probe) -> views.ProbeRow:
    reading = probe.reading
    return row_of(
        views.ProbeRow,
        probe,
        reading,
        margin_ratio=reading.margin_ratio if math.isfinite(reading.margin_ratio) else None,
    )


def capacity_page(answer: CapacityAnswer) -> Page:
    """The estimate and its interval first, then what misses first, then every probe."""
    found = answer.levels[0].capacity
    view = views.DecisionView(
        probes=found.probes,
        unit=answer.unit,
        met_load=found.met_load,
        missed_load=found.missed_load,
    )
    table = _probes(found, answer.unit) if found.probes else None
    sections = decision_page.decision_sections(view, searched=() if table is None else (table,))
    charts = [chart for section in sections for chart in section.charts]
    n_probes = sum(len(level.capacity.probes) for level in answer.levels)
    spent_s = sum(level.probe_s for level in answer.levels)
    probed = f"{n_probes} probes, {format_duration(spent_s)} of traffic"
    return Page(
        title=_title(answer),
        subtitle=f"{answer.engine} · {probed if n_probes else 'no traffic simulated'}",
        chips=_chips(answer),
        numbers=_numbers(answer),
        table=table,
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", f"misses first: {found.weakest}" if found.weakest else found.why),
            (
                "TRUST",
                f"{_why(found)}; {_ends(answer)}: {answer.step_times_from}",
            ),
            ("ASSUME", "\n".join(answer.assumptions)),
            ("NEXT", answer.next_step or ""),
        ),
        sections=sections,
        cautions=answer.cautions,
    )


def _title(answer: CapacityAnswer) -> str:
    found = answer.levels[0].capacity
    replicas = "" if answer.router is None else f", {answer.n_replicas} replicas"
    subject = f"{answer.model_id}{replicas}, {answer.workload_name}"
    load = found.met_load if found.located_load is None else found.located_load
    if load is None:
        return f"{subject}: no load was shown to meet {answer.objective}"
    return f"{subject}: up to {format_number(load)} {answer.unit} meet {answer.objective}"


def _chips(answer: CapacityAnswer) -> tuple[Chip, ...]:
    found = answer.levels[0].capacity
    if found.located_load is None and found.met_load is None:
        is_open = found.probes and not found.meets_nowhere
        return (Chip(verdict="undecided" if is_open else "missed", text=found.why),)
    if found.is_resolved:
        return (Chip(verdict="met", text="located, and shown"),)
    if found.is_located:
        return (Chip(verdict="met", text="located"),)
    return (Chip(verdict="undecided", text=f"not located: {found.why}"),)


def _numbers(answer: CapacityAnswer) -> tuple[Number, ...]:
    """The estimate with the highest load that meets and the lowest that misses the SLO."""
    found = answer.levels[0].capacity
    located, met, missed = found.located_load, found.met_load, found.missed_load
    if located is None:
        shown = (("shown to meet it", met), ("shown to miss it", missed))
        return tuple(
            Number(name=name, value=load, unit=answer.unit)
            for name, load in shown
            if load is not None
        )
    bracket = "; ".join(
        f"{words}: {format_number(load)}"
        for words, load in (("shown to meet it", met), ("to miss it", missed))
        if load is not None
    )
    whole = met is not None and missed is not None and met <= located <= missed
    number = Number(
        name="capacity",
        value=located,
        unit=answer.unit,
        low=met if whole else None,
        high=missed if whole else None,
        note=bracket,
    )
    others = [level.capacity.highest_load for level in answer.levels[1:]]
    numbers = [spanned(number, [load for load in others if load is not None])]
    if answer.router is not None and answer.n_replicas is not None:
        each = located / answer.n_replicas
        together = (
            "simulated together"
            if answer.n_simulated is None
            else f"{answer.n_simulated} simulated with their part of the load"
        )
        note = f"of {answer.n_replicas} behind a {answer.router} router, {together}"
        numbers.append(Number(name="each replica", value=each, unit=answer.unit, note=note))
    return tuple(numbers)


def _why(found: CapacityRow) -> str:
    """Why the estimate is as certain as it is."""
    if found.is_resolved:
        return f"located and shown {found.why}"
    n_requests = max((probe.n_requests for probe in found.probes), default=0)
    if not found.is_located:
        return f"not located: {found.why}"
    if found.why == TIME_LIMIT and found.met_load and found.missed_load:
        return f"located within {found.missed_load / found.met_load - 1:.1%} when its time was over"
    return f"located; shown up to the noise of {n_requests:,} requests ({found.why})"


def _ends(answer: CapacityAnswer) -> str:
    levels, unit = answer.levels, answer.unit
    fewest, most = answer.n_kv_blocks_low, answer.n_kv_blocks_high
    blocks = "" if fewest is None or len(levels) < 2 else f"{fewest:,} to {most:,} KV blocks"
    located = [level.capacity.highest_load for level in levels]
    if any(level.step_times == "draw" for level in levels):
        drawn = sorted(load for load in located[1:] if load is not None)
        n_open = len(located) - 1 - len(drawn)
        if not any(drawn):
            is_late = any(one.capacity.why == TIME_LIMIT for one in levels[1:])
            found = (
                "no draw was located in time" if is_late else "no load was found to meet the SLO"
            )
            return (
                f"likely {_number(located[0], unit)}, {found} ({counted(n_open + len(drawn), 'draw')}"
                f" of the step times{f' and of {blocks}' * bool(blocks)})"
            )
        ends = f"{_number(drawn[0])} to {_number(drawn[-1])} in " if drawn else ""
        return (
            f"likely {_number(located[0], unit)}, {ends}{len(drawn)} draws of the step times"
            + f" and of {blocks}" * bool(blocks)
            + f" ({n_open} more were not located in time)" * bool(n_open)
        )
    each = ", ".join(
        f"{level.step_times} {_number(load, unit)}"
        for level, load in zip(levels, located, strict=True)
    )
    return each + f" (with {blocks})" * bool(blocks)


def _probes(found: CapacityRow, unit: str) -> TextTable:
    rows = tuple(
        (
            format_number(probe.offered_load),
            f"{probe.n_requests:,}",
            probe.verdict,
            "–" if probe.margin_ratio is None else format_number(probe.margin_ratio),
            probe.why,
        )
        for probe in found.probes
    )
    header = (unit, "requests", "verdict", "seen / limit", "weakest")
    return TextTable(caption="Every probe", header=header, rows=rows)


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "not located"
    return f"{format_number(value)} {unit}".rstrip() if value else "nowhere"


REPORT_OPTION = Option(
    "Also write an offline page with charts.", heading="Output", is_common=True, metavar="FILE"
)


def write_size_page(
    answer: SizeAnswer,
    question: sizing_types.SizingQuestion,
    best: Sequence[sizing_types.SizedKind],
    path: Path,
) -> None:
    """The page of a sizing.

    The best of each device is simulated at more loads and limits for it.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    ordered = [
        next(kind for kind in best if kind.hardware_id == row.hardware_id) for row in answer.kinds
    ]
    loaded = {kind.hardware_id: curves.load_curve(question, kind) for kind in ordered}
    pick = answer.pick
    view = views.DecisionView(
        trades=tuple(
            trade for kind in ordered for trade in _trades(kind, loaded[kind.hardware_id])
        ),
        limit_costs=tuple(cost for kind in ordered for cost in _limit_costs(question, kind)),
        rates=(
            tuple(_rate_point(point) for point in loaded[ordered[0].hardware_id]) if ordered else ()
        ),
        objective=answer.objective,
        course=_course(answer),
        met_load=None if pick is None else pick.sized_pace.met_requests_per_s,
        traffic_per_s=answer.rate_per_s,
    )
    html.write_page(size_page(answer, view), path)
    talk(f"REPORT {path}")


def _trades(
    kind: sizing_types.SizedKind, curve: Sequence[curves.LoadPoint]
) -> list[views.TradePoint]:
    points = list[views.TradePoint]()
    for point in curve:
        per_user, output = point.summary.tokens_per_s_per_user, point.summary.output_tokens_per_s
        if per_user is not None and output is not None:
            points.append(
                views.TradePoint(
                    device=kind.hardware_id,
                    offered_requests_per_s=point.offered_requests_per_s,
                    tokens_per_s_per_user=per_user,
                    device_tokens_per_s=output.scaled(1 / kind.n_devices),
                    verdict=point.judgement.verdict,
                )
            )
    return points


def _limit_costs(
    question: sizing_types.SizingQuestion, kind: sizing_types.SizedKind
) -> list[views.LimitCost]:
    return [
        views.LimitCost(
            device=kind.hardware_id,
            limit_ratio=point.limit_ratio,
            objective=point.objective.text,
            n_replicas=point.n_replicas,
            usd_per_hour=point.usd_per_hour,
        )
        for point in curves.limit_curve(question, kind)
        if point.n_replicas is not None
    ]


def _rate_point(point: curves.LoadPoint) -> views.RatePoint:
    ttft, tpot = point.summary.latency("ttft"), point.summary.latency("tpot")
    return views.RatePoint(
        label=f"{format_number(point.offered_requests_per_s)} req/s",
        concurrency=None,
        offered_requests_per_s=point.offered_requests_per_s,
        ttft_p50=ttft.percentile(0.5),
        ttft_p95=ttft.percentile(0.95),
        tpot_p50=tpot.percentile(0.5),
        tpot_p95=tpot.percentile(0.95),
        output_tokens_per_s=point.summary.output_tokens_per_s,
        completed_requests_per_s=point.summary.completed_requests_per_s,
        good_requests_per_s=(
            None
            if point.judgement.good is None
            else point.judgement.good.value * point.offered_requests_per_s
        ),
        ttft_parts=None,
        verdict=None,
    )


def _course(answer: SizeAnswer) -> views.CourseView | None:
    over_time = answer.over_time
    if over_time is None:
        return None
    return views.CourseView(
        window_s=over_time.window_s,
        rates_per_s=over_time.rates_per_s,
        policies=tuple(
            views.PolicyCourse(
                name=row.name,
                n_replicas=row.n_replicas,
                usd=row.usd,
                slo_met_fraction=row.slo_met_fraction,
            )
            for row in over_time.policies
        ),
    )
