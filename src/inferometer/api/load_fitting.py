"""Which load tests are fitted together, and what is known of their server before?"""

from collections.abc import Sequence
from typing import Final

from inferometer.api.known_facts import ServerKnowledge, known_facts, with_known
from inferometer.api.runs import RunRequest, load_run
from inferometer.errors import InferometerError, SpecError
from inferometer.fit.loads import conclusions, estimation, load_tests, reported
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.load_plan import LoadPlan
from inferometer.inputs.types import ModelSpec
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.reading import resolve_workload
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.types import Run
from inferometer.records.validity import require_valid

_LOG: Final = Door(
    noun="server's log",
    allowed="a text file",
    try_="its first megabytes, in which vLLM reports its limits",
)

_NOWHERE: Final = conclusions.Address(url="URL", served_model="server")


def fit_load_tests(
    request: RunRequest, known: ServerKnowledge, *, n_tensor: int | None, forced: bool
) -> estimation.JudgedFit:
    """The server behind the load tests that were named.

    Raises
    ------
    SpecError
        They are load tests of different servers, or what is known contradicts what the server
        reported.
    MeasureError
        One of them is INVALID, and nobody ``forced`` it.
    """
    runs = [load_run(path, request) for path in request.paths]
    for run in runs:
        require_valid(run, forced=forced)
    hardware, table = request.hardware, request.table
    log = (
        None
        if known.server_log is None
        else _LOG.bytes_of(known.server_log).decode("utf-8", "replace")
    )
    stated = reported.StatedServer(hardware, table.engine, n_tensor)
    facts = reported.server_subject(runs, log, stated)
    subject = estimation.Subject(
        address=_address(runs),
        model=table.model or _imported_model(runs),
        hardware=hardware,
        engine=reported.server_engine(facts, stated),
        facts=facts,
        reported=with_known(reported.reported_by_server(runs, log), known_facts(known.known)),
    )
    return estimation.judged_server(
        [load_tests.LoadTest(run=run, plan=_plan(run, known.workload)) for run in runs], subject
    )


def _address(runs: Sequence[Run]) -> conclusions.Address:
    plans = [run.manifest.load for run in runs if run.manifest.load is not None]
    found = {conclusions.Address(plan.url, plan.served_model, _flags(plan)) for plan in plans}
    if len({address.served_model for address in found}) > 1:
        names = ", ".join(sorted(address.served_model for address in found))
        raise SpecError(
            f"load tests of several models: {names}",
            where="--load",
            allowed="load tests of one server",
        )
    return next(iter(sorted(found)), _NOWHERE)


def _flags(plan: LoadPlan) -> tuple[str, ...]:
    """How further prompts are sent: as these were."""
    endpoint = () if plan.endpoint == "chat" else ("--endpoint", plan.endpoint)
    return (
        *endpoint,
        *(("--prompts", plan.prompt_form) if plan.prompt_form == "token-ids" else ()),
    )


def _imported_model(runs: Sequence[Run]) -> ModelSpec | None:
    """The model that imported runs name, all the same one; of a simulated server nobody knows more than its name."""
    models = {None if run.manifest.model is None else run.manifest.model.model_id for run in runs}
    is_imported = all(run.manifest.origin == "published" for run in runs)
    return runs[0].manifest.model if is_imported and len(models) == 1 else None


def _plan(run: Run, workload: str | None) -> RequestPlan | None:
    """Which prompts begin alike, as the workload was drawn; None where that is not known any more."""
    if workload is not None:
        return _named_plan(run, workload)
    if run.manifest.load is None:
        return None
    try:
        return draw_workload(run.manifest.load.workload).plan
    except InferometerError:  # a trace that is gone: prompts are taken to have nothing in common
        return None


def _named_plan(run: Run, workload: str) -> RequestPlan:
    spec = resolve_workload(workload)
    plan = None if spec.replay is None else draw_workload(spec).plan
    if plan is None or run.requests is None or not load_tests.is_plan_of(plan, run.requests):
        raise SpecError(
            f"the prompts of {workload} are not those of {run.manifest.run_id}",
            where="--workload",
            allowed=(
                "the trace that was sent: as many prompts, of the same lengths, in the same order"
            ),
        )
    return plan
