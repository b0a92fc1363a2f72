"""inferometer capacity URL: what is the highest load at which this server keeps its promise?

Measured, probe by probe.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from inferometer.api import capacity_page, decision_pages, load_request, load_running, load_wording
from inferometer.cli import answer, flags, load_options, terminal
from inferometer.cli.flags import takes
from inferometer.cli.progress import heard
from inferometer.decide import capacity, probing
from inferometer.errors import MeasureError, SpecError
from inferometer.inputs.objectives import ObjectiveSpec, parse_objective
from inferometer.inputs.workload import reading, replay, types
from inferometer.records import promises, validity
from inferometer.units import parse_duration_s

_SPAN_RATIO: Final = 64.0
"""From the start of the search, up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveProbe:
    """Asks a server: ``probe(load, effort)``.

    Every probe has a seed of its own: prompts that came before would be in its prefix cache.
    """

    request: load_request.LoadRequest
    objective: ObjectiveSpec
    probe_s: float
    folder: Path
    asked: list[str]
    """Names of the probes' folders so far."""

    def __call__(self, load: float, effort: int) -> capacity.Reading:
        """What the server says at this load, in a run twice as long with each effort.

        Raises
        ------
        MeasureError
            The server is gone, or the run is INVALID: the client was the bottleneck.
        """
        folder = self.folder / f"probe-{len(self.asked):02d}"
        self.asked.append(folder.name)
        request = self._at(load, self.probe_s * 2**effort)
        drawn = replay.draw_workload(request.load.workload)
        load_wording.check_prompts(request.load, drawn)
        terminal.talk(f"{folder.name}: {load_wording.what_will_happen(request.load, drawn)}")
        loaded = load_running.run_load(request, drawn, folder, self.objective.percentile_fractions)
        if loaded.is_interrupted:
            raise MeasureError(
                "somebody stopped the probe", where=str(folder), try_="the same command goes on"
            )
        validity.require_valid(loaded.run)
        return probing.reading_of(loaded.run, promises.judge_objective(loaded.run, self.objective))

    def _at(self, load: float, for_s: float) -> load_request.LoadRequest:
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


@click.command(
    "capacity",
    short_help="What is the highest load at which a server keeps its promise?",
    epilog="""\b
Examples (a server must listen there):
  inferometer capacity http://127.0.0.1:8000 --model NAME --rate 2 --slo 'ttft:p95<500ms, tpot:p95<50ms' --probe-for 30s --out runs/capacity
  inferometer capacity http://127.0.0.1:8000 --model NAME --concurrency 8 --slo 'tpot:p95<50ms' --out runs/users
""",
)
@load_options.takes_load
@click.option(
    "--slo",
    required=True,
    metavar="TEXT",
    help="What is promised: 'ttft:p95<500ms, tpot:p95<50ms', or mlperf:NAME.",
)
@click.option(
    "--resolution",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="How closely to look.",
)
@click.option(
    "--probe-for",
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="A short probe; a long one takes twice as long.",
)
@click.option(
    "--max-probes",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The search ends with what is known then.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the probes; the same one goes on.",
)
@takes(decision_pages.Page, "page")
@flags.json_option
def command(
    request: load_request.LoadRequest,
    *,
    slo: str,
    out: Path,
    page: decision_pages.Page,
    as_json: bool,
    **flags: object,
) -> None:
    """How many requests per second, or users (with --concurrency), does the server at URL carry before the promise breaks?

    The load that is given is where the search begins. A probe that is INVALID, or a server that
    dies, ends it with the bracket so far. Exit 0 resolved, 11 unresolved.
    """
    spec, objective = request.load.workload, parse_objective(slo)
    users = isinstance(spec.arrivals, types.ClosedArrivals)
    if not isinstance(spec.arrivals, types.ClosedArrivals | types.OpenArrivals):
        raise SpecError(
            "the workload has no load to turn",
            where="--workload",
            allowed="open or closed arrivals",
            try_="--rate 1",
        )
    start = (
        float(spec.arrivals.concurrency)
        if isinstance(spec.arrivals, types.ClosedArrivals)
        else spec.arrivals.rate_per_s
    )
    probe_s = parse_duration_s(str(flags["probe_for"]), where="--probe-for")
    probe = LiveProbe(request=request, objective=objective, probe_s=probe_s, folder=out, asked=[])
    question = capacity.CapacityQuestion(
        kind="users" if users else "requests_per_s",
        start_load=start,
        lowest_load=1.0 if users else start / _SPAN_RATIO,
        highest_load=start * _SPAN_RATIO,
        resolution_ratio=float(str(flags["resolution"])),
        proof_effort=1,
        max_probes=int(str(flags["max_probes"])),
    )
    with heard():
        found = capacity.find_capacity(probe, question)
    said = capacity_page.CapacityAnswer(
        model_id=request.load.served_model,
        workload_name=spec.name,
        objective=objective.text,
        unit="users" if users else "requests/s",
        is_resolved=found.is_resolved,
        is_located=found.is_located,
        levels=(capacity_page.paced("measured", found),),
        engine=request.load.url,
        step_times_from=f"the server at {request.load.url}; its probes are in {out}",
    )
    decision_pages.write_capacity_page(said, page.report)
    answer.give(said, as_json=as_json, show=capacity_page.capacity_page)
    sys.exit(0 if said.is_resolved else 11)
