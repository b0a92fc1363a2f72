"""Which page tells of a sizing, or of a search for a capacity?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from inferometer.api.capacity_page import CapacityAnswer, capacity_page
from inferometer.api.progress import talk
from inferometer.api.question import Option
from inferometer.api.size_page import size_page
from inferometer.api.sizing_answer import SizeAnswer
from inferometer.decide import curves, sizing_types
from inferometer.report import decision_views
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
    pick = answer.pick
    view = decision_views.DecisionView(
        trades=tuple(
            trade for kind in ordered for trade in _trades(kind, loaded[kind.hardware_id])
        ),
        limit_costs=tuple(cost for kind in ordered for cost in _limit_costs(question, kind)),
        rates=(
            tuple(_rate_point(point) for point in loaded[ordered[0].hardware_id]) if ordered else ()
        ),
        objective=answer.objective,
        course=_course(answer),
        kept_load=None if pick is None else pick.asked.kept_requests_per_s,
        traffic_per_s=answer.rate_per_s,
    )
    write_page(size_page(answer, view), path)
    talk(f"REPORT {path}")


def write_page_of(answer: SizeAnswer, path: Path) -> None:
    """The page of the layouts of a number of devices.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    write_page(size_page(answer), path)
    talk(f"REPORT {path}")


def write_capacity_page(answer: CapacityAnswer, path: Path | None) -> None:
    """The page of a search, where one was asked for: its probes and their bracket, at likely step times or as measured.

    Raises
    ------
    RecordError
        The page cannot be written.
    """
    if path is None:
        return
    write_page(capacity_page(answer), path)
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
