"""Which flags let other replicas compute the prompts, and how do KV caches come from them?"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import click

from inferometer.cli import cluster_options, deployment
from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate import disaggregated_deployment as pools
from inferometer.simulate.deployment import Deployment, deploy
from inferometer.simulate.disaggregation_config import BEGINNINGS, LINK_SHAPES
from inferometer.units import parse_bytes_per_s, parse_duration_s

_OPTIONS: Final = (
    click.option(
        "--prefill-replicas",
        type=click.IntRange(min=1),
        help=(
            "Replicas that compute prompts alone; --replicas then are those that generate answers."
            " [none]"
        ),
    ),
    click.option(
        "--prefill-tp",
        type=click.IntRange(min=1),
        help="Tensor-parallel devices of each of them. [as --tp]",
    ),
    click.option(
        "--prefill-set",
        "prefill_own",
        multiple=True,
        metavar="NAME=VALUE",
        help="A knob of theirs, as --set; repeatable. [as --set]",
    ),
    click.option(
        "--kv-link",
        metavar="SPEED",
        help="How fast KV caches travel: '50GB/s', '400Gbit/s'. [the device's scale-up links]",
    ),
    click.option(
        "--kv-link-latency",
        metavar="DURATION",
        default="0s",
        show_default=True,
        help="From the last byte sent to going on.",
    ),
    click.option(
        "--kv-link-shape",
        type=click.Choice(LINK_SHAPES),
        default="ports",
        show_default=True,
        help="ports: each replica has its own; shared: one link for all.",
    ),
    click.option(
        "--first-token-from",
        "answer_begins_at",
        type=click.Choice(BEGINNINGS),
        default="decode",
        show_default=True,
        help=(
            "Who gives the client the first token: decode, as vLLM does, or prefill, before the"
            " transfer."
        ),
    ),
)
_FLAGS: Final = (
    "prefill_replicas",
    "prefill_tp",
    "prefill_own",
    "kv_link",
    "kv_link_latency",
    "kv_link_shape",
    "answer_begins_at",
)


def takes_prefill_pool(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a prefill pool before the ``servers`` of ``takes_replicas``; the command gets them with it."""

    @functools.wraps(command)
    def with_pool(servers: cluster_options.Servers, **flags: Any) -> None:
        asked = {name: flags.pop(name) for name in _FLAGS}
        command(servers=with_prefill_pool(servers, asked), **flags)

    wrapped: Callable[..., None] = with_pool
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def with_prefill_pool(
    servers: cluster_options.Servers, flags: Mapping[str, Any]
) -> cluster_options.Servers:
    """The servers, and those that compute their prompts where some are asked for.

    Raises
    ------
    SpecError
        Flags of a pool that is not there, or two pools that do not go together.
    """
    if flags["prefill_replicas"] is None:
        stray = [name for name in ("prefill_tp", "prefill_own", "kv_link") if flags[name]]
        if stray:
            raise SpecError(
                "no replicas that compute prompts alone",
                where=f"--{stray[0].replace('_', '-')}",
                try_="--prefill-replicas 1",
            )
        return servers
    if servers.rules.class_replicas:
        raise SpecError(
            "replicas by class in two pools",
            where="--class-replicas",
            allowed="one pool",
            try_="no --class-replicas",
        )
    decode, prefill = _pair(servers.deployment, flags)
    asked = pools.LinkAsked(
        bytes_per_s=(
            None
            if flags["kv_link"] is None
            else parse_bytes_per_s(flags["kv_link"], where="--kv-link")
        ),
        latency_s=parse_duration_s(flags["kv_link_latency"], where="--kv-link-latency"),
        shape=flags["kv_link_shape"],
    )
    link, origin = pools.kv_link(prefill, decode, asked)
    cluster = replace(servers.cluster, engine=prefill.config, n_replicas=flags["prefill_replicas"])
    pool = pools.PrefillPool(
        deployment=prefill,
        cluster=cluster,
        link=link,
        link_origin=origin,
        answer_begins_at=flags["answer_begins_at"],
    )
    found = servers._replace(deployment=decode, prefill=pool)
    pool.before(found.cluster)  # refuses what does not go together
    return found


def _pair(server: Deployment, flags: Mapping[str, Any]) -> tuple[Deployment, Deployment]:
    """Those that generate answers and those that compute prompts, for sequences that both can hold."""
    prefill = _changed(server, flags["prefill_tp"], flags["prefill_own"])
    longest = min(server.config.max_model_len, prefill.config.max_model_len)
    return _limited(server, longest), _limited(prefill, longest)


def _changed(server: Deployment, n_devices: int | None, own: tuple[str, ...]) -> Deployment:
    engine, step_times, knobs = server.engine, server.step_times, server.knobs
    if n_devices is not None and n_devices != engine.tensor_parallel_size:
        if server.hardware is None or step_times.basis != "datasheet":
            raise SpecError(
                f"{n_devices} devices",
                where="--prefill-tp",
                allowed="those of --fit",
                try_="--hardware ID without --fit",
            )
        engine = replace(engine, tensor_parallel_size=n_devices)
        step_times = datasheet_levels(server.model, engine, server.hardware)
    named = dict(deployment.own_knob(text, where="--prefill-set") for text in own)
    return deploy(
        server.model,
        engine,
        server.hardware,
        step_times,
        replace(knobs, own={**knobs.own, **named}),
    )


def _limited(server: Deployment, max_model_len: int) -> Deployment:
    if server.config.max_model_len == max_model_len:
        return server
    knobs = replace(server.knobs, shared={**server.knobs.shared, "max_model_len": max_model_len})
    return deploy(server.model, server.engine, server.hardware, server.step_times, knobs)
