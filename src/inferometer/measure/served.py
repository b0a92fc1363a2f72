"""How is a server under test started, waited for, and stopped so that nothing of it is left?

Each server is a group of processes of its own. It is ready when it lists its models, and over when
no process of the group is there and the accelerator's memory is free again. All of it is bounded
in time; what a server writes goes into its log.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import psutil

from inferometer.errors import COMMAND, EngineError, MeasureError, SpecError
from inferometer.measure import child_processes
from inferometer.measure.host import NvmlDevices
from inferometer.units import format_bytes, format_duration

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_POLL_S: Final = 0.1
_ASK_S: Final = 2.0
_WARM_S: Final = 60.0
_N_WARM: Final = 4
_STOP_S: Final = 30.0
"""Time from SIGTERM to SIGKILL."""
_GONE_S: Final = 30.0
"""Until killed processes, and what they held, are gone."""
_TAIL_BYTES: Final = 4000
_TAIL_LINES: Final = 6
_OWN_ERROR: Final = COMMAND.strip() + ": "
_OF_OWN_ERRORS: Final = ("from: ", "allowed: ", "try: ")
_SPARE_BYTES: Final = 256 * 2**20
"""Accelerator memory that drivers may use."""
_MOST_DEVICES: Final = 64
_MOST_CODES: Final = 192
"""Above it an exit code is 256 less a signal's number, as the guard has it; a shell has 128 and it."""


class ServerFault(EngineError):
    """The server did not start, or died: its command's own fault."""


class PlaceFault(EngineError):
    """No server can be started here now, whichever it is."""


class ServedFacts(NamedTuple):
    """Facts about one started server."""

    start_s: float
    """Time from its start until it listed its models."""
    version: str | None
    """None: it does not tell."""
    memory_bytes: int
    """Resident, of its group, when it was ready."""

    def as_json(self, command: str) -> bytes:
        """The facts as JSON, for a file beside the command."""
        return msgspec.json.encode({**self._asdict(), "command": command})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStart:
    """Start command, address and time limit."""

    words: tuple[str, ...]
    url: str
    log: Path
    timeout_s: float

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return address_of(self.url)


def address_of(url: str) -> tuple[str, int]:
    """Host and port of a server that can be started here.

    Raises
    ------
    SpecError
        The URL is none of this machine, or has no port.

    Example
    -------
    >>> address_of("http://127.0.0.1:8000")
    ('127.0.0.1', 8000)
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "http" or host not in _LOOPBACK or not port:
        raise SpecError(
            f"{url!r} is not a port of this machine",
            where="TARGET",
            allowed="a server that is started here: http://127.0.0.1:PORT",
            try_="http://127.0.0.1:8000",
        )
    return host or "", port


@contextmanager
def served(start: ServerStart) -> Generator[ServedFacts]:
    """Run a server inside the context; it is stopped in any case.

    Raises
    ------
    ServerFault
        It ended before it was ready or under load, or was not ready in time.
    PlaceFault
        Something else listens there; it could not be stopped, or its memory is not free again.
    """
    host, port = start.address
    _refuse_taken(host, port, start.url)
    before_bytes = _device_bytes()
    began_s = time.monotonic()
    held = child_processes.line()
    with start.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "inferometer.measure.served_guard", *start.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **held.variables},
            pass_fds=(held.descriptor,),
            start_new_session=True,
        )
    try:
        version = _wait_until_ready(process, start)
        facts = ServedFacts(time.monotonic() - began_s, version, _group_bytes(process.pid))
        try:
            yield facts
        except MeasureError as error:
            if process.poll() is not None:
                raise _ended(process, start, "it ended under load") from error
            raise
        if process.poll() is not None:
            raise _ended(process, start, "it ended under load")
    finally:
        _stop(process)
    _wait_until_free(before_bytes)


def warm_up(url: str, model: str) -> None:
    """Send a few short requests that do not count: the first ones of a server are slow.

    What a server refuses here is not reported: the load test will report it.
    """
    parts = urlsplit(url)
    body = msgspec.json.encode(
        {"model": model, "prompt": "one two three " * 30, "max_tokens": 16, "ignore_eos": True}
    )

    def ask(_: int) -> None:
        with (
            suppress(OSError, http.client.HTTPException),
            closing(
                http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_WARM_S)
            ) as connection,
        ):
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", body, kind)
            connection.getresponse().read()

    with ThreadPoolExecutor(_N_WARM) as pool:
        for _ in range(2):
            list(pool.map(ask, range(_N_WARM)))


def _refuse_taken(host: str, port: int, url: str) -> None:
    with closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as probe:
        probe.settimeout(_ASK_S)
        if probe.connect_ex((host, port)) == 0:
            raise PlaceFault(
                "something listens there already",
                where=url,
                allowed="a port that is free: servers are started and stopped",
                try_="another port in TARGET, or end what listens there: the same command goes on",
            )


def _wait_until_ready(process: subprocess.Popen[bytes], start: ServerStart) -> str | None:
    until_s = time.monotonic() + start.timeout_s
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise _ended(process, start, "it ended before it was ready")
        if _asked(start, "/v1/models") is not None:
            return _version_in(_asked(start, "/version"))
        time.sleep(_POLL_S)
    raise ServerFault(
        f"it was not ready after {format_duration(start.timeout_s)}: {_last_words(start.log)}",
        where=str(start.log),
        try_="a longer --start-timeout",
    )


def _asked(start: ServerStart, path: str) -> bytes | None:
    """The body of a page; None where there is none."""
    host, port = start.address
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=_ASK_S)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read(1 << 20) if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None


def _version_in(body: bytes | None) -> str | None:
    if body is None:
        return None
    try:
        return str(msgspec.json.decode(body, type=dict[str, object]).get("version"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _ended(process: subprocess.Popen[bytes], start: ServerStart, what: str) -> ServerFault:
    return ServerFault(
        f"{what} ({_ending(process.poll() or 0)}): {_last_words(start.log)}",
        where=str(start.log),
        try_="the command by hand",
    )


def _ending(code: int) -> str:
    """How a command ended, by its guard's exit code (256 + signal number for signals)."""
    number = 256 - code if code > _MOST_CODES else code - 128
    if number not in {int(one) for one in signal.Signals}:
        return f"exit code {code}"
    if number == signal.SIGKILL:
        return "killed by SIGKILL, as the kernel does where memory is short"
    return f"ended by {signal.Signals(number).name}"


def _last_words(log: Path) -> str:
    """The line of the log's end that speaks of an error, else its last one."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    # Our own error of `inferometer emulate` ends with where it comes from and what to try.
    lines = [line for line in lines if line and not line.startswith(_OF_OWN_ERRORS)]
    telling = [
        line
        for line in lines
        if "error" in line.lower() or "memory" in line.lower() or line.startswith(_OWN_ERROR)
    ]
    return (telling or lines[-_TAIL_LINES:] or ["its log is empty"])[-1][:300]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate, then kill the process group; returns when it is empty."""
    with suppress(ProcessLookupError):
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    until_s = time.monotonic() + _GONE_S
    while time.monotonic() < until_s:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.wait()
            return
        process.poll()
        if all(one.status() == psutil.STATUS_ZOMBIE for one in _group(process.pid)):
            return  # whoever collects them is not this process
        time.sleep(_POLL_S)
    raise PlaceFault(
        f"group {process.pid} is still there {format_duration(_GONE_S)} after SIGKILL",
        try_="the same command later: it goes on",
    )


def _group(group: int) -> Sequence[psutil.Process]:
    members = list[psutil.Process]()
    for one in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(one.pid) == group:
                members.append(one)
    return members


def _group_bytes(group: int) -> int:
    total_bytes = 0
    for one in _group(group):
        with suppress(psutil.Error):
            total_bytes += one.memory_info().rss
    return total_bytes


def _device_bytes() -> int | None:
    devices = NvmlDevices.open(_MOST_DEVICES)
    return None if devices is None else devices.sample().memory_bytes


def _wait_until_free(before_bytes: int | None) -> None:
    """Main memory is free when the group is gone; an accelerator's driver may need a while."""
    until_s = time.monotonic() + _GONE_S
    while before_bytes is not None:
        now_bytes = _device_bytes()
        if now_bytes is None or now_bytes <= before_bytes + _SPARE_BYTES:
            return
        if time.monotonic() > until_s:
            raise PlaceFault(
                f"{format_bytes(now_bytes - before_bytes)} of the accelerator's memory are not free"
                f" {format_duration(_GONE_S)} after the server's end",
                try_="the same command later: it goes on",
            )
        time.sleep(_POLL_S)
