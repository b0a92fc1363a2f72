"""Answer of a measured tuning, and its files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from inferometer.api import fleet, tune_next
from inferometer.api.diagnose_stored import stored_source
from inferometer.api.tune_answer import interval_words, write_answer
from inferometer.api.tune_measured import Done, Job, baseline_folders, most_words
from inferometer.api.tune_paired import CONFIDENCE, Results
from inferometer.api.tuning import Box, MeasuredStep, MeasuredTune, SettingRow, TunedLatency
from inferometer.decide.diagnosis import observed
from inferometer.decide.tuning.trials import Outcome
from inferometer.errors import COMMAND, InferometerError
from inferometer.inputs import objectives, types
from inferometer.inputs.workload.types import ClosedArrivals, WorkloadSpec
from inferometer.records.pitfalls import PITFALLS, CheckRow, PitfallName, judged
from inferometer.stats.comparison import pair_gain
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.units import format_duration

_KERNELS: Final = "--try '--attention-backend NAME' measures one"


def answer_of(job: Job, done: Done, spec: WorkloadSpec) -> MeasuredTune:
    """The answer; written to the folder with its page and the command."""
    command = done.command if done.is_confirmed else job.start
    is_closed = isinstance(spec.arrivals, ClosedArrivals)
    answer = MeasuredTune(
        model=done.first.model,
        url=job.bench.url,
        engine=job.start.family,
        version=done.first.version,
        goal=job.wanted.goal,
        objective=job.bench.objective.text,
        workload_name=spec.name,
        load=fleet.start_load_of(spec),
        load_unit="users" if is_closed else "requests/s",
        score_words=_score_words(job.wanted.goal),
        least_gain_fraction=job.wanted.least_gain_fraction,
        steps=tuple(done.steps),
        is_confirmed=done.is_confirmed,
        gain_fraction=None if done.confirmed is None else done.confirmed.gain,
        selected_gain_fraction=done.selected_gain_fraction,
        noise_fraction=float(np.std(done.same.log_ratios, ddof=1)),
        same_gain_fraction=done.same.gain,
        latencies=latencies_of(job.bench.objective, done),
        slo_before=verdict_of_runs(done.before),
        slo_after=verdict_of_runs(done.after),
        settings=settings_of(done),
        command=command.text,
        command_before=job.start.text,
        checklist=_checklist(job, done),
        checks=checks_of_loads(baseline_folders(job)),
        n_servers=1 + 2 * sum(len(one.log_ratios) for one in done.found),
        n_simulations=done.n_simulations,
        start_s=done.first.start_s,
        quality_checks=tune_next.quality_commands(done.first.model, done.steps),
        cautions=tuple(_cautions(done)),
        next_step=tune_next.next_of_measured(
            job.bench.url, job.bench.load.workload, job.bench.objective
        ),
        folder=str(job.bench.folder),
    )
    write_answer(answer, Path(answer.folder), answer.command)
    return answer


def checks_of_loads(folders: Sequence[Path]) -> tuple[CheckRow, ...]:
    """Pitfalls by metrics and clients of these load tests of one server: medians.

    A pitfall that none of them shows is *not reported*; where no metrics can be read, with the reason.
    """
    seen: dict[PitfallName, list[float]] = {name: [] for name in observed.CHECKED}
    reasons = list[str]()
    for folder in folders:
        try:
            source = stored_source(folder)
        except InferometerError as error:
            reasons.append(error.what)
            continue
        for row in observed.checked(source.window, source.outside):
            if row.measured_ratio is not None:
                seen[row.name].append(row.measured_ratio)
    why = reasons[0] if reasons and len(reasons) == len(folders) else ""
    return tuple(
        judged(one.name, float(np.median(seen[one.name])))
        if seen[one.name]
        else judged(one.name, None, why)
        for one in PITFALLS
        if one.name in seen
    )


def plan_words(job: Job) -> str:
    """Servers and loads of the plan, at most."""
    each = job.bench.load.workload
    lasts = (
        f"{each.requests:,} requests" if each.duration is None else format_duration(each.duration)
    )
    return (
        f"{most_words(job, None)}; one after the other, each loaded with {lasts}; the first tells"
        " how long a start takes"
    )


def _score_words(goal: str) -> str:
    if goal == "interactive":
        return "headroom: the limit of the weakest latency over that latency"
    return "requests/s within the SLO"


def latencies_of(objective: objectives.ObjectiveSpec, done: Results) -> tuple[TunedLatency, ...]:
    """Each limit, before and after."""
    limited = [one for one in objective.thresholds if one.percentile_fraction is not None]
    return tuple(
        TunedLatency(
            text=one.text,
            limit_s=one.limit_s,
            before_s=_middle([outcome.latencies_s[index] for outcome in done.before]),
            after_s=_middle([outcome.latencies_s[index] for outcome in done.after]),
        )
        for index, one in enumerate(limited)
    )


def _middle(seconds: Sequence[float]) -> Estimate | None:
    """Geometric mean over runs; its interval is that of the pairs."""
    known = [math.log(one) for one in seconds if one > 0 and math.isfinite(one)]
    found = pair_gain(known, confidence_fraction=CONFIDENCE)
    if found is None:
        return None
    return Estimate(
        value=1 + found.value,
        low=None if found.low is None else 1 + found.low,
        high=None if found.high is None else 1 + found.high,
        confidence_fraction=CONFIDENCE,
        n_samples=found.n_samples,
        method=f"geometric mean of {found.n_samples} load tests, t confidence sequence",
    )


def verdict_of_runs(outcomes: Sequence[Outcome]) -> Verdict:
    """Met or missed where all load tests agree, else undecided."""
    n_met = sum(one.margin_ratio <= 1 for one in outcomes)
    if not outcomes or 0 < n_met < len(outcomes):
        return "undecided"
    return "met" if n_met else "missed"


def settings_of(done: Results) -> tuple[SettingRow, ...]:
    """The changes that were taken and gain once more."""
    return tuple(
        SettingRow(
            name=one.name,
            value=one.change or "",
            default="as it was given",
            why=""
            if one.gain_fraction is None
            else f"{interval_words(one.gain_fraction)}; {one.why}",
        )
        for one in done.steps
        if one.decision == "keep" and done.is_confirmed
    )


def noise_cautions(done: Results, differs: str) -> list[types.Caution]:
    """A caution where the start differs from itself, in these words."""
    same = done.same.gain
    if same is None or not ((same.low or 0) > 0 or (same.high or 0) < 0):
        return []
    remedy = f"{COMMAND}doctor says what disturbs this machine"
    text = f"{differs} by {interval_words(same)}"
    return [types.Caution(code="NOT_THE_SAME", text=text, remedy=remedy)]


def unconfirmed_cautions(done: Results, remedy: str) -> list[types.Caution]:
    """A caution where what looked better is not so in fresh pairs."""
    if done.confirmed is None or done.is_confirmed:
        return []
    why = done.confirmed.fault or "what looked better was not so in fresh pairs"
    text = f"nothing is changed: {why}"
    return [types.Caution(code="NOT_CONFIRMED", text=text, remedy=remedy)]


def _cautions(done: Done) -> list[types.Caution]:
    found = noise_cautions(done, "the command differs from itself")
    n_runs = 2 * sum(len(one.log_ratios) for one in done.found)
    n_invalid = sum(one.n_invalid for one in done.found)
    if n_invalid:
        text = f"the load client calls {n_invalid} of {n_runs} load tests INVALID"
        found.append(
            types.Caution(code="INVALID", text=text, remedy="their reports in the folder say why")
        )
    found += _lost(done, n_runs)
    if done.model.distrust:
        found.append(
            types.Caution(
                code="NO_MODEL",
                text=f"no model explains this server's load tests: {done.model.distrust}",
                remedy="its predictions were not used to skip a step: all were measured",
            )
        )
    return found + unconfirmed_cautions(done, "longer load tests (--for), or more pairs (--pairs)")


def _lost(done: Done, n_runs: int) -> list[types.Caution]:
    """Requests that no answer came to, and metrics that were not there."""
    found = list[types.Caution]()
    lost = max(one.lost_fraction for one in done.found)
    if lost > 0:
        text = f"the server loses requests: {lost:.1%} in the load test that lost most"
        remedy = "the reports in the folder say which and why; a lost request is late for the SLO"
        found.append(types.Caution(code="LOST", text=text, remedy=remedy))
    n_without = sum(one.n_without_metrics for one in done.found)
    if n_without:
        text = f"the server's metrics were not all there in {n_without} of {n_runs} load tests"
        remedy = "clients' latencies decide; nothing rests on the server's metrics"
        found.append(types.Caution(code="METRICS_GONE", text=text, remedy=remedy))
    return found


def _checklist(job: Job, done: Done) -> tuple[Box, ...]:
    """The ten entries of the checklist, with measurements."""
    by_name = {one.name: one for one in done.steps}
    measured = [one for one in done.steps if one.n_pairs]
    batching = [
        by_name[name] for name in ("max_num_seqs", "step_budget", "again") if name in by_name
    ]
    tp = done.command.value("tp") or "1"
    lossy = [one for one in measured if one.name in {"kv_precision", "weight_precision"}]
    return (
        Box(
            name="baseline recorded",
            is_ticked=True,
            evidence=f"{len(done.same.log_ratios)} pairs of the command against itself,"
            f" {len(done.before)} load tests of it in the confirmation; {job.bench.folder}",
        ),
        Box(name="SLOs set", is_ticked=True, evidence=job.bench.objective.text),
        box_of(
            "kernels and graphs", [one for one in measured if one.title == "of your own"], _KERNELS
        ),
        cache_box(done.after),
        box_of(
            "quantised with quality checked", lossy, "--steps weight_precision measures its gain"
        ),
        box_of("batching tuned per class", batching, "--steps max_num_seqs,step_budget,again"),
        box_of(
            "speculation decided by acceptance",
            [one for one in measured if one.name == "speculation"],
            "--steps speculation measures n-grams on prompts of your own (--workload TRACE)",
        ),
        Box(
            name="TP minimal",
            is_ticked=True if tp == "1" else None,
            evidence=f"TP {tp}" if tp == "1" else f"TP {tp} was not compared",
        ),
        Box(
            name="limits and fairness", is_ticked=None, evidence="not known: no gate was looked at"
        ),
        Box(
            name="dashboards, spans and alarms",
            is_ticked=None,
            evidence=f"not known: `{COMMAND}size … --out DIR` writes dashboards and alarms",
        ),
    )


def cache_box(after: Sequence[Outcome]) -> Box:
    """Checklist entry on preemptions, by the server's metrics."""
    name = "KV cache paged and sized"
    counts = [one.n_preemptions for one in after if one.n_preemptions is not None]
    if not counts:
        evidence = "not known: no metrics that count preemptions were read"
        return Box(name=name, is_ticked=None, evidence=evidence)
    total = sum(counts)
    return Box(
        name=name,
        is_ticked=total == 0,
        evidence=f"{total:,} preemptions that the server reports in {len(counts)} load tests",
    )


def box_of(name: str, steps: Sequence[MeasuredStep], otherwise: str) -> Box:
    """Entry with these steps' results; unknown where there are none, or all failed."""
    if not steps:
        return Box(name=name, is_ticked=None, evidence=f"not measured; {otherwise}")
    has_shown = any(
        one.decision != "failed" and (one.n_pairs or one.predicted_gain_fraction is not None)
        for one in steps
    )
    return Box(
        name=name,
        is_ticked=True if has_shown else None,
        evidence="; ".join(f"{one.change or one.name}: {one.decision}, {one.why}" for one in steps),
    )
