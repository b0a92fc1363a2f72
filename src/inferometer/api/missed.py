"""Suggestions: what would meet a missed SLO, or decide an open one."""

from typing import Final

from inferometer import suggestions
from inferometer.api.question import fields_of, words_of
from inferometer.decide.lone_request import LoneRequest, lone_request
from inferometer.decide.probing import EFFORT_RATIO
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.simulated_run import larger_steps
from inferometer.units import format_number

_NOT_CARRIED: Final = frozenset(
    {"model", "requests", "duration", "until", "network", "post", "parts", "out"}
    | {"goal", "least_gain", "steps", "force"}
)
"""The argument, the length of the simulation, and what ``capacity`` does not take of ``simulate`` and
``tune``."""


def next_of_simulation(
    question: object,
    model: str,
    deployment: Deployment,
    plan: RequestPlan,
    objective: ObjectiveSpec,
) -> str:
    """After a simulation: ``question`` is the question about ``model``."""
    takes_all = what_takes_prompts(deployment, plan)
    if takes_all is not None:
        return takes_all
    alone = lone_request(deployment, plan, objective)
    if alone is not None and alone.margin_ratio > 1:
        return f"{what_serves_one(alone)}: {alone.why}"
    names = (field.name for field in fields_of(type(question)))
    carried = tuple(name for name in names if name not in _NOT_CARRIED)
    search = suggestions.command("capacity", model, *words_of(question, carried))
    return f"fewer requests for each replica; the highest load that meets it: {search}"


def what_takes_prompts(deployment: Deployment, plan: RequestPlan) -> str | None:
    """A remedy where prompts are longer than a step of an engine that does not divide them."""
    config = deployment.config
    remedy, tokens = larger_steps(config), plan.prompt_tokens
    n_refused = int((tokens > config.max_prompt_tokens).sum())
    if remedy is None or not n_refused:
        return None
    return (
        f"{remedy}, for the {n_refused:,} of {len(tokens):,} prompts that {config.engine} refuses"
    )


def what_goes_on(n_requests: int, *, is_trace: bool) -> str:
    """A remedy where the requests are too few to decide: this number or more."""
    if is_trace:
        return f"a longer trace, of {n_requests:,} requests or more"
    return f"more requests: {suggestions.flags('--requests', n_requests)}"


def what_decides(question: SizingQuestion) -> str:
    """What would decide a sizing with too few requests, or out of time."""
    traffic = question.traffic
    if question.requests_cap is None and not traffic.is_trace:
        return "a longer --time-limit"
    n_most = min(traffic.most_requests, traffic.longest_requests)
    n_wanted = max(EFFORT_RATIO * n_most, question.n_requests)
    if traffic.is_trace and n_most < traffic.longest_requests:
        return what_goes_on(min(n_wanted, traffic.longest_requests), is_trace=False)
    return what_goes_on(n_wanted, is_trace=traffic.is_trace)


def what_serves_one(alone: LoneRequest) -> str:
    """A remedy where even a lone request misses the SLO, whatever the load."""
    longer = f"limits at least {format_number(1.05 * alone.margin_ratio)} times as long"
    return (
        f"{longer}, a faster device (--hardware), more of them (--tp), or fewer bits"
        " (--quantization)"
    )
