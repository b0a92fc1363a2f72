"""How does a sizing look in the terminal: the answer, the table of devices, why, and what it rests on?"""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.cli.sizing import KindRow, PaceRow, SizeAnswer
from inferometer.records.request_summaries import Percentile
from inferometer.report.request_words import percentile_text
from inferometer.units import format_number

_ABSENT: Final = "–"
_MAX_REFUSED: Final = 3


def size_text(answer: SizeAnswer) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = [Text(_headline(answer), style="bold")]
    if answer.pick is not None:
        parts += [Text(_doubt(answer.pick)), Text(_reserve(answer.pick)), Text(""), _table(answer), Text("")]
        likely = _likely(answer.pick)
        parts.append(Text(f"WHY    {likely.weakest or 'nothing was promised of a percentile'}"))
        parts += [Text(f"BREAKS first under more traffic: {likely.breaks_first}")] if likely.breaks_first else []
    parts += [Text(f"NOT    {device}: {why}") for device, why in answer.impossible]
    parts += [Text(f"NOT    {one.what}: {one.why}") for one in answer.refused[:_MAX_REFUSED]]
    if len(answer.refused) > _MAX_REFUSED:
        parts.append(Text(f"       and {len(answer.refused) - _MAX_REFUSED} more kinds that cannot be"))
    parts += [Text(line) for line in _origins(answer)]
    parts += [Text(f"CAUTION {caution.text} – {caution.remedy}") for caution in answer.cautions]
    return Group(*parts)


def _headline(answer: SizeAnswer) -> str:
    asked = f"{format_number(answer.rate_per_s)} requests/s of {answer.workload_name}"
    pick = answer.pick
    if pick is None:
        return f"ANSWER nothing on offer keeps {answer.objective} for {answer.model_id} at {asked}"
    likely = _likely(pick)
    cost = "" if pick.usd_per_hour is None else f"; ${pick.usd_per_hour:.2f}/h"
    per_token = "" if pick.usd_per_million_output_tokens is None else f", ${pick.usd_per_million_output_tokens:.2f} / 1M output tok"
    return (
        f"ANSWER {pick.n_devices} x {pick.hardware} ({_replicas(pick.n_replicas)}, {pick.layout}) serve {asked}: "
        f"TTFT {percentile_text(likely.ttft)}, TPOT {percentile_text(likely.tpot)}{cost}{per_token}"
    )


def _doubt(pick: KindRow) -> str:
    said = {pace.step_times: pace for pace in pick.paces}
    ends = ", ".join(f"{name} step times: {said[name].verdict}{_would_need(said[name], pick)}" for name in ("likely", "fast", "slow"))
    return f"SLO    {pick.verdict} ({ends})"


def _would_need(pace: PaceRow, pick: KindRow) -> str:
    if pace.n_replicas is None:
        return ", no number of replicas keeps it"
    return "" if pace.n_replicas <= pick.n_replicas else f", {_replicas(pace.n_replicas)} needed"


def _reserve(pick: KindRow) -> str:
    headroom = "not known" if pick.headroom_fraction is None else f"{pick.headroom_fraction:.0%}"
    per_device = "" if pick.device_requests_per_s is None else f"; {format_number(pick.device_requests_per_s)} req/s per device"
    energy = "" if pick.output_joule_per_token is None else f"; at most {format_number(pick.output_joule_per_token)} J / output tok"
    return f"       headroom {headroom}{per_device}{energy}; to lose one replica and keep it: {_replicas(pick.n_replicas_if_one_fails)}"


def _table(answer: SizeAnswer) -> RenderableType:
    heads = ("device", "layout", "devices", "TTFT", "TPOT", "max req/s", "$/h", "$/1M out", "verdict")
    table = Table(*heads, box=None, pad_edge=False)
    for row in answer.kinds:
        likely = _likely(row)
        table.add_row(
            row.hardware_id,
            f"{row.n_replicas} x {row.layout.partition(',')[0]}",
            str(row.n_devices),
            _short(likely.ttft),
            _short(likely.tpot),
            _capacity(row, likely),
            _ABSENT if row.usd_per_hour is None else f"{row.usd_per_hour:.2f}",
            _ABSENT if row.usd_per_million_output_tokens is None else f"{row.usd_per_million_output_tokens:.2f}",
            row.verdict,
        )
    return table


def _capacity(row: KindRow, pace: PaceRow) -> str:
    """Of all replicas: the highest rate that was shown to keep the promise, and the lowest that was shown to break it."""
    if pace.kept_requests_per_s is None:
        return _ABSENT
    above = "" if pace.broken_requests_per_s is None else f"–{format_number(pace.broken_requests_per_s * row.n_replicas)}"
    return f"{format_number(pace.kept_requests_per_s * row.n_replicas)}{above}"


def _origins(answer: SizeAnswer) -> list[str]:
    pick = answer.pick
    lengths = "" if pick is None else f"prompts of {_tokens(answer.mean_prompt_tokens)}, outputs of {_tokens(answer.mean_output_tokens)}; "
    tried = f"{answer.n_candidates} kinds of replica, {answer.n_searched} searched, the others cannot do with fewer devices"
    lines = [f"ASKED  {lengths}{answer.objective}", f"TRIED  {tried}"]
    if pick is None:
        return lines[1:]
    price = "nobody says" if pick.price is None else f"{pick.price.basis}, {pick.price.date_utc or 'undated'} ({pick.price.source.where})"
    return [*lines, f"STEPS  {pick.step_times_from}", f"KV     {pick.n_kv_blocks:,} blocks a replica", f"PRICE  {price}"]


def _tokens(mean: float | None) -> str:
    return _ABSENT if mean is None else f"{format_number(mean)} tokens in the mean"


def _short(percentile: Percentile | None) -> str:
    return percentile_text(percentile).partition(" [")[0]


def _replicas(n_replicas: int) -> str:
    return f"{n_replicas} replica{'s' if n_replicas > 1 else ''}"


def _likely(row: KindRow) -> PaceRow:
    return next(pace for pace in row.paces if pace.step_times == "likely")


__all__ = ["size_text"]
