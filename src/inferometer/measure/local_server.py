"""Checks of a server's processes on this machine: waits for cores, throttling, placement.

The kernel counts for each thread how long it computed, and how long it could have and waited for a
core (proc(5), ``/proc/PID/schedstat``). The server's processes are the one that listens at its
address, and those that it started. Nothing is sent to it.
"""

import ipaddress
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import psutil

from inferometer.errors import MeasureError, SpecError
from inferometer.measure.host import NvmlDevices, placement
from inferometer.records.pitfalls import PitfallName
from inferometer.units import NS_PER_S

_PROC: Final = Path("/proc")
_LEAST_S: Final = 1.0
"""Core seconds that threads wanted: below it the server did too little to judge it."""

LocalNumbers = dict[PitfallName, float | None]


class _CoreTime(NamedTuple):
    """CPU times of all threads so far, in seconds."""

    computed_s: float
    waited_s: float


@contextmanager
def watching(url: str) -> Generator[Callable[[], LocalNumbers]]:
    """Watch the server's processes inside the context; yields a function that returns the results.

    Raises
    ------
    SpecError
        The URL is of another machine.
    MeasureError
        Nothing listens there, or its process is not ours to look at.
    """
    processes = server_processes(url)
    before = _core_time(processes)
    devices = NvmlDevices.open(1)

    def numbers() -> LocalNumbers:
        return {
            **_placement(processes[0]),
            "waits_for_cores": _waited_fraction(before, _core_time(processes)),
            "throttled": None if devices is None else len(devices.sample().throttle_reasons),
        }

    yield numbers


def server_processes(url: str) -> tuple[psutil.Process, ...]:
    """The process that listens at the URL's port of this machine, and all that it started.

    Raises
    ------
    SpecError
        The URL is of another machine.
    MeasureError
        Nothing listens there, or its process is not ours to look at.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if not _is_here(host):
        raise SpecError(
            f"the server at {host} is not on this machine",
            where="--local",
            allowed="an address of the machine that runs the command",
            try_="the same command on the server's own machine, or without --local",
        )
    try:
        listens = [
            one
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        ]
        pid = next((one.pid for one in listens if one.pid is not None), None)
        if pid is None:
            raise MeasureError(
                f"the process that listens on port {port} is another user's"
                if listens
                else f"no process of this machine listens on port {port}",
                where="--local",
                allowed="a server whose processes this user may look at",
                try_="the same command as the server's user, or without --local",
            )
        leader = psutil.Process(pid)
        return leader, *leader.children(recursive=True)
    except psutil.Error as error:
        raise MeasureError(
            f"the processes of the server cannot be looked at: {error}",
            where="--local",
            try_="the same command as the server's user, or without --local",
        ) from error


def server_command(url: str) -> tuple[str, ...]:
    """The words of the command that started the server; empty where its process hides them.

    A process may have given itself a title for its command line: then its parent's is read.

    Raises
    ------
    SpecError, MeasureError
        As of ``server_processes``.
    """
    leader = server_processes(url)[0]
    with suppress(psutil.Error):
        words = leader.cmdline()
        parent = leader.parent()
        if len(words) < 2 and parent is not None:
            words = parent.cmdline()
        return tuple(words)
    return ()


def _is_here(host: str) -> bool:
    """Is it an address of this machine?"""
    own = {one.address for ones in psutil.net_if_addrs().values() for one in ones}
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(one in own or ipaddress.ip_address(one).is_loopback for one in found)


def _core_time(processes: tuple[psutil.Process, ...]) -> _CoreTime | None:
    """None where the kernel does not count it."""
    computed_ns = waited_ns = n_read = 0
    for process in processes:
        for path in (_PROC / str(process.pid) / "task").glob("*/schedstat"):
            with suppress(OSError, ValueError):  # a thread that ended meanwhile
                computed, waited, _ = path.read_text().split()
                computed_ns, waited_ns = computed_ns + int(computed), waited_ns + int(waited)
                n_read += 1
    return _CoreTime(computed_ns / NS_PER_S, waited_ns / NS_PER_S) if n_read else None


def _waited_fraction(before: _CoreTime | None, after: _CoreTime | None) -> float | None:
    """Share of the time threads were runnable in which they waited for a core."""
    if before is None or after is None:
        return None
    waited_s = after.waited_s - before.waited_s
    wanted_s = after.computed_s - before.computed_s + waited_s
    return waited_s / wanted_s if wanted_s > _LEAST_S else None


def _placement(leader: psutil.Process) -> LocalNumbers:
    """Thread settings in its environment; None where we may not read it."""
    try:
        return placement(leader.environ(), os.sched_getaffinity(leader.pid))
    except (psutil.Error, OSError):
        return {}
