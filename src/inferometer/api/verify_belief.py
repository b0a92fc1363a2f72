"""Which file, or which entries of the catalogue, does a prediction rest on?"""

from pathlib import Path
from typing import Final

import msgspec

from inferometer import suggestions
from inferometer.api.question import question_of
from inferometer.api.server import Server
from inferometer.errors import ModelError
from inferometer.fit.loads.server_fit import SERVER_FIT_NAME, is_server_fit
from inferometer.inputs import catalog, resolve
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.verify_plan import BelievedServer
from inferometer.perfmodel.steptime import FIT_NAME
from inferometer.verify.seals import Basis, Belief, sha256_of


def belief_of(server: BelievedServer, basis: Basis, rests_on: str, *, model_id: str) -> Belief:
    """The belief in this server.

    Raises
    ------
    ModelError, SpecError
        Its fit cannot be read; its model or device is not known.
    """
    hardware = None if server.hardware is None else catalog.find_hardware(server.hardware).name
    n_devices = server.replicas * (server.tp or 1)
    where = (
        ""
        if hardware is None
        else f" on {n_devices} x {hardware}"
        if n_devices > 1
        else f" on {hardware}"
    )
    return Belief(
        basis=basis, subject=f"{model_id}{where}", rests_on=rests_on, sha256=belief_sha256(server)
    )


def belief_sha256(server: BelievedServer) -> str:
    """Of the fit's file; without one, of model and device as they are in the catalogue, or in the model's own files.

    Raises
    ------
    ModelError, SpecError
        The same.
    """
    if server.fit is None:
        hardware = None if server.hardware is None else catalog.find_hardware(server.hardware)
        return sha256_of((resolve.resolve_model(server.model, load_format="dummy").spec, hardware))
    path = Path(server.fit)
    if path.is_dir():
        path /= SERVER_FIT_NAME if is_server_fit(path) else FIT_NAME
    again = suggestions.command("fit", "RUN")
    return sha256_of(
        Door(
            noun="fit", allowed="a file of inferometer fit", refusal=ModelError, try_=again
        ).bytes_of(path)
    )


_OF_THE_CLUSTER: Final = frozenset({"own", "replicas", "router"})


def server_of(believed: BelievedServer) -> Server:
    """The server of a plan's table as a question has it; the cluster's keys are left out."""
    values = {
        name: value
        for name, value in msgspec.structs.asdict(believed).items()
        if name not in _OF_THE_CLUSTER and value is not None and value is not msgspec.UNSET
    }
    return question_of(Server, values | {"set": believed.own})
