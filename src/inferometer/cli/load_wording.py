"""How is a load test told in a sentence, and named where nobody names it?"""

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from inferometer.spec.load_plan import LoadPlan
from inferometer.spec.workload.plan import NONE, DrawnWorkload
from inferometer.units import NS_PER_S, format_duration


def what_will_happen(load: LoadPlan, workload: DrawnWorkload) -> str:
    """The test in one sentence."""
    plan = workload.plan
    open_ns = plan.arrival_ns[plan.arrival_ns != NONE]
    lasts_s = load.for_s or float(open_ns.max(initial=0)) / NS_PER_S
    n_led = int(np.count_nonzero(plan.follows != NONE))
    loop = f", {n_led:,} of them after another's end" if n_led else ""
    span = f" within {format_duration(lasts_s)}" if lasts_s else ""
    how = f"{load.endpoint}, {'streamed' if load.is_streaming else 'whole'}, prompts as {load.prompt_form}"
    return f"sending {plan.n_requests:,} requests of {workload.name}{loop}{span} to {load.url} ({how}; {load.n_processes} process(es))"


def default_folder(load: LoadPlan) -> Path:
    """Where a run goes if nobody says: the same question, the same folder, so that the same command resumes."""
    digest = hashlib.sha256(msgspec.json.encode(load)).hexdigest()[:6]
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in f"{load.served_model}-{load.workload.name}".lower())
    return Path("runs") / f"load-{name}-{digest}"


__all__ = ["default_folder", "what_will_happen"]
