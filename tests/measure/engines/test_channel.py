import socket

import msgspec
import pytest

from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.engines.protocol import (
    Channel,
    ChannelClosed,
    Command,
    Failed,
    Load,
    Measure,
    ModelReference,
    Reply,
)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    parent = Channel(ours, msgspec.json.Decoder(Reply))
    worker = Channel(theirs, msgspec.json.Decoder(Command))
    yield parent, worker
    parent.close()
    worker.close()


def test_messages_arrive_whole_and_in_order(ends):
    parent, worker = ends
    load = Load(
        spec=EngineSpec(n_threads=3),
        model=ModelReference(kind="folder", location="somewhere\nelse", spec=None),
    )
    point = SweepPoint(prompt_tokens=1, batch_size=2, gen_tokens=3)
    measure = Measure(point=point, n_warmup=0, n_reps=1, seed=7, vocab_size=10, probes=None)
    parent.send(load)
    parent.send(measure)
    assert worker.receive(1.0) == load
    assert worker.receive(1.0) == measure


def test_silence_times_out(ends):
    parent, _ = ends
    with pytest.raises(TimeoutError):
        parent.receive(0.01)


def test_what_was_said_before_the_end_is_heard(ends):
    parent, worker = ends
    worker.send(Failed(what="x" * 100_000, is_question=False))
    worker.close()
    assert len(parent.receive(1.0).what) == 100_000
    with pytest.raises(ChannelClosed):
        parent.receive(1.0)
    with pytest.raises(ChannelClosed):
        parent.send(Failed(what="", is_question=True))
