"""States of the explorer without a page: one state, a grid around it, and measured points."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.api import named_fit, progress, report, request_view
from inferometer.api.explore import Explore
from inferometer.api.explore_page import Measured
from inferometer.api.explored import ExploreAnswer, Explored, refined
from inferometer.api.workload import Workload
from inferometer.errors import SpecError
from inferometer.fit.loads import server_fit
from inferometer.inputs import catalog, foreign_bytes, objectives, resolve
from inferometer.measure import this_machine
from inferometer.measure.executors.local import Inline
from inferometer.perfmodel import steptime
from inferometer.records import reading, request_summaries, run_folder
from inferometer.records.columns import I32

_RATIOS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Other loads of the grid, relative to the state's load."""
_SEQS: Final = (None, 8, 32, 128)
"""max_num_seqs; None: that of the state."""


def explore(question: Explore) -> ExploreAnswer:
    """The whole answer of one state: a simulation, the curves around it, layouts and costs.

    Raises
    ------
    SpecError, ModelError
        The question cannot be answered as it stands.
    """
    progress.talk("simulating this state, the loads around it, and other layouts")
    return state(question).answer


def state(question: Explore) -> Explored:
    """The answer of one state, with its curves."""
    return refined(question, Inline(lambda _done, _all: None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Initial state of the explorer, and measured points."""

    question: Explore
    measured: tuple[Measured, ...] = ()


def started(question: Explore) -> Started:
    """The state that the command names; where it names a run, a fit or a plan, that one's.

    Raises
    ------
    SpecError
        A file that is none of these, a run that is no load test, an unknown model or device, or
        what is no SLO.
    """
    path = Path(question.server.model)
    if (path / run_folder.MANIFEST_NAME).is_file():
        question = _of_run(question, path)
    elif path.suffix == ".json" and path.is_file():
        question = _of_file(question, path)
    _check_named(question)
    return Started(question=question, measured=tuple(map(_point_of, question.run)))


def _check_named(question: Explore) -> None:
    """Refuse unknown names at once; what is only missing is filled in on the page."""
    server = question.server
    if server.fit is None:
        resolve.resolve_model(server.model, load_format="dummy")
    if server.hardware is not None and server.hardware != this_machine.THIS_MACHINE:
        named_fit.device_named(server.hardware, server.link)
    if question.slo is not None:
        objectives.parse_objective(question.slo, has_workflows=True)


def around(question: Explore) -> Iterator[Explore]:
    """States of a grid around this one: its own first, then other loads and max_num_seqs."""
    yield question
    workload = question.workload
    key = "rate" if workload.concurrency is None else "concurrency"
    load = getattr(workload, key) or 1.0
    for n_seqs in _SEQS:
        for ratio in _RATIOS:
            if n_seqs is None and ratio == 1.0:
                continue
            moved: dict[str, Any] = {key: _rounded(load * ratio, is_whole=key != "rate")}
            server = question.server
            if n_seqs is not None:
                server = replace(server, max_num_seqs=n_seqs)
            yield replace(question, server=server, workload=replace(workload, **moved))


def _rounded(load: float, *, is_whole: bool) -> float:
    return max(1, round(load)) if is_whole else float(f"{load:.3g}")


def _point_of(folder: Path) -> Measured:
    run = reading.read_run(folder)
    if run.manifest.load is None or run.requests is None:
        raise _no_load_test(folder, where="--run")
    served = run.manifest.load.served_model
    known, view = catalog.known_model(served), request_view.request_view(run)
    return Measured(
        report.rate_view([run], [view], [str(folder)]).points[0],
        served if known is None else known.model_id,
        *(_mean(column) for column in (run.requests.prompt_tokens, run.requests.output_tokens)),
    )


def _mean(tokens: I32) -> float:
    known = tokens[tokens > 0]
    return float(known.mean()) if known.size else 0.0


def _no_load_test(folder: Path, *, where: str) -> SpecError:
    return SpecError(
        f"{str(folder)!r} is no load test",
        where=where,
        allowed="a run of `load`, a fit, a plan, or a model",
        try_=suggestions.command("show", folder),
    )


def _of_run(question: Explore, folder: Path) -> Explore:
    """Traffic of a load test in mean lengths and rate, and its point."""
    run = reading.read_run(folder)
    load, requests = run.manifest.load, run.requests
    if load is None or requests is None:
        raise _no_load_test(folder, where="MODEL")
    model = catalog.known_model(load.served_model)
    if model is None:
        raise SpecError(
            f"the catalogue does not know its model {load.served_model!r}",
            where="MODEL",
            try_=suggestions.command("explore", "MODEL", "--run", folder, "--hardware", "ID"),
        )
    given: dict[str, Any] = {}
    lengths = ",".join(
        f"{name}={_range(column)}"
        for name, column in (("prompt", requests.prompt_tokens), ("output", requests.output_tokens))
    )
    if question.workload == Workload():
        concurrency = request_summaries.concurrency_of(run)
        offered = request_summaries.summarise_requests(run).offered_requests_per_s
        given = {"workload": lengths, "concurrency": concurrency}
        if concurrency is None and offered is not None:
            given["rate"] = float(f"{offered:.3g}")
    return replace(
        question,
        server=replace(question.server, model=model.model_id),
        workload=replace(question.workload, **given),
        run=(folder, *(one for one in question.run if one != folder)),
    )


def _range(tokens: I32) -> str:
    """The middle nine tenths of lengths, as bare lengths are written."""
    known = tokens[tokens > 0]
    low, high = (max(1, round(float(one))) for one in np.quantile(known, (0.05, 0.95)))
    return str(low) if low == high else f"{low}..{high}"


class _Pick(msgspec.Struct, frozen=True):
    hardware_id: str
    tensor_parallel_size: int
    n_replicas: int


class _File(msgspec.Struct, frozen=True):
    """Fields that distinguish a plan, a fit and a model's configuration."""

    pick: _Pick | None = None
    model_id: str = ""
    workload_name: str = ""
    rate_per_s: float = 0.0
    objective: str = ""
    parameters: object = None


_DOOR: Final = foreign_bytes.Door(
    noun="file", allowed="a plan (`size --json`), a fit, or a model's config.json"
)


def _of_file(question: Explore, path: Path) -> Explore:
    """The state of a plan or a fit; a model's configuration stays the model."""
    found = _DOOR.json(_DOOR.bytes_of(path), _File, where=str(path))
    if found.pick is not None:
        cluster = replace(question.fleet.cluster, replicas=found.pick.n_replicas)
        return replace(
            question,
            server=replace(
                question.server,
                model=found.model_id,
                hardware=found.pick.hardware_id,
                tp=found.pick.tensor_parallel_size,
            ),
            workload=replace(
                question.workload, workload=found.workload_name, rate=found.rate_per_s
            ),
            fleet=replace(question.fleet, cluster=cluster),
            slo=found.objective,
        )
    if found.parameters is None:
        return question
    model = (
        server_fit.load_server_fit(path).model
        if named_fit.is_server(path)
        else steptime.load_step_time_model(path).model
    )
    if model is None:
        raise SpecError(
            "the fit does not name its model",
            where=str(path),
            try_=suggestions.command("explore", "MODEL", "--fit", path),
        )
    server = replace(question.server, model=model.model_id, fit=path)
    return replace(question, server=server)
