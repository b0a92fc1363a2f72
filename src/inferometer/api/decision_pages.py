"""Which page tells of a sizing, or of a search for a capacity?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from inferometer import __version__
from inferometer.api import capacity_text, size_tables, size_text
from inferometer.api.progress import talk
from inferometer.api.question import Option
from inferometer.api.sizing import SizeAnswer
from inferometer.decide import curves, sizing_types
from inferometer.report import decision_views
from inferometer.report.decision_html import decision_page_of
from inferometer.report.decision_views import RatePoint
from inferometer.report.html import write_page
from inferometer.units import format_number

REPORT_OPTION = Option(
    "Also write an offline page with charts.", heading="Output", is_common=True, metavar="FILE"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Where a page is written."""

    report: Annotated[Path | None, REPORT_OPTION] = None


def write_size_page(
    answer: SizeAnswer,
    question: sizing_types.SizingQuestion,
    best: Sequence[sizing_types.SizedKind],
    path: Path | None,
) -> None:
    """The page of a sizing, where one was asked for.

    The best of each device is simulated at more loads and limits for it.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    if path is None:
        return
    ordered = [
        next(kind for kind in best if kind.hardware_id == row.hardware_id) for row in answer.kinds
    ]
    loaded = {kind.hardware_id: curves.load_curve(question, kind) for kind in ordered}
    view = decision_views.DecisionView(
        title=f"{answer.model_id}: what {answer.workload_name} takes",
        subtitle=f"{format_number(answer.rate_per_s)} requests/s · {answer.objective}",
        answers=tuple(size_text.lead_lines(answer)),
        tables=size_tables.size_tables(answer),
        trades=tuple(
            trade for kind in ordered for trade in _trades(kind, loaded[kind.hardware_id])
        ),
        limit_costs=tuple(cost for kind in ordered for cost in _limit_costs(question, kind)),
        rates=(
            tuple(_rate_point(point) for point in loaded[ordered[0].hardware_id]) if ordered else ()
        ),
        objective=answer.objective,
        course=_course(answer),
        facts=_facts(answer),
        cautions=answer.cautions,
        tool_version=__version__,
    )
    write_page(decision_page_of(view), path)
    talk(f"REPORT {path}")


def write_capacity_page(answer: capacity_text.CapacityAnswer, path: Path | None) -> None:
    """The page of a search, where one was asked for: its probes and their bracket, at likely step times or as measured.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    if path is None:
        return
    found = answer.levels[0].capacity
    words = "resolved" if found.is_resolved else "unresolved"
    answers = [("Answer", capacity_text.headline(answer)), ("Why", f"{words}: {found.why}")]
    answers += [("Breaks", found.weakest)] if found.weakest else []
    view = decision_views.DecisionView(
        title=f"{answer.model_id}: what it carries of {answer.workload_name}",
        subtitle=answer.objective,
        answers=tuple(answers),
        probes=tuple(
            decision_views.ProbePoint(
                offered_load=probe.offered_load,
                effort=probe.effort,
                verdict=probe.verdict,
                margin_ratio=probe.margin_ratio,
                why=probe.why,
            )
            for probe in found.probes
        ),
        unit=answer.unit,
        kept_load=found.kept_load,
        broken_load=found.broken_load,
        facts=(("engine", answer.engine), ("step times", answer.step_times_from)),
        tool_version=__version__,
    )
    write_page(decision_page_of(view), path)
    talk(f"REPORT {path}")


def _trades(
    kind: sizing_types.SizedKind, curve: Sequence[curves.LoadPoint]
) -> list[decision_views.TradePoint]:
    points = list[decision_views.TradePoint]()
    for point in curve:
        per_user, output = point.summary.tokens_per_s_per_user, point.summary.output_tokens_per_s
        if per_user is not None and output is not None:
            points.append(
                decision_views.TradePoint(
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
) -> list[decision_views.LimitCost]:
    return [
        decision_views.LimitCost(
            device=kind.hardware_id,
            limit_ratio=point.limit_ratio,
            objective=point.objective.text,
            n_replicas=point.n_replicas,
            usd_per_hour=point.usd_per_hour,
        )
        for point in curves.limit_curve(question, kind)
        if point.n_replicas is not None
    ]


def _rate_point(point: curves.LoadPoint) -> RatePoint:
    ttft, tpot = point.summary.latency("ttft"), point.summary.latency("tpot")
    return RatePoint(
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


def _course(answer: SizeAnswer) -> decision_views.CourseView | None:
    said = answer.over_time
    if said is None:
        return None
    return decision_views.CourseView(
        window_s=said.window_s,
        rates_per_s=said.rates_per_s,
        policies=tuple(
            decision_views.PolicyCourse(
                name=row.name,
                n_replicas=row.n_replicas,
                usd=row.usd,
                kept_fraction=row.kept_fraction,
            )
            for row in said.policies
        ),
    )


def _facts(answer: SizeAnswer) -> tuple[tuple[str, str], ...]:
    pick = answer.pick
    if pick is None:
        return ()
    price = pick.rent or pick.owned
    facts = [
        ("model", answer.model_id),
        ("weights, KV cache", f"{pick.weights_dtype}, {pick.kv_cache_dtype}"),
        ("parallelism", pick.parallelism),
        (
            "lengths",
            (
                f"{format_number(pick.mean_prompt_tokens)} tokens in,"
                f" {format_number(pick.mean_output_tokens)} out on average"
            ),
        ),
        ("requests in flight", f"{format_number(pick.in_flight_load)} in each replica on average"),
        ("router", answer.router),
        ("step times", pick.step_times_from),
        ("KV blocks of a replica", f"{pick.n_kv_blocks:,}"),
        (
            "price",
            (
                "nobody says"
                if price is None
                else f"{price.basis}, {price.date_utc or 'undated'} ({price.source.where})"
            ),
        ),
    ]
    facts += [(name, str(value)) for name, value in pick.knobs]
    return tuple(facts)
