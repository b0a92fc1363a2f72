"""Which other replicas compute the prompts, and how do KV caches come from them?"""

from dataclasses import dataclass, replace
from typing import Annotated

from inferometer.api import cluster, server as servers_
from inferometer.api.question import DURATION, Option
from inferometer.errors import SpecError
from inferometer.fit.published.efficiencies import known_levels
from inferometer.simulate import deployment as pools
from inferometer.simulate.deployment import Deployment, deploy
from inferometer.simulate.fleet import (
    BEGINNINGS,
    LINK_SHAPES,
    AnswerBeginsAt,
    LinkShape,
)
from inferometer.units import parse_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillReplicas:
    """Replicas that compute prompts alone (disaggregated prefill), and the link from them."""

    prefill_replicas: Annotated[
        int | None,
        Option(
            "Replicas that compute prompts alone; --replicas then are those that generate answers."
            " [none]",
            heading="Cluster",
            least=1,
        ),
    ] = None
    prefill_tp: Annotated[
        int | None,
        Option("Tensor-parallel devices of each of them. [as --tp]", heading="Cluster", least=1),
    ] = None
    prefill_set: Annotated[
        tuple[str, ...],
        Option(
            "A setting of theirs, as --set; repeatable. [as --set]",
            heading="Cluster",
            metavar="NAME=VALUE",
        ),
    ] = ()
    kv_link: Annotated[
        float | None,
        Option(
            "How fast KV caches travel: '50GB/s', '400Gbit/s'. [the device's scale-up links]",
            heading="Cluster",
            metavar="SPEED",
            parse=lambda text, where: parse_bytes_per_s(text, where=where),
        ),
    ] = None
    kv_link_latency: Annotated[
        float,
        Option(
            "From the last byte sent to going on. [0s]",
            heading="Cluster",
            metavar="DURATION",
            shows_default=False,
            parse=DURATION,
        ),
    ] = 0.0
    kv_link_shape: Annotated[
        LinkShape,
        Option(
            "ports: each replica has its own; shared: one link for all.",
            heading="Cluster",
            choices=LINK_SHAPES,
        ),
    ] = "ports"
    first_token_from: Annotated[
        AnswerBeginsAt,
        Option(
            "Who gives the client the first token: decode, as vLLM does, or prefill, before the"
            " transfer.",
            heading="Cluster",
            choices=BEGINNINGS,
        ),
    ] = "decode"  # noqa: S105 -- a token of a model


def with_prefill_pool(servers: cluster.Servers, options: PrefillReplicas) -> cluster.Servers:
    """The servers, and those that compute their prompts where some are asked for.

    Raises
    ------
    SpecError
        Flags of a pool that is not there, or two pools that do not go together.
    """
    if options.prefill_replicas is None:
        stray = [
            name for name in ("prefill_tp", "prefill_set", "kv_link") if getattr(options, name)
        ]
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
    decode, prefill = _pair(servers.deployment, options)
    wanted = pools.LinkAsked(
        bytes_per_s=options.kv_link, latency_s=options.kv_link_latency, shape=options.kv_link_shape
    )
    link, origin = pools.kv_link(prefill, decode, wanted)
    prefilling = replace(
        servers.cluster, engine=prefill.config, n_replicas=options.prefill_replicas
    )
    pool = pools.PrefillPool(
        deployment=prefill,
        cluster=prefilling,
        link=link,
        link_origin=origin,
        answer_begins_at=options.first_token_from,
    )
    found = servers._replace(deployment=decode, prefill=pool)
    pool.before(found.cluster)  # refuses what does not go together
    return found


def _pair(server: Deployment, options: PrefillReplicas) -> tuple[Deployment, Deployment]:
    """Those that generate answers and those that compute prompts, for sequences that both can hold."""
    prefill = _changed(server, options.prefill_tp, options.prefill_set)
    longest = min(server.config.max_model_len, prefill.config.max_model_len)
    return _limited(server, longest), _limited(prefill, longest)


def _changed(server: Deployment, n_devices: int | None, own: tuple[str, ...]) -> Deployment:
    engine, step_times, knobs = server.engine, server.step_times, server.knobs
    if n_devices is not None and n_devices != engine.tensor_parallel_size:
        if server.hardware is None or step_times.basis == "fitted":
            raise SpecError(
                f"{n_devices} devices",
                where="--prefill-tp",
                allowed="those of --fit",
                try_="--hardware ID without --fit",
            )
        engine = replace(engine, tensor_parallel_size=n_devices)
        step_times = known_levels(
            server.model,
            engine,
            server.hardware,
            framework=knobs.policy,
            n_sharing=knobs.data_parallel_size,
            is_datasheet=step_times.basis == "datasheet",
        )
    named = dict(servers_.own_knob(text, where="--prefill-set") for text in own)
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
