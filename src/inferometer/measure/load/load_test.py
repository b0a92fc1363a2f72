"""Running or resuming a whole load test."""

import socket
from dataclasses import dataclass
from pathlib import Path

from inferometer.errors import MeasureError
from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.measure.load import messages, watch
from inferometer.measure.load.schedule import Past, Session, session_after
from inferometer.measure.load.target import Secrets, target_of
from inferometer.records.raw_log import RAW_FOLDER, file_name
from inferometer.records.run_folder import now_utc


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadQuestion:
    """Everything a session needs besides the plan."""

    load: LoadPlan
    plan: RequestPlan
    past: Past
    folder: Path
    id_prefix: str
    secrets: Secrets
    limits: messages.ClientLimits
    tracing: messages.Tracing | None = None
    start_clients: watch.StartClients = watch.started
    """Here, or on other hosts."""


def run_session(question: LoadQuestion, on_progress: watch.OnProgress) -> watch.LoadOutcome:
    """Send the rest of the plan; Ctrl-C ends it early and cleanly.

    Raises
    ------
    MeasureError
        The server's name is unknown, nothing listens there, or no client process could start.
    """
    load = question.load
    addresses = resolved(load)
    session = session_after(
        question.past, question.plan, for_s=load.for_s, n_processes=load.n_processes
    )
    jobs = [_job(question, session, addresses, index) for index in range(load.n_processes)]
    with question.start_clients(jobs) as clients:
        return watch.Watch(clients, session, on_progress).outcome()


def resolved(load: LoadPlan) -> tuple[str, ...]:
    """Addresses of the first hop, the one that answers first in front.

    Raises
    ------
    MeasureError
        Its name is unknown, or nothing listens there.
    """
    hop = target_of(load).first_hop
    where = f"{hop.host}:{hop.port}"
    try:
        found = socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MeasureError(
            f"the host's name cannot be resolved: {error.strerror}",
            where=where,
            try_="check the URL's host",
        ) from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    why: OSError | None = None
    for address in tuple(addresses):
        try:
            socket.create_connection((address, hop.port), timeout=10.0).close()
        except OSError as error:
            why = error
            addresses.append(addresses.pop(0))
        else:
            return tuple(addresses)
    raise MeasureError(
        f"no answer: {why}", where=where, try_="start the server, or check the URL"
    ) from why


def _job(
    question: LoadQuestion, session: Session, addresses: tuple[str, ...], process_index: int
) -> messages.Job:
    share, past = session.shares[process_index], question.past
    return messages.Job(
        load=question.load,
        limits=question.limits,
        secrets=question.secrets,
        addresses=addresses,
        columns=messages.packed_plan(question.plan),
        rows=share.rows.tobytes(),
        due_ns=share.due_ns.tobytes(),
        waiting_for=share.waiting_for,
        n_awaited=share.n_awaited,
        session_index=past.n_sessions,
        process_index=process_index,
        n_processes=question.load.n_processes,
        begins_ns=session.begins_ns,
        cutoff_ns=session.cutoff_ns,
        started_utc=now_utc(),
        raw_path=str(question.folder / RAW_FOLDER / file_name(past.n_sessions, process_index)),
        id_prefix=question.id_prefix,
        tracing=question.tracing,
    )
