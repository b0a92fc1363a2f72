"""Is every step that a server publishes over ZeroMQ heard of, and what is published wrongly told apart?"""

import socket
import subprocess
import sys
import time

import pytest

from inferometer.errors import MeasureError, SpecError
from inferometer.measure.forward_passes import listening

PUBLISHER = '''
"""Dynamo's and SGLang's publisher: PUB, frames topic, number, message."""
import sys, time
import msgspec, zmq

endpoint, version, wait_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

class Scheduled(msgspec.Struct, frozen=True, gc=False):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0

class Queued(msgspec.Struct, frozen=True, gc=False):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0

class ForwardPassMetrics(msgspec.Struct, frozen=True, gc=False):
    version: int = version
    worker_id: str = "w"
    dp_rank: int = 0
    counter_id: int = 0
    wall_time: float = 0.0
    scheduled_requests: Scheduled = Scheduled()
    queued_requests: Queued = Queued()

socket = zmq.Context().socket(zmq.PUB)
socket.bind(endpoint)
ends = time.monotonic() + wait_s
number = 0
while time.monotonic() < ends:
    one = ForwardPassMetrics(counter_id=number, wall_time=0.01 + 0.001 * (number % 3),
                             scheduled_requests=Scheduled(num_decode_requests=4,
                                                          sum_decode_kv_tokens=900))
    payload = msgspec.msgpack.encode(one) if number % 50 != 49 else b"\\xc1 broken"
    socket.send_multipart((b"", number.to_bytes(8, "big"), payload))
    number = 0 if number == 120 else number + 1
    time.sleep(0.002)
'''


@pytest.fixture
def endpoint():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def heard(endpoint, version, enough):
    publisher = subprocess.Popen([sys.executable, "-c", PUBLISHER, endpoint, str(version), "20"])
    try:
        with listening(endpoint) as listener:
            deadline = time.monotonic() + 15
            while not enough(listener) and time.monotonic() < deadline:
                time.sleep(0.05)
        return listener
    finally:
        publisher.kill()
        publisher.wait()


def test_published_steps_are_heard_numbers_begin_anew_and_damage_is_counted(endpoint):
    pytest.importorskip("zmq", reason="the extra fpm is not installed")
    log = heard(endpoint, 1, lambda one: one.n_messages > 300).step_log()
    assert len(log.duration_s) > 250
    assert set(log.duration_s.round(3).tolist()) == {0.010, 0.011, 0.012}
    assert set(log.held_tokens.tolist()) == {900.0}
    assert log.n_restarts >= 1
    assert log.n_refused >= 4
    # What is damaged leaves a hole in the numbers, which the next message shows.
    assert log.n_refused - 1 <= log.n_lost <= log.n_refused


def test_another_version_is_refused(endpoint):
    pytest.importorskip("zmq", reason="the extra fpm is not installed")
    listener = heard(endpoint, 2, lambda one: one.n_messages > 10)
    with pytest.raises(MeasureError, match="another version"):
        listener.step_log()


def test_nobody_publishes(endpoint):
    pytest.importorskip("zmq", reason="the extra fpm is not installed")
    with listening(endpoint) as listener:
        pass
    with pytest.raises(MeasureError, match="nothing is published there"):
        listener.step_log()


def test_what_is_no_endpoint_is_refused():
    with pytest.raises(SpecError, match="is no endpoint"), listening("http://127.0.0.1:9"):
        pass


def test_a_missing_binding_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(SpecError) as refusal, listening("tcp://127.0.0.1:9"):
        pass
    assert refusal.value.try_ == "pip install 'inferometer[fpm]'"
