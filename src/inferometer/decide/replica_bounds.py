"""How many devices does traffic take at least, by step times alone.

Which kinds of replica are worth a simulation, and which first?
"""

import math
from typing import NamedTuple

from inferometer.decide.candidates import Candidate
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.perfmodel.steptime_arrays import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape


def fewest_devices(question: SizingQuestion, candidate: Candidate) -> int:
    """A lower bound: all replicas busy all the time, and the faster of prompts and outputs free of charge."""
    times = request_times(question, candidate)
    least_s = times.output_s if question.fleets.n_prefill else max(times)
    n_replicas = question.fleets.n_replicas or max(
        1, math.ceil(question.rate_per_s * least_s * (1 - 1e-9))
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
    """Of its prompt or of its output, whichever is more."""
    return max(request_times(question, candidate))


def request_times(question: SizingQuestion, candidate: Candidate) -> RequestTimes:
    """Of its prompt and of its output."""
    plan = plan_at(question.spec, question.rate_per_s, question.n_requests)
    steps, config = (
        getattr(candidate.deployment.step_times, question.pace),
        candidate.deployment.config,
    )
    prompt_tokens = max(round(float((plan.prompt_tokens - plan.prefix_tokens).mean())), 1)
    output_tokens = max(round(float(plan.output_tokens.mean())), 1)
    held_tokens = config.n_kv_blocks * config.block_size
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
