"""What does an emulated server say when it stops: how much it served, and how punctually?"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_server import ServedCounts
from inferometer.stats.quantiles import min_samples
from inferometer.units import format_duration, s_from_ns

_MAX_LATENESS_S: Final = 5e-3
"""Half of the tokens later than this: steps overtake the writing of what they yield."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateAnswer:
    """What was served, and how punctually: lateness is from when a token was due to when it was written."""

    model_name: str
    engine: str
    step_times_from: str
    n_kv_blocks: int
    n_requests: int
    n_output_tokens: int
    served_s: float
    cpu_s: float
    """Of this process, while it served."""
    lateness_p50_s: float | None
    """Of the latest 100,000 chunks; None where there was none."""
    lateness_p99_s: float | None
    """None of fewer chunks than a 99th percentile's interval needs."""
    emission_log: str | None


def answer_of(
    plan: EmulatorPlan, step_times_from: str, counts: ServedCounts, *, served_s: float, cpu_s: float
) -> EmulateAnswer:
    """The answer after so long."""
    lateness_ns = np.array(counts.lateness_ns, dtype=np.int64)
    return EmulateAnswer(
        model_name=plan.model_name,
        engine=plan.config.engine,
        step_times_from=step_times_from,
        n_kv_blocks=plan.config.n_kv_blocks,
        n_requests=counts.n_requests,
        n_output_tokens=counts.n_tokens,
        served_s=served_s,
        cpu_s=cpu_s,
        lateness_p50_s=s_from_ns(int(np.quantile(lateness_ns, 0.5))) if lateness_ns.size else None,
        lateness_p99_s=(
            s_from_ns(int(np.quantile(lateness_ns, 0.99)))
            if lateness_ns.size >= min_samples(0.99)
            else None
        ),
        emission_log=None if plan.emission_log is None else str(plan.emission_log),
    )


def emulate_sentence(answer: EmulateAnswer) -> str:
    """The answer for people."""
    said = (
        f"ANSWER {answer.n_requests:,} requests and {answer.n_output_tokens:,} tokens in"
        f" {format_duration(answer.served_s)}"
    )
    said += f", {format_duration(answer.cpu_s)} of CPU"
    if answer.lateness_p50_s is not None:
        tail = (
            ""
            if answer.lateness_p99_s is None
            else f" (p99 {format_duration(answer.lateness_p99_s)})"
        )
        said += (
            f"\nTRUST  tokens were written {format_duration(answer.lateness_p50_s)} after they were"
            f" due{tail}"
        )
        said += f"; step times: {answer.step_times_from}"
        if answer.lateness_p50_s > _MAX_LATENESS_S:
            said += (
                "\nCAUTION this machine did not keep the pace; try fewer seats (--max-num-seqs) or"
                " a larger --time-scale"
            )
    return said if answer.emission_log is None else f"{said}\nDATA   {answer.emission_log}"
