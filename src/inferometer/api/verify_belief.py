"""The fleet of a ``verify`` plan, and the basis of its predictions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from inferometer import suggestions
from inferometer.api.cluster import Servers, gate_of, gate_text
from inferometer.api.fleet import FleetOptions
from inferometer.api.groups import GROUPS_OPTION, asked_in, read_groups, rules_of, server_of_group
from inferometer.api.question import question_of
from inferometer.api.server import Server
from inferometer.errors import ModelError, SpecError
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, is_server_fit
from inferometer.fit.published.efficiencies import efficiency_file, servers_file
from inferometer.inputs import catalog, foreign_bytes, resolve
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.plans import ServerTable
from inferometer.measure.this_machine import THIS_MACHINE
from inferometer.perfmodel.steptime import FIT_NAME
from inferometer.perfmodel.types import Basis, weakest_basis
from inferometer.simulate.deployment import Deployment
from inferometer.verify import seals

OF_SERVER: Final = "the plan's [server]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The fleet of a plan: its keys are the fields of these groups."""

    server: Server
    fleet: FleetOptions = field(default_factory=FleetOptions)
    groups: Annotated[Path | None, GROUPS_OPTION] = None
    given: frozenset[str] = frozenset()


def believed_of(table: ServerTable) -> Believed:
    """The fleet that a plan's table describes.

    Raises
    ------
    SpecError
        A key that no flag of ``inferometer simulate`` has, or a value that cannot be.
    """
    settings = dict[str, object](table)
    own = settings.pop("own", {})
    with asked_in(OF_SERVER, Believed):
        believed = question_of(Believed, settings | {"set": own})
    _refuse_this_machine(believed)
    return believed


def _refuse_this_machine(believed: Believed) -> None:
    """Refuse ceilings that each run measures again: no seal could be checked against them."""
    groups = () if believed.groups is None else read_groups(believed.groups).groups
    model = believed.server.model
    sweep = suggestions.command(
        "sweep", "--model", model, "--load-format", "dummy", "--out", "here"
    )
    fit = suggestions.command("fit", "here")
    for name in (believed.server.hardware, *(one.server.get("hardware") for one in groups)):
        if name == THIS_MACHINE:
            raise SpecError(
                "this machine's ceilings are measured again in each run, so nobody could check what"
                " was sealed",
                where="the plan's [server]: hardware",
                allowed="a device of the catalogue, or a fit, which has the measured device",
                try_=f'{sweep}, then {fit}, and fit = "here" in the plan',
            )


def belief_of(believed: Believed, basis: Basis, rests_on: str, *, model_id: str) -> seals.Belief:
    """The belief in this fleet.

    Raises
    ------
    ModelError, SpecError
        Its fit cannot be read; its model or device is not known.
    """
    server, n_devices = believed.server, _n_devices(believed)
    hardware = None if server.hardware is None else catalog.find_hardware(server.hardware).name
    where = (
        ""
        if hardware is None
        else f" on {n_devices} x {hardware}"
        if n_devices > 1
        else f" on {hardware}"
    )
    return seals.Belief(
        basis=basis, subject=f"{model_id}{where}", rests_on=rests_on, sha256=belief_sha256(believed)
    )


def _n_devices(believed: Believed) -> int:
    cluster, prefill, tp = believed.fleet.cluster, believed.fleet.prefill, believed.server.tp or 1
    n_both = max(cluster.replicas or 1, cluster.data_parallel_size)
    return n_both * tp + (prefill.prefill_replicas or 0) * (prefill.prefill_tp or tp)


def belief_sha256(believed: Believed) -> str:
    """SHA-256 of the predictions' basis: the fit's file, or the catalogue's entries.

    Without a fit: of model and device as they are in the catalogue, or in the model's own files,
    and of the package's published efficiencies of the device, unless the plan asks for the
    datasheet.
    With a gate: of that and of the gate. With groups: of their file and of the same for each group.

    Raises
    ------
    ModelError, SpecError
        As for ``belief_in``.
    """
    if believed.groups is not None:
        return _groups_sha256(believed.groups, believed.server)
    of_server, gate = _server_sha256(believed.server), gate_of(believed.fleet.gate)
    return of_server if gate is None else seals.sha256_of((of_server, gate))


def _groups_sha256(path: Path, server: Server) -> str:
    """Hash of the groups' rules, settings and sources of step times."""
    table = read_groups(path)
    of_each = [_server_sha256(server_of_group(one, server, path)) for one in table.groups]
    return seals.sha256_of((rules_of(table), of_each))


def _server_sha256(server: Server) -> str:
    if server.fit is None:
        hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
        model = resolve.resolve_model(server.model, load_format="dummy").spec
        known = None if hardware is None or server.datasheet else efficiency_file(hardware)
        # Sums that were sealed before there was such a file stay as they are.
        files = () if known is None else (known, servers_file())
        sums = [seals.sha256_of(file) for file in files]
        return seals.sha256_of((seals.model_facts(model), hardware, *sums))
    path = server.fit
    if path.is_dir():
        path /= SERVER_FIT_NAME if is_server_fit(path) else FIT_NAME
    again = suggestions.command("fit", "RUN")
    return seals.sha256_of(
        foreign_bytes.Door(
            noun="fit", allowed="a file of inferometer fit", refusal=ModelError, try_=again
        ).bytes_of(path)
    )


def belief_in(believed: Believed, servers: Servers, gate: GateSpec | None) -> seals.Belief:
    """Basis of predictions for these servers; for groups the weakest one."""
    deployed = servers.deployment
    if servers.groups is None:
        rests_on = (
            f"{_around(servers, gate)}rules of {deployed.config.engine}; {_steps_of(deployed)}"
        )
        return belief_of(
            believed, deployed.step_times.basis, rests_on, model_id=deployed.model.model_id
        )
    groups = servers.groups.groups
    of_each = "; ".join(
        f"{one.name} ({one.rule_text}): {_steps_of(one.deployment)}" for one in groups
    )
    return seals.Belief(
        basis=weakest_basis(one.step_times.basis for one in servers.kinds),
        subject=servers.groups.words,
        rests_on=f"groups of replicas, rules of {deployed.config.engine}; {of_each}",
        sha256=belief_sha256(believed),
    )


def _steps_of(deployed: Deployment) -> str:
    return (
        f"step times: {deployed.step_times.origin}; {deployed.config.n_kv_blocks} KV blocks,"
        f" {deployed.kv_origin}"
    )


def _around(servers: Servers, gate: GateSpec | None) -> str:
    """Router, gate and pools around a server, in words."""
    parts = [] if gate is None else [f"a gate ({gate_text(gate)})"]
    if servers.prefill is not None:
        parts.append(f"{servers.prefill.cluster.n_replicas} for prompts alone")
    if servers.n_replicas > 1:
        parts.append(f"{servers.n_replicas} replicas ({servers.rules.router})")
    return "".join(f"{part}, " for part in parts)
