"""Answer of a tuning of an engine on this machine."""

from pathlib import Path

import numpy as np

from inferometer.api.tune_answer import write_answer
from inferometer.api.tune_engine import EngineDone, EngineJob
from inferometer.api.tune_measured_answer import (
    box_of,
    latencies_of,
    noise_cautions,
    settings_of,
    unconfirmed_cautions,
    verdict_of_runs,
)
from inferometer.api.tuning import Box, MeasuredTune
from inferometer.errors import COMMAND


def answer_of(job: EngineJob, done: EngineDone) -> MeasuredTune:
    """The answer; written to the folder with its page and the command."""
    objective = job.runs.objective
    batch_size = max(one.batch_size for one in job.runs.points)
    spec = done.spec if done.is_confirmed else job.spec
    answer = MeasuredTune(
        model=job.resolved.spec.model_id,
        url=None,
        engine=job.spec.engine,
        version=done.version.version,
        goal=job.runs.goal,
        objective=None if objective is None else objective.text,
        workload_name=_points_words(job),
        load=float(batch_size),
        load_unit="sequences",
        score_words=_score_words(job),
        least_gain_fraction=job.runs.least_gain_ratio,
        steps=tuple(done.steps),
        is_confirmed=done.is_confirmed,
        gain_fraction=None if done.confirmed is None else done.confirmed.gain,
        selected_gain_fraction=done.selected_gain_fraction,
        noise_fraction=float(np.std(done.same.log_ratios, ddof=1)),
        same_gain_fraction=done.same.gain,
        latencies=() if objective is None else latencies_of(objective, done),
        slo_before=None if objective is None else verdict_of_runs(done.before),
        slo_after=None if objective is None else verdict_of_runs(done.after),
        settings=settings_of(done),
        command=job.command(spec),
        command_before=job.command(job.spec),
        checklist=_checklist(job, done),
        checks=(),
        n_servers=done.n_loads,
        n_simulations=0,
        start_s=done.version.load_s,
        quality_checks=tuple(dict.fromkeys(done.lossy)),
        cautions=(
            *noise_cautions(done, "the same options, loaded twice, differ"),
            *unconfirmed_cautions(
                done, "more repetitions in a pair (--reps), or more pairs (--pairs)"
            ),
        ),
        next_step=(
            "other lengths and batches with these options:"
            f" {job.command(spec, '128,256,512', '1,2,4,8')}"
        ),
        folder=str(job.runs.folder),
    )
    write_answer(answer, Path(answer.folder), answer.command)
    return answer


def _points_words(job: EngineJob) -> str:
    words = [
        f"{one.batch_size} x {one.prompt_tokens} tokens and {one.gen_tokens} more"
        for one in job.runs.points
    ]
    return ", ".join(words)


def _score_words(job: EngineJob) -> str:
    if job.runs.goal == "interactive" and job.runs.objective is not None:
        return "headroom: the limit of the weakest latency over that latency"
    return "generated tokens/s"


def _checklist(job: EngineJob, done: EngineDone) -> tuple[Box, ...]:
    """The ten entries of the checklist, with measurements."""
    measured = [one for one in done.steps if one.n_pairs]
    lossless = [one for one in measured if one.name in {"graphs_and_host", "kernels", "threads"}]
    lossy = [one for one in measured if one not in lossless]
    objective, tp = job.runs.objective, job.spec.tensor_parallel_size
    recorded = f"{len(done.same.log_ratios)} pairs of the options against themselves"
    has_slo = objective is not None
    return (
        Box(name="baseline recorded", is_ticked=True, evidence=f"{recorded}; {job.runs.folder}"),
        Box(
            name="SLOs set",
            is_ticked=has_slo or None,
            evidence="none: tokens/s decide" if objective is None else objective.text,
        ),
        box_of("kernels and graphs", lossless, "no such step was wanted"),
        _unknown("KV cache paged and sized", "static batches run alone"),
        box_of("quantised with quality checked", lossy, "no step of fewer bits was measured"),
        _unknown("batching tuned per class", f"{COMMAND}sweep measures other batches"),
        _unknown("speculation decided by acceptance", "nothing is drafted"),
        Box(name="TP minimal", is_ticked=tp == 1 or None, evidence=f"TP {tp}"),
        _unknown("limits and fairness", "there is no server"),
        _unknown("dashboards, spans and alarms", "there is no server"),
    )


def _unknown(name: str, why: str) -> Box:
    return Box(name=name, is_ticked=None, evidence=f"not known: {why}")
