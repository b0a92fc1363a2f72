"""How is one point measured: warm-ups, then repetitions with the machine's ceilings probed between them?

The loop runs in the worker, beside the engine, and hands every result out as soon as it has it.
Nothing of it runs while an engine's clock does.
"""

import gc
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

from inferometer.errors import EngineError
from inferometer.measure.engines.protocol import (
    CeilingProbe,
    Engine,
    Measure,
    Probed,
    Repeated,
    Repetition,
    random_prompts,
)
from inferometer.measure.resident import peak_resident_bytes, reset_peak_resident
from inferometer.spec.types import SweepPoint


def run_point(engine: Engine, task: Measure, probe: CeilingProbe) -> Iterator[Probed | Repeated]:
    """What happens, in order, when this point is measured: warm-ups, then probe, repetition, probe, …, probe.

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
    """Did the engine generate what it was asked for, for every sequence?

    Raises
    ------
    EngineError
        It did not: its times answer another question.
    """
    lengths = {len(ids) for ids in repetition.output_ids}
    if len(repetition.output_ids) != point.batch_size or lengths != {point.gen_tokens}:
        raise EngineError(
            f"the engine was asked for {point.batch_size} sequences of {point.gen_tokens} tokens"
            f" and gave {len(repetition.output_ids)} of {sorted(lengths)}",
            where="the engine's own output",
            allowed="exactly the batch and length asked for",
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
    """Collect all garbage now and exempt what lives, so that the collections before repetitions take microseconds.

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
