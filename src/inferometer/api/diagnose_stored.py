"""Diagnosis window of a load test that stored the server's metrics."""

from dataclasses import replace
from pathlib import Path

from inferometer import suggestions
from inferometer.api.diagnose_source import Source, is_caching
from inferometer.api.load_run import open_run
from inferometer.api.load_sending import is_open
from inferometer.decide.diagnosis.observed import check_balanced, outside_rows
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import SpecError
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import ClosedArrivals
from inferometer.measure.server_identity import ServerIdentity
from inferometer.records import reading
from inferometer.records.server_summaries import summarise_server
from inferometer.records.step_logs import step_log_of
from inferometer.records.types import Run


def made_by() -> str:
    """The command that makes a run that can be diagnosed: its server's metrics are stored."""
    return suggestions.command("load", "URL", "--out", "RUN")


def stored_source(folder: Path, replica: str | None = None) -> Source:
    """A load test that stored the server's metrics.

    Raises
    ------
    SpecError
        There is none, it did not, or there is no such replica.
    ModelError
        The metrics tell too little, or are not of one whole server.
    """
    run = open_run(folder) if is_open(folder) else reading.read_run(folder, made_by=made_by())
    if run.server is None:
        raise SpecError(
            f"{folder} holds no metrics of a server",
            where="the run",
            allowed="a load test of a server that reports metrics",
            try_=f"{made_by()}, with --metrics-url where they are elsewhere, or the server's own URL"
            " here",
        )
    identity = ServerIdentity(None, run.manifest.engine)
    window = replace(
        observed_window(run.server, run.requests, replica=replica),
        enable_prefix_caching=is_caching(identity),
        alike_fraction=_alike_fraction(run),
        step_log=None if run.steps is None else step_log_of(run.steps),
    )
    check_balanced(window)
    requests, summary = run.requests, window.summary
    if window.replica is None:
        window = replace(window, n_users=_n_users(run))
    else:  # the clients are those of all replicas
        summary = summarise_server(run.server)
    return Source(
        window=window,
        identity=identity,
        outside=() if requests is None else outside_rows(requests, summary),
    )


def _n_users(run: Run) -> int | None:
    """Users of a closed-loop load test; else None."""
    load = run.manifest.load
    arrivals = None if load is None else load.workload.arrivals
    return arrivals.concurrency if isinstance(arrivals, ClosedArrivals) else None


def _alike_fraction(run: Run) -> float | None:
    """Share of the prompts' tokens with which an earlier one began; None where it cannot be drawn."""
    load = run.manifest.load
    if load is None or load.workload.replay is not None:
        return None
    plan = draw_workload(load.workload).plan
    return float(plan.prefix_tokens.sum()) / max(float(plan.prompt_tokens.sum()), 1.0)
