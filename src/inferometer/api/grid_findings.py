"""What do the points of a grid say in words?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from inferometer import suggestions
from inferometer.api.grid import Axis, GridPoint, Value, value_text
from inferometer.api.grid_ties import is_tie, ratio_of
from inferometer.inputs import catalog
from inferometer.records import curves
from inferometer.records.curves import Curve, CurveFinding, Rule
from inferometer.units import format_duration, format_number

T = TypeVar("T")
_X_NAMES: Final = {"prompt": "prompt", "batch": "batch", "tp": "TP", "concurrency": "concurrency",
                   "rate": "rate", "output": "output"}  # fmt: skip
_MOST_CURVES: Final = 2
_LEAST_GAIN: Final = 1.1
"""A policy that gives less than this more is not called better."""


def curves_over(
    axes: tuple[Axis, ...], points: Sequence[GridPoint], axis: Axis, number: str, y_name: str
) -> list[Curve]:
    """The number over this axis, a curve for each combination of the others; points without one are left out."""
    others = [one for one in axes if one.name != axis.name]
    groups = dict[tuple[Value, ...], list[tuple[float, float]]]()
    for point in points:
        estimate = point.numbers.get(number)
        x = point.values[axis.name]
        if estimate is not None and isinstance(x, int | float):
            key = tuple(point.values[one.name] for one in others)
            groups.setdefault(key, []).append((float(x), estimate.value))
    found = list[Curve]()
    for values, pairs in groups.items():
        held = ", ".join(
            f"{_X_NAMES.get(one.name, one.name.replace('_', ' '))} {value_text(value)}"
            for one, value in zip(others, values, strict=True)
        )
        xs, ys = zip(*sorted(pairs), strict=True)
        found.append(
            Curve(xs, ys, _X_NAMES.get(axis.name, axis.name.replace("_", " ")), y_name,
                  f" at {held}" if held else "")
        )  # fmt: skip
    return found


_PREDICT_RULES: Final[tuple[tuple[str, str, str, tuple[Rule, ...]], ...]] = (
    ("prompt", "ttft_s", "TTFT", (curves.growth,)),
    ("prompt", "tpot_s", "TPOT", (curves.growth,)),
    ("prompt", "total_tokens_per_s", "total throughput", (curves.peak,)),
    ("prompt", "memory_bytes", "memory", (curves.growth,)),
    ("batch", "ttft_s", "TTFT", (curves.growth,)),
    ("batch", "memory_bytes", "memory", (curves.growth,)),
    ("batch", "tpot_s", "TPOT", (curves.growth,)),
    ("batch", "decode_tokens_per_s", "decode throughput", (curves.knee, curves.peak)),
    ("tp", "ttft_s", "TTFT", (curves.growth,)),
    ("tp", "tpot_s", "TPOT", (curves.growth,)),
)
"""Axis, number, its name in words, and the rules that speak of it."""
_SIMULATE_RULES: Final[tuple[tuple[str, str, str, tuple[Rule, ...]], ...]] = tuple(
    row
    for axis in ("concurrency", "rate")
    for row in (
        (axis, "output_tokens_per_s", "output throughput", (curves.knee, curves.peak)),
        (axis, "ttft_p95_s", "p95 TTFT", (curves.jumps,)),
        (axis, "tpot_p50_s", "median TPOT", (curves.growth,)),
    )
)


def _by_rules(
    axes: tuple[Axis, ...],
    points: Sequence[GridPoint],
    rules: tuple[tuple[str, str, str, tuple[Rule, ...]], ...],
) -> list[CurveFinding]:
    return [
        finding
        for name, number, y_name, applied in rules
        for axis in axes
        if axis.name == name
        for curve in _ends(curves_over(axes, points, axis, number, y_name))
        for finding in map(in_capital, curves.findings_of_curve(curve, applied))
    ]


def in_capital(finding: CurveFinding) -> CurveFinding:
    """The finding as a sentence of its own."""
    return replace(finding, sentence=curves.capital(finding.sentence))


def _ends(found: list[T]) -> list[T]:
    """The first and the last of many curves: a sentence for each of them would not be read."""
    return found if len(found) <= _MOST_CURVES else [found[0], found[-1]]


def predict_findings(
    axes: tuple[Axis, ...], points: tuple[GridPoint, ...]
) -> tuple[CurveFinding, ...]:
    """Findings: growth laws, knees, phases, fit in memory, fastest and cheapest."""
    found = _by_rules(axes, points, _PREDICT_RULES)
    for axis in axes:
        if axis.name in {"prompt", "batch", "output"}:
            found += [
                finding
                for curve in _ends(_prefill_shares(axes, points, axis))
                if (finding := curves.share(curve)) is not None
            ]
    return (
        *_slo(axes, points, "decode_tokens_per_s", "decode tok/s"),
        *found,
        *_prompt_tokens(axes, points),
        *_what_ends_the_gain(axes, points),
        *_same_tokens(axes, points),
        *_origins(points),
        *_best(axes, points),
        *_what_orders_devices(axes, points),
        *fits_findings(points),
        *_quality(axes),
    )


def _quality(axes: tuple[Axis, ...]) -> list[CurveFinding]:
    """Fewer bits change answers, which no prediction tells: the command that measures it."""
    rounded = {"quantization": "--quantization", "kv_dtype": "--kv-dtype"}
    words = [
        word
        for axis in axes
        if axis.name in rounded
        for value in axis.values
        if (given := _ROUNDED_AS.get(str(value))) is not None
        for word in (rounded[axis.name], given)
    ]
    if not words:
        return []
    text = (
        "What fewer bits cost in quality is measured, not predicted:"
        f" {suggestions.command('quality', 'MODEL', *words)}"
    )
    return [CurveFinding(code="QUALITY", sentence=text)]


_ROUNDED_AS: Final = {"float8": "fp8", "fp8": "fp8", "int8": "int8", "int4": "int4"}
"""Formats as `inferometer quality` measures them."""


def _prompt_tokens(axes: tuple[Axis, ...], points: Sequence[GridPoint]) -> list[CurveFinding]:
    """The length from which on a prompt token takes longer, if there is one."""
    found = [
        curves.cheapest(
            curve._replace(y=tuple(y / x for x, y in zip(curve.x, curve.y, strict=True)))
        )
        for axis in axes
        if axis.name == "prompt"
        for curve in _ends(
            curves_over(axes, points, axis, "ttft_s", "prefill time of a prompt token")
        )
    ]
    return [in_capital(one) for one in found if one is not None]


def _what_ends_the_gain(axes: tuple[Axis, ...], points: Sequence[GridPoint]) -> list[CurveFinding]:
    """Knee of each curve over batch, and the largest batch in memory."""
    found = list[CurveFinding]()
    for axis in axes:
        if axis.name != "batch":
            continue
        rates = curves_over(axes, points, axis, "decode_tokens_per_s", "decode throughput")
        largest = curves_over(axes, points, axis, "largest_batch_sequences", "largest batch")
        at = {one.held: one for one in largest}  # a rate of decode only where there is one
        for rate, most in _ends([(rate, at[rate.held]) for rate in rates]):
            knee, room = curves.knee_at(rate), most.y[-1]
            if room < rate.x[0] or (knee is None and room > rate.x[-1]):
                continue
            text = (
                f"The memory holds {format_number(room)} at once, and the knee is at"
                f" {format_number(knee)}{rate.held}: bandwidth and compute end the gain, not"
                " capacity."
                if knee is not None and knee <= room
                else f"The memory holds {format_number(room)} at once, before any"
                f" knee{rate.held}: capacity ends the gain."
            )
            found.append(CurveFinding(code="KNEE_OR_MEMORY", sentence=text))
    return found


_LEAST_DEVICES: Final = 4
_LEAST_CORRELATION_GAP: Final = 0.05


def _what_orders_devices(axes: tuple[Axis, ...], points: Sequence[GridPoint]) -> list[CurveFinding]:
    """Does bandwidth or peak compute rank devices by speed of decode, and of prefill?"""
    known = [
        point for point in points if point.numbers.get("tpot_s") and "hardware" in point.values
    ]
    ids = dict.fromkeys(str(point.values["hardware"]) for point in known)
    if len(ids) < _LEAST_DEVICES or len(axes) > 1 or "this" in ids:
        return []
    devices = [catalog.find_hardware(one) for one in ids]
    peaks = [one.peak_flop_per_s("bfloat16") or one.peak_flop_per_s("float16") for one in devices]
    bandwidths = [one.memory_bytes_per_s.value for one in devices]
    computes = [0.0 if peak is None else peak.value for peak in peaks]
    shown = list[str]()
    for name, number in (("decode", "tpot_s"), ("prefill", "ttft_s")):
        speeds = [1 / _value(point, number) for point in known]
        by_bytes, by_flop = (_rank_correlation(speeds, one) for one in (bandwidths, computes))
        better, worse = ("bandwidth", by_bytes), ("peak FLOP/s", by_flop)
        if by_flop > by_bytes:
            better, worse = worse, better
        shown.append(
            f"{name} follows {better[0]} (rank correlation {better[1]:.2f};"
            f" {worse[0]} {worse[1]:.2f})"
            if better[1] - worse[1] >= _LEAST_CORRELATION_GAP
            else f"{name} follows bandwidth and peak FLOP/s alike (rank correlation"
            f" {by_bytes:.2f} and {by_flop:.2f}: these devices do not tell which)"
        )
    text = f"Over {len(ids)} devices the speed of {shown[0]}, that of {shown[1]}."
    return [CurveFinding(code="DEVICES", sentence=text)]


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, ties in order."""
    ranks = [
        np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (one, other)
    ]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _origins(points: Sequence[GridPoint]) -> list[CurveFinding]:
    """A caution that points have step times of different sources."""
    counts = Counter(point.words["step_times"] for point in points if point.refused is None)
    if len(counts) < 2:
        return []
    named = ", ".join(f"{number} by {origin}" for origin, number in counts.most_common())
    text = (
        f"Step times come from different sources ({named}), so points of two sources are not ranked"
    )
    if set(counts) == {"published", "datasheet"}:
        text += "; --datasheet gives all of them the same"
    return [CurveFinding(code="MIXED_STEP_TIMES", sentence=f"{text}.")]


def _prefill_shares(axes: tuple[Axis, ...], points: Sequence[GridPoint], axis: Axis) -> list[Curve]:
    ttft = curves_over(axes, points, axis, "ttft_s", "Prefill")
    e2e = curves_over(axes, points, axis, "e2e_s", "Prefill")
    return [
        part._replace(y=tuple(a / b for a, b in zip(part.y, whole.y, strict=True)))
        for part, whole in zip(ttft, e2e, strict=True)
    ]


def _same_tokens(axes: tuple[Axis, ...], points: Sequence[GridPoint]) -> list[CurveFinding]:
    """Compare one long prompt with many short ones of the same total length."""
    if {"prompt", "batch"} - {axis.name for axis in axes}:
        return []
    by_tokens = dict[tuple[object, ...], list[GridPoint]]()
    for point in points:
        prompt, batch = point.values["prompt"], point.values["batch"]
        if isinstance(prompt, int) and isinstance(batch, int) and point.numbers.get("ttft_s"):
            others = tuple(
                value for name, value in point.values.items() if name not in {"prompt", "batch"}
            )
            by_tokens.setdefault((prompt * batch, *others), []).append(point)
    widest = max(by_tokens.values(), key=len, default=[])
    if len(widest) < 2:
        return []
    ordered = sorted(widest, key=lambda point: int(point.values["batch"] or 0))
    ends = [_prompt_and_batch(point) for point in (ordered[0], ordered[-1])]
    text = f"The same prompt tokens, different outcomes: {ends[0]}; {ends[1]}."
    return [CurveFinding(code="LENGTH_VS_CONCURRENCY", sentence=text)]


def _prompt_and_batch(point: GridPoint) -> str:
    rate = point.numbers.get("decode_tokens_per_s")
    decoded = "" if rate is None else f", {format_number(rate.value)} decode tok/s"
    return (
        f"prompt {point.values['prompt']} x batch {point.values['batch']}: TTFT"
        f" {format_duration(_value(point, 'ttft_s'))}{decoded}"
    )


def _value(point: GridPoint, number: str) -> float:
    estimate = point.numbers[number]
    return float("nan") if estimate is None else estimate.value


def _best(axes: tuple[Axis, ...], points: Sequence[GridPoint]) -> list[CurveFinding]:
    """Fastest decode and cheapest token among devices, formats and models that fit."""
    if not any(not isinstance(axis.values[0], int | float) for axis in axes):
        return []
    fitting = [point for point in points if point.words.get("fits") == "yes"]
    found = list[CurveFinding]()
    for number, what, unit in (
        ("tpot_s", "Fastest per user", None),
        ("usd_per_million_tokens", "Cheapest", "$ per 1M output tokens"),
    ):
        known = [point for point in fitting if point.numbers.get(number) is not None]
        for source, members in _by_source(known, points).items():
            if len(members) < 2:
                continue
            best = min(members, key=lambda point: _value(point, number))
            value = _value(best, number)
            amount = f"TPOT {format_duration(value)}" if unit is None else f"{value:.3g} {unit}"
            open_ = _undecided(best, members, number)
            text = (
                f"{what}: {point_name(best)} ({amount}), of {len(members)} that fit{source}{open_}."
            )
            found.append(CurveFinding(code="BEST", sentence=text))
    return found


def _undecided(best: GridPoint, members: Sequence[GridPoint], number: str) -> str:
    """Which others may be as good: the interval of their paired ratio to the best includes 1."""
    ratios = [(point, ratio_of(point, best, number)) for point in members if point is not best]
    ties = [(point, ratio) for point, ratio in ratios if is_tie(ratio)]
    if not ties:
        return ""
    nearest, ratio = min(ties, key=lambda tie: abs(_value(tie[0], number) - _value(best, number)))
    more = f" and {len(ties) - 1} more" if len(ties) > 1 else ""
    text = "no interval" if ratio is None else ratio.text(unit="x")
    return f"; undecided against {point_name(nearest)} ({text}){more}"


def _by_source(
    points: Sequence[GridPoint], grid: Sequence[GridPoint]
) -> dict[str, list[GridPoint]]:
    """Points grouped by the source of step times: only those of one source are ranked.

    The key ends a sentence about them; it is empty where the whole grid shares one source.
    """
    groups = dict[str, list[GridPoint]]()
    for point in points:
        groups.setdefault(point.words.get("step_times") or "", []).append(point)
    if len({point.words.get("step_times") for point in grid if point.refused is None}) < 2:
        return {"": list(points)}
    return {f", by {source}": members for source, members in groups.items()}


def point_name(point: GridPoint) -> str:
    """Its values in words."""
    return _name_of(point.values)


def _name_of(values: Mapping[str, Value]) -> str:
    return ", ".join(
        f"{_X_NAMES[name]} {value_text(value)}" if name in _X_NAMES else value_text(value)
        for name, value in values.items()
    )


_LADDERS: Final = ("batch", "concurrency", "rate", "prompt", "output", "tp")
"""The first of them that a grid has is climbed until the SLO is missed."""
_MOST_SIDES: Final = 4


def _slo(
    axes: tuple[Axis, ...], points: Sequence[GridPoint], number: str, unit: str
) -> list[CurveFinding]:
    """Points that meet the SLO, where each curve stops doing so, and the best of them."""
    judged = [point for point in points if point.words.get("slo") is not None]
    if not judged:
        return []
    inside = [point for point in judged if _meets(point)]
    counts = [
        f"{sum(point.words['slo'] == verdict for point in judged)} {words}"
        for verdict, words in (("undecided", "are undecided"), ("missed", "miss it"))
    ]
    text = f"The SLO: {len(inside)} of {len(points)} points meet it and fit, {', '.join(counts)}"
    ladder = next((axis for name in _LADDERS for axis in axes if axis.name == name), None)
    if ladder is not None and inside:
        sides = _sides(ladder, judged)
        more = f" and {len(sides) - _MOST_SIDES} more" if len(sides) > _MOST_SIDES else ""
        text += f"; {'; '.join(sides[:_MOST_SIDES])}{more}"
    found = [CurveFinding(code="SLO", sentence=f"{text}.")]
    known = [point for point in inside if point.numbers.get(number) is not None]
    groups = _by_source(known, points)
    for source, members in groups.items():
        if len(members) < 2 and len(groups) > 1:
            continue  # one point of a source is no ranking; a single one of the grid is an answer
        best = max(members, key=lambda point: _value(point, number), default=None)
        if best is not None:
            amount = f"{format_number(_value(best, number))} {unit}{source}"
            open_ = _undecided(best, members, number)
            text = f"Most {unit} within the SLO: {point_name(best)} ({amount}){open_}."
            found.append(CurveFinding(code="BEST", sentence=text))
    return found


def _meets(point: GridPoint) -> bool:
    return point.words.get("slo") == "met" and point.words.get("fits") != "no"


def _sides(ladder: Axis, judged: Sequence[GridPoint]) -> list[str]:
    """Up to which value of the ladder each combination of the other axes meets the SLO."""
    groups = dict[str, list[GridPoint]]()
    for point in judged:
        others = {name: value for name, value in point.values.items() if name != ladder.name}
        groups.setdefault(_name_of(others), []).append(point)
    step = _X_NAMES.get(ladder.name, ladder.name)
    sides = list[str]()
    for name, members in groups.items():
        ordered = sorted(members, key=lambda point: float(point.values[ladder.name] or 0))
        met = [value_text(point.values[ladder.name]) for point in ordered if _meets(point)]
        is_climb = met == [value_text(point.values[ladder.name]) for point in ordered[: len(met)]]
        words = (
            f"at no {step}"
            if not met
            else f"at every {step}"
            if len(met) == len(ordered)
            else f"up to {step} {met[-1]}"
            if is_climb
            else f"at {step} {', '.join(met)}"
        )
        sides.append(f"{name} {words}" if name else words)
    return sides


def fits_findings(points: Sequence[GridPoint]) -> list[CurveFinding]:
    """Points that do not fit in memory, and points without an answer."""
    missing = [point for point in points if point.words.get("fits") == "no"]
    refused = [point for point in points if point.refused is not None]
    found = list[CurveFinding]()
    if missing:
        text = (
            f"{len(missing)} of {len(points)} points"
            f" {'does' if len(missing) == 1 else 'do'} not fit in memory, the first at"
            f" {point_name(missing[0])}: their times are as if they did."
        )
        found.append(CurveFinding(code="OUT_OF_MEMORY", sentence=text))
    if refused:
        text = (
            f"{len(refused)} of {len(points)} points"
            f" {'has' if len(refused) == 1 else 'have'} no answer, the first at"
            f" {point_name(refused[0])}: {refused[0].refused}."
        )
        found.append(CurveFinding(code="REFUSED", sentence=text))
    return found


def simulate_findings(
    axes: tuple[Axis, ...], points: tuple[GridPoint, ...]
) -> tuple[CurveFinding, ...]:
    """Findings: knees of throughput, jumps of TTFT, gains of each policy."""
    found = _by_rules(axes, points, _SIMULATE_RULES)
    slo = _slo(axes, points, "requests_per_s", "requests/s")
    return (*slo, *_policies(axes, points), *found, *_origins(points), *fits_findings(points))


def _policies(axes: tuple[Axis, ...], points: Sequence[GridPoint]) -> list[CurveFinding]:
    """The gain of continuous over the other policies, and where one of them is faster."""
    policy = next((axis for axis in axes if axis.name == "policy"), None)
    load = next((axis for axis in axes if axis.name in {"concurrency", "rate"}), None)
    if policy is None or load is None or len(policy.values) < 2:
        return []
    alike = dict[str, list[GridPoint]]()
    for point in points:
        own = {policy.name, load.name}
        held = _name_of({name: one for name, one in point.values.items() if name not in own})
        alike.setdefault(held, []).append(point)
    return [
        CurveFinding(code="POLICY", sentence=f"{text}{f' ({held})' if held else ''}.")
        for held, members in _ends(list(alike.items()))
        for text in _gains(policy, load, members)
    ]


def _gains(policy: Axis, load: Axis, points: Sequence[GridPoint]) -> list[str]:
    """Continuous against each other policy, of points that differ in nothing but policy and load."""
    own = "vllm" if "vllm" in policy.values else policy.values[-1]
    unit = "users" if load.name == "concurrency" else "requests/s"
    seen = {
        (point.values["policy"], point.values[load.name]): point
        for point in points
        if point.numbers.get("requests_per_s") and _value(point, "requests_per_s") > 0
    }
    found = list[str]()
    for other in policy.values:
        gains = [
            (ratio, x)
            for x in load.values
            if (own, x) in seen
            and (other, x) in seen
            and (ratio := ratio_of(seen[own, x], seen[other, x], "requests_per_s")) is not None
        ]
        if other == own or not gains:
            continue
        best, at = max(gains, key=lambda gain: gain[0].value)
        better = [x for gain, x in gains if gain.value >= _LEAST_GAIN and not is_tie(gain)]
        worse = [x for gain, x in gains if gain.value <= 1 / _LEAST_GAIN and not is_tie(gain)]
        text = f"{own} completes {best.text(unit='x')} the requests of {other} at {value_text(at)} {unit}"
        loads = [x for _, x in gains]
        if better and better[0] != loads[0]:
            last = loads[loads.index(better[0]) - 1]
            text += f", and no more than {other} up to {value_text(last)}"
        if not better and best.value >= _LEAST_GAIN:
            text = f"undecided whether {text}"
        elif not better:
            text = f"{own} completes no more requests than {other} at any load"
        if worse:
            text += f"; {other} completes more at {', '.join(map(value_text, worse))} {unit}"
        found.append(text)
    return found


def capacity_findings(
    axes: tuple[Axis, ...], points: tuple[GridPoint, ...]
) -> tuple[CurveFinding, ...]:
    """Growth of the capacity, and the combination with the highest."""
    number = next((name for point in points for name in point.numbers), "capacity_requests_per_s")
    found = [
        in_capital(finding)
        for axis in axes
        for curve in curves_over(axes, points, axis, number, "capacity")
        if (finding := curves.growth(curve)) is not None
    ]
    known = [point for point in points if point.numbers.get(number) and _value(point, number) > 0]
    unit = "users" if number.endswith("users") else "requests/s"
    for source, members in _by_source(known, points).items():
        if len(members) > 1:
            best = max(members, key=lambda point: _value(point, number))
            amount = f"{format_number(_value(best, number))} {unit}{source}"
            open_ = _undecided(best, members, number)
            text = f"Most load within the SLO: {point_name(best)} ({amount}){open_}."
            found.append(CurveFinding(code="BEST", sentence=text))
    return (*found, *_origins(points), *fits_findings(points))


def disaggregation_findings(
    axes: tuple[Axis, ...], points: tuple[GridPoint, ...]
) -> tuple[CurveFinding, ...]:
    """Findings: what replicas that do both carry, what the best split does, and the paired ratio."""
    axis = next((one for one in axes if one.name == "prefill_replicas"), None)
    number = next((name for one in points for name in one.paced), "")
    groups = dict[str, list[GridPoint]]()
    for point in points:
        others = {name: one for name, one in point.values.items() if name != "prefill_replicas"}
        groups.setdefault(_name_of(others), []).append(point)
    found = [
        CurveFinding(code="DISAGGREGATION", sentence=f"{text}{f' ({held})' if held else ''}.")
        for held, members in groups.items()
        if axis is not None and (text := _split_against_whole(members, number))
    ]
    return (*found, *_origins(points), *fits_findings(points))


def _split_against_whole(members: Sequence[GridPoint], number: str) -> str:
    """The best split beside replicas that do both; '' where no point has an answer."""
    known = [one for one in members if one.numbers.get(number) and _value(one, number) > 0]
    whole = next((one for one in known if not one.values["prefill_replicas"]), None)
    splits = [one for one in known if one.values["prefill_replicas"]]
    if whole is None and not splits:
        is_answered = any(one.refused is None for one in members)
        return (
            "No load was found at which the SLO is met, with a split or without"
            if is_answered
            else ""
        )
    if whole is None or not splits:
        return (
            "No split meets the SLO at any load that was tried, replicas that do both do"
            if whole
            else "Splits alone meet the SLO at some load: replicas that do both do not"
        )
    best = max(splits, key=lambda one: _value(one, number))
    ratio = ratio_of(best, whole, number)
    unit = "users" if "users" in number else "requests/s"
    rates = ", against ".join(
        "no interval" if (seen := one.numbers[number]) is None else seen.text()
        for one in (best, whole)
    )
    verdict = (
        "It is undecided whether splitting prefill and decode is worth it"
        if ratio is None or is_tie(ratio)
        else "Splitting prefill and decode is worth it"
        if ratio.value > 1
        else "Splitting prefill and decode is not worth it"
    )
    times = "" if ratio is None else f" {ratio.text(unit='x')} as much"
    return (
        f"{verdict}: the best split, with prefill replicas {best.values['prefill_replicas']},"
        f" carries{times} per GPU within the SLO ({rates} {unit} of replicas that do both)"
    )
