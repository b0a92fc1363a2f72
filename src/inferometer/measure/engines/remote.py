"""How do we run an engine that lives in another process?

A death by memory (the kernel's killer, a limit, an allocation that failed) becomes ``OutOfMemory``,
and the next command starts a fresh worker. Any other death becomes ``EngineError`` with the last
lines that the worker wrote.

``WorkerSettings``: the interpreter, variables and time limits of an engine's process.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import msgspec

import inferometer
from inferometer.errors import EngineError, SpecError
from inferometer.inputs.types import EngineSpec
from inferometer.measure import child_processes
from inferometer.measure.engines.protocol import (
    Ceiling,
    Channel,
    ChannelClosed,
    Close,
    Command,
    Failed,
    Load,
    Loaded,
    Measure,
    ModelReference,
    NoMemory,
    OutOfMemory,
    Probed,
    ProbeNow,
    ProbeSettings,
    Repeated,
    Reply,
    Retune,
    Score,
    Scored,
)
from inferometer.records.types import EngineFacts

_INHERITED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LD_LIBRARY_PATH",
    "CC",
    "CXX",
    "XDG_CACHE_HOME",
)
_INHERITED_PREFIXES: Final = (
    "CUDA_",
    "NVIDIA_",
    "HF_",
    "VLLM_",
    "TORCH",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "NCCL_",
    "TRITON_",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Interpreter, environment and timeouts of an engine's process."""

    python: str = sys.executable
    variables: tuple[tuple[str, str], ...] = ()
    """Besides those of ``worker_variables``, and stronger."""
    load_timeout_s: float = 1800.0
    reply_timeout_s: float = 1800.0
    """Silence for longer than this is a hang. A compilation of many minutes is not."""
    memory_limit_bytes: int | None = None
    """Address space that the worker may use (RLIMIT_AS)."""


def worker_variables(
    n_threads: int | None, extra: tuple[tuple[str, str], ...] = ()
) -> dict[str, str]:
    """Environment variables of an engine's process.

    An allow-list of the shell's, then ours, then ``extra``.

    OMP_WAIT_POLICY=passive: a thread that spins at a barrier while a neighbour has its core makes a
    step 15 to 80 times slower; sleeping costs nothing that can be measured.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    variables.setdefault("HF_HUB_OFFLINE", "1")
    variables |= {
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if n_threads is not None:
        variables |= {
            name: str(n_threads)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        }
    return variables | dict(extra)


class RemoteEngine:
    """An engine in a process of its own.

    Use as a context: leaving it ends the process and all that it started.
    """

    def __init__(
        self, spec: EngineSpec, model: ModelReference, settings: WorkerSettings | None = None
    ) -> None:
        self.spec = spec
        self.model = model
        self.settings = settings or WorkerSettings()
        self._process: WorkerProcess | None = None
        self._channel: Channel[Reply] | None = None
        self._facts: EngineFacts | None = None

    def __enter__(self) -> Self:
        """Start nothing yet: the first question does."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the process; at once where we leave by an error."""
        self.close(patience_s=5.0 if kind is None else 0.0)

    @property
    def pid(self) -> int | None:
        """The worker's process, whose group is the engine; None while there is none."""
        return None if self._process is None else self._process.pid

    def facts(self) -> EngineFacts:
        """The loaded model and versions; starts the worker and loads if needed.

        Raises
        ------
        OutOfMemory, SpecError, EngineError
            The weights do not fit; the question was bad; the engine failed.
        """
        if self._process is None or self._facts is None:
            self.close()
            self._process = WorkerProcess(self.settings, self.spec.n_threads)
            self._channel = Channel(self._process.end, msgspec.json.Decoder(Reply))
            reply = next(
                self._replies(Load(spec=self.spec, model=self.model), self.settings.load_timeout_s)
            )
            if not isinstance(reply, Loaded):
                raise EngineError(f"the worker answered a load with {type(reply).__name__}")
            self._facts = reply.facts
        return self._facts

    def retune(self, spec: EngineSpec) -> None:
        """Continue with these options on the loaded weights, where they differ.

        Raises
        ------
        SpecError, EngineError
            More than the mode and the threads is another, or the engine cannot change them; it died.
        """
        self.facts()
        if replace(self.spec, mode=spec.mode, n_threads=spec.n_threads) != spec:
            raise SpecError(
                "another model than the one that is loaded",
                where="the engine's options",
                allowed="another mode, other threads",
            )
        if spec != self.spec:
            reply = next(self._replies(Retune(spec=spec), self.settings.load_timeout_s))
            self.spec = spec
            if isinstance(reply, Loaded):
                self._facts = reply.facts

    def measure(self, task: Measure) -> Iterator[Repeated | Probed]:
        """Run one point and hand out repetitions and ceilings as they come.

        Raises
        ------
        OutOfMemory, SpecError, EngineError
            The point does not fit; the question was bad; the engine failed or died. Whatever came
            before stands.
        """
        self.facts()
        for reply in self._replies(task, self.settings.reply_timeout_s):
            if isinstance(reply, Loaded):
                self._facts = reply.facts
                return
            if isinstance(reply, Repeated | Probed):
                yield reply

    def probe(self, probes: ProbeSettings) -> tuple[Ceiling, ...]:
        """Measure the ceilings in the worker, now."""
        self.facts()
        reply = next(self._replies(ProbeNow(probes=probes), self.settings.reply_timeout_s))
        return reply.ceilings if isinstance(reply, Probed) else ()

    def score(self, task: Score) -> Scored:
        """Change the model, read a text with it, and change it back.

        Raises
        ------
        OutOfMemory, SpecError, EngineError
            It does not fit; the question was bad; the engine failed or died.
        """
        self.facts()
        scored: Scored | None = None
        for reply in self._replies(task, self.settings.reply_timeout_s):
            if isinstance(reply, Scored):
                scored = reply
            elif isinstance(reply, Loaded):
                break
        if scored is None:
            raise EngineError("the worker read nothing")
        return scored

    def close(self, patience_s: float = 5.0) -> None:
        """End the worker and everything that it started."""
        process, channel = self._process, self._channel
        self._process = self._channel = self._facts = None
        if process is None or channel is None:
            return
        try:
            channel.send(Close())
        except ChannelClosed:
            patience_s = 0.0
        process.end_politely(patience_s)

    def _replies(self, command: Command, timeout_s: float) -> Iterator[Reply]:
        process, channel = self._process, self._channel
        if process is None or channel is None:
            raise EngineError("the engine is closed")
        try:
            channel.send(command)
            while True:
                yield _raised(channel.receive(timeout_s))
        except ChannelClosed:
            self._process = self._channel = self._facts = None
            raise process.cause_of_death() from None
        except TimeoutError:
            last_lines = process.last_lines()
            self.close(patience_s=0.0)
            raise EngineError(
                f"the engine was silent for {timeout_s:.0f} s; its last lines were:\n    "
                + "\n    ".join(last_lines),
                where="its worker process",
                try_="a smaller point",
            ) from None


def _raised(reply: Reply) -> Reply:
    if isinstance(reply, NoMemory):
        raise OutOfMemory(reply.why)
    if isinstance(reply, Failed):
        kind = SpecError if reply.is_question else EngineError
        raise kind(reply.what, where=reply.where, allowed=reply.allowed, try_=reply.try_)
    return reply


# How is a worker's process started, and what did it die of?


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


def search_path(directory: str, python: str) -> str:
    """PYTHONPATH of a worker: ours for this interpreter, only our package for another one."""
    own = os.environ.get("PYTHONPATH") if python == sys.executable else None
    return os.pathsep.join(filter(None, (directory, own)))


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
        held = child_processes.line()
        with theirs, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=worker_variables(n_threads, settings.variables)
                | {"PYTHONPATH": search_path(self._directory.name, settings.python)}
                | held.variables,
                pass_fds=(theirs.fileno(), held.descriptor),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to handle, and a group of its own can be ended as one
            )

    @property
    def pid(self) -> int:
        """Process id of the worker, which leads its own process group."""
        return self._process.pid

    def last_lines(self) -> tuple[str, ...]:
        """Last lines of the worker's log."""
        return tuple(self._log_path.read_text(errors="replace").splitlines()[-N_LAST_LINES:])

    def end_politely(self, patience_s: float) -> None:
        """Let the worker exit within this time, then kill its process group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience_s)
        self._end()

    def cause_of_death(self) -> OutOfMemory | EngineError:
        """The error behind a closed channel; also kills the rest of the process group."""
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
            try_="the same command again: it resumes where it stopped",
        )

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self.end.close()
        self._directory.cleanup()


def _n_killed_for_memory() -> int | None:
    """Processes that the kernel has killed for memory since it started.

    Control groups' kills count too.
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
