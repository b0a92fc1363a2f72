"""Which load tests are fitted together, and what is known of their server before?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from inferometer.cli.runs import RunRequest, load_run
from inferometer.errors import InferometerError, SpecError
from inferometer.fit import from_loads, knob_wording, load_looks, server_subject, server_told
from inferometer.fit.server_fit import ServerFit
from inferometer.records.types import Run
from inferometer.records.validity import require_valid
from inferometer.spec.foreign_bytes import Door
from inferometer.spec.workload.plan import RequestPlan
from inferometer.spec.workload.replay import draw_workload

_LOG: Final = Door(noun="server's log", allowed="a text file", try_="its first megabytes, in which vLLM reports its limits")

_NOWHERE: Final = knob_wording.Address(url="URL", served_model="server")


def fit_load_tests(request: RunRequest, server_log: Path | None, *, n_tensor: int | None, forced: bool) -> ServerFit:
    """The server behind the load tests that were named.

    Raises
    ------
    SpecError
        They are load tests of different servers.
    MeasureError
        One of them is INVALID, and nobody ``forced`` it.
    """
    runs = [load_run(path, request) for path in request.paths]
    for run in runs:
        require_valid(run, forced=forced)
    hardware, table = request.hardware, request.table
    log = None if server_log is None else _LOG.bytes_of(server_log).decode("utf-8", "replace")
    stated = server_subject.StatedServer(hardware, table.engine, n_tensor)
    facts = server_subject.server_subject(runs, log, stated)
    subject = from_loads.Subject(
        address=_address(runs),
        model=table.model,
        hardware=hardware,
        engine=server_subject.server_engine(facts, stated),
        facts=facts,
        told=server_told.told_by_server(runs, log),
    )
    return from_loads.fit_server([load_looks.LoadTest(run=run, plan=_plan(run)) for run in runs], subject)


def _address(runs: Sequence[Run]) -> knob_wording.Address:
    plans = [run.manifest.load for run in runs if run.manifest.load is not None]
    found = {knob_wording.Address(url=plan.url, served_model=plan.served_model) for plan in plans}
    if len({address.served_model for address in found}) > 1:
        names = ", ".join(sorted(address.served_model for address in found))
        raise SpecError(f"load tests of several models: {names}", where="--load", allowed="load tests of one server")
    return next(iter(sorted(found)), _NOWHERE)


def _plan(run: Run) -> RequestPlan | None:
    """Which prompts begin alike, as the workload was drawn; None where that is not known any more."""
    if run.manifest.load is None:
        return None
    try:
        return draw_workload(run.manifest.load.workload).plan
    except InferometerError:  # a trace that is gone: prompts are taken to have nothing in common
        return None


__all__ = ["fit_load_tests"]
