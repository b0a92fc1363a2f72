"""How are client processes started, told things, and ended?"""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from inferometer.measure.load import messages

STOP_S: Final = 15.0
"""A process that was told to end is given so long."""


class ClientProcesses:
    """The client processes and their pipes."""

    def __init__(self, n_processes: int) -> None:
        command = [sys.executable, "-m", "inferometer.measure.load.worker"]
        # They multiply no matrices: threads for that would only make numpy's import longer.
        variables = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
        # A session of their own: Ctrl-C of the terminal is ours alone, and we tell them.
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, env=variables)
            for _ in range(n_processes)
        ]

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
            for pipe in (client.stdin, client.stdout):
                if pipe is not None:
                    pipe.close()
            if client.poll() is None:
                try:
                    client.wait(timeout=STOP_S)
                except subprocess.TimeoutExpired:
                    client.kill()
                    client.wait()


@contextmanager
def started(n_processes: int) -> Generator[ClientProcesses]:
    """So many client processes, which are gone when the block ends."""
    clients = ClientProcesses(n_processes)
    try:
        yield clients
    finally:
        clients.end()


__all__ = ["STOP_S", "ClientProcesses", "started"]
