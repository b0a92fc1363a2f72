"""How are a sealed plan's loads replayed against a server, and what came of it?"""

from pathlib import Path

from inferometer.api import load_running, load_sentences
from inferometer.api.load_request import LoadRequest
from inferometer.api.progress import talk
from inferometer.api.verify_loads import AskedLoad
from inferometer.api.verify_sealing import Sealed
from inferometer.errors import MeasureError
from inferometer.inputs.load_plan import LoadPlan
from inferometer.inputs.objectives import parse_objective
from inferometer.measure.load import messages, target
from inferometer.measure.metrics_page import source_of
from inferometer.verify import checking, claims, evidence


def check_url(url: str) -> None:
    """Refuse a URL that is none, before anything is sealed.

    Raises
    ------
    SpecError
        It is none.
    """
    target.proxy_for(url, None, target.environment())


def replay(sealed: Sealed, url: str, asked: AskedLoad, folder: Path) -> checking.Measurement:
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
    request = load_request(sealed, url, asked)
    load_sentences.check_prompts(request.load, asked.drawn)
    talk(f"{asked.question.at}: {load_sentences.what_will_happen(request.load, asked.drawn)}")
    try:
        loaded = load_running.run_load(request, asked.drawn, folder, _percentiles(sealed))
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
        sealed.seal, asked.question.at, loaded.run, checking.REPLAYED, evidence.evidence_of(folder)
    )


def load_request(sealed: Sealed, url: str, asked: AskedLoad) -> LoadRequest:
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
        else parse_objective(traffic.slo).percentile_fractions
    )
