"""Does the command serve until it is told to stop, say where, and refuse what cannot be?"""

import http.client
import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from command_line import check_refused, run

from inferometer.cli.emulate import ANSWER, EmulateAnswer, emulate_sentence
from inferometer.serve.emission_log import read_emission_log

BIN = Path(sys.executable).parent / "inferometer"
DEPLOYMENT = ("emulate", "smollm2-135m", "--hardware", "l4", "--port", "0")


@pytest.mark.slow
def test_it_serves_until_it_is_stopped(tmp_path):
    flags = ("--json", "--emission-log", str(tmp_path / "log"), "--served-model-name", "small")
    with subprocess.Popen(
        [BIN, *DEPLOYMENT, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stderr.readline()
        assert "answers as small on vLLM" in said
        with closing(
            http.client.HTTPConnection(said.split()[0].removeprefix("http://"), timeout=20)
        ) as line:
            body = json.dumps(
                {"model": "small", "prompt": "one", "max_tokens": 7, "ignore_eos": True}
            )
            line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            assert json.loads(line.getresponse().read())["usage"]["completion_tokens"] == 7
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    answer = json.loads(stdout)
    assert set(answer) == set(ANSWER.__dataclass_fields__)
    assert (answer["n_requests"], answer["n_output_tokens"]) == (1, 7)
    assert answer["lateness_p50_s"] > 0
    assert [request.output_tokens for request in read_emission_log(tmp_path / "log").requests] == [
        7
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--fault", "explode:0.1"), ("'explode:0.1' is no fault", "--fault", "http-429")),
        (("--fault", "stall:0.1(for=3)"), ("has no unit",)),
        (("--for", "3"), ("has no unit", "--for")),
        (("--output-tokens", "long"), ("--output-tokens", "a mean, or max")),
        (("--output-tokens", "0"), ("1 or more",)),
        (("--time-scale", "0"), ("time scale", "above 0")),
        (("--host", "203.0.113.7"), ("cannot listen", "--host")),
        (("--groups", "sessions.toml"), ("keep_sessions = true", "keep_sessions = false")),
        (("--groups", "short.toml"), ("no group takes", "101 prompt tokens", "a last group")),
        (("--groups", "short.toml", "--replicas", "2"), ("groups beside other options",)),
    ],
)
def test_what_cannot_be_is_refused(flags, words, tmp_path):
    (tmp_path / "sessions.toml").write_text("keep_sessions = true\n[[groups]]\nname = 'all'\n")
    (tmp_path / "short.toml").write_text("[[groups]]\nname = 'short'\nmax_prompt_tokens = 100\n")
    check_refused(run(*DEPLOYMENT, *flags, folder=tmp_path), 2, *words)


@pytest.mark.parametrize(("lateness_s", "is_cautioned"), [(0.001, False), (0.02, True)])
def test_a_machine_that_is_too_slow_is_said(lateness_s, is_cautioned):
    answer = EmulateAnswer(
        model_name="m",
        engine="vLLM",
        step_times_from="a datasheet",
        n_kv_blocks=100,
        n_requests=3,
        n_output_tokens=1000,
        served_s=12.0,
        cpu_s=1.0,
        lateness_p50_s=lateness_s,
        lateness_p99_s=0.05,
        emission_log=None,
    )
    assert ("did not keep the pace" in emulate_sentence(answer)) is is_cautioned
    assert "3 requests and 1,000 tokens in 12 s" in emulate_sentence(answer)
