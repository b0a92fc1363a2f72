"""A client process on a host of a Ray cluster, and the way to it: this runs there, as an actor.

The client itself is the same process as on one machine, with its own interpreter: nothing of Ray is
near its loop. It writes its raw log to this host's disk; the driver fetches what is new several
times a second.
"""

import contextlib
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from inferometer.measure.executors import ray_cluster
from inferometer.measure.host import hostname_hash
from inferometer.measure.load import messages, processes

_WAIT_S: Final = 0.25
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Of a raw log, at once."""


class News(NamedTuple):
    """What came of a client since it was last expected."""

    output: bytes
    """Messages to the driver, cut anywhere."""
    raw: bytes
    """The raw log from where it was expected for."""
    exit_code: int | None
    """None: it still runs, or there is more to fetch."""


class HostedClient:
    """One client process on this host."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="inferometer-load-", ignore_cleanup_errors=True
        )
        self._client: subprocess.Popen[bytes] | None = None
        self._raw_path = Path(self._folder.name)
        self._is_silent = False

    def greet(self, expected: ray_cluster.OwnCode) -> str:
        """The host's hash, where it runs what the command runs.

        Raises
        ------
        MeasureError
            It does not.
        """
        ray_cluster.require_same_code(expected)
        return hostname_hash()

    def clock_ns(self) -> int:
        """What CLOCK_MONOTONIC shows here."""
        return time.monotonic_ns()

    def begin(self, job: messages.Job) -> None:
        """Start the client, with its raw log on this host's disk."""
        self._raw_path = Path(self._folder.name) / Path(job.raw_path).name
        self._client = processes.start_client()
        self.tell(messages.encoded(msgspec.structs.replace(job, raw_path=str(self._raw_path))))

    def tell(self, message: bytes) -> None:
        """Hand a message on; a client that is gone is found out when it is expected for news."""
        assert self._client is not None and self._client.stdin is not None  # noqa: S101, PT018 -- begun before
        with contextlib.suppress(BrokenPipeError):
            messages.write_all(self._client.stdin.fileno(), message)

    def news(self, n_raw_bytes: int) -> News:
        """What is new, waited for a moment; of the raw log what lies beyond this number of bytes."""
        assert self._client is not None and self._client.stdout is not None  # noqa: S101, PT018 -- begun before
        output, descriptor = b"", self._client.stdout.fileno()
        if not self._is_silent and select.select([descriptor], [], [], _WAIT_S)[0]:
            output = os.read(descriptor, 1 << 16)
            self._is_silent = not output
        raw = self._raw_after(n_raw_bytes)
        is_over = self._is_silent and not raw
        return News(output, raw, self._client.wait() if is_over else None)

    def close(self) -> None:
        """End the client, and remove what was fetched."""
        if self._client is not None:
            processes.end_client(self._client)
        self._folder.cleanup()

    def _raw_after(self, n_bytes: int) -> bytes:
        try:
            with self._raw_path.open("rb") as file:
                file.seek(n_bytes)
                return file.read(_MOST_BYTES)
        except OSError:
            return b""
