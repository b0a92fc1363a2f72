"""What must an engine do to be measured, and what do its process and ours say to each other?

An engine lives in a worker process of its own (``worker.py``), so that each has its own
environment, a death by out-of-memory is a recorded point, and tensor-parallel ranks are nothing
special. This file, ``worker.py``, ``harness.py`` and the engines import only the standard library,
numpy, msgspec and the rooms to the right of ``measure``: that is all that an engine's environment
is asked to have besides the engine.

An engine module offers ``open_engine(spec: EngineSpec, model: ModelReference) -> Engine``
(``ENGINES`` in ``worker.py`` names it). It raises ``SpecError`` for what it cannot do (a mode, a
dtype, a model kind), ``OutOfMemory`` where the weights do not fit, ``EngineError`` for the rest.
"""

import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from inferometer.inputs.types import DType, EngineSpec, LossyChange, ModelSpec, SweepPoint
from inferometer.records.columns import I64
from inferometer.records.types import SEQUENCES_OF_STEP, EngineFacts, ProbeKind

ModelKind: TypeAlias = Literal["folder", "gguf", "hub", "spec"]


class OutOfMemory(Exception):
    """The point does not fit; the engine has cleaned up and takes the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """The model that an engine is to load.

    ``location`` is a Hugging Face folder, a GGUF file or a Hugging Face id; None where only the
    architecture is known (a catalogue entry), which can be run with random weights alone. ``spec``
    is the architecture as the resolver read it.
    """

    kind: ModelKind
    location: str | None
    spec: ModelSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Times of one run of a point, by the worker's ``time.perf_counter_ns``."""

    started_ns: int
    prefill_ns: int
    """Submission of the batch to the first token of every sequence, device synchronised."""
    decode_step_ns: tuple[int, ...]
    """Each decode step of the whole batch: gen_tokens - 1 of them, unless the engine mixed
    phases."""
    reserved_bytes: int | None
    """Peak memory that the engine took from the device (on a CPU: peak resident set of its
    processes)."""
    allocated_bytes: int | None
    """Peak memory in use by tensors; None where the engine cannot tell."""
    output_ids: tuple[tuple[int, ...], ...]
    """The tokens generated, one tuple per sequence, in the order of the prompts: batch and
    length were honoured."""
    is_warmup: bool = False
    """Set by the harness, not by engines."""
    index: int = 0
    """Number of the repetition of its point, warm-ups first; set by the harness."""
    ended_ns: int | None = None
    """Time when the engine returned; set by the harness."""


class Engine(Protocol):
    """One loaded model, ready to run static batches."""

    def facts(self) -> EngineFacts:
        """The loaded model and versions; read again after each point, as ``compile_s`` grows."""
        ...

    def run(self, prompt_ids: I64, gen_tokens: int) -> Repetition:
        """Run one static batch once: honour batch and lengths exactly, never stop early, greedy.

        Parameters
        ----------
        prompt_ids
            One row per sequence, one column per prompt token. No two repetitions get the same
            prompts, so that a prefix cache finds nothing.
        gen_tokens
            Tokens to generate for each sequence, the one that the prefill yields included.

        Raises
        ------
        OutOfMemory
            The point does not fit.
        """
        ...

    def close(self) -> None:
        """Free memory and end processes."""
        ...


STEP_KINDS: Final = tuple(SEQUENCES_OF_STEP)
"""Probes that the engine makes itself, if it can: steps of two widths, in turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Ceilings of the machine to probe between repetitions."""

    kinds: tuple[ProbeKind, ...]
    footprint_bytes: int
    """Bytes that READ and COPY touch: those of the weights, so that caches help both alike."""
    matmul_dtype: DType
    device: Literal["cpu", "cuda"] = "cpu"
    n_threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Result of one probe."""

    kind: ProbeKind
    started_ns: int
    dtype: str
    """The number format of a MATMUL probe; '' for the others."""
    footprint_bytes: int
    value_per_s: float


class CeilingProbe(Protocol):
    """Measures the ceilings of the machine in tens of milliseconds each."""

    @property
    def held_bytes(self) -> int:
        """Memory that the probe keeps, which is not the engine's."""
        ...

    def measure(self, settings: ProbeSettings) -> tuple[Ceiling, ...]:
        """One measurement of each requested kind, now."""
        ...


# What the parent says. Every message is one line of JSON; the tag is in "type".


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load this model; answered by Loaded, NoMemory or Failed."""

    spec: EngineSpec
    model: ModelReference


class Retune(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Continue with these options on the loaded weights; answered by Loaded or Failed."""

    spec: EngineSpec


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run this point. Replies: a stream of Repeated and Probed, then Loaded, NoMemory or Failed."""

    point: SweepPoint
    n_warmup: int
    n_reps: int
    seed: int
    vocab_size: int
    probes: ProbeSettings | None
    first_repetition: int = 0


class ProbeNow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Measure the ceilings; answered by Probed."""

    probes: ProbeSettings


class Score(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Change the loaded model, read this text with it, change it back: Scored and Loaded, or why not.

    The text is cut into windows of as many tokens, each read by itself; from the beginning of each
    of the first windows tokens are generated, greedily.
    """

    change: LossyChange
    text: str
    window_tokens: int
    n_windows: int
    """At most; fewer where the text is shorter."""
    prompt_tokens: int
    gen_tokens: int
    n_generated: int
    """Windows whose beginning is continued."""
    n_at_once: int
    """Windows that are computed together; another number adds up in another order."""
    token_ids: tuple[tuple[int, ...], ...] = ()
    """The windows as another engine's tokenizer cut the text; () : this one cuts it itself."""


class Close(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Free everything and exit; answered by the end of the stream."""


# What the worker says.


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is there, or a point is complete: the engine's facts."""

    facts: EngineFacts


class Repeated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One repetition is done."""

    repetition: Repetition


class Probed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ceilings, as they were just now."""

    ceilings: tuple[Ceiling, ...]


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Log-probabilities of a text: lists over windows, then over tokens after the first."""

    token_ids: tuple[tuple[int, ...], ...]
    nll: tuple[tuple[float, ...], ...]
    """-log of the probability that the token was given (nats)."""
    top_ids: tuple[tuple[int, ...], ...]
    """The most probable token there; () where the engine does not say."""
    generated_ids: tuple[tuple[int, ...], ...]


class NoMemory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Out of memory. The worker goes on to the next point, unless it was loading."""

    why: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An error that the user can act on, to be raised on our side; ``is_question`` makes it a SpecError."""

    what: str
    is_question: bool
    where: str | None = None
    allowed: str | None = None
    try_: str | None = None


Command: TypeAlias = Load | Retune | Measure | ProbeNow | Score | Close
Reply: TypeAlias = Loaded | Repeated | Probed | Scored | NoMemory | Failed


def random_prompts(point: SweepPoint, *, vocab_size: int, seed: int, repetition: int) -> I64:
    """Random prompts of this repetition.

    The same on every engine, different in every repetition.

    Token ids come from the middle of the vocabulary: special tokens sit at its ends.
    """
    rng = np.random.default_rng((seed, point.prompt_tokens, point.batch_size, repetition))
    low, high = min(1000, vocab_size // 4), max(vocab_size - vocab_size // 16, 2)
    return rng.integers(low, high, size=(point.batch_size, point.prompt_tokens), dtype=np.int64)


_MEMORY_WORDS: Final = (
    "can't allocate memory",
    "Cannot allocate memory",
    "bad_alloc",
    "out of memory",
    "not enough memory",
    "less than requested memory for kv",
)


def is_memory(error: BaseException) -> bool:
    """Is it an out-of-memory error of any engine?"""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _MEMORY_WORDS)


def last_line(error: BaseException) -> str:
    """The engine's error message, without pydantic's wrapping."""
    text = str(error).strip() or type(error).__name__
    if "Value error, " in text:
        return text.partition("Value error, ")[2].partition(" [type=")[0]
    return text.splitlines()[-1].strip()


# How do messages pass between two processes?


_CHUNK_BYTES: Final = 2**20
_MessageT = TypeVar("_MessageT")


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel(Generic[_MessageT]):
    """One end of a pipe: sends any message, receives messages of one type."""

    def __init__(self, end: socket.socket, decoder: "msgspec.json.Decoder[_MessageT]") -> None:
        self._end = end
        self._decoder = decoder
        self._buffered = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Write one message.

        Raises
        ------
        ChannelClosed
            The other end is gone.
        """
        try:
            self._end.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            raise ChannelClosed from None

    def receive(self, timeout_s: float | None = None) -> _MessageT:
        """Wait for one message.

        Raises
        ------
        ChannelClosed, TimeoutError
            The other end is gone; nothing came in time.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (line_end := self._buffered.find(b"\n")) < 0:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
            readable, _, _ = select.select([self._end], [], [], left_s)
            if not readable:
                raise TimeoutError
            try:
                chunk = self._end.recv(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            if not chunk:
                raise ChannelClosed
            self._buffered += chunk
        line = bytes(self._buffered[:line_end])
        del self._buffered[: line_end + 1]
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close this end; the other sees the end of the stream."""
        self._end.close()


def until_gone(channel: Channel[_MessageT]) -> Iterator[_MessageT]:
    """Messages as they come. When the other end closes, this process and its group end at once.

    A thread of its own waits for them, so that the end of the stream is seen while a point runs.
    """
    waiting: queue.SimpleQueue[_MessageT] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                waiting.put(channel.receive())
        except ChannelClosed:
            _leave()

    threading.Thread(target=listen, name="channel", daemon=True).start()
    while True:
        yield waiting.get()


def _leave() -> None:
    """The parent is gone: so are we, and every process that the engine started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
