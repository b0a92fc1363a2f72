"""Answer of a tuning by simulation: latencies before and after, settings, checklist."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from inferometer import errors
from inferometer.api.answer import Answer
from inferometer.api.capacity import objective_words
from inferometer.api.server import Server, deployment_of, origin_cautions
from inferometer.api.tune_next import next_of_tuning, quality_command
from inferometer.api.tune_subject import Subject
from inferometer.api.tuning import Box, SettingRow, TuneAnswer, TunedLatency
from inferometer.decide.artefacts.vllm_command import departures, serve_command
from inferometer.decide.tuning.search import StepFound, Tuned
from inferometer.decide.tuning.trials import Aim, Built, Outcome, estimate_of, score_of, verdict_of
from inferometer.records import pitfalls, run_folder
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.stats.estimate import Estimate
from inferometer.units import format_number

_NAMES: Final = {
    "kv_dtype": "kv_cache_dtype",
    "tp": "tensor_parallel_size",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
}
"""Names of settings in the engine, where they differ from the step's."""
_MODELLED: Final = (
    "no command starts what was simulated: the same question without it has one to check"
)
_BEYOND_RATIO: Final = 1000.0
"""Largest reported factor: where almost nothing met the SLO before, it means nothing."""
_SMALL_RATIO: Final = 0.1


def answer_of(question: object, subject: Subject, tuned: Tuned, out: Path | None) -> TuneAnswer:
    """The answer; written to ``out`` where that is a folder."""
    built = subject.trials.built(tuned.variant)
    answer = _answer(question, subject, tuned, built)
    if out is None:
        return answer
    answer = replace(answer, folder=str(out))
    write_answer(answer, out, answer.command)
    return answer


def write_answer(answer: Answer, out: Path, command: str | None) -> None:
    """The answer, its page and a script that starts the server, where there is a command."""
    run_folder.make_folder(out)
    if command is not None:
        script = f'#!/bin/sh\nset -eu\nexec {command} "$@"\n'
        run_folder.replace_file(out / "serve.sh", script.encode())
        (out / "serve.sh").chmod(0o755)
    encoded = msgspec.json.format(msgspec.json.encode(answer), indent=2)
    run_folder.replace_file(out / "answer.json", encoded)
    answer.report(out / "index.html")


def _answer(question: object, subject: Subject, tuned: Tuned, built: Built) -> TuneAnswer:
    aim, chosen = subject.aim, built.deployment
    command, why_not = _command(built, has_expert_parallelism=subject.server.ep)
    plain = Server(
        model=subject.server.model,
        policy=subject.policy,
        hardware=subject.server.hardware,
        fit=subject.server.fit,
        tp=chosen.engine.tensor_parallel_size,
    )
    default = deployment_of(plain, n_sharing=chosen.knobs.data_parallel_size)
    return TuneAnswer(
        model=chosen.model.model_id,
        hardware=None if chosen.hardware is None else chosen.hardware.name,
        engine=chosen.config.engine,
        goal=aim.goal,
        objective=objective_words(aim.objective, aim.class_objectives),
        workload_name=aim.spec.name,
        load=aim.load,
        load_unit="users" if subject.is_closed else "requests/s",
        score_words=subject.score_words,
        least_gain_fraction=subject.least_gain_fraction,
        steps=tuned.steps,
        is_confirmed=tuned.is_confirmed,
        gain_fraction=tuned.gain_ratio,
        selected_gain_fraction=tuned.selected_gain_ratio,
        latencies=_latencies(aim, tuned),
        score_before=score_of(tuned.before),
        score_after=score_of(tuned.after),
        slo_before=verdict_of(tuned.before),
        slo_after=verdict_of(tuned.after),
        settings=_settings(tuned, chosen, default, subject.server),
        command=command,
        command_why_not=why_not,
        n_replicas=built.n_replicas,
        n_devices=built.n_devices,
        router=None if _is_one_server(built, command) else built.router,
        checklist=checklist(subject, tuned, built),
        checks=_checks(subject, tuned),
        n_simulations=tuned.n_simulations,
        step_times=chosen.step_times.origin,
        quality_checks=tuple(
            quality_command(subject, one.settings)
            for one in tuned.steps
            if one.decision == "check quality"
        ),
        cautions=origin_cautions(chosen),
        next_step=next_of_tuning(question, subject, tuned, built) if why_not is None else _MODELLED,
        folder=None,
    )


def _is_one_server(built: Built, command: str | None) -> bool:
    """Is there no router before it: one replica, or ranks that a command starts with their own?"""
    is_started = command is not None and built.deployment.knobs.data_parallel_size > 1
    return built.n_replicas == 1 or is_started


def _command(built: Built, *, has_expert_parallelism: bool) -> tuple[str | None, str | None]:
    """The command that starts the server, or why no engine can be started so."""
    chosen = built.deployment
    try:
        command = serve_command(chosen, has_expert_parallelism=has_expert_parallelism)
    except errors.SizingError as problem:
        return None, problem.what
    if chosen.knobs.data_parallel_size > 1 and built.router != "vllm":
        return None, f"vLLM's data parallelism has its own router, not {built.router}"
    return command, None


def _latencies(aim: Aim, tuned: Tuned) -> tuple[TunedLatency, ...]:
    return tuple(
        TunedLatency(
            text=text,
            limit_s=limit_s,
            before_s=estimate_of([outcome.latencies_s[index] for outcome in tuned.before]),
            after_s=estimate_of([outcome.latencies_s[index] for outcome in tuned.after]),
        )
        for index, (text, limit_s) in enumerate(aim.limits)
    )


def _is_as_long_as_fits(server: Server) -> bool:
    """Is the longest context not given, so that the KV cache decides it?"""
    named = any(one.startswith("max_model_len=") for one in server.set)
    return not named and server.fit is None and server.settings.max_model_len is None


def _settings(
    tuned: Tuned, chosen: Deployment, default: Deployment, server: Server
) -> tuple[SettingRow, ...]:
    """Settings that differ from the engine's defaults, with the step that chose each."""
    reasons = dict[str, str]()
    if _is_as_long_as_fits(server):
        reasons["max_model_len"] = "as many tokens as the KV cache holds"
    for step in tuned.steps:
        if step.decision == "keep" and tuned.is_confirmed:
            words = f"{step.name}: {gain_words(step)}; {step.why}"
            for name in step.settings:
                reasons[name] = reasons[_NAMES.get(name, name)] = words
    chosen_names = dict(tuned.variant)
    rows = [
        SettingRow(
            name=one.name,
            value=one.value,
            default=one.default,
            why=reasons.get(one.name, "as it was given"),
        )
        for one in departures(chosen, default)
    ]
    rows += [
        SettingRow(name=name, value=str(chosen_names[name]), default="1", why=reasons[name])
        for name in ("replicas",)
        if name in chosen_names and chosen_names[name] != 1
    ]
    return tuple(rows)


def gain_words(step: StepFound) -> str:
    """``+12% [+8%, +15%]``; '' where there is none."""
    return "" if step.gain_ratio is None else interval_words(step.gain_ratio)


def interval_words(gain: Estimate) -> str:
    """A gain with its interval; from twice as good on as a factor.

    Example
    -------
    >>> interval_words(
    ...     Estimate(
    ...         value=0.5, low=-0.02, high=7, confidence_fraction=0.9, n_samples=19, method="pairs"
    ...     )
    ... )
    '+50% [-2.0%, x8]'
    """
    return gain.text(ratio_words)


def ratio_words(gain_ratio: float) -> str:
    """A gain without its interval."""
    if gain_ratio >= _BEYOND_RATIO:
        return f"x{_BEYOND_RATIO:.0f} or more"
    if gain_ratio >= 1:
        return f"x{format_number(gain_ratio + 1)}"
    return f"{gain_ratio:+.0%}" if abs(gain_ratio) >= _SMALL_RATIO else f"{gain_ratio:+.1%}"


def checklist(subject: Subject, tuned: Tuned, built: Built) -> tuple[Box, ...]:
    """The ten entries of the checklist."""
    found: dict[str, StepFound] = {one.name: one for one in tuned.steps}
    deployment = built.deployment
    return (
        _baseline(subject, tuned.before),
        Box(name="SLOs set", is_ticked=True, evidence=subject.aim.objective.text),
        Box(
            name="kernels and graphs",
            is_ticked=None,
            evidence="not known: a simulation does not see kernels; measure them on the server",
        ),
        _cache(deployment, tuned.after),
        _quantised(subject, deployment),
        _batching(found),
        _speculation(deployment, found),
        _parallelism(deployment, found),
        _limits(subject),
        Box(
            name="dashboards, spans and alarms",
            is_ticked=None,
            evidence="not known: `inferometer size … --out DIR` writes dashboards and alarms",
        ),
    )


def _checks(subject: Subject, tuned: Tuned) -> tuple[pitfalls.CheckRow, ...]:
    """Pitfalls of the server as it is, before a change."""
    now = subject.trials.built(()).deployment
    plan = subject.trials.plan(subject.aim.spec.seed)
    n_requests = sum(one.n_requests for one in tuned.before)
    n_preempted = sum(one.n_preemptions or 0 for one in tuned.before)
    held_tokens = float((plan.prompt_tokens + plan.output_tokens / 2).mean())
    return pitfalls.judged_all(
        {
            "preemption_thrash": n_preempted / n_requests if n_requests else None,
            "kv_fragmentation": pitfalls.empty_share(now.config.block_size, held_tokens),
            "speculation_not_paying": _accepted_length(now),
            "too_much_tp": _gain_of_less_tp(tuned, now.engine.tensor_parallel_size),
        }
    )


def _accepted_length(deployment: Deployment) -> float | None:
    """Tokens of a step, for each request, by the acceptance that was given; None: no drafts."""
    config = deployment.config
    if not isinstance(config, SchedulerConfig) or not config.num_speculative_tokens:
        return None
    return 1 + config.mean_accepted_tokens


def _gain_of_less_tp(tuned: Tuned, tp: int) -> float | None:
    """The gain of the best cut of the devices.

    None: it has no lower TP, none was tried, or simulated pairs do not decide whether it gains.
    """
    step = next((one for one in tuned.steps if one.name == "parallelism"), None)
    if step is None or step.gain_ratio is None or int(step.settings.get("tp", tp)) >= tp:
        return None
    return None if step.decision == "measure" else step.gain_ratio.value


def _baseline(subject: Subject, before: Sequence[Outcome]) -> Box:
    score = score_of(before)
    seen = "" if score is None else f": {format_number(score.value)} ({subject.score_words})"
    return Box(
        name="baseline recorded",
        is_ticked=True,
        evidence=f"{len(before)} simulated pairs of the server as it is{seen}; none measured",
    )


def _cache(deployment: Deployment, after: Sequence[Outcome]) -> Box:
    config = deployment.config
    n_preempted = sum(one.n_preemptions or 0 for one in after)
    n_requests = sum(one.n_requests for one in after)
    held = f"{deployment.n_kv_tokens:,} tokens in pages of {config.block_size}"
    return Box(
        name="KV cache paged and sized",
        is_ticked=n_preempted == 0,
        evidence=f"{held}; {n_preempted:,} preemptions in {n_requests:,} simulated requests",
    )


def _quantised(subject: Subject, deployment: Deployment) -> Box:
    engine = deployment.engine
    is_plain = engine.quantization is None and engine.kv_cache_dtype in {None, engine.dtype}
    what = f"weights in {engine.quantization or engine.dtype}, KV cache in"
    what += f" {engine.kv_cache_dtype or engine.dtype}"
    rest = "no format of fewer bits is in use" if is_plain else "its quality was not checked here"
    command = quality_command(subject, {"kv_dtype": "float8"})
    return Box(
        name="quantised with quality checked", is_ticked=None, evidence=f"{what}; {rest}: {command}"
    )


def _batching(found: dict[str, StepFound]) -> Box:
    steps = [found[name] for name in ("max_num_seqs", "step_budget", "again") if name in found]
    tried = sum(len(one.tried) for one in steps)
    return Box(
        name="batching tuned per class",
        is_ticked=True if tried else None,
        evidence=f"{tried} settings of batch and step simulated" if tried else "not known",
    )


def _speculation(deployment: Deployment, found: dict[str, StepFound]) -> Box:
    step = found.get("speculation")
    drafted = getattr(deployment.config, "num_speculative_tokens", 0)
    if drafted:
        evidence = f"{drafted} drafted tokens, with the acceptance that was given"
        return Box(name="speculation decided by acceptance", is_ticked=True, evidence=evidence)
    words = (
        "" if step is None or step.gain_ratio is None else f" ({step.change}: {gain_words(step)})"
    )
    return Box(
        name="speculation decided by acceptance",
        is_ticked=None,
        evidence=f"not known: the acceptance of drafts on your text is not measured{words}",
    )


def _parallelism(deployment: Deployment, found: dict[str, StepFound]) -> Box:
    tp = deployment.engine.tensor_parallel_size
    step = found.get("parallelism")
    if tp == 1:
        return Box(name="TP minimal", is_ticked=True, evidence="TP 1")
    less = [] if step is None else [one for one in step.tried if one.gain_ratio is not None]
    if step is None or not less:
        return Box(
            name="TP minimal", is_ticked=None, evidence=f"not known: TP {tp} was not compared"
        )
    best = ", ".join(
        f"{one.words}: {interval_words(one.gain_ratio)}" for one in less if one.gain_ratio
    )
    may_be_less = step.decision == "measure" and int(step.settings.get("tp", tp)) < tp
    return Box(
        name="TP minimal",
        is_ticked=None if may_be_less else True,
        evidence=f"TP {tp} against {best}" + "; a measurement decides" * may_be_less,
    )


def _limits(subject: Subject) -> Box:
    gate = subject.fleets.gate
    if gate is None:
        evidence = "no gate: nothing limits a tenant or the queue (`inferometer simulate --gate`)"
        return Box(name="limits and fairness", is_ticked=False, evidence=evidence)
    return Box(name="limits and fairness", is_ticked=True, evidence=f"a gate, {gate.order}")
