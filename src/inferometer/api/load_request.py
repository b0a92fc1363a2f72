"""Which load test do the options describe, and which plan and secrets follow from them?"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import msgspec

from inferometer import suggestions
from inferometer.api.compute import RAY_ADDRESS_OPTION
from inferometer.api.progress import talk
from inferometer.api.question import duration_option, option
from inferometer.api.workload import Replayed, Workload, replay_changes, workload_of
from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.plans import Endpoint, LoadPlan, PromptForm
from inferometer.inputs.workload import reading, types
from inferometer.measure.load import load_test, messages, preflight, target
from inferometer.measure.scrape import MetricsSource, source_of
from inferometer.units import parse_bytes, parse_duration_s

_AT_MOST_PER_USER_PER_S: Final = 20
"""A closed loop with a duration is given this number of requests: more would be answers in less than 50
ms."""
_MOST_NAMES: Final = 8
_MOST_REQUESTS: Final = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of a load test, and how they are sent."""

    workload: Workload = field(default_factory=Workload)
    model: str | None = option(
        None,
        "What the server calls the model. [the one that it offers]",
        "Workload",
        is_common=True,
        metavar="NAME",
    )
    endpoint: Endpoint = option(
        "chat", "Chats, or completions of a prompt.", "Workload", is_common=True
    )
    stream: bool = option(
        True,
        "Stream answers token by token, or receive each whole.",
        "Workload",
        flags=("--stream/--no-stream",),
    )
    ramp: str | None = option(
        None,
        "Requests per second that grow (or fall): 1:20:60s.",
        "Workload",
        is_common=True,
        metavar="FROM:TO:OVER",
    )
    max_concurrency: int | None = option(
        None,
        "With a rate: the most requests in flight; others wait at the client, and the wait"
        " counts in TTFT. Without one: as --concurrency.",
        "Workload",
        is_common=True,
        least=1,
    )
    trace: str | None = option(
        None,
        "Arrivals at the instants of a trace; lengths are the workload's.",
        "Workload",
        metavar="FILE",
    )
    prompts: PromptForm = option("words", "How prompts are written.", "Workload", is_common=True)
    tokenizer: str | None = option(
        None,
        "For --prompts tokenizer: a tokenizer.json, or a folder with one.",
        "Workload",
        metavar="PATH",
    )
    respect_eos: bool = option(
        False,
        "Let the model end its answers. [ask for the workload's lengths (ignore_eos)]",
        "Workload",
    )
    body: tuple[str, ...] = option(
        (),
        "Further keys of each request's body, such as temperature=0.",
        "Workload",
        metavar="KEY=JSON",
    )
    send_priorities: bool = option(
        False,
        "Send each request's priority in its body, for servers with priority scheduling.",
        "Workload",
    )
    header: tuple[str, ...] = option(
        (),
        "Sent and not stored; 'NAME: $VARIABLE' takes the environment's.",
        "Limits",
        is_common=True,
        metavar="'NAME: VALUE'",
    )
    proxy: str | None = option(
        None,
        "Proxy to send requests through. [http_proxy, https_proxy, all_proxy, unless no_proxy names the"
        " host]",
        "Limits",
        metavar="URL",
    )
    insecure: bool = option(False, "Do not verify the server's certificate.", "Limits")
    processes: int = option(
        1, "Processes that send, on one schedule.", "Limits", is_common=True, least=1, most=64
    )
    executor: Literal["processes", "ray"] = option(
        "processes",
        "Where the sending processes run: here, or in turn on the hosts of a Ray cluster, whose"
        " clocks are measured.",
        "Limits",
    )
    max_connections: int | None = option(
        None,
        "Connections open at once. [as many as there are requests in flight]",
        "Limits",
        least=1,
    )
    timeout: float = duration_option(
        600.0,
        "Longest time of a request; a longer one is cancelled. [600s]",
        "Limits",
        is_common=True,
    )
    connect_timeout: float = duration_option(10.0, "Longest wait for a connection. [10s]", "Limits")
    head_timeout: float | None = duration_option(
        None, "Longest wait for the first byte of an answer. [--timeout]", "Limits"
    )
    read_timeout: float | None = duration_option(
        None, "Longest wait for the next byte of an answer. [--timeout]", "Limits"
    )
    max_body: int | None = option(
        None,
        "Longest answer that is read. [1MiB, and 16KiB for each token requested]",
        "Limits",
        metavar="SIZE",
        parse=lambda text, where: parse_bytes(text, where=where),
    )
    drain: float = duration_option(
        60.0, "Longest wait after --for for requests in flight. [60s]", "Limits", is_common=True
    )
    preflight: bool = option(
        True,
        "Request one token before the run, to see whether the server would refuse it.",
        "Limits",
        flags=("--preflight/--no-preflight",),
    )
    metrics_url: str | None = option(
        None,
        "URL of the server's own metrics. [URL/metrics, where there are any]",
        "Limits",
        metavar="URL",
    )
    ray_address: Annotated[str | None, RAY_ADDRESS_OPTION] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """The second server of a comparison, where it differs from the first."""

    other_url: str | None = option(None, "", "Limits", metavar="[B]", is_argument=True)
    b_model: str | None = option(
        None, "What B calls its model. [--model]", "Limits", metavar="NAME"
    )
    b_header: tuple[str, ...] = option(
        (),
        "As --header, of B alone; takes the place of A's of that name.",
        "Limits",
        metavar="'NAME: VALUE'",
    )
    b_body: tuple[str, ...] = option(
        (),
        "As --body, of B alone; takes the place of A's of that name.",
        "Limits",
        metavar="KEY=JSON",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Options of a load test."""

    load: LoadPlan
    secrets: target.Secrets
    metrics: MetricsSource
    limits: messages.ClientLimits
    is_on_ray: bool = False
    """The client processes run on the hosts of a Ray cluster."""
    ray_address: str | None = None
    is_asked_before: bool = True
    """Is one request sent before the run, to see whether the server would refuse it?"""
    sample_fraction: float | None = None
    """Share of requests that the server shall trace; None: no ``traceparent`` is sent."""


def requests_of_both(url: str, options: Load, other: Other) -> tuple[LoadRequest, LoadRequest]:
    """The load tests of two servers, or of one under two settings."""
    second = replace(
        options,
        model=other.b_model or options.model,
        header=_overridden(options.header, other.b_header, ":"),
        body=_overridden(options.body, other.b_body, "="),
    )
    return request_of(url, options), request_of(other.other_url or url, second)


def _overridden(texts: Sequence[str], own: Sequence[str], separator: str) -> tuple[str, ...]:
    """The texts whose names ``own`` does not have."""

    def name(text: str) -> str:
        return text.partition(separator)[0].strip().lower()

    return (*(text for text in texts if name(text) not in {name(one) for one in own}), *own)


def request_of(url: str, options: Load) -> LoadRequest:
    """The plan of a load test of the server at ``url``, with its secrets separate.

    Raises
    ------
    MeasureError
        The server must say what it serves, and is not there.
    SpecError
        Options exclude one another, or a value cannot be.
    """
    variables = target.environment()
    url, named = target.endpoint_in(url)
    proxy, authorization = target.proxy_for(url, options.proxy, variables)
    headers = tuple(target.custom_header(text, variables) for text in options.header)
    token = (
        None
        if any(name.lower() == "authorization" for name, _ in headers)
        else target.bearer_token(variables)
    )
    spec, for_s = _lasting(_arriving(options))
    load = LoadPlan(
        url=url.rstrip("/"),
        served_model=options.model or "",
        endpoint=named or options.endpoint,
        workload=spec,
        is_streaming=options.stream,
        for_s=for_s,
        drain_s=options.drain,
        timeout_s=options.timeout,
        n_processes=options.processes,
        max_connections=options.max_connections,
        max_concurrency=_cap(spec, options),
        prompt_form=options.prompts,
        tokenizer=options.tokenizer,
        ignores_eos=not options.respect_eos,
        sends_priorities=options.send_priorities,
        extra_body=tuple(sorted(_body_key(text) for text in options.body)),
        header_names=tuple(sorted(name for name, _ in headers)),
        sends_bearer_token=token is not None,
        verifies_tls=not options.insecure,
        proxy=proxy,
        metrics_url=target.shown_url(options.metrics_url) if options.metrics_url else None,
        repeats_prompts=options.workload.seed is not None,
    )
    target.target_of(load)  # a URL that is none is refused before anything is drawn
    bearer = (("Authorization", f"Bearer {token}"),) if token is not None else ()
    secrets = target.Secrets(headers=(*bearer, *headers), proxy_authorization=authorization)
    limits = _client_limits(options)
    if options.model is None:
        load = replace(load, served_model=_offered_model(load, secrets, limits))
    return LoadRequest(
        load=load,
        secrets=secrets,
        metrics=source_of(load, secrets, url=options.metrics_url, asked_proxy=options.proxy),
        limits=limits,
        is_on_ray=options.executor == "ray",
        ray_address=options.ray_address,
        is_asked_before=options.preflight,
    )


def _client_limits(options: Load) -> messages.ClientLimits:
    return messages.ClientLimits(
        connect_s=options.connect_timeout,
        head_s=options.head_timeout,
        read_s=options.read_timeout,
        body_bytes=options.max_body,
    )


def _offered_model(load: LoadPlan, secrets: target.Secrets, limits: messages.ClientLimits) -> str:
    """The model that the server offers, where there is one.

    Raises
    ------
    MeasureError
        The server is not there.
    SpecError
        It offers several, or does not say which.
    """
    names = preflight.served_models(load, secrets, limits, load_test.resolved(load))
    if len(names) == 1:
        talk(f"model: {names[0]}, the only one that the server offers")
        return names[0]
    what = (
        f"the server offers {len(names)} models: {', '.join(names[:_MOST_NAMES])}"
        if names
        else "the server does not list its models"
    )
    raise SpecError(
        what,
        where=f"{load.url}/v1/models",
        allowed="--model NAME",
        try_=suggestions.flags("--model", *names[:1] or ("NAME",)),
    )


def _cap(spec: types.WorkloadSpec, options: Load) -> int | None:
    """``--max-concurrency`` together with a rate.

    Alone it has become the concurrency of the closed loop, as in ``vllm bench serve``.
    """
    return None if isinstance(spec.arrivals, types.ClosedArrivals) else options.max_concurrency


def arrivals_of(options: Load) -> dict[str, object]:
    """Options of the arrivals, at most one of them; None where not given."""
    return {
        "rate": options.workload.rate,
        "concurrency": options.workload.concurrency,
        "ramp": options.ramp,
        "trace": options.trace,
    }


def _arriving(options: Load) -> types.WorkloadSpec:
    """The workload with the arrivals of --ramp or --trace."""
    replayed = Replayed(
        has_trace=options.trace is not None,
        has_ramp=options.ramp is not None,
        max_concurrency=options.max_concurrency,
    )
    workload = workload_of(options.workload, replayed)
    given = [name for name, value in arrivals_of(options).items() if value is not None]
    if len(given) > 1:
        flagged = ", ".join(f"--{name}" for name in given)
        own = (
            f"--workload {options.trace}: its requests, at arrivals of your own"
            if options.trace is not None
            else None
        )
        allowed = "one of --rate, --concurrency, --ramp, --trace"
        raise SpecError(f"{len(given)} kinds of arrivals", where=flagged, allowed=allowed, try_=own)
    if options.ramp is not None:
        return reading.with_changes(workload, {"arrivals": _ramp(options.ramp)}, where="--ramp")
    if options.trace is not None:
        arrivals = {
            "kind": "trace",
            "path": options.trace,
            **replay_changes(options.workload),
        }
        return reading.with_changes(workload, {"arrivals": arrivals}, where="--trace")
    return workload


def _ramp(text: str) -> dict[str, Any]:
    allowed, example = "FROM:TO:OVER, rates per second and a duration", "--ramp 1:20:60s"
    parts = text.split(":")
    try:
        low, high = float(parts[0]), float(parts[1])
    except (ValueError, IndexError) as error:
        raise SpecError(
            f"{text!r} is no ramp", where="--ramp", allowed=allowed, try_=example
        ) from error
    if len(parts) != 3 or not 0 <= low < float("inf") or not 0 < high < float("inf"):
        raise SpecError(
            f"{text!r} is no ramp", where="--ramp", allowed=allowed + "; TO above 0", try_=example
        )
    over_s = parse_duration_s(parts[2], where="--ramp")
    return {
        "kind": "open",
        "rate_per_s": high,
        "profile": {"kind": "ramp", "from_ratio": low / high, "over_s": over_s},
    }


def _lasting(workload: types.WorkloadSpec) -> tuple[types.WorkloadSpec, float | None]:
    """The workload, and the time for which requests are sent.

    How many a closed loop sends in a duration depends on the server: it gets more than it can need.
    """
    for_s = workload.duration_s
    if for_s is None or not isinstance(workload.arrivals, types.ClosedArrivals):
        return workload, for_s
    enough = min(
        round(workload.arrivals.concurrency * (1 + for_s * _AT_MOST_PER_USER_PER_S)), _MOST_REQUESTS
    )
    return (
        msgspec.structs.replace(
            workload, duration_s=None, n_requests=min(workload.n_requests or enough, enough)
        ),
        for_s,
    )


def _body_key(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if text.lstrip().startswith("{"):
        raise SpecError(
            "a whole JSON object",
            where="--body",
            allowed="KEY=JSON, one --body for each key",
            try_=suggestions.flags("--body", "temperature=0", "--body", "top_p=0.9"),
        )
    advice = f"--body '{name}=\"…\"'"
    Door(noun="value", allowed="KEY=JSON, texts in double quotes", try_=advice).json(
        value, object, where=f"--body {name}"
    )
    if not name or not has_value:
        raise SpecError(
            "there is no key", where="--body", allowed="KEY=JSON", try_="--body temperature=0"
        )
    return name, value
