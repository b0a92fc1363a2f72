"""How is a Ray cluster joined or started, which hosts does it have, and how are parts done there?

Each host must have this very package: what a host runs is compared with what runs here before its
answers are taken.
"""

import hashlib
import logging
import os
import platform
import socket
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, TypeVar

import inferometer
from inferometer.errors import MeasureError, SpecError
from inferometer.measure.executors.local import TRIES, Answers, OnDone, in_silence

# Would this code give the same answers there as here?
# Its own text, and the versions of what computes.


_COMPUTING: Final = ("numpy", "numba", "scipy")
T = TypeVar("T")
R = TypeVar("R")


class OwnCode(NamedTuple):
    """Identity of the code; equal ones compute the same."""

    digest: str
    """Digest of all modules of this package."""
    versions: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"inferometer {inferometer.__version__} ({self.digest[:8]}), {', '.join(self.versions)}"
        )


@cache
def own_code() -> OwnCode:
    """Versions and digest of the code in this process."""
    # Imported here: a load test without Ray would pay for it before its first request.
    from importlib import metadata  # noqa: PLC0415

    folder, digest = Path(inferometer.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    versions = (
        f"python {platform.python_version()}",
        *(f"{name} {metadata.version(name)}" for name in _COMPUTING),
    )
    return OwnCode(digest.hexdigest(), versions)


_ALONE: Final = "local"
"""Ray's word for a cluster of this machine alone, which ends with us."""
_WHERE: Final = "--executor ray"
_ANSWER_S: Final = 10.0


class RayHost(NamedTuple):
    """One machine of a cluster."""

    node_id: str
    address: str
    n_cores: float


class RayCluster(NamedTuple):
    """A cluster that we are part of."""

    ray: ModuleType
    hosts: tuple[RayHost, ...]
    """Sorted by address."""


@contextmanager
def joined(address: str | None) -> Generator[RayCluster]:
    """The Ray cluster at this address; None: a cluster of this machine alone, within the block.

    Raises
    ------
    SpecError
        Ray is not installed here.
    MeasureError
        There is no such cluster, or it runs another Ray or Python.
    """
    ray = library()
    if address is not None:
        _require_answer(address)
    own = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or _ALONE, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address or _ALONE, str(error).splitlines()[0]) from error
    try:
        yield RayCluster(ray, _hosts(ray))
    finally:
        ray.shutdown()


def library() -> ModuleType:
    """Ray itself.

    Raises
    ------
    SpecError
        Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # do not report to Ray's makers
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # Ray's coming default, about which it warns at length
    try:
        return import_module("ray")
    except ImportError as error:
        raise SpecError(
            "Ray is not installed in this Python",
            where=_WHERE,
            try_="pip install 'inferometer[ray]'",
        ) from error


def require_same_code(expected: OwnCode) -> None:
    """Check on a host of the cluster that it runs the same code as the command.

    Raises
    ------
    MeasureError
        The host runs other code.
    """
    here = own_code()
    if here != expected:
        raise MeasureError(
            f"the host {platform.node()} runs {here.text}",
            where=_WHERE,
            allowed=f"the same code as the driver: {expected.text}",
            try_="the same installation on every host",
        )


def _require_answer(address: str) -> None:
    """Check that something listens there; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str, why: str) -> MeasureError:
    return MeasureError(
        f"the Ray cluster cannot be joined: {why}",
        where=f"--ray-address {address}",
        allowed=(
            "HOST:PORT as `ray start --head` prints it, on a host that `ray start --address` has"
            " joined to it"
        ),
    )


def _hosts(ray: ModuleType) -> tuple[RayHost, ...]:
    alive = (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU"))
    found = (
        RayHost(node["NodeID"], node["NodeManagerAddress"], node["Resources"]["CPU"])
        for node in alive
    )
    return tuple(sorted(found, key=lambda host: (host.address, host.node_id)))


class OnRay:
    """A part on each free core of a cluster."""

    def __init__(self, cluster: RayCluster, on_done: OnDone = in_silence) -> None:
        self._ray = cluster.ray
        self._on_done = on_done

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """Results of the function for each part; parts of a dead worker or host are repeated.

        Raises
        ------
        MeasureError
            The workers of a part died again and again, or a host runs other code.
        """
        listed = tuple(parts)
        answers = Answers[R](len(listed), self._on_done)
        remote = self._ray.remote(num_cpus=1, max_retries=TRIES - 1)(_there)
        parts_of = {
            remote.remote(function, part, own_code()): index for index, part in enumerate(listed)
        }
        waiting = list(parts_of)
        try:
            while waiting:
                done, waiting = self._ray.wait(waiting, num_returns=1)
                for reference in done:
                    self._take(answers, parts_of[reference], reference)
        except BaseException:
            for reference in waiting:
                self._ray.cancel(reference, force=True)
            raise
        return answers.in_order()

    def _take(self, answers: Answers[R], index: int, reference: object) -> None:
        failures = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except failures.RayTaskError as error:
            answers.fail(index, error.cause)
        except failures.RayError as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            text = f"the workers of part {index + 1} died {TRIES} times: {why}"
            answers.fail(
                index,
                MeasureError(
                    text,
                    where="--executor ray",
                    try_="inferometer with --executor processes, to see why",
                ),
            )
        else:
            answers.take(index, answer)


def _there(function: Callable[[T], R], part: T, expected: OwnCode) -> R:
    """On a host of the cluster."""
    require_same_code(expected)
    return function(part)
