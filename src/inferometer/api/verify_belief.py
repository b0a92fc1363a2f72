"""Which file, or which entries of the catalogue, does a prediction rest on?"""

from dataclasses import dataclass, field

from inferometer import suggestions
from inferometer.api.fleet import FleetOptions
from inferometer.api.gate import gate_of
from inferometer.api.question import question_of
from inferometer.api.server import Server
from inferometer.errors import ModelError, SpecError
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, is_server_fit
from inferometer.fit.published.efficiencies import efficiency_file
from inferometer.inputs import catalog, resolve
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.verify_plan import ServerTable
from inferometer.perfmodel.steptime import FIT_NAME
from inferometer.perfmodel.steptime_levels import Basis
from inferometer.verify.seals import Belief, sha256_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The fleet of a plan: its keys are the fields of these groups."""

    server: Server
    fleet: FleetOptions = field(default_factory=FleetOptions)
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
    try:
        return question_of(Believed, settings | {"set": own})
    except SpecError as error:
        raise SpecError(
            error.what,
            where="the plan's [server]" + f": {error.where}" * (error.where != Believed.__name__),
            allowed=error.allowed,
            try_=error.try_,
        ) from None


def belief_of(believed: Believed, basis: Basis, rests_on: str, *, model_id: str) -> Belief:
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
    return Belief(
        basis=basis, subject=f"{model_id}{where}", rests_on=rests_on, sha256=belief_sha256(believed)
    )


def _n_devices(believed: Believed) -> int:
    cluster, prefill, tp = believed.fleet.cluster, believed.fleet.prefill, believed.server.tp or 1
    n_both = max(cluster.replicas or 1, cluster.data_parallel_size)
    return n_both * tp + (prefill.prefill_replicas or 0) * (prefill.prefill_tp or tp)


def belief_sha256(believed: Believed) -> str:
    """SHA-256 of what the predictions rest on: the fit's file, or the catalogue's entries.

    Without a fit: of model and device as they are in the catalogue, or in the model's own files,
    and of the package's published efficiencies of the device, unless the plan asks for the
    datasheet.
    With a gate: of that and of the gate.

    Raises
    ------
    ModelError, SpecError
        The same.
    """
    of_server, gate = _server_sha256(believed.server), gate_of(believed.fleet.gate)
    return of_server if gate is None else sha256_of((of_server, gate))


def _server_sha256(server: Server) -> str:
    if server.fit is None:
        hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
        model = resolve.resolve_model(server.model, load_format="dummy").spec
        known = None if hardware is None or server.datasheet else efficiency_file(hardware)
        # Sums that were sealed before there was such a file stay as they are.
        return sha256_of((model, hardware, *([] if known is None else [sha256_of(known)])))
    path = server.fit
    if path.is_dir():
        path /= SERVER_FIT_NAME if is_server_fit(path) else FIT_NAME
    again = suggestions.command("fit", "RUN")
    return sha256_of(
        Door(
            noun="fit", allowed="a file of inferometer fit", refusal=ModelError, try_=again
        ).bytes_of(path)
    )
