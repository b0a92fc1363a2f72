"""Which run does a simulation leave, with what its manifest must say?"""

import sys
from dataclasses import replace

from inferometer import __version__
from inferometer.cli.cluster_options import Servers
from inferometer.cli.gate_options import gate_text
from inferometer.measure.run_names import new_run_id, now_utc
from inferometer.records.types import Caution, Run
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.outcome import Simulation
from inferometer.simulate.simulated_run import simulated_run
from inferometer.spec.gate import GateSpec
from inferometer.spec.types import Source


def run_of(simulation: Simulation, servers: Servers, gate: GateSpec | None = None) -> Run:
    """The run behind a simulation that was made now, by this command."""
    created_utc, deployment = now_utc(), servers.deployment
    run = simulated_run(
        simulation,
        deployment.config,
        run_id=new_run_id(created_utc),
        created_utc=created_utc,
        command=("inferometer", *sys.argv[1:]),
        tool_version=__version__,
        model=deployment.model,
    )
    config = deployment.config
    rests_on = (
        f"rules of {config.engine}; step times: {deployment.step_times.origin}; {config.n_kv_blocks} KV blocks, {deployment.kv_origin}"
    )
    if servers.n_replicas > 1:
        rests_on = f"{servers.n_replicas} replicas behind a {servers.router} router, each with {rests_on}"
    rests_on += "" if gate is None else f"; behind a gate: {gate_text(gate)}"
    return replace(run, manifest=replace(run.manifest, source=Source(kind="derived", where=rests_on)))


def origin_cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """What the numbers rest on, where that is less than a measurement."""
    if deployment.step_times.basis == "fitted":
        return ()
    return (
        Caution(
            code="DATASHEET",
            text="step times are those of a datasheet: no host time, no front end, likely shares of the peaks",
            remedy="inferometer sweep and inferometer fit on the device, then --fit",
        ),
    )


__all__ = ["origin_cautions", "run_of"]
