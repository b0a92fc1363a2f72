"""What would meet an SLO that was missed, or comes closest?"""

from typing import Final

import click

from inferometer import suggestions
from inferometer.decide.lone_request import LoneRequest, lone_request
from inferometer.simulate.deployment import Deployment
from inferometer.spec.objectives import ObjectiveSpec
from inferometer.spec.workload.plan import RequestPlan
from inferometer.units import format_number

_CARRIED: Final = (
    "hardware",
    "fit_path",
    "tp",
    "dtype",
    "kv_dtype",
    "quantization",
    "policy",
    "workload",
    "seed",
    "replicas",
    "slo",
)
"""Parameters that ``simulate`` and ``capacity`` share."""


def next_of_simulation(deployment: Deployment, plan: RequestPlan, objective: ObjectiveSpec) -> str:
    """Of a simulation with the parameters of the command that runs."""
    alone = lone_request(deployment, deployment.step_times.likely, plan, objective)
    if alone is not None and alone.margin_ratio > 1:
        return f"{what_serves_one(alone)}: {alone.why}"
    return f"fewer requests for each replica; the highest load that meets it: {_capacity_command()}"


def what_serves_one(alone: LoneRequest) -> str:
    """Where even a lone request misses: load has no part in it."""
    longer = f"limits at least {format_number(1.05 * alone.margin_ratio)} times as long"
    return (
        f"{longer}, a faster device (--hardware), more of them (--tp), or fewer bits"
        " (--quantization)"
    )


def _capacity_command() -> str:
    context = click.get_current_context()
    words = list[object]()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name in _CARRIED and is_given:
            words += [parameter.opts[0], context.params[name]]
    return suggestions.command("capacity", context.params["model"], *words)
