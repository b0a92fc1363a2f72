"""How is a worker's process started, and what did it die of?"""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import inferometer
from inferometer.errors import EngineError
from inferometer.measure import lifeline
from inferometer.measure.engines.protocol import OutOfMemory
from inferometer.measure.engines.settings import WorkerSettings, worker_variables

N_LAST_LINES: Final = 15
_MEMORY_WORDS: Final = (
    "bad_alloc",
    "MemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
)
_SYMLINK: Final = "inferometer"
# Sets the limit and becomes the worker: a preexec_fn would do the same, but is not safe in a parent
# with threads.
_LIMITED: Final = (
    "import os, resource, sys; n = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_AS, (n,"
    " n)); os.execv(sys.argv[2], sys.argv[2:])"
)


class WorkerProcess:
    """One running worker: its process, its log and our end of its channel."""

    def __init__(self, settings: WorkerSettings, n_threads: int | None) -> None:
        self._directory = tempfile.TemporaryDirectory(
            prefix="inferometer-worker-", ignore_cleanup_errors=True
        )
        directory = Path(self._directory.name)
        # One symlink, so that the other environment sees our package and nothing else of ours.
        (directory / _SYMLINK).symlink_to(
            Path(inferometer.__file__).parent, target_is_directory=True
        )
        self._log_path = directory / "engine.log"
        self._n_killed_before = _n_killed_for_memory()
        self.end, theirs = socket.socketpair()
        command = [
            settings.python,
            "-P",
            "-m",
            "inferometer.measure.engines.worker",
            str(theirs.fileno()),
        ]
        if settings.memory_limit_bytes is not None:
            command = [settings.python, "-c", _LIMITED, str(settings.memory_limit_bytes), *command]
        held = lifeline.line()
        with theirs, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=worker_variables(n_threads, settings.variables)
                | {"PYTHONPATH": self._directory.name}
                | held.variables,
                pass_fds=(theirs.fileno(), held.descriptor),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to handle, and a group of its own can be ended as one
            )

    @property
    def pid(self) -> int:
        """The worker's process, which leads a group of its own."""
        return self._process.pid

    def last_lines(self) -> tuple[str, ...]:
        """What did the engine write last?"""
        return tuple(self._log_path.read_text(errors="replace").splitlines()[-N_LAST_LINES:])

    def end_politely(self, patience_s: float) -> None:
        """Give the worker time to leave by itself, then end it and all that it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience_s)
        self._end()

    def cause_of_death(self) -> OutOfMemory | EngineError:
        """Why is the channel closed? Ends what is left of the group, too."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        status = self._process.returncode
        last_lines = self.last_lines()
        n_killed = _n_killed_for_memory()
        self._end()
        if (
            n_killed is not None
            and self._n_killed_before is not None
            and n_killed > self._n_killed_before
            and status == -signal.SIGKILL
        ):
            return OutOfMemory("the kernel's out-of-memory killer ended the engine")
        if any(word in line for line in last_lines[-3:] for word in _MEMORY_WORDS):
            return OutOfMemory(f"the engine died of a failed allocation: {last_lines[-1].strip()}")
        how = (
            "did not end"
            if status is None
            else f"ended by signal {-status}"
            if status < 0
            else f"ended with exit code {status}"
        )
        return EngineError(
            f"the engine's process {how}; its last lines were:\n    "
            + "\n    ".join(last_lines or ("(nothing)",)),
            where=f"worker process {self.pid}",
            try_="the same command again: it resumes with what is missing",
        )

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.end.close()
        self._directory.cleanup()


def _n_killed_for_memory() -> int | None:
    """How many processes has the kernel killed for memory since it started?

    Control groups' kills count too.
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
