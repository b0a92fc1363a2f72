"""The command after a tuning: to measure its prediction, or to check quality."""

from collections.abc import Sequence

from inferometer import suggestions
from inferometer.api.missed import next_of_simulation
from inferometer.api.tune_subject import Subject
from inferometer.api.tuning import MeasuredStep
from inferometer.api.workload import Workload, traffic_flags
from inferometer.decide.artefacts.packaging import uses_priorities
from inferometer.decide.tuning.search import Tuned
from inferometer.decide.tuning.trials import Built, verdict_of
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.resolve import resolve_model


def next_of_tuning(question: object, subject: Subject, tuned: Tuned, built: Built) -> str:
    """A command that measures the prediction, or would meet a missed SLO."""
    objective = subject.aim.objective
    if verdict_of(tuned.after) == "missed":
        plan = subject.trials.plan(subject.aim.spec.seed)
        then = next_of_simulation(question, subject.server.model, built.deployment, plan, objective)
        return f"no change of the settings is enough: {then}"
    verb = "capacity" if subject.aim.is_capacity else "load"
    words = (*traffic_flags(subject.workload), "--slo", objective.text)
    policy = getattr(built.deployment.config, "policy", "")
    if verb == "load" and uses_priorities(subject.aim.spec, policy, subject.fleets.gate):
        words = (*words, "--send-priorities")
    is_one = built.n_replicas == 1 or built.deployment.knobs.data_parallel_size > 1
    started = "it" if is_one else f"all {built.n_replicas} and their router"
    return (
        f"start {started}, and see whether it is true: {suggestions.command(verb, 'URL', *words)}"
    )


def next_of_measured(url: str, workload: Workload, objective: ObjectiveSpec) -> str:
    """A longer load test of the server that was tuned."""
    words = (*traffic_flags(workload), "--slo", objective.text, "--for", "10min")
    return f"start it, and see how it does for longer: {suggestions.command('load', url, *words)}"


def quality_command(subject: Subject, settings: dict[str, str]) -> str:
    """Command that checks a lossy change; FOLDER where the model's weights are not here."""
    model = subject.server.model
    is_here = resolve_model(model, load_format="dummy").weights_available
    words = [model if is_here else "FOLDER"]
    for name, flag in (("kv_dtype", "--kv-dtype"), ("quantization", "--quantization")):
        if name in settings:
            words += [flag, settings[name]]
    if subject.server.hardware is not None:
        words += ["--hardware", subject.server.hardware]
    return suggestions.command("quality", *words)


def quality_commands(model: str, steps: Sequence[MeasuredStep]) -> tuple[str, ...]:
    """The command that checks the format that was measured."""
    flags = {"kv_precision": "--kv-dtype", "weight_precision": "--quantization"}
    return tuple(
        suggestions.command(
            "quality", model, flags[one.name], (one.change or "").rpartition(" ")[2]
        )
        for one in steps
        if one.decision == "check quality" and one.name in flags
    )
