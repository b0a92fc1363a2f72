"""Does a server in a process of its own start, serve, log and stop?"""

import http.client
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from emulated import MODEL, PLAN

from inferometer.errors import MeasureError, RecordError
from inferometer.serve.emission_log import EmissionKind, EmissionWriter, read_emission_log
from inferometer.serve.emulator_process import start


def ask(url, n_tokens):
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as line:
        body = json.dumps({"model": MODEL, "prompt": "one two", "max_tokens": n_tokens})
        line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return json.loads(line.getresponse().read())


def test_it_starts_serves_and_stops(tmp_path):
    with start(replace(PLAN, emission_log=tmp_path / "log")) as emulator:
        assert ask(emulator.url, 4)["usage"]["completion_tokens"] == 4
        emulator.stop()
        emulator.stop()
        log = read_emission_log(tmp_path / "log")
        with pytest.raises(OSError, match="refused"):
            ask(emulator.url, 1)
    assert [request.output_tokens for request in log.requests] == [4]


@pytest.mark.slow
def test_a_port_that_is_taken_is_said():
    with start(PLAN) as emulator:
        port = int(emulator.url.rpartition(":")[2])
        with (
            pytest.raises(MeasureError, match="address already in use"),
            start(replace(PLAN, port=port)),
        ):
            pass


def test_something_else_is_no_log(tmp_path):
    (tmp_path / "log").write_text("hello")
    with pytest.raises(RecordError, match="no emission log"):
        read_emission_log(tmp_path / "log")


def test_a_full_disk_for_the_emission_log_is_named():
    """``/dev/full`` takes no byte."""
    with pytest.raises(RecordError, match="cannot write the emission log: No space") as refused:
        EmissionWriter(Path("/dev/full"))
    assert refused.value.where == "/dev/full"


def test_what_the_log_cannot_take_ends_the_server_not_a_connection():
    writer = EmissionWriter(None)
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer._file = full  # the disk fills up
        for number in range(100_000):
            writer.emitted(number, EmissionKind.TOKENS, 1, 0, 0)
        with pytest.raises(RecordError, match="No space left"):
            writer.flush()
