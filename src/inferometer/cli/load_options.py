"""Which flags describe a load test, and which plan and secrets do they make?"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, get_args

import click
import msgspec

from inferometer import suggestions
from inferometer.cli import ray_address, workload_options
from inferometer.cli.terminal import talk
from inferometer.errors import SpecError
from inferometer.measure.load import load_test, messages, preflight, target
from inferometer.measure.metrics_page import MetricsSource, source_of
from inferometer.spec.foreign_bytes import Door
from inferometer.spec.load_plan import Endpoint, LoadPlan, PromptForm, body_value_without_secrets
from inferometer.spec.workload import reading, types
from inferometer.units import parse_bytes, parse_duration_s

Brought = TypeVar("Brought")

_AT_MOST_PER_USER_PER_S: Final = 20
"""A closed loop with a duration is given so many requests: more would be answers in less than 50
ms."""
_MOST_NAMES: Final = 8
_MOST_REQUESTS: Final = 500_000
_ARRIVALS: Final = ("rate", "concurrency", "ramp", "trace")
_NAMES: Final = (
    "url", "model", "endpoint", "ramp", "trace", "drain", "timeout", "connect_timeout", "head_timeout", "read_timeout", "max_body",
    "max_connections", "max_concurrency",
    "processes", "prompts", "tokenizer", "body", "header", "proxy", "metrics_url", "stream", "insecure",
    "respect_eos", "executor", "ray_address", "preflight",
)  # fmt: skip

_OPTIONS: Final = (
    click.option(
        "--model", metavar="NAME", help="What the server calls the model. [the one that it offers]"
    ),
    click.option(
        "--endpoint", type=click.Choice(get_args(Endpoint)), default="chat", show_default=True
    ),
    click.option(
        "--stream/--no-stream",
        default=True,
        show_default=True,
        help="Token by token, or each answer whole.",
    ),
    click.option(
        "--ramp", metavar="FROM:TO:OVER", help="Requests per second that grow (or fall): 1:20:60s."
    ),
    click.option(
        "--max-concurrency",
        type=click.IntRange(min=1),
        help=(
            "Beside a rate: the most requests in flight; others wait at the client, and the wait"
            " counts in TTFT. Alone: as --concurrency."
        ),
    ),
    click.option(
        "--trace",
        metavar="FILE",
        help="Arrivals at the instants of a trace; lengths are the workload's.",
    ),
    click.option(
        "--prompts",
        type=click.Choice(get_args(PromptForm)),
        default="words",
        show_default=True,
        help="How prompts are written.",
    ),
    click.option(
        "--tokenizer",
        metavar="PATH",
        help="For --prompts tokenizer: a tokenizer.json, or a folder with one.",
    ),
    click.option(
        "--respect-eos",
        is_flag=True,
        help="Let the model end its answers. [ask for the workload's lengths (ignore_eos)]",
    ),
    click.option(
        "--body",
        multiple=True,
        metavar="KEY=JSON",
        help="Further keys of each request's body, such as temperature=0.",
    ),
    click.option(
        "--header",
        multiple=True,
        metavar="'NAME: VALUE'",
        help="Sent and not stored; 'NAME: $VARIABLE' takes the environment's.",
    ),
    click.option(
        "--proxy",
        metavar="URL",
        help="[http_proxy, https_proxy, all_proxy, unless no_proxy names the host]",
    ),
    click.option("--insecure", is_flag=True, help="Do not verify the server's certificate."),
    click.option(
        "--processes",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="That send, on one schedule.",
    ),
    click.option(
        "--executor",
        type=click.Choice(("processes", "ray")),
        default="processes",
        show_default=True,
        help=(
            "Where they run: here, or in turn on the hosts of a Ray cluster, whose clocks are"
            " measured."
        ),
    ),
    ray_address.RAY_ADDRESS,
    click.option(
        "--max-connections",
        type=click.IntRange(min=1),
        help="[as many as there are requests in flight]",
    ),
    click.option(
        "--timeout",
        default="600s",
        show_default=True,
        metavar="DURATION",
        help="A request that takes longer is given up.",
    ),
    click.option(
        "--connect-timeout",
        default="10s",
        show_default=True,
        metavar="DURATION",
        help="Until a connection stands.",
    ),
    click.option("--head-timeout", metavar="DURATION", help="Until an answer begins. [--timeout]"),
    click.option("--read-timeout", metavar="DURATION", help="Until an answer goes on. [--timeout]"),
    click.option(
        "--max-body",
        metavar="SIZE",
        help="A longer answer is given up. [1MiB, and 16KiB for each token asked for]",
    ),
    click.option(
        "--drain",
        default="60s",
        show_default=True,
        metavar="DURATION",
        help="After --for, wait so long for what is in flight.",
    ),
    click.option(
        "--preflight/--no-preflight",
        default=True,
        show_default=True,
        help="Ask for one token before the run: would it be refused?",
    ),
    click.option(
        "--metrics-url",
        metavar="URL",
        help="Where the server's own metrics are. [URL/metrics, where there are any]",
    ),
)
_URL: Final = click.argument("url")
_OTHER: Final = (
    click.argument("other_url", metavar="[B]", required=False),
    click.option("--b-model", metavar="NAME", help="What B calls its model. [--model]"),
    click.option(
        "--b-header",
        multiple=True,
        metavar="'NAME: VALUE'",
        help="As --header, of B alone; takes the place of A's of that name.",
    ),
    click.option(
        "--b-body",
        multiple=True,
        metavar="KEY=JSON",
        help="As --body, of B alone; takes the place of A's of that name.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What the flags ask for."""

    load: LoadPlan
    secrets: target.Secrets
    metrics: MetricsSource
    limits: messages.ClientLimits
    is_on_ray: bool = False
    """The client processes run on the hosts of a Ray cluster."""
    ray_address: str | None = None
    is_asked_before: bool = True
    """One request goes before the run, to see whether the server would refuse it."""


def takes_load(command: Callable[..., Brought]) -> Callable[..., Brought]:
    """Add the flags of a load test and of its workload; the command gets ``request: LoadRequest``."""

    @functools.wraps(command)
    def with_load(workload: types.WorkloadSpec, **flags: Any) -> Brought:
        given = {name: flags.pop(name) for name in _NAMES}
        return command(request=_request(workload, given), **flags)

    wrapped = workload_options.takes_workload(with_load)
    for option in reversed((_URL, *_OPTIONS)):
        wrapped = option(wrapped)
    return wrapped


def takes_two_loads(command: Callable[..., Brought]) -> Callable[..., Brought]:
    """Add the flags of load tests of two servers, or of one that is asked in two ways.

    The command gets ``requests``, A's and B's.
    """

    @functools.wraps(command)
    def with_loads(workload: types.WorkloadSpec, **flags: Any) -> Brought:
        given = {name: flags.pop(name) for name in _NAMES}
        other = given | {
            "url": flags.pop("other_url") or given["url"],
            "model": flags.pop("b_model") or given["model"],
            "header": _overridden(given["header"], flags.pop("b_header"), ":"),
            "body": _overridden(given["body"], flags.pop("b_body"), "="),
        }
        return command(requests=(_request(workload, given), _request(workload, other)), **flags)

    wrapped = workload_options.takes_workload(with_loads)
    for option in reversed((_URL, *_OTHER, *_OPTIONS)):
        wrapped = option(wrapped)
    return wrapped


def _overridden(texts: Sequence[str], own: Sequence[str], separator: str) -> tuple[str, ...]:
    """The texts, but those of the names that ``own`` has too."""

    def name(text: str) -> str:
        return text.partition(separator)[0].strip().lower()

    return (*(text for text in texts if name(text) not in {name(one) for one in own}), *own)


def redacted(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line as it may be stored: without the values of headers and the credentials of proxies."""
    before = ("", *arguments)
    return tuple(
        _redacted(flag, argument) for flag, argument in zip(before, arguments, strict=False)
    )


def _redacted(before: str, argument: str) -> str:
    """An argument without its secret, if it has one; ``before`` stands in front of it."""
    flag, is_joined, value = argument.partition("=")
    if is_joined and flag in _SECRET:
        return f"{flag}={_SECRET[flag](value)}"
    return _SECRET[before](argument) if before in _SECRET else argument


def _valueless(header: str) -> str:
    name, _, value = header.partition(":")
    return header if value.strip().startswith("$") else f"{name}: …"


def _textless(key: str) -> str:
    """``--body`` without texts; of what is no JSON only the name."""
    name, _, value = key.partition("=")
    try:
        return f"{name}={body_value_without_secrets(value)}"
    except msgspec.DecodeError:
        return f"{name}=…"


_SECRET: Final[dict[str, Callable[[str], str]]] = {
    **dict.fromkeys(("--header", "--b-header"), _valueless),
    **dict.fromkeys(("--body", "--b-body"), _textless),
    **dict.fromkeys(("--proxy", "--metrics-url"), target.shown_url),
}


def _request(workload: types.WorkloadSpec, flags: dict[str, Any]) -> LoadRequest:
    variables = target.environment()
    proxy, authorization = target.proxy_for(flags["url"], flags["proxy"], variables)
    headers = tuple(target.custom_header(text, variables) for text in flags["header"])
    token = (
        None
        if any(name.lower() == "authorization" for name, _ in headers)
        else target.bearer_token(variables)
    )
    spec, for_s = _lasting(_arriving(workload, flags))
    load = LoadPlan(
        url=flags["url"].rstrip("/"),
        served_model=flags["model"] or "",
        endpoint=flags["endpoint"],
        workload=spec,
        is_streaming=flags["stream"],
        for_s=for_s,
        drain_s=parse_duration_s(flags["drain"], where="--drain"),
        timeout_s=parse_duration_s(flags["timeout"], where="--timeout"),
        n_processes=flags["processes"],
        max_connections=flags["max_connections"],
        max_concurrency=_cap(spec, flags),
        prompt_form=flags["prompts"],
        tokenizer=flags["tokenizer"],
        ignores_eos=not flags["respect_eos"],
        extra_body=tuple(sorted(_body_key(text) for text in flags["body"])),
        header_names=tuple(sorted(name for name, _ in headers)),
        sends_bearer_token=token is not None,
        verifies_tls=not flags["insecure"],
        proxy=proxy,
        metrics_url=(
            None if flags["metrics_url"] is None else target.shown_url(flags["metrics_url"])
        ),
        repeats_prompts=click.get_current_context().params.get("seed") is not None,
    )
    target.target_of(load)  # a URL that is none is refused before anything is drawn
    bearer = (("Authorization", f"Bearer {token}"),) if token is not None else ()
    secrets = target.Secrets(headers=(*bearer, *headers), proxy_authorization=authorization)
    limits = messages.ClientLimits(
        connect_s=parse_duration_s(flags["connect_timeout"], where="--connect-timeout"),
        head_s=_maybe_s(flags["head_timeout"], "--head-timeout"),
        read_s=_maybe_s(flags["read_timeout"], "--read-timeout"),
        body_bytes=(
            None
            if flags["max_body"] is None
            else parse_bytes(flags["max_body"], where="--max-body")
        ),
    )
    if flags["model"] is None:
        load = replace(load, served_model=_offered_model(load, secrets, limits))
    return LoadRequest(
        load=load,
        secrets=secrets,
        metrics=source_of(load, secrets, url=flags["metrics_url"], asked_proxy=flags["proxy"]),
        limits=limits,
        is_on_ray=flags["executor"] == "ray",
        ray_address=flags["ray_address"],
        is_asked_before=flags["preflight"],
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


def _cap(spec: types.WorkloadSpec, flags: dict[str, Any]) -> int | None:
    """``--max-concurrency`` beside a rate.

    Alone it has become the concurrency of the closed loop, as in ``vllm bench serve``.
    """
    return None if isinstance(spec.arrivals, types.ClosedArrivals) else flags["max_concurrency"]


def _arriving(workload: types.WorkloadSpec, flags: dict[str, Any]) -> types.WorkloadSpec:
    """The workload with the arrivals of --ramp or --trace."""
    asked = {**click.get_current_context().params, **flags}
    given = [name for name in _ARRIVALS if asked.get(name) is not None]
    if len(given) > 1:
        flagged = ", ".join(f"--{name}" for name in given)
        own = (
            f"--workload {flags['trace']}: its requests, at arrivals of your own"
            if flags["trace"] is not None
            else None
        )
        allowed = "one of --rate, --concurrency, --ramp, --trace"
        raise SpecError(f"{len(given)} kinds of arrivals", where=flagged, allowed=allowed, try_=own)
    if flags["ramp"] is not None:
        return reading.with_changes(workload, {"arrivals": _ramp(flags["ramp"])}, where="--ramp")
    if flags["trace"] is not None:
        arrivals = {
            "kind": "trace",
            "path": flags["trace"],
            **workload_options.replay_changes(asked),
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
    """How long requests are sent.

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
    advice = f"--body '{name}=\"…\"'"
    Door(noun="value", allowed="KEY=JSON, texts in double quotes", try_=advice).json(
        value, object, where=f"--body {name}"
    )
    if not name or not has_value:
        raise SpecError(
            "there is no key", where="--body", allowed="KEY=JSON", try_="--body temperature=0"
        )
    return name, value


def _maybe_s(text: str | None, where: str) -> float | None:
    return None if text is None else parse_duration_s(text, where=where)
