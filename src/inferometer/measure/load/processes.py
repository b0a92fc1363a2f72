"""How are client processes started, told things, and ended?"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, TypeAlias

from inferometer.measure import lifeline
from inferometer.measure.load import messages

STOP_S: Final = 15.0
"""A process that was told to end is given so long."""


_BEGIN_AFTER_NS: Final = 20_000_000
"""From the word to begin to the instant: the slowest process must have heard it."""
_END_S: Final = 30.0


class Clients(Protocol):
    """The client processes of a session, wherever they run; each is named by its index."""

    @property
    def outlets(self) -> Sequence[int]:
        """Files to read, each of which says what its client says, until the client has ended."""
        ...

    def begin(self, begins_ns: int) -> int:
        """Tell each when the schedule begins, at this instant of the run.

        What will CLOCK_MONOTONIC show here at instant 0?
        """
        ...

    def tell_all(self, message: messages.ToClient) -> None:
        """Say something to each."""
        ...

    def why_ended(self, index: int) -> str | None:
        """Why did this client end, whose file is at its end?

        None: it was done, or said itself why it failed.
        """
        ...


StartClients: TypeAlias = Callable[[Sequence[messages.Job]], AbstractContextManager[Clients]]
"""Starts a client for each job; they are gone when the block ends."""


_BRIEF_S: Final = 3.0
"""After this process's end: what its clients have in flight may end, and is written."""
_CLIENT: Final = (
    f"from inferometer.measure import lifeline; lifeline.hold(grace_s={_BRIEF_S}); from"
    " inferometer.measure.load.worker import main; main()"
)
"""Before the client's own imports, which take a second."""


def start_client() -> "subprocess.Popen[bytes]":
    """A client process, which waits for its job."""
    command = [sys.executable, "-c", _CLIENT]
    # It multiplies no matrices: threads for that would only make numpy's import longer.
    held = lifeline.line()
    variables = {"OPENBLAS_NUM_THREADS": "1", **os.environ, **held.variables}
    # A session of its own: Ctrl-C of the terminal is ours alone, and we tell it.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        env=variables,
        pass_fds=(held.descriptor,),
    )


def end_client(client: "subprocess.Popen[bytes]") -> None:
    """Hear it no more; it ends by that, or is ended."""
    for pipe in (client.stdin, client.stdout):
        if pipe is not None:
            pipe.close()
    try:
        client.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        client.kill()
        client.wait()


class ClientProcesses:
    """The client processes of this machine and their pipes."""

    def __init__(self, n_processes: int) -> None:
        self.processes = [start_client() for _ in range(n_processes)]

    @property
    def outlets(self) -> tuple[int, ...]:
        """What each says is read there."""
        return tuple(
            client.stdout.fileno() for client in self.processes if client.stdout is not None
        )

    def begin(self, begins_ns: int) -> int:
        """Tell each when instant 0 of the run is."""
        origin_ns = time.monotonic_ns() + _BEGIN_AFTER_NS - begins_ns
        self.tell_all(messages.Start(origin_ns=origin_ns))
        return origin_ns

    def why_ended(self, index: int) -> str | None:
        """The exit code of one that was killed or failed."""
        code = self.processes[index].wait(timeout=_END_S)
        return f"client process {index} ended with code {code}" if code else None

    def tell(self, client: "subprocess.Popen[bytes]", message: messages.ToClient) -> None:
        """Send a message; a client that is gone is found out when it is listened to."""
        assert client.stdin is not None  # noqa: S101 -- asked for above
        try:
            messages.write_all(client.stdin.fileno(), messages.encoded(message))
        except BrokenPipeError:
            return

    def tell_all(self, message: messages.ToClient) -> None:
        """The same to each."""
        for client in self.processes:
            self.tell(client, message)

    def end(self) -> None:
        """Whatever still runs is ended."""
        for client in self.processes:
            end_client(client)


@contextmanager
def started(jobs: Sequence[messages.Job]) -> Generator[ClientProcesses]:
    """A client process for each job, gone when the block ends."""
    clients = ClientProcesses(len(jobs))
    try:
        for client, job in zip(clients.processes, jobs, strict=True):
            clients.tell(client, job)
        yield clients
    finally:
        clients.end()
