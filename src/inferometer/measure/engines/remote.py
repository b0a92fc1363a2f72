"""How do we run an engine that lives in another process?

A death by memory (the kernel's killer, a limit, an allocation that failed) becomes ``OutOfMemory``,
and the next command starts a fresh worker. Any other death becomes ``EngineError`` with the last
lines that the worker wrote.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec

from inferometer.errors import EngineError, SpecError
from inferometer.measure.engines.channel import Channel, ChannelClosed
from inferometer.measure.engines.process import WorkerProcess
from inferometer.measure.engines.protocol import (
    Ceiling,
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
)
from inferometer.measure.engines.settings import WorkerSettings
from inferometer.records.types import EngineFacts
from inferometer.spec.types import EngineSpec


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process; at once where we leave by an error."""
        self.close(patience_s=5.0 if error is None else 0.0)

    @property
    def pid(self) -> int | None:
        """The worker's process, whose group is the engine; None while there is none."""
        return None if self._process is None else self._process.pid

    def facts(self) -> EngineFacts:
        """What is loaded? Starts and loads where that has not happened.

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
                f"the engine said nothing for {timeout_s:.0f} s; its last lines were:\n    "
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
