"""Latency of a request alone on a replica, and the least number of devices for traffic.

What even a lone request misses, no number of replicas meets.

A bound, computed from step times alone: the prompt in one step, each output token in a step of its
own with the context that the request begins with. A simulated request is never faster, at any load.

The fewest devices by step times alone say which kinds of replica are worth a simulation, and which
first.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from inferometer.decide.candidates import Candidate
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.inputs.objectives import ObjectiveSpec, Threshold
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.perfmodel.steptime_terms import StepTimeArrays, shape_duration_s
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.records.columns import F64, I32
from inferometer.simulate.deployment import Deployment
from inferometer.stats.autocorrelated import quantile_rank
from inferometer.units import format_duration

_N_LENGTHS: Final = 33
"""Lengths at which steps are timed: requests between two of them count as the shorter."""


class LoneRequest(NamedTuple):
    """The threshold that idle replicas are nearest to, or furthest beyond."""

    margin_ratio: float
    """Least possible latency / its limit."""
    why: str


def lone_request(
    deployment: Deployment, plan: RequestPlan, objective: ObjectiveSpec
) -> LoneRequest | None:
    """Least latencies on an idle replica at likely step times; None where no limit depends on them."""
    plan = RequestPlan._make(
        column[plan.prompt_tokens < deployment.config.max_model_len] for column in plan
    )
    bounds = [
        _bound(deployment, plan, threshold)
        for threshold in objective.thresholds
        if threshold.percentile_fraction
    ]
    return max(
        (bound for bound in bounds if bound is not None),
        key=lambda bound: bound.margin_ratio,
        default=None,
    )


def _bound(deployment: Deployment, plan: RequestPlan, threshold: Threshold) -> LoneRequest | None:
    least_s = _least_s(deployment, plan, threshold)
    if least_s is None or threshold.percentile_fraction is None or not len(least_s):
        return None
    at_percentile_s = float(
        np.sort(least_s)[quantile_rank(len(least_s), threshold.percentile_fraction)]
    )
    why = f"{threshold.text}: {format_duration(at_percentile_s)} or more on an idle replica"
    return LoneRequest(at_percentile_s / threshold.limit_s, why)


def _least_s(deployment: Deployment, plan: RequestPlan, threshold: Threshold) -> F64 | None:
    """Least value of this latency for each request that has one."""
    step_times = deployment.step_times.likely
    uncached_tokens = np.maximum(plan.prompt_tokens - plan.prefix_tokens, 1)
    first_s = deployment.front_end_s + _by_length(
        uncached_tokens, lambda n: prefill_shape(batch_size=1, prompt_tokens=n), step_times
    )
    first_s *= step_times.first_token_ratio
    next_s = _by_length(
        plan.prompt_tokens, lambda n: decode_shape(batch_size=1, context_tokens=n), step_times
    )
    next_s /= 1 + getattr(deployment.config, "num_speculative_tokens", 0)
    if threshold.metric == "ttft":
        return first_s
    if threshold.metric == "tpot":
        return next_s[plan.output_tokens > 1]
    n_tokens = np.minimum(plan.output_tokens, deployment.config.max_model_len - plan.prompt_tokens)
    return first_s + (n_tokens - 1) * next_s if threshold.metric == "e2e" else None


def _by_length(
    tokens: I32, shape_of: Callable[[int], BatchShape], step_times: StepTimeArrays
) -> F64:
    """Seconds of a step for each request, timed at some of their lengths."""
    lengths = (
        np.unique(np.quantile(tokens, np.linspace(0, 1, _N_LENGTHS), method="lower"))
        if len(tokens)
        else np.ones(1, np.int32)
    )
    seconds = np.array([shape_duration_s(step_times, shape_of(int(length))) for length in lengths])
    by_request: F64 = seconds[np.searchsorted(lengths, tokens, side="right") - 1]
    return by_request


def fewest_devices(question: SizingQuestion, candidate: Candidate) -> int:
    """A lower bound: all replicas busy all the time, and the faster of prompts and outputs free of charge."""
    if question.is_of_users:  # they wait: fewer replicas make them send less
        return candidate.devices_of(question.fleets.n_replicas or 1)
    times = request_times(question, candidate)
    least_s = times.output_s if question.fleets.n_prefill else max(times)
    n_replicas = question.fleets.n_replicas or max(
        1, math.ceil(question.offered_load * least_s * (1 - 1e-9))
    )
    return candidate.devices_of(n_replicas)


class RequestTimes(NamedTuple):
    """The least device time of a mean request, at the largest batch."""

    prompt_s: float
    output_s: float

    @property
    def prompt_fraction(self) -> float:
        """The prompts' share of all."""
        return self.prompt_s / (self.prompt_s + self.output_s)


def least_s_of_request(question: SizingQuestion, candidate: Candidate) -> float:
    """Seconds of a mean request's prompt or output, whichever is longer."""
    return max(request_times(question, candidate))


def request_times(question: SizingQuestion, candidate: Candidate) -> RequestTimes:
    """Device time of a mean request's prompt and output, each as its share of full steps."""
    plan = plan_at(question.spec, question.offered_load, question.n_requests)
    steps = getattr(candidate.deployment.step_times, question.pace)
    config = candidate.deployment.config
    prompt_tokens = max(round(float((plan.prompt_tokens - plan.prefix_tokens).mean())), 1)
    output_tokens = max(round(float(plan.output_tokens.mean())), 1)
    held_tokens = candidate.deployment.n_kv_tokens
    batch_size = max(1, min(config.max_num_active, held_tokens // prompt_tokens))
    decode_s = (
        shape_duration_s(steps, decode_shape(batch_size=batch_size, context_tokens=prompt_tokens))
        / batch_size
    )
    n_prompts = max(
        1, round(getattr(config, "max_num_batched_tokens", prompt_tokens) / prompt_tokens)
    )
    prompt_s = (
        shape_duration_s(steps, prefill_shape(batch_size=n_prompts, prompt_tokens=prompt_tokens))
        / n_prompts
    )
    return RequestTimes(
        prompt_s, output_tokens * decode_s / (1 + getattr(config, "num_speculative_tokens", 0))
    )
