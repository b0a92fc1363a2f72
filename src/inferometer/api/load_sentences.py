"""What describes a load test in a sentence, names it by default, and refuses one too large?"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from inferometer.api.run_titles import traffic_text
from inferometer.errors import SpecError
from inferometer.inputs.load_plan import LoadPlan, without_secrets
from inferometer.inputs.workload.plan import NONE, DrawnWorkload
from inferometer.inputs.workload.types import AtOnce, OpenArrivals
from inferometer.measure.load.bodies import body_writer
from inferometer.measure.resident import available_bytes
from inferometer.units import NS_PER_S, format_bytes, format_duration

_ARRIVALS: Final = ("rate", "concurrency", "max_concurrency", "ramp", "trace")
_LEAST_BYTES: Final = 200
"""Of memory for each request: its row where it is drawn, here, and in its client process."""


def check_size(load: LoadPlan) -> None:
    """Refuse a workload whose requests certainly do not fit in memory.

    How many a trace has is not known before it is read.

    Raises
    ------
    SpecError
        They do not.
    """
    workload, free_bytes = load.workload, available_bytes()
    counts = [workload.n_requests] if workload.n_requests is not None else []
    if (
        workload.duration_s is not None
        and isinstance(workload.arrivals, OpenArrivals)
        and workload.classes
    ):
        counts.append(round(workload.duration_s * workload.arrivals.rate_per_s))
    if counts and free_bytes is not None and min(counts) * _LEAST_BYTES > free_bytes:
        raise SpecError(
            f"{min(counts):,} requests take {format_bytes(min(counts) * _LEAST_BYTES)} or more,"
            f" {format_bytes(free_bytes)} are free",
            where="--requests, --for",
            try_="fewer requests",
        )


def check_prompts(load: LoadPlan, workload: DrawnWorkload) -> None:
    """Refuse prompts that cannot be written, before anything is sent.

    Raises
    ------
    SpecError
        Token ids in a chat, or a tokenizer that is missing or makes no exact lengths.
    """
    body_writer(load, workload.plan)


def what_will_happen(load: LoadPlan, workload: DrawnWorkload) -> str:
    """The test in one sentence."""
    plan = workload.plan
    open_ns = plan.arrival_ns[plan.arrival_ns != NONE]
    lasts_s = load.for_s or float(open_ns.max(initial=0)) / NS_PER_S
    n_led = int(np.count_nonzero(plan.follows != NONE))
    loop = f", {n_led:,} of them after another's end" if n_led else ""
    span = f" within {format_duration(lasts_s)}" if lasts_s else ""
    how = (
        f"{load.endpoint}, {'streamed' if load.is_streaming else 'whole'}, prompts as"
        f" {load.prompt_form}"
    )
    at = "" if isinstance(load.workload.arrivals, AtOnce) else f" at {traffic_text(load)}"
    to = f"{load.served_model} at {load.url}"
    return (
        f"sending {plan.n_requests:,} requests of {workload.name}{at}{loop}{span} to {to} ({how};"
        f" {load.n_processes} process(es))"
    )


def default_traffic(load: LoadPlan, given: Mapping[str, object]) -> str | None:
    """Which rate was taken, where no flag gave one; None where one did, or a trace brings its own instants."""
    if load.workload.replay is not None or any(given.get(name) is not None for name in _ARRIVALS):
        return None
    return (
        f"no rate was given: {traffic_text(load)}, the workload's own; --rate or --concurrency for"
        " another"
    )


def default_folder(load: LoadPlan) -> Path:
    """Where a run goes if nobody says: the same question, the same folder, so that the same command resumes."""
    digest = hashlib.sha256(msgspec.json.encode(without_secrets(load))).hexdigest()[:6]
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-"
        for letter in f"{load.served_model}-{load.workload.name}".lower()
    )
    return Path("runs") / f"load-{name}-{digest}"
