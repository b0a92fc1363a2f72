"""What was measured of a sealed plan: replayed here against a server, or measured elsewhere?

A load test of ours has its workload, which must be the sealed one, request by request, and the
raw log of what was sent.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from inferometer.api import load_run, named_fit, progress, run_titles, verify_loads, verify_sealing
from inferometer.api.load_request import LoadRequest
from inferometer.api.verify_sealing import Sealed
from inferometer.errors import MeasureError, RecordError
from inferometer.inputs import plans, resolve
from inferometer.inputs.workload.plan import RequestPlan, has_workflows
from inferometer.inputs.workload.replay import draw_workload
from inferometer.measure.load import messages, target
from inferometer.measure.scrape import source_of
from inferometer.records import load_decoding, raw_log, reading
from inferometer.records.imports.detection import read_results
from inferometer.records.run_folder import MANIFEST_NAME
from inferometer.records.types import RequestTable, Run
from inferometer.verify import claims, seals

_TOLERANCE_FRACTION: Final = 0.05
"""Tolerance of mean lengths and duration, where another tool drew the requests."""


def measured_elsewhere(
    sealed: verify_sealing.Sealed, paths: Sequence[Path]
) -> tuple[claims.Measurement, ...]:
    """Measurements of the seal's questions in these runs.

    Raises
    ------
    RecordError
        A run cannot be read, or is none of what was sealed; two of them are of the same load.
    """
    found = [one for path in paths for run in runs_of(path) for one in _of_run(sealed, run, path)]
    loads = [one.measured.at for one in found]
    twice = next((at for at in loads if loads.count(at) > 1), None)
    if twice is not None:
        raise RecordError(
            f"{twice} was measured by two of these runs",
            where="--check",
            allowed="one run for each",
        )
    return tuple(found)


def _of_run(sealed: verify_sealing.Sealed, run: Run, path: Path) -> tuple[claims.Measurement, ...]:
    if run.manifest.origin == "simulated":
        raise _other(run, "it was simulated", "a measured run")
    if sealed.points:
        return _of_sweep(sealed, run, path)
    if run.requests is None:
        raise _other(
            run,
            "it is no run of requests",
            "inferometer load, or another tool's results with every request",
        )
    load, asked_as = _asked_by(sealed, run, run.requests)
    run = _with_workflows(sealed, run, load.drawn.plan)
    proof = seals.evidence_of(_place_of(path))
    at, begun = load.question.at, _begun(run, path, load)
    return (claims.load_measurement(sealed.seal, at, begun, asked_as, proof),)


def _with_workflows(sealed: verify_sealing.Sealed, run: Run, plan: RequestPlan) -> Run:
    """The run with its requests as they were drawn, where they have workflows: which belongs to which.

    Raises
    ------
    RecordError
        Another tool sent them, and the SLO has a limit for workflows.
    """
    if not has_workflows(plan):
        return run
    if run.manifest.load is not None:
        return replace(run, drawn=plan)
    limits = [one.objective for one in sealed.seal.promises if "workflow" in one.objective]
    if limits:
        raise _other(
            run,
            f"{limits[0]} has a limit for workflows, and its requests are of none that is known",
            "a run of inferometer load, or --url, which sends the sealed workflows",
        )
    return run


def _place_of(path: Path) -> Path:
    """The run's folder, or another tool's file."""
    return reading.directory_of(path) if path.is_dir() or path.name == MANIFEST_NAME else path


def _begun(run: Run, path: Path, load: verify_loads.PlannedLoad) -> Run:
    """A run of our own, with its raw log.

    It began no later than the first session in it, whatever the manifest says.
    """
    if not (path.is_dir() or path.name == MANIFEST_NAME):
        return run  # another tool's file
    folder = reading.directory_of(path)
    if not raw_log.raw_logs(folder):
        allowed = "a load test with its folder raw/, or the file that another tool wrote itself"
        raise _other(run, "it has no raw log, so nothing proves that it was measured", allowed)
    decoded = load_decoding.decode_load(folder, load.drawn.plan)
    for name in ("request_index", "intended_send_ns", "sent_ns", "finished_ns"):
        if not np.array_equal(getattr(decoded.requests, name), getattr(run.requests, name)):
            raise _other(
                run, f"its table and its raw log differ ({name})", "the table of the raw log"
            )
    began_utc = min(
        [run.manifest.created_utc, *(one.started_utc for one in decoded.sessions)],
        key=datetime.fromisoformat,
    )
    return replace(run, manifest=replace(run.manifest, created_utc=began_utc))


def _of_sweep(
    sealed: verify_sealing.Sealed, run: Run, path: Path
) -> tuple[claims.Measurement, ...]:
    plan, fit = run.manifest.plan, sealed.plan.server.get("fit")
    if run.manifest.model is None or plan is None:
        raise _other(
            run, "it is no sweep that names its model and engine", "inferometer sweep or quick"
        )
    believed = resolve.resolve_model(sealed.plan.model, load_format="dummy").spec
    seen = run.manifest.model
    if (believed.n_layers, believed.hidden_size) != (seen.n_layers, seen.hidden_size):
        raise _other(run, f"it measured {seen.model_id!r}", believed.model_id)
    if fit is not None:
        engine = named_fit.step_fit(
            Path(str(fit)), named_fit.question_of({}, believed, None)
        ).model.engine
        if engine != plan.engine:
            raise _other(run, f"its engine is {plan.engine}", f"that of the fit: {engine}")
    points = {one.question.at: one.point for one in sealed.points}
    return claims.point_measurements(run, points, seals.evidence_of(_place_of(path)))


def _asked_by(
    sealed: verify_sealing.Sealed, run: Run, requests: RequestTable
) -> tuple[verify_loads.PlannedLoad, str]:
    """The load that this run measured, and how that is known."""
    load = run.manifest.load
    if load is not None:
        sha256 = seals.requests_sha256(draw_workload(load.workload).plan)
        same = next((one for one in sealed.loads if one.question.sha256 == sha256), None)
        if same is None:
            raise _other(
                run,
                "its requests are not those that were sealed",
                "; ".join(one.question.asks for one in sealed.loads),
            )
        return same, "the very requests"
    alike = next((one for one in sealed.loads if _is_alike(one, requests)), None)
    if alike is None:
        wanted = "; ".join(f"{one.question.at}: {one.question.asks}" for one in sealed.loads)
        raise _other(
            run,
            "its requests are not like those that were sealed",
            f"as many, of the same mean lengths and rate: {wanted}",
        )
    return (
        alike,
        (
            "as many requests of the same mean lengths and rate, within"
            f" {_TOLERANCE_FRACTION * 100:g} %"
        ),
    )


def _is_alike(load: verify_loads.PlannedLoad, requests: RequestTable) -> bool:
    plan = load.drawn.plan
    if plan.n_requests != len(requests.status):
        return False
    pairs = [
        (requests.prompt_tokens.mean(), plan.prompt_tokens.mean()),
        (requests.output_tokens.mean(), plan.output_tokens.mean()),
    ]
    if (plan.follows == -1).all():
        pairs.append((np.ptp(requests.intended_send_ns), np.ptp(plan.arrival_ns)))
    return all(abs(seen - wanted) <= _TOLERANCE_FRACTION * wanted for seen, wanted in pairs)


def _other(run: Run, what: str, allowed: str) -> RecordError:
    return RecordError(
        f"run {run.manifest.run_id} cannot check these predictions: {what}",
        where="--check",
        allowed=allowed,
    )


# Which runs were measured elsewhere, and when?


_LOCAL_TIME: Final = " (local time)"


def runs_of(path: Path) -> tuple[Run, ...]:
    """The run of a folder, or the runs of another tool's file.

    Raises
    ------
    RecordError
        The path cannot be read, or has no requests.
    """
    if path.is_dir() or path.name == "manifest.json":
        return (reading.read_run(path),)
    runs = tuple(map(_dated, read_results(path).runs))
    if not runs:
        raise RecordError(
            "the file has statistics but no requests: which were sent, when, and how sure the"
            " statistics are is unknown",
            where=str(path),
            allowed="results with every request, such as vllm bench serve --save-detailed",
        )
    return runs


def _dated(run: Run) -> Run:
    """The same run; a date without a time zone, which vLLM bench writes, is taken for one of this machine's."""
    time, has_none, _ = run.manifest.created_utc.partition(_LOCAL_TIME)
    if not has_none:
        return run
    at_utc = datetime.fromisoformat(time).astimezone(UTC).isoformat(timespec="seconds")
    return replace(run, manifest=replace(run.manifest, created_utc=at_utc))


def check_url(url: str) -> None:
    """Refuse a URL that is none, before anything is sealed."""
    target.proxy_for(url, None, target.environment())


def replay(
    sealed: Sealed, url: str, load: verify_loads.PlannedLoad, folder: Path
) -> claims.Measurement:
    """Send this load's requests to the server, or resume that, into a folder.

    Raises
    ------
    MeasureError
        The server is not there, or a client process died.
    RecordError
        The folder holds another run.
    KeyboardInterrupt
        Ctrl-C; the same command resumes.
    """
    request = load_request(sealed, url, load)
    run_titles.check_prompts(request.load, load.drawn)
    progress.talk(f"{load.question.at}: {run_titles.what_will_happen(request.load, load.drawn)}")
    try:
        loaded = load_run.run_load(request, load.drawn, folder, _percentiles(sealed))
    except MeasureError as error:
        is_flag = error.try_ is not None and error.try_.startswith("--")
        try_ = (
            f"in the plan, under [client], what `inferometer load` takes as {error.try_}, and another"
            " --out: a plan that is changed is sealed anew"
            if is_flag
            else error.try_
        )
        raise MeasureError(
            error.what, where=error.where, allowed=error.allowed, try_=try_
        ) from error
    if loaded.is_interrupted:
        raise KeyboardInterrupt
    return claims.load_measurement(
        sealed.seal, load.question.at, loaded.run, claims.REPLAYED, seals.evidence_of(folder)
    )


def load_request(sealed: Sealed, url: str, asked: verify_loads.PlannedLoad) -> LoadRequest:
    """The load test of this load; its token comes from the environment.

    Raises
    ------
    SpecError
        The URL is invalid.
    """
    client, variables = sealed.plan.client, target.environment()
    token = target.bearer_token(variables)
    proxy, authorization = target.proxy_for(url, None, variables)
    load = plans.LoadPlan(
        url=url.rstrip("/"),
        served_model=client.served_model or Path(sealed.plan.model).name,
        endpoint=client.endpoint,
        workload=asked.spec,
        for_s=asked.spec.duration_s,
        drain_s=client.drain_s,
        timeout_s=client.timeout_s,
        n_processes=client.processes,
        prompt_form=client.prompts,
        tokenizer=client.tokenizer,
        sends_priorities=client.sends_priorities,
        repeats_prompts=False,  # a prefix cache would remember the prompts of the load before
        sends_bearer_token=token is not None,
        proxy=proxy,
    )
    headers = (("Authorization", f"Bearer {token}"),) if token is not None else ()
    secrets = target.Secrets(headers=headers, proxy_authorization=authorization)
    return LoadRequest(
        load=load, secrets=secrets, metrics=source_of(load, secrets), limits=messages.ClientLimits()
    )


def _percentiles(sealed: Sealed) -> tuple[float, ...]:
    traffic = sealed.plan.traffic
    objective = None if traffic is None else verify_loads.objective_of(traffic)
    return () if objective is None else objective.percentile_fractions
