"""Titles of runs of requests, and the description of a load test before it is sent.

Runs are named by model, server, workload and traffic, or by what they differ in.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.plans import LoadPlan, without_secrets
from inferometer.inputs.workload import types
from inferometer.inputs.workload.plan import NONE, DrawnWorkload, RequestPlan
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import AtOnce, OpenArrivals
from inferometer.measure.child_processes import available_bytes
from inferometer.measure.load.bodies import body_writer
from inferometer.records.types import Run
from inferometer.units import (
    NS_PER_S,
    format_bytes,
    format_duration,
    format_number,
    format_request_rate,
)


def fanned_out(run: Run) -> RequestPlan | None:
    """The requests of a load test as they were drawn, where a class of them fans out."""
    load = run.manifest.load
    if load is None or all(one.fan_out is None for one in load.workload.classes):
        return None
    return draw_workload(load.workload).plan


def class_names_of(run: Run) -> tuple[str, ...]:
    """Classes of a load test's workload; empty where not recorded."""
    load = run.manifest.load
    if load is None or load.workload.replay is not None:
        return ()
    return tuple(one.name for one in load.workload.classes)


def class_users_of(run: Run) -> dict[str, int]:
    """Users of each class of a closed loop, where classes have their own."""
    classes = () if run.manifest.load is None else run.manifest.load.workload.classes
    return {one.name: one.concurrency for one in classes if one.concurrency is not None}


class RunName(NamedTuple):
    """The parts of a run's name; '' where the record does not have one."""

    model: str
    server: str
    workload: str
    traffic: str


def title_of(run: Run) -> str:
    """The whole name of a run."""
    return _joined(name_of(run)) or run.manifest.run_id


def common_title(runs: Sequence[Run]) -> str:
    """Properties that all runs share; their models where they share none."""
    names = [name_of(run) for run in runs]
    common = [part for part, *others in zip(*names, strict=True) if part and set(others) <= {part}]
    return " · ".join(common or dict.fromkeys(title_of(run) for run in runs))


def traffic_labels(runs: Sequence[Run], folders: Sequence[str] = ()) -> tuple[str, ...]:
    """The shortest labels that distinguish the runs.

    The parts in which they differ; where these repeat, the names of their folders, else numbers.
    """
    names = [name_of(run) for run in runs]
    differs = [len(set(parts)) > 1 for parts in zip(*names, strict=True)]
    labels = [
        _joined(part for part, differing in zip(name, differs, strict=True) if differing)
        or title_of(run)
        for name, run in zip(names, runs, strict=True)
    ]
    if len(set(folders)) == len(runs) > len(set(labels)):
        return tuple(
            folder if label == title_of(run) else f"{label} ({folder})"
            for label, folder, run in zip(labels, folders, runs, strict=True)
        )
    return tuple(
        f"{label} #{labels[: index + 1].count(label)}" if labels.count(label) > 1 else label
        for index, label in enumerate(labels)
    )


def server_labels(runs: Sequence[Run], labels: Sequence[str]) -> tuple[str, ...]:
    """The server of each run, by the labels of its runs; '' for all where there is only one.

    Simulated runs are of one server where their rules, step times and KV blocks are the same.
    """
    keys = [_server_key(run) for run in runs]
    if len(set(keys)) == 1:
        return ("",) * len(runs)
    own = {
        key: [label for one, label in zip(keys, labels, strict=True) if one == key] for key in keys
    }
    return tuple(
        own[key][0] if len(own[key]) == 1 else f"{own[key][0]} … {own[key][-1]}" for key in keys
    )


def _server_key(run: Run) -> tuple[str, ...]:
    name, source = name_of(run), run.manifest.source
    rests_on = "" if source is None or run.manifest.origin != "simulated" else source.where
    return (name.model, name.server, rests_on)


def name_of(run: Run) -> RunName:
    """The parts of its name, from the plan of a load test, else from the record."""
    manifest = run.manifest
    if manifest.load is not None:
        load = manifest.load
        return RunName(
            load.served_model, urlsplit(load.url).netloc, load.workload.name, traffic_text(load)
        )
    model = "" if manifest.model is None else manifest.model.model_id
    server = (
        PurePath(manifest.source.where).name
        if manifest.source is not None and manifest.origin == "published"
        else manifest.origin
    )
    return RunName(model, server if model or manifest.origin == "published" else "", "", "")


def traffic_text(load: LoadPlan) -> str:
    """The rate or the concurrency of the plan.

    ``5 requests/s``, ``concurrency 32``, ``1 to 20 requests/s``.
    """
    arrivals = load.workload.arrivals
    cap = "" if load.max_concurrency is None else f", at most {load.max_concurrency} in flight"
    match arrivals:
        case types.ClosedArrivals():
            return f"concurrency {arrivals.concurrency}"
        case types.OpenArrivals(profile=types.Ramp() as ramp):
            return (
                f"{format_number(arrivals.rate_per_s * ramp.from_ratio)} to"
                f" {format_number(arrivals.rate_per_s)} requests/s{cap}"
            )
        case types.OpenArrivals():
            return f"{format_request_rate(arrivals.rate_per_s)}{cap}"
        case types.AtOnce():
            return f"all at once{cap}"
        case types.TraceArrivals():
            return f"arrivals of {PurePath(arrivals.path).name}{cap}"
        case None:  # a replayed file brings its own
            return f"its own arrivals{cap}"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(part for part in parts if part)


_ARRIVALS: Final = ("rate", "concurrency", "max_concurrency", "ramp", "trace")
_LEAST_BYTES: Final = 200
"""Memory for each request: its row when drawn, here, and in its client process."""


def check_size(load: LoadPlan) -> None:
    """Refuse a workload whose requests cannot fit in memory.

    How many a trace has is not known before it is read.
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
    """A note on the default rate, where no flag or trace gave the arrivals; else None."""
    if load.workload.replay is not None or any(given.get(name) is not None for name in _ARRIVALS):
        return None
    return (
        f"no rate was given: {traffic_text(load)}, the workload's own; --rate or --concurrency for"
        " another"
    )


def default_folder(load: LoadPlan) -> Path:
    """Default folder of a run: the same for the same question, so that the same command resumes."""
    digest = hashlib.sha256(msgspec.json.encode(without_secrets(load))).hexdigest()[:6]
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-"
        for letter in f"{load.served_model}-{load.workload.name}".lower()
    )
    return Path("runs") / f"load-{name}-{digest}"
