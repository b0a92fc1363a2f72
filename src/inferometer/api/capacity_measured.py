"""What is the highest load at which this server meets its SLO? Measured, probe by probe."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from inferometer.api import decision_pages, load_run, run_titles
from inferometer.api.capacity import SLO_OF_ALL, objective_words
from inferometer.api.fleet import start_load_of
from inferometer.api.load_request import Load, LoadRequest, request_of
from inferometer.api.progress import command_line, talk
from inferometer.api.question import SERVER, Option, duration_option, option
from inferometer.api.workload import objective_for, required_slo, workload_of
from inferometer.decide import capacity, probing
from inferometer.errors import SpecError, StoppedError
from inferometer.inputs.objectives import ClassObjective, ObjectiveSpec
from inferometer.inputs.workload import reading, replay, types
from inferometer.records import validity

_SPAN_RATIO: Final = 64.0
"""Factor between the start of the search and its ends, up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProbe:
    """Measures a server: ``probe(load, effort)``.

    Every probe has a seed of its own: prompts that came before would be in its prefix cache.
    """

    request: LoadRequest
    objective: ObjectiveSpec
    class_objectives: tuple[ClassObjective, ...]
    """SLOs of classes that have their own, besides the common one."""
    probe_s: float
    folder: Path
    asked: list[str]
    """Names of the probes' folders so far."""

    def __call__(self, load: float, effort: int) -> capacity.Reading:
        """Measure at this load; each further effort doubles the length of the run.

        Raises
        ------
        StoppedError
            Ctrl-C; what was measured is stored.
        MeasureError
            The server is gone, or the run is INVALID: the client was the bottleneck.
        """
        folder = self.folder / f"probe-{len(self.asked):02d}"
        self.asked.append(folder.name)
        request = self._at(load, self.probe_s * 2**effort)
        drawn = replay.draw_workload(request.load.workload)
        run_titles.check_prompts(request.load, drawn)
        talk(f"{folder.name}: {run_titles.what_will_happen(request.load, drawn)}")
        loaded = load_run.run_load(request, drawn, folder, self.objective.percentile_fractions)
        if loaded.is_interrupted:
            raise StoppedError("the probe was stopped", where=str(folder), command=command_line())
        validity.require_valid(loaded.run)
        return probing.worst_reading(loaded.run, self.objective, self.class_objectives)

    def _at(self, load: float, for_s: float) -> LoadRequest:
        spec = self.request.load.workload
        key = "concurrency" if isinstance(spec.arrivals, types.ClosedArrivals) else "rate_per_s"
        turned: dict[str, object] = {key: round(load) if key == "concurrency" else load}
        changes: dict[str, object] = {"arrivals": turned, "seed": spec.seed + len(self.asked)}
        if key == "rate_per_s":
            changes |= {"duration_s": for_s, "n_requests": None}
        workload = reading.with_changes(spec, changes, where="the capacity search")
        return replace(
            self.request, load=replace(self.request.load, workload=workload, for_s=for_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapacity:
    """The server to load, how, and the resolution of its capacity."""

    url: Annotated[str, Option("", is_argument=True, parse=SERVER)]
    load: Load = field(default_factory=Load)
    slo: Annotated[str | None, SLO_OF_ALL] = None
    resolution: float = option(
        0.1, "How closely to look.", "Limits", is_common=True, least=0, most=1, is_open=True
    )
    probe_for: float = duration_option(
        30.0, "A short probe; a long one takes twice as long. [30s]", "Limits", is_common=True
    )
    max_probes: int = option(
        20, "The search ends with what is known then.", "Limits", is_common=True, least=1
    )
    out: Annotated[
        Path, Option("Folder of the probes; the same one goes on.", is_common=True, metavar="DIR")
    ]
    given: frozenset[str] = frozenset()


def capacity_of_server(question: ServerCapacity) -> decision_pages.CapacityAnswer:
    """The capacity of the server, probe by probe.

    Raises
    ------
    SpecError
        The workload has no load to turn.
    MeasureError
        The server is not there.
    """
    slo = required_slo(question.slo, workload_of(question.load.workload))
    request = request_of(question.url, question.load)
    spec = request.load.workload
    objective = objective_for(slo, spec)
    own = spec.class_objectives
    users = isinstance(spec.arrivals, types.ClosedArrivals)
    if not isinstance(spec.arrivals, types.ClosedArrivals | types.OpenArrivals):
        raise SpecError(
            "the workload has no load to turn",
            where="--workload",
            allowed="open or closed arrivals",
            try_="--rate 1",
        )
    start = start_load_of(spec)
    probe = ServerProbe(
        request=request,
        objective=objective,
        class_objectives=own,
        probe_s=question.probe_for,
        folder=question.out,
        asked=[],
    )
    wanted = capacity.CapacityQuestion(
        kind="users" if users else "requests_per_s",
        start_load=start,
        lowest_load=1.0 if users else start / _SPAN_RATIO,
        highest_load=start * _SPAN_RATIO,
        resolution_ratio=question.resolution,
        proof_effort=1,
        max_probes=question.max_probes,
    )
    found = capacity.find_capacity(probe, wanted)
    return decision_pages.CapacityAnswer(
        model_id=request.load.served_model,
        workload_name=spec.name,
        objective=objective_words(objective, own),
        unit="users" if users else "requests/s",
        is_resolved=found.is_resolved,
        is_located=found.is_located,
        levels=(decision_pages.paced("measured", found),),
        engine=request.load.url,
        step_times_basis=None,
        step_times_from=f"the server at {request.load.url}; its probes are in {question.out}",
    )
