"""Which flags say what is asked of a server, the same for every verb that simulates or sends requests?"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, get_args

import click

from inferometer.errors import SpecError
from inferometer.spec.workload import reading, types
from inferometer.units import parse_duration_s

Brought = TypeVar("Brought")

_COUNT: Final = click.IntRange(min=1)
_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
N_REQUESTS: Final = 2000
"""Where neither the workload nor a flag says when it ends: enough for a 99th percentile of
independent requests."""
_OF_TRACES: Final = {
    "trace_format": "format",
    "speed_up": "speed_up_ratio",
    "output_tokens": "output_tokens",
}
_NAMES: Final = (
    "workload",
    "rate",
    "concurrency",
    "burstiness",
    "n_requests",
    "duration",
    "seed",
    "trace_format",
    "speed_up",
    "output_tokens",
)

_OPTIONS: Final = (
    click.option(
        "--workload",
        default="chat",
        show_default=True,
        help="A preset, lengths (1024x256), a workload file, or a trace.",
    ),
    click.option(
        "--rate",
        type=_POSITIVE,
        help="Requests per second that come whether or not earlier ones are done.",
    ),
    click.option(
        "--concurrency",
        type=_COUNT,
        help="Users who each wait for an answer before they ask again.",
    ),
    click.option(
        "--burstiness",
        type=_POSITIVE,
        help="Shape of gamma arrivals; 1 is Poisson, smaller is burstier.",
    ),
    click.option(
        "--requests",
        "n_requests",
        type=_COUNT,
        help=(
            f"End after this number. [{N_REQUESTS} where nothing else ends it; more where an SLO"
            " needs them]"
        ),
    ),
    click.option(
        "--for",
        "duration",
        metavar="DURATION",
        help="End with the last request that comes within this time: 60s, 10min.",
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), help="Of all that is drawn. [the workload's]"
    ),
    click.option(
        "--trace-format",
        type=click.Choice(get_args(types.TraceFormat)),
        help="Of a trace. [told from its content]",
    ),
    click.option(
        "--speed-up",
        type=_POSITIVE,
        help="Replay a trace so many times as fast; of ServeGen's clients, their rates.",
    ),
    click.option(
        "--output-tokens", type=_COUNT, help="Asked where a trace says nothing of the answer."
    ),
)


def takes_workload(command: Callable[..., Brought]) -> Callable[..., Brought]:
    """Add the flags that describe a workload; the command gets ``workload: WorkloadSpec``."""

    @functools.wraps(command)
    def with_workload(**flags: object) -> Brought:
        asked = {name: flags.get(name) for name in ("trace", "ramp", "max_concurrency")} | {
            name: flags.pop(name) for name in _NAMES
        }
        return command(workload=_workload(asked), **flags)

    wrapped: Callable[..., Brought] = with_workload
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def requests_cap() -> int | None:
    """``--requests`` of the command that runs; None where nobody gave it."""
    context = click.get_current_context()
    given: int | None = context.params.get("n_requests")
    return given


def replay_changes(flags: Mapping[str, Any]) -> dict[str, Any]:
    """How is a trace read: the keys that ``--trace-format``, ``--speed-up`` and ``--output-tokens`` change."""
    return {key: flags[name] for name, key in _OF_TRACES.items() if flags[name] is not None}


def _workload(flags: Mapping[str, Any]) -> types.WorkloadSpec:
    spec = reading.resolve_workload(flags["workload"])
    changes: dict[str, Any] = {}
    flags = _as_in_vllm(spec, flags)
    if flags["rate"] is not None and flags["concurrency"] is not None:
        raise SpecError(
            "both a rate and a concurrency",
            where="--rate, --concurrency",
            allowed="one of them: an open loop or a closed one",
        )
    if isinstance(spec.replay, types.ServeGenSource):
        return _of_clients(spec, flags)
    if flags["rate"] is not None or flags["burstiness"] is not None:
        changes["arrivals"] = _open(flags)
    if flags["concurrency"] is not None:
        changes["arrivals"] = {"kind": "closed", "concurrency": flags["concurrency"]}
    replay = replay_changes(flags)
    if replay and flags["trace"] is None:
        if not isinstance(spec.replay, types.TraceSource):
            where = "--trace-format, --speed-up, --output-tokens"
            raise SpecError(
                f"workload {spec.name!r} replays no trace", where=where, try_="--workload TRACE"
            )
        changes["replay"] = replay
    changes |= _end_and_seed(flags)
    is_endless = spec.classes and spec.n_requests is None and spec.duration_s is None
    if is_endless and not {"n_requests", "duration_s"} & set(changes):
        changes["n_requests"] = N_REQUESTS
    return reading.with_changes(spec, changes, where="the command line") if changes else spec


def _as_in_vllm(spec: types.WorkloadSpec, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """The flags with ``--max-concurrency`` of ``vllm bench serve`` as the concurrency of a closed loop, where no arrivals are given.

    There every request is due at once unless a rate is given (its default is ``inf``), so that the
    cap alone decides.
    """
    cap = flags.get("max_concurrency")
    if cap is not None and flags["concurrency"] is not None:
        raise SpecError(
            "both a concurrency and a cap of it",
            where="--concurrency, --max-concurrency",
            allowed="one of them",
        )
    arrives_by_itself = any(flags.get(name) is not None for name in ("rate", "trace", "ramp"))
    if cap is None or arrives_by_itself or spec.replay is not None:
        return flags
    return {**flags, "concurrency": cap}


def _of_clients(spec: types.WorkloadSpec, flags: Mapping[str, Any]) -> types.WorkloadSpec:
    """ServeGen's clients, who come at rates of their own."""
    other = [
        f"--{name.replace('_', '-')}"
        for name in ("rate", "concurrency", "burstiness", "trace_format", "output_tokens")
        if flags[name]
    ]
    if other:
        what = (
            f"{' and '.join(other)} of ServeGen's clients, who come at rates and lengths of"
            " their own"
        )
        raise SpecError(
            what,
            where="the command line",
            allowed="--for, --requests, --seed, --speed-up",
            try_="--speed-up 0.1",
        )
    changes = _end_and_seed(flags) | (
        {} if flags["speed_up"] is None else {"replay": {"rate_ratio": flags["speed_up"]}}
    )
    return reading.with_changes(spec, changes, where="the command line") if changes else spec


def _end_and_seed(flags: Mapping[str, Any]) -> dict[str, Any]:
    changes = {name: flags[name] for name in ("n_requests", "seed") if flags[name] is not None}
    if flags["duration"] is not None:
        changes |= {
            "duration_s": parse_duration_s(flags["duration"], where="--for"),
            "n_requests": flags["n_requests"],
        }
    return changes


def _open(flags: Mapping[str, Any]) -> dict[str, Any]:
    opened: dict[str, Any] = {"kind": "open"}
    if flags["rate"] is not None:
        opened["rate_per_s"] = flags["rate"]
    if flags["burstiness"] is not None:
        opened |= {"process": "gamma", "burstiness_ratio": flags["burstiness"]}
    return opened
