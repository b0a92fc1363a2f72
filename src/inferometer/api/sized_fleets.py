"""What do sizings answer of groups of replicas, and of the best use of a number of devices?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer import suggestions
from inferometer.api.grid import GridPoint, PacedNumber
from inferometer.api.grid_ties import is_tie, ratio_of
from inferometer.decide.best_use import FoundUse, Use
from inferometer.inputs.types import DTYPE_BITS, Caution, DType
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape
from inferometer.records.request_summaries import Percentile
from inferometer.report.page import Chip, Number, Page, lines_of
from inferometer.report.tables import TextTable
from inferometer.simulate.deployment import Pace
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import counted, format_number

Routing: TypeAlias = Literal["rules", "class", "weighted"]
"""What decides the routing: the file's rules, or cost, for whole classes or parts."""
ALL_GROUPS: Final = "all"
"""Name of the row of all groups together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpannedLatency:
    """A percentile at likely step times, and its range over the other plausible servers."""

    seen: Percentile
    least_s: float
    """Lowest end of the percentile's intervals over all servers."""
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerRow:
    """Results of a group's requests with one replica less."""

    n_replicas: int
    verdict: Verdict
    """On the server that decides: of the draws the slowest but one, else the likely or slow one."""
    likely_verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group, or all (``ALL_GROUPS``): its replicas, and results of its own requests."""

    name: str
    rule: str
    """Rule of the group's requests, in words."""
    share_fraction: float
    """Share of all requests."""
    requests_per_s: float | None
    """None of users, who send as they are served."""
    model_id: str
    hardware: str
    parallelism: str
    weights_dtype: str
    n_replicas: int | None
    """None: no number meets the SLO, or none was found in time."""
    n_devices: int | None
    usd_per_hour: float | None
    """None where the price is unknown."""
    verdict: Verdict
    ttft: SpannedLatency | None
    """At the percentile of the SLO, or the 95th."""
    tpot: SpannedLatency | None
    e2e: SpannedLatency | None
    in_flight_load: float | None
    """Requests in one replica on average."""
    weakest: str | None
    """Nearest its limit at the likely step times, or why no number meets the SLO."""
    fewer: FewerRow | None
    """None where there is none less, or time was over."""
    users_load: float | None = None
    """Users of this group; None in an open loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedClass:
    """A class of requests, or a part of one, and the group that gets it."""

    name: str
    group: str
    weight_fraction: float
    """Share of the class's requests that the same groups can take."""
    takers: tuple[str, ...]
    """Groups whose rules accept it and whose contexts are long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGroups:
    """Replicas of each group; latencies and verdicts are of all groups together."""

    file: str
    rows: tuple[GroupRow, ...]
    whole: GroupRow
    decided_by: Literal["likely", "draws", "ends"]
    """On which servers the SLO must be met: at the likely step times alone, at these and in 90 %
    of the draws, or at both ends of their interval too."""
    n_servers: int
    """Number of plausible servers that were simulated, the likely one included."""
    n_requests: int
    """Requests of the simulation at likely step times; 0: there was none."""
    next_step: str | None
    routing: Routing = "rules"
    routes: tuple[RoutedClass, ...] = ()
    """Routing of classes where the file's rules do not decide it."""
    n_ways_sized: int = 0
    """Pairs of a group and a set of classes that were sized, to find the cheapest."""
    is_late: bool = False
    """Did the time limit leave out routings that may cost less?"""
    unsplit_usd_per_hour: float | None = None
    """Cost of the cheapest routing without splits, where one with splits costs less."""


_MOST_ROWS: Final = 6
_SAFE_FRACTION: Final = 0.9
_FULL_BITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRow:
    """One layout of the devices."""

    hardware_id: str
    hardware: str
    layout: str
    weights_dtype: str
    kv_cache_dtype: DType
    tensor_parallel_size: int
    n_replicas: int
    n_prefill: int
    """Prefill replicas among these; 0: each does both."""
    n_devices: int
    located_requests_per_s: float | None
    """The most that meets the SLO; None with users who wait, who are counted below."""
    met_requests_per_s: float | None
    """Shown to meet it, the noise of its requests considered; None where it was located roughly."""
    missed_requests_per_s: float | None
    needs_quality_check: bool
    """Its number format differs from the one in which the weights were published."""
    located_users: int | None = None
    met_users: int | None = None
    missed_users: int | None = None
    step_budget_tokens: int | None = None
    """Tokens that a step computes at most; None where one step budget was on offer."""
    ratio_to_best: Estimate | None = None
    """Its load over that of the best, with what both err alike in left out; None: the best itself."""

    @property
    def setting(self) -> str:
        """The layout, with the step budget where several were on offer."""
        budget = self.step_budget_tokens
        return self.layout if budget is None else f"{self.layout}, step budget {budget}"

    @property
    def unit(self) -> str:
        """Unit of its loads."""
        return "requests/s" if self.located_users is None else "users"

    @property
    def located_load(self) -> float:
        """The most requests per second, or users, that meet the SLO."""
        return self.located_users or self.located_requests_per_s or 0.0

    @property
    def met_load(self) -> float | None:
        """Shown to meet it."""
        return self.met_requests_per_s if self.met_users is None else self.met_users

    @property
    def own_kv_dtype(self) -> DType | None:
        """Format of a KV cache with fewer bits than the activations; else None."""
        return self.kv_cache_dtype if DTYPE_BITS[self.kv_cache_dtype] < _FULL_BITS else None

    @property
    def deployed_load(self) -> float:
        """Load to size it for if none was named; long runs may show less than its capacity."""
        return _SAFE_FRACTION * (self.met_load or self.located_load)

    @property
    def missed_load(self) -> float | None:
        """Shown to miss it."""
        return self.missed_requests_per_s if self.missed_users is None else self.missed_users


@dataclass(frozen=True, slots=True, kw_only=True)
class BestUse:
    """Layouts of a number of devices: the published format first, the best of each format first."""

    n_total: int
    rows: tuple[UseRow, ...]
    n_candidates: int
    n_unexamined: int
    is_split_examined: bool
    why_none: str | None
    """What comes nearest, where no layout meets the SLO."""
    next_step: str | None
    asked_requests_per_s: float | None = None
    """The rate that was named beside the number of devices."""
    asked_users: int | None = None
    """The users who were named."""

    @property
    def asked_load(self) -> float | None:
        """The rate, or the users, given together with the number of devices."""
        return self.asked_requests_per_s if self.asked_users is None else self.asked_users

    @property
    def verdict(self) -> Verdict:
        """Verdict of the best layout, at the named load if there is one."""
        best, asked_load = self.best, self.asked_load
        if best is None:
            return "undecided" if self.n_unexamined else "missed"
        if asked_load is None or asked_load <= (best.met_load or 0.0):
            return "met"
        is_above = asked_load >= (best.missed_load or 2 * best.located_load)
        return "missed" if is_above else "undecided"

    @property
    def best(self) -> UseRow | None:
        """The best that changes no quality; else the best of all."""
        return next(
            (row for row in self.rows if not row.needs_quality_check),
            self.rows[0] if self.rows else None,
        )


def best_use_of(
    model: str,
    n_total: int,
    found: Sequence[FoundUse],
    published: DType | None,
    allowed: Sequence[object],
    asked_load: float | None = None,
    *,
    is_of_users: bool = False,
) -> BestUse:
    """Rows of the results in each format."""
    has_budgets = any(one.n_step_budgets > 1 for one in found)
    ranked = [
        (use, _row(use, published, has_budgets=has_budgets))
        for one in found
        for use in one.uses
        if use.most_load
    ]
    # A load that was only located, with none below it shown to meet the SLO, recommends nothing.
    ranked.sort(
        key=lambda one: (one[1].needs_quality_check, one[1].met_load is None, -one[0].worth_load)
    )
    nearest = min(
        (one.nearest for one in found if one.nearest is not None),
        key=lambda one: one.margin_ratio,
        default=None,
    )
    best_use = BestUse(
        n_total=n_total,
        rows=tuple(row for _, row in ranked),
        n_candidates=sum(one.n_candidates for one in found),
        n_unexamined=sum(one.n_unexamined for one in found),
        is_split_examined=all(one.is_split_examined for one in found if one.uses),
        why_none=None if nearest is None else f"even a lone request misses it: {nearest.why}",
        next_step=None,
        asked_requests_per_s=None if is_of_users else asked_load,
        asked_users=round(asked_load) if is_of_users and asked_load else None,
    )
    best_use = replace(best_use, rows=_against_best(best_use, [use for use, _ in ranked]))
    return replace(best_use, next_step=_next_step(model, best_use, allowed))


def _against_best(best_use: BestUse, uses: Sequence[Use]) -> tuple[UseRow, ...]:
    """The rows with their ratio to the best."""
    points = [_point(use) for use in uses]
    best = next((k for k, row in enumerate(best_use.rows) if row is best_use.best), 0)
    return tuple(
        row if k == best else replace(row, ratio_to_best=ratio_of(points[k], points[best], _LOAD))
        for k, row in enumerate(best_use.rows)
    )


_LOAD: Final = "load"
_STEP: Final = decode_shape(batch_size=32, context_tokens=1024)
"""A usual step, by which loads grow as it gets faster."""
_ROUGHLY: Final = 1.1
"""Loads of layouts that were located by short probes alone are this factor off at most, as is what
their search asks for."""


def _point(use: Use) -> GridPoint:
    """The layout as a point of a grid, at the step times of all paces."""
    deployment, capacity, load = use.candidate.deployment, use.capacity, use.most_load
    engine, times = deployment.engine, deployment.step_times
    likely_s = shape_duration_s(times.likely, _STEP)
    others = [one.steps for one in times.draws] or [times.fast, times.slow]
    is_shown = capacity.met_load is not None and capacity.missed_load is not None
    low, high = capacity.met_load or 0.0, capacity.missed_load or 0.0
    if not is_shown or not low <= load <= high:
        low, high = load / _ROUGHLY, load * _ROUGHLY
    likely = Estimate(
        value=load, low=low, high=high, confidence_fraction=0.9, n_samples=1, method="probes"
    )
    return GridPoint(
        values={
            "hardware": use.candidate.offer.hardware.hardware_id,
            "tp": deployment.parallelism,
            "max_num_seqs": use.candidate.layout,
            "quantization": engine.quantization or engine.dtype,
            "kv_dtype": engine.kv_cache_dtype or engine.dtype,
            "prefill_replicas": use.n_prefill,
        },
        numbers={_LOAD: likely},
        words={"step_times": times.basis},
        paced={
            _LOAD: PacedNumber(
                likely=likely,
                others=tuple(load * likely_s / shape_duration_s(one, _STEP) for one in others),
            )
        },
        machine_share_fraction=times.machine_share_fraction,
    )


def _next_step(model: str, best_use: BestUse, allowed: Sequence[object]) -> str:
    """Command that deploys the best layout; or what to change where there is none."""
    best, asked_load = best_use.best, best_use.asked_load
    if best is None:
        return (
            "longer limits, more devices (--total-gpus), other devices (--gpus), or fewer bits"
            " (--quantization)"
        )
    flag = "--rate" if best.located_users is None else "--concurrency"
    weights = ("--quantization", best.weights_dtype) if best.needs_quality_check else ()
    cache = () if best.own_kv_dtype is None else ("--kv-dtype", best.own_kv_dtype)
    kind = (*allowed, *weights, *cache, "--gpus", best.hardware_id)
    if asked_load is not None and best_use.verdict != "met":
        more = suggestions.command("size", model, *kind, flag, f"{asked_load:g}")
        return f"how many it takes: {more}"
    load = asked_load or best.deployed_load
    n_whole = best.n_replicas - best.n_prefill
    splits = ("--prefill-replicas", best.n_prefill) if best.n_prefill else ()
    layout = ("--tp", best.tensor_parallel_size, "--replicas", n_whole, *splits)
    what = "how it does there" if best.n_prefill else "the files that deploy it"
    where = "" if asked_load else f" at {load:.3g} {best.unit}"
    files = () if best.n_prefill else ("--out", "deployment")
    same = suggestions.command("size", model, *kind, *layout, flag, f"{load:.3g}", *files)
    return f"{what}{where}: {same}"


def _row(use: Use, published: DType | None, *, has_budgets: bool) -> UseRow:
    candidate, capacity = use.candidate, use.capacity
    engine = candidate.deployment.engine
    is_of_users = capacity.kind == "users"
    loads = (use.most_load, capacity.met_load, capacity.missed_load)
    located, met, missed = (None, None, None) if is_of_users else loads
    users = [None if not is_of_users or one is None else round(one) for one in loads]
    return UseRow(
        hardware_id=candidate.offer.hardware.hardware_id,
        hardware=candidate.offer.hardware.name,
        layout=candidate.layout,
        weights_dtype=engine.quantization or engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype or engine.dtype,
        tensor_parallel_size=engine.tensor_parallel_size,
        n_replicas=use.n_replicas,
        n_prefill=use.n_prefill,
        n_devices=use.n_devices,
        located_requests_per_s=located,
        met_requests_per_s=met,
        missed_requests_per_s=missed,
        located_users=users[0],
        met_users=users[1],
        missed_users=users[2],
        step_budget_tokens=candidate.step_budget_tokens if has_budgets else None,
        needs_quality_check=(engine.quantization or engine.dtype) != (published or engine.dtype)
        or engine.kv_cache_dtype is not None,
    )


def best_use_page(
    best_use: BestUse, subject: str, objective: str, pace: Pace, cautions: tuple[Caution, ...]
) -> Page:
    """The best layout at step times of this pace, what other formats would gain, and the next best."""
    best = best_use.best
    tried = f"at {pace} step times; {_tried(best_use)}"
    if best is None:
        return _no_page(best_use, subject, objective, tried, cautions)
    shown = (
        "roughly: the time limit (--time-limit) ended the search"
        if not best.met_load
        else f"at least {format_number(best.met_load)}"
    )
    load = f"{format_number(best.located_load)} {best.unit}"
    check = "its number format is not the published one: needs a quality check"
    return Page(
        title=(
            f"{subject}: {best.n_devices} × {best.hardware} serve up to {load}"
            f" ({_replicas(best)}, {best.setting})"
        ),
        chips=(Chip(verdict=best_use.verdict, text=_kept(best_use, objective)),),
        numbers=(
            Number(
                name="capacity",
                value=best.located_load,
                unit=best.unit,
                low=best.met_load,
                high=best.missed_load,
                note=shown,
            ),
        ),
        table=_table(best_use),
        lines=lines_of(
            ("WHY", "\n".join([check] * best.needs_quality_check + _ties(best_use, best))),
            ("OR", "\n".join(_offers(best_use, best))),
            ("TRUST", tried),
            ("NEXT", best_use.next_step or ""),
        ),
        cautions=cautions,
    )


def _ties(best_use: BestUse, best: UseRow) -> list[str]:
    """Layouts of the same quality that may carry as much."""
    others = [
        row
        for row in best_use.rows
        if row is not best
        and row.needs_quality_check == best.needs_quality_check
        and is_tie(row.ratio_to_best)
    ]
    if not others:
        return []
    nearest = max(others, key=lambda row: row.located_load)
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    where = f"{nearest.setting}, {_replicas(nearest)}"
    return [f"undecided against {where} ({_ratio(nearest)} of its load){more}"]


def _ratio(row: UseRow) -> str:
    ratio = row.ratio_to_best
    return "–" if ratio is None else ratio.text(unit="x")


def _kept(best_use: BestUse, objective: str) -> str:
    """The SLO that is met, and the load if one was named."""
    word = {"met": "meets", "missed": "misses"}.get(best_use.verdict, "not decided:")
    asked_load = best_use.asked_load
    unit = "requests/s" if best_use.asked_users is None else "users"
    at_load = "" if asked_load is None else f" at {format_number(asked_load)} {unit}"
    return f"{word} {objective}{at_load}"


def _tried(best_use: BestUse) -> str:
    """Numbers of examined and omitted layouts, in words."""
    left_out = (
        f", {best_use.n_unexamined} not examined within the time limit (--time-limit)"
        if best_use.n_unexamined
        else ""
    )
    splits = (
        ""
        if best_use.is_split_examined
        else "; splits into prompts and answers were not all examined"
    )
    return (
        f"{counted(best_use.n_candidates, 'kind')} of replica tried{left_out}{splits}; simulated,"
        " not measured"
    )


def _no_page(
    best_use: BestUse, subject: str, objective: str, tried: str, cautions: tuple[Caution, ...]
) -> Page:
    """A page without a layout that meets the SLO: the nearest one, and other options."""
    return Page(
        title=f"{subject}: no layout of {_devices(best_use.n_total)} meets the SLO",
        chips=(Chip(verdict="missed", text=f"missed: {objective}"),),
        lines=lines_of(
            ("WHY", best_use.why_none or ""), ("TRUST", tried), ("NEXT", best_use.next_step or "")
        ),
        cautions=cautions,
    )


def _devices(n_total: int) -> str:
    return f"{n_total} device{'s' * (n_total != 1)}"


def _offers(best_use: BestUse, best: UseRow) -> list[str]:
    """Capacity in other number formats, in words."""
    others = {
        row.weights_dtype + row.kv_cache_dtype: row
        for row in reversed(best_use.rows)
        if row.needs_quality_check and row is not best
    }
    return [
        f"{row.setting}, {_replicas(row)}: {format_number(row.located_load)} {row.unit}"
        f" ({row.located_load / best.located_load:.2f} times), needs a quality"
        " check"
        for row in sorted(others.values(), key=lambda row: -row.located_load)
        if row.located_load > best.located_load
    ]


def _table(best_use: BestUse) -> TextTable:
    best_of = dict[tuple[str, int], UseRow]()
    for row in best_use.rows:
        best_of.setdefault((row.layout, row.n_prefill), row)
    rows = [
        (
            row.setting,
            _replicas(row),
            ("" if row.met_load else "≈ ") + format_number(row.located_load),
            _ratio(row),
            "yes" if row.needs_quality_check else "no",
        )
        for row in list(best_of.values())[:_MOST_ROWS]
    ]
    is_of_users = any(row.located_users is not None for row in best_use.rows)
    most = "max users" if is_of_users else "max req/s"
    header = ("layout", "replicas", most, "of the best", "needs a quality check")
    return TextTable(
        caption=f"Layouts of {_devices(best_use.n_total)}", header=header, rows=tuple(rows)
    )


def _replicas(row: UseRow) -> str:
    if row.n_prefill:
        return f"{row.n_prefill} prefill + {row.n_replicas - row.n_prefill} decode replicas"
    return f"{row.n_replicas} replica{'s' * (row.n_replicas > 1)}"
