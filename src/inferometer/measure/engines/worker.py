"""The process of an engine.

``python -m inferometer.measure.engines.worker FD``.

It reads commands and writes replies over a socket of its own (engines print to stdout). When the
other end closes, it and whatever it started are gone at once, so that a killed parent leaves
nothing behind.
"""

import gc
import importlib
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import msgspec

from inferometer.errors import EngineError, InferometerError, SpecError
from inferometer.inputs.types import EngineName, SweepPoint
from inferometer.measure import child_processes
from inferometer.measure.ceilings import NumpyCeilings
from inferometer.measure.child_processes import peak_resident_bytes, reset_peak_resident
from inferometer.measure.engines.protocol import (
    STEP_KINDS,
    Ceiling,
    CeilingProbe,
    Channel,
    Close,
    Command,
    Engine,
    Failed,
    Load,
    Loaded,
    Measure,
    NoMemory,
    OutOfMemory,
    Probed,
    ProbeNow,
    Repeated,
    Repetition,
    Reply,
    Retune,
    Score,
    Scored,
    random_prompts,
    until_gone,
)

ENGINES: Final[dict[EngineName, str]] = {
    "transformers": "inferometer.measure.engines.transformers_engine",
    "vllm": "inferometer.measure.engines.vllm_engine",
    "openvino": "inferometer.measure.engines.openvino_engine",
}
"""Module of each engine's ``open_engine``, imported by name in its own environment."""

TORCH_PROBE: Final = "inferometer.measure.engines.torch_ceilings"
_HAVE_TORCH: Final[tuple[EngineName, ...]] = ("transformers", "vllm")


def main() -> None:
    """Serve one engine until the other end closes."""
    child_processes.hold(is_group=True)
    decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), decoder)
    serve(until_gone(channel), channel.send)


def serve(commands: Iterator[Command], reply: Callable[[Reply], None]) -> None:
    """Answer commands until a close."""
    engine: Engine | None = None
    probe: CeilingProbe = NumpyCeilings()
    for command in commands:
        try:
            if isinstance(command, Close):
                break
            if isinstance(command, ProbeNow):
                reply(Probed(ceilings=_probed_now(engine, probe, command)))
                continue
            if isinstance(command, Load):
                engine = _open(command)
                probe = _open_probe(command.spec.engine)
            elif engine is None:
                raise SpecError(
                    "a point to measure came before a model",
                    where="the worker's channel",
                    allowed="Load first",
                )
            else:
                for result in _results(engine, command, probe):
                    reply(result)
            reply(Loaded(facts=engine.facts()))
        except (OutOfMemory, MemoryError) as error:
            reply(NoMemory(why=str(error) or "the allocation of memory failed"))
        except InferometerError as error:
            is_question = isinstance(error, SpecError)
            reply(
                Failed(
                    what=error.what,
                    is_question=is_question,
                    where=error.where,
                    allowed=error.allowed,
                    try_=error.try_,
                )
            )
    if engine is not None:
        engine.close()


def _open(command: Load) -> Engine:
    engine: Engine = importlib.import_module(ENGINES[command.spec.engine]).open_engine(
        command.spec, command.model
    )
    return engine


def _probed_now(
    engine: Engine | None, probe: CeilingProbe, command: ProbeNow
) -> tuple[Ceiling, ...]:
    """The machine's ceilings; steps in turns where they are wanted and the engine has them."""
    kinds = command.probes.kinds
    machine = tuple(kind for kind in kinds if kind not in STEP_KINDS)
    ceilings = probe.measure(replace(command.probes, kinds=machine))
    steps = getattr(engine, "paired_steps", None)
    if len(machine) == len(kinds) or steps is None:
        return ceilings
    return (*ceilings, *steps())


def _results(
    engine: Engine, command: Measure | Score | Retune, probe: CeilingProbe
) -> Iterator[Probed | Repeated | Scored]:
    if isinstance(command, Retune):
        _retune(engine, command)
    elif isinstance(command, Measure):
        yield from run_point(engine, command, probe)
    else:
        yield _scored(engine, command)


def _retune(engine: Engine, command: Retune) -> None:
    change = getattr(engine, "retune", None)
    if change is None:
        raise SpecError(
            "this engine runs as it was loaded",
            where="the worker's channel",
            allowed="another load",
        )
    change(command.spec)


def _scored(engine: Engine, task: Score) -> Scored:
    read = getattr(engine, "score", None)
    if read is None:
        raise SpecError(
            "this engine does not say how probable a token is",
            where="--engine",
            allowed="transformers",
            try_="--engine transformers",
        )
    scored: Scored = read(task)
    return scored


def _open_probe(engine: EngineName) -> CeilingProbe:
    if engine not in _HAVE_TORCH:
        return NumpyCeilings()
    probe: CeilingProbe = importlib.import_module(TORCH_PROBE).open_probe()
    return probe


# How is one point measured: warm-ups, then repetitions with the machine's ceilings probed between
# them?
# The loop runs in the worker, beside the engine, and hands every result out as soon as it has it.
# Nothing of it runs while an engine's clock does.


def run_point(engine: Engine, task: Measure, probe: CeilingProbe) -> Iterator[Probed | Repeated]:
    """Run this point: warm-ups, then probe, repetition, probe, …, probe.

    Raises
    ------
    EngineError
        The engine did not honour the batch or a length.
    """
    _settle_garbage()
    first_timed = task.first_repetition + task.n_warmup
    for index in range(task.first_repetition, first_timed):
        yield Repeated(repetition=_run_once(engine, task, probe, index))
    yield from _probed(task, probe)
    for index in range(first_timed, first_timed + task.n_reps):
        yield Repeated(repetition=_run_once(engine, task, probe, index))
        yield from _probed(task, probe)


def check_honoured(repetition: Repetition, point: SweepPoint) -> None:
    """Check that the engine generated the requested tokens for every sequence.

    Raises
    ------
    EngineError
        It did not: its times answer another question.
    """
    lengths = {len(ids) for ids in repetition.output_ids}
    if len(repetition.output_ids) != point.batch_size or lengths != {point.gen_tokens}:
        raise EngineError(
            f"the engine should have run {point.batch_size} sequences of {point.gen_tokens} tokens"
            f" and gave {len(repetition.output_ids)} of {sorted(lengths)}",
            where="the engine's own output",
            allowed="exactly the batch and length requested",
        )


def _run_once(engine: Engine, task: Measure, probe: CeilingProbe, index: int) -> Repetition:
    prompt_ids = random_prompts(
        task.point, vocab_size=task.vocab_size, seed=task.seed, repetition=index
    )
    reset_peak_resident()
    with _without_garbage_collection():
        measured = engine.run(prompt_ids, task.point.gen_tokens)
    ended_ns = time.perf_counter_ns()
    check_honoured(measured, task.point)
    if measured.reserved_bytes is None:
        # On a CPU: the processes' peak, less the buffers that are ours and not the engine's.
        peak_bytes = peak_resident_bytes()
        measured = replace(
            measured, reserved_bytes=None if peak_bytes is None else peak_bytes - probe.held_bytes
        )
    return replace(
        measured,
        index=index,
        is_warmup=index < task.first_repetition + task.n_warmup,
        ended_ns=ended_ns,
    )


def _probed(task: Measure, probe: CeilingProbe) -> Iterator[Probed]:
    if task.probes is not None:
        yield Probed(ceilings=probe.measure(task.probes))


def _settle_garbage() -> None:
    """Collect garbage and freeze live objects, so that later collections are short.

    A full collection of a process with torch takes 150 ms on one core while the others fall asleep,
    and the next 100 ms of steps are up to 10 % slower until they are awake again (measured: a pause
    of the same length does the same).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def _without_garbage_collection() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
