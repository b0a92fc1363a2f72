"""Which deployment is one of several replicas that share their experts, as vLLM's data parallelism with expert parallelism has them?"""

from dataclasses import replace

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate.deployment import Deployment


def sharing_experts(server: Deployment) -> Deployment:
    """The same replica with the step times of one that computes its part of the experts and waits for those that have the others.

    Raises
    ------
    SpecError
        A dense model, a replica of several devices, or step times that are not a datasheet's.
    """
    n_replicas = server.knobs.data_parallel_size
    if n_replicas == 1:
        return server
    where = "--data-parallel-size"
    if server.model.moe is None:
        what = (
            f"{server.model.model_id!r} is dense: its replicas share no experts, and each steps by"
            " itself"
        )
        raise SpecError(
            what,
            where=where,
            allowed="a mixture of experts",
            try_=suggestions.flags("--replicas", n_replicas),
        )
    if server.n_devices > 1:
        raise SpecError(
            f"{n_replicas} replicas of {server.n_devices} devices that share experts",
            where=where,
            allowed="--tp 1",
        )
    if server.hardware is None or server.step_times.basis != "datasheet":
        raise SpecError(
            "the fit is of an engine that has its experts for itself",
            where=where,
            try_="--hardware ID without --fit",
        )
    return replace(
        server,
        step_times=datasheet_levels(
            server.model, server.engine, server.hardware, n_sharing=n_replicas
        ),
    )
