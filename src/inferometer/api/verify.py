"""Is it true what was predicted? Sealed before, measured after, in a ledger.

What was measured is replayed here against a server, or was measured elsewhere: a load test of ours
has its workload, which must be the sealed one, request by request, and the raw log of what was
sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Final

import numpy as np

from inferometer import suggestions
from inferometer.api import (
    diagnose_check,
    load_run,
    named_fit,
    progress,
    run_titles,
    verify_sealing,
    verify_view,
)
from inferometer.api.answer import Answer
from inferometer.api.load_request import LoadRequest
from inferometer.api.progress import talk
from inferometer.api.question import Option
from inferometer.api.sweep_view import REPORT_NAME
from inferometer.api.verify_sealing import Sealed
from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.inputs import objectives, resolve, verify_plan
from inferometer.inputs.load_plan import LoadPlan
from inferometer.inputs.workload.replay import draw_workload
from inferometer.measure.load import messages, target
from inferometer.measure.scrape import source_of
from inferometer.records import load_decoding, raw_log, reading
from inferometer.records.imports.detection import read_results
from inferometer.records.layout import MANIFEST_NAME
from inferometer.records.types import RequestTable, Run
from inferometer.report import html
from inferometer.report.charts.predicted import verified_charts
from inferometer.report.page import Chip, Page, Section, lines_of
from inferometer.report.verify_tables import DEFINITIONS, VerifyView, claims_table, promises_table
from inferometer.verify import checking, claims, score, seals
from inferometer.verify.ledger import LEDGER

_TOLERANCE_FRACTION: Final = 0.05
"""Of mean lengths and of the time between first and last request, where another tool sent
requests of its own making."""


def measured_elsewhere(
    sealed: verify_sealing.Sealed, paths: Sequence[Path]
) -> tuple[checking.Measurement, ...]:
    """What these runs say of the seal's questions.

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


def _of_run(
    sealed: verify_sealing.Sealed, run: Run, path: Path
) -> tuple[checking.Measurement, ...]:
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
    asked, asked_as = _asked_by(sealed, run, run.requests)
    proof = seals.evidence_of(_place_of(path))
    return (
        claims.load_measurement(
            sealed.seal, asked.question.at, _begun(run, path, asked), asked_as, proof
        ),
    )


def _place_of(path: Path) -> Path:
    """The run's folder, or another tool's file."""
    return reading.directory_of(path) if path.is_dir() or path.name == MANIFEST_NAME else path


def _begun(run: Run, path: Path, load: verify_sealing.AskedLoad) -> Run:
    """A run of ours, whose raw log was read.

    It began no later than the first session in it, whatever the manifest says.

    Raises
    ------
    RecordError
        It has no raw log, or one of other requests.
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
) -> tuple[checking.Measurement, ...]:
    plan, fit = run.manifest.plan, sealed.plan.server.get("fit")
    if run.manifest.model is None or plan is None:
        raise _other(
            run,
            "it is no sweep that names its model and engine",
            "inferometer sweep or quick",
        )
    believed, seen = (
        resolve.resolve_model(sealed.plan.model, load_format="dummy").spec,
        run.manifest.model,
    )
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
) -> tuple[verify_sealing.AskedLoad, str]:
    """Which of the loads was this, and how is that known?"""
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


def _is_alike(load: verify_sealing.AskedLoad, requests: RequestTable) -> bool:
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
        f"run {run.manifest.run_id} is no check of these predictions: {what}",
        where="--check",
        allowed=allowed,
    )


# Which runs were measured elsewhere, and when?


_LOCAL_TIME: Final = " (local time)"


def runs_of(path: Path) -> tuple[Run, ...]:
    """The run of a folder, or those of another tool's file.

    Raises
    ------
    RecordError
        It cannot be read, or has no requests.
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
    """Refuse a URL that is none, before anything is sealed.

    Raises
    ------
    SpecError
        It is none.
    """
    target.proxy_for(url, None, target.environment())


def replay(
    sealed: Sealed, url: str, load: verify_sealing.AskedLoad, folder: Path
) -> checking.Measurement:
    """Send the very requests of this load to the server, into a folder; what was begun there goes on.

    Raises
    ------
    MeasureError
        The server is not there, or a client process died.
    RecordError
        The folder holds another run.
    KeyboardInterrupt
        Somebody stopped it; the same command goes on.
    """
    request = load_request(sealed, url, load)
    run_titles.check_prompts(request.load, load.drawn)
    progress.talk(f"{load.question.at}: {run_titles.what_will_happen(request.load, load.drawn)}")
    try:
        loaded = load_run.run_load(request, load.drawn, folder, _percentiles(sealed))
    except MeasureError as error:
        try_ = (
            f"in the plan, under [client], what `inferometer load` takes as {error.try_}"
            if error.try_
            else None
        )
        raise MeasureError(
            error.what, where=error.where, allowed=error.allowed, try_=try_
        ) from error
    if loaded.is_interrupted:
        raise KeyboardInterrupt
    return claims.load_measurement(
        sealed.seal, load.question.at, loaded.run, checking.REPLAYED, seals.evidence_of(folder)
    )


def load_request(sealed: Sealed, url: str, asked: verify_sealing.AskedLoad) -> LoadRequest:
    """The load test of this load; a token for the server comes from the environment, as in ``inferometer load``.

    Raises
    ------
    SpecError
        The URL is none.
    """
    client, variables = sealed.plan.client, target.environment()
    token = target.bearer_token(variables)
    proxy, authorization = target.proxy_for(url, None, variables)
    load = LoadPlan(
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
    return (
        ()
        if traffic is None or traffic.slo is None
        else objectives.parse_objective(traffic.slo).percentile_fractions
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyAnswer(Answer):
    """What was predicted and what came of it; the verdict is that of all claims together."""

    table: ClassVar[str | None] = "experiment.claims"

    verdict: checking.CheckVerdict
    experiment: score.Experiment
    ledger: str
    folder: str
    report: str | None
    """None where nothing was measured yet."""
    next_command: str
    """'' where nothing is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """A plan, and what is done about it now: one of ``url``, ``check`` and ``seal_only``."""

    plan: Annotated[Path, Option("", is_argument=True)]
    url: Annotated[
        str | None,
        Option("Replay the plan's loads against this server.", heading="Runs", is_common=True),
    ] = None
    check: Annotated[
        tuple[Path, ...],
        Option("Measured elsewhere; repeatable.", heading="Runs", is_common=True, metavar="RUN"),
    ] = ()
    seal_only: Annotated[
        bool, Option("Predict and seal; measure later.", heading="Runs", is_common=True)
    ] = False
    out: Annotated[
        Path | None,
        Option("Folder of the experiment; the same one goes on.", is_common=True, metavar="DIR"),
    ] = None
    ledger: Annotated[
        Path,
        Option("Where seals and what came of them are stored.", is_common=True, metavar="FILE"),
    ] = LEDGER
    given: frozenset[str] = frozenset()


def verify(question: Verify) -> VerifyAnswer:
    """Seal the predictions of a plan, then compare them with what is measured.

    Raises
    ------
    SpecError
        The plan cannot be read, or what is to be done is not clear.
    RecordError
        A seal, a ledger or a run cannot be trusted.
    MeasureError
        The server is not there.
    """
    url, runs, seal_only = question.url, question.check, question.seal_only
    plan_path, ledger_path = question.plan, question.ledger
    if (url is not None) + bool(runs) + seal_only != 1:
        raise SpecError(
            "nothing, or several things, to do",
            where="--url, --check, --seal-only",
            allowed="one of them",
            try_="--seal-only",
        )
    if diagnose_check.is_change(plan_path):
        standing = diagnose_check.checked_change(plan_path, ledger_path, url, runs)
        how = ("--check", "RUN") if url is None else ("--url", url)
        again = suggestions.command("verify", plan_path, *how, "--ledger", ledger_path)
        return _answer_of(standing, plan_path, ledger_path, again)
    plan = verify_plan.read_plan(plan_path)
    if url is not None and plan.kind == "sweep":
        raise SpecError(
            "a server's steps cannot be timed from outside",
            where="--url",
            allowed="--check with a run of inferometer sweep",
        )
    if url is not None:
        check_url(url)
    folder = question.out or _default_folder(plan)
    if runs and not (folder / seals.SEAL_NAME).exists():
        raise RecordError(
            "nothing was sealed here",
            where=str(folder),
            try_=suggestions.command("verify", plan_path, "--seal-only", "--out", folder),
        )
    sealed = verify_sealing.sealed(plan, folder, ledger_path)
    if url is not None:
        _replay(sealed, url)
    elif runs:
        sealed.record(measured_elsewhere(sealed, runs))
    return _answer(sealed, plan_path, ledger_path, url)


def verify_page(answer: VerifyAnswer) -> Page:
    """Where the experiment stands, claim by claim."""
    return verify_page_of(verify_view.view_of(answer.experiment, answer.next_command))


def _replay(sealed: verify_sealing.Sealed, url: str) -> None:
    """Replay every load that is open, one after the other; each is in the ledger when it is done."""
    standing = sealed.standing()
    if not standing.open_questions:
        talk("all of it was measured before: this is what the ledger says")
    for index, asked in enumerate(sealed.loads):
        if asked.question.at in standing.open_questions:
            n_tries = len(standing.runs_of(asked.question.at))
            folder = sealed.folder / (
                f"load-{index:02d}" + (f"-try-{n_tries + 1}" if n_tries else "")
            )
            sealed.begin(asked.question.at, folder)
            sealed.record([replay(sealed, url, asked, folder)])


def _answer(
    sealed: verify_sealing.Sealed, plan_path: Path, ledger_path: Path, url: str | None
) -> VerifyAnswer:
    """Where the experiment of a plan stands."""
    how = ("--url", url or "URL") if sealed.loads else ("--check", "RUN")
    next_ = suggestions.command(
        "verify", plan_path, "--out", sealed.folder, "--ledger", ledger_path, *how
    )
    return _answer_of(sealed.standing(), sealed.folder, ledger_path, next_)


def _answer_of(
    standing: score.Experiment, folder: Path, ledger_path: Path, next_command: str
) -> VerifyAnswer:
    """Where an experiment stands; its page is written where something was measured."""
    following = next_command if standing.open_questions else ""
    report = folder / REPORT_NAME if standing.measured else None
    if report is not None:
        html.write_page(verify_page_of(verify_view.view_of(standing, following)), report)
    return VerifyAnswer(
        verdict=standing.verdict,
        experiment=standing,
        ledger=str(ledger_path),
        folder=str(folder),
        report=None if report is None else str(report),
        next_command=following,
    )


def _default_folder(plan: verify_plan.VerifyPlan) -> Path:
    """The same plan, the same folder, so that the same command goes on."""
    name = "".join(
        letter if letter.isalnum() or letter in "._-" else "-" for letter in plan.name.lower()
    )
    return Path("runs") / f"verify-{name}-{seals.plan_sha256(plan)[:6]}"


def verify_page_of(view: VerifyView) -> Page:
    """Predicted against measured, then every number, then what was sealed when."""
    tables = tuple(
        table for table in (claims_table(view), promises_table(view)) if table is not None
    )
    charts = verified_charts(view)
    return Page(
        title=view.answer,
        subtitle=view.subtitle,
        chips=(Chip(verdict=view.verdict, text=view.verdict),),
        table=tables[0] if tables else None,
        chart=charts[0] if charts else None,
        lines=lines_of(
            ("WHY", view.why),
            ("TRUST", f"{view.trust}; sealed {view.seal}"),
            ("DATA", view.measured),
            ("NEXT", view.next),
        ),
        tool_version=view.tool_version,
        sections=(
            Section(
                id="predicted",
                title="Was it so?",
                nav="Predicted vs measured",
                charts=charts,
                tables=tables,
            ),
            Section(
                id="method", title="What do the words mean?", nav="Method", definitions=DEFINITIONS
            ),
            Section(
                id="provenance",
                title="What was sealed, and what was measured?",
                nav="Provenance",
                groups=view.facts,
            ),
        ),
    )
