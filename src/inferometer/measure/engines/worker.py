"""What does the process do in which an engine lives?

``python -m inferometer.measure.engines.worker FD``.

It reads commands and writes replies over a socket of its own (engines print to stdout). When the
other end closes, it and whatever it started are gone at once, so that a killed parent leaves
nothing behind.
"""

import importlib
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from inferometer.errors import InferometerError, SpecError
from inferometer.measure import lifeline
from inferometer.measure.ceilings import NumpyCeilings
from inferometer.measure.engines.channel import Channel, until_gone
from inferometer.measure.engines.protocol import (
    CeilingProbe,
    Close,
    Command,
    Engine,
    Failed,
    Load,
    Loaded,
    NoMemory,
    OutOfMemory,
    Probed,
    ProbeNow,
    Reply,
)
from inferometer.measure.harness import run_point
from inferometer.spec.types import EngineName

ENGINES: Final[dict[EngineName, str]] = {
    "transformers": "inferometer.measure.engines.transformers_engine",
    "vllm": "inferometer.measure.engines.vllm_engine",
    "openvino": "inferometer.measure.engines.openvino_engine",
}
"""Where each engine's ``open_engine`` is. Imported by name: only its own environment has its
library."""

TORCH_PROBE: Final = "inferometer.measure.engines.torch_ceilings"
_HAVE_TORCH: Final[tuple[EngineName, ...]] = ("transformers", "vllm")


def main() -> None:
    """Serve one engine until the other end says close or goes away."""
    lifeline.hold(is_group=True)
    decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), decoder)
    serve(until_gone(channel), channel.send)


def serve(commands: Iterator[Command], reply: Callable[[Reply], None]) -> None:
    """Answer commands until one says close."""
    engine: Engine | None = None
    probe: CeilingProbe = NumpyCeilings()
    for command in commands:
        try:
            if isinstance(command, Close):
                break
            if isinstance(command, ProbeNow):
                reply(Probed(ceilings=probe.measure(command.probes)))
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
                for result in run_point(engine, command, probe):
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


def _open_probe(engine: EngineName) -> CeilingProbe:
    if engine not in _HAVE_TORCH:
        return NumpyCeilings()
    probe: CeilingProbe = importlib.import_module(TORCH_PROBE).open_probe()
    return probe


if __name__ == "__main__":
    main()
