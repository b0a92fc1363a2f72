"""Which run does a simulation leave, with what its manifest must say?"""

import sys
from dataclasses import replace

from inferometer import __version__, suggestions
from inferometer.api.cluster import Servers
from inferometer.api.gate import gate_text
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.types import Source
from inferometer.measure.run_names import new_run_id, now_utc
from inferometer.records.types import Caution, Run
from inferometer.simulate import outcome, simulated_run
from inferometer.simulate.deployment import Deployment, PrefillPool
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.units import format_duration, format_number


def run_of(simulation: outcome.Simulation, servers: Servers, gate: GateSpec | None = None) -> Run:
    """The run behind a simulation that was made now, by this command."""
    created_utc, deployment = now_utc(), servers.deployment
    run = simulated_run.simulated_run(
        simulation,
        servers.pools or deployment.config,
        run_id=new_run_id(created_utc),
        created_utc=created_utc,
        command=("inferometer", *sys.argv[1:]),
        tool_version=__version__,
        model=deployment.model,
    )
    config = deployment.config
    rests_on = (
        f"rules of {config.engine}; step times: {deployment.step_times.origin};"
        f" {config.n_kv_blocks} KV blocks, {deployment.kv_origin}"
    )
    if servers.n_replicas > 1 or servers.prefill is not None:
        together = " in lockstep" if servers.in_lockstep else ""
        rests_on = (
            f"{servers.n_replicas} replicas{together} behind a {servers.rules.router} router, each"
            f" with {rests_on}"
        )
    if servers.prefill is not None:
        rests_on += f"; prompts computed by {prefill_text(servers.prefill)}"
    rests_on += "" if gate is None else f"; behind a gate: {gate_text(gate)}"
    cautions = (*run.manifest.cautions, *_idle_order_cautions(simulation, servers, gate))
    return replace(
        run,
        manifest=replace(
            run.manifest, source=Source(kind="derived", where=rests_on), cautions=cautions
        ),
    )


def _idle_order_cautions(
    simulation: outcome.Simulation, servers: Servers, gate: GateSpec | None
) -> tuple[Caution, ...]:
    """An order that nobody waited for changed nothing.

    Of two pools it is not known who waited where.
    """
    if gate is None or gate.order == "fcfs" or servers.prefill is not None or simulation.n_held:
        return ()
    own = {"shortest-remaining": "policy=srpt", "priority": "policy=priority"}.get(gate.order)
    is_vllm = isinstance(servers.deployment.config, SchedulerConfig)
    remedy = "a higher load, or a max_in_flight in a file for --gate"
    return (
        Caution(
            code="order unused",
            text=(
                f"the order {gate.order} changed nothing: the engine admitted every request before"
                " it had to wait at the gate"
            ),
            remedy=(
                f"{remedy}; to order inside the engine: {suggestions.flags('--set', own)}"
                if own and is_vllm
                else remedy
            ),
        ),
    )


def prefill_text(pool: PrefillPool) -> str:
    """Who computes the prompts, and how KV caches come from there?"""
    config, link = pool.deployment.config, pool.link
    way = "one link" if link.shape == "shared" else "a port of each replica"
    latency = f" and {format_duration(link.latency_s)}" if link.latency_s else ""
    return (
        f"{pool.cluster.n_replicas} replicas of {pool.deployment.n_devices} devices with"
        f" {config.n_kv_blocks} KV blocks, {pool.deployment.kv_origin}; KV caches travel by {way}"
        f" with {format_number(link.bytes_per_s / 1e9)} GB/s{latency} ({pool.link_origin}); the"
        f" first token is given by {pool.answer_begins_at}"
    )


def fit_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Why a fit's answer is less than one of steps that were measured on what is asked about."""
    subject = deployment.step_times.subject
    reasons = () if subject is None else subject.reservations(deployment.knobs.policy)
    remedy = "inferometer sweep on this device and engine, then inferometer fit"
    return tuple(Caution(code="FIT_SUBJECT", text=reason, remedy=remedy) for reason in reasons)


def origin_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """What the numbers rest on, where that is less than a measurement."""
    if deployment.step_times.basis != "datasheet":
        return fit_cautions(deployment)
    return (
        Caution(
            code="DATASHEET",
            text=(
                "step times are those of a datasheet: no host time, no front end, likely shares of"
                " the peaks"
            ),
            remedy="inferometer sweep and inferometer fit on the device, then --fit",
        ),
    )
