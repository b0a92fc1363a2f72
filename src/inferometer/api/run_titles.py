"""What are runs of requests called on pages and in legends.

By model, server, workload and traffic, or by what they differ in?
"""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import urlsplit

from inferometer.inputs.load_plan import LoadPlan
from inferometer.inputs.workload import types
from inferometer.records.types import Run
from inferometer.units import format_number


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
    """What all runs have in common; all their models where that is nothing."""
    names = [name_of(run) for run in runs]
    common = [part for part, *others in zip(*names, strict=True) if part and set(others) <= {part}]
    return " · ".join(common or dict.fromkeys(title_of(run) for run in runs))


def traffic_labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """The shortest names that tell runs apart.

    The parts in which they differ, numbered where they repeat the very same test.
    """
    names = [name_of(run) for run in runs]
    differs = [len(set(parts)) > 1 for parts in zip(*names, strict=True)]
    labels = [
        _joined(part for part, differing in zip(name, differs, strict=True) if differing)
        or title_of(run)
        for name, run in zip(names, runs, strict=True)
    ]
    return tuple(
        f"{label} #{labels[: index + 1].count(label)}" if labels.count(label) > 1 else label
        for index, label in enumerate(labels)
    )


def name_of(run: Run) -> RunName:
    """The parts of its name, from what was asked of a load test, else from what the record says."""
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
    """The rate or the concurrency that was asked for.

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
            return f"{format_number(arrivals.rate_per_s)} requests/s{cap}"
        case types.AtOnce():
            return f"all at once{cap}"
        case types.TraceArrivals():
            return f"arrivals of {PurePath(arrivals.path).name}{cap}"
        case None:  # a replayed file brings its own
            return f"its own arrivals{cap}"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(part for part in parts if part)
