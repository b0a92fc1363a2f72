"""Does every numeric flag of every verb refuse what is not finite, or larger than anything can be?"""

import subprocess
import sys
from pathlib import Path

import click
import pytest

import inferometer as api
from inferometer.cli.main import VERBS, app
from inferometer.errors import SpecError
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.simulate.engine_config import engine_config

NUMBERS = (click.types.IntParamType, click.types.FloatParamType)


def numeric_flags():
    with click.Context(app) as context:
        for verb in VERBS:
            command = app.get_command(context, verb)
            yield from (
                (verb, max(one.opts, key=len))
                for one in command.params
                if isinstance(one.type, NUMBERS)
            )


@pytest.mark.parametrize(("verb", "flag"), [*numeric_flags()])
def test_numbers_of_flags(verb, flag):
    with click.Context(app) as context:
        command = app.get_command(context, verb)
    for value in ("nan", "inf", "-inf", "1e999", "1" + "0" * 30, "9223372036854775808"):
        with pytest.raises((SpecError, click.BadParameter)) as caught:
            command.make_context(verb, [f"{flag}={value}"])
        assert not isinstance(caught.value, click.MissingParameter), f"{verb} {flag}={value} passed"


SHARED = {"num_blocks": 1000, "max_model_len": 4096}


@pytest.mark.parametrize(
    ("engine", "own", "name"),
    [
        ("vllm", {"swap_bytes_per_s": "nan"}, "swap_bytes_per_s"),
        (
            "vllm",
            {"preemption_mode": "swap", "kv_block_bytes": "1000", "swap_bytes_per_s": "nan"},
            "swap_bytes_per_s",
        ),
        ("vllm", {"watermark_fraction": "nan"}, "watermark_fraction"),
        (
            "vllm",
            {"num_speculative_tokens": "100000", "acceptance_fraction": "1"},
            "num_speculative_tokens",
        ),
        (
            "vllm",
            {"num_speculative_tokens": "2000000000", "max_num_batched_tokens": "2100000000"},
            "num_speculative_tokens",
        ),
        ("vllm", {"num_blocks": "99999999999"}, "num_blocks"),
        ("static", {"max_wait_ns": "9999999999999999999"}, "max_wait_ns"),
        ("sglang", {"schedule_conservativeness_ratio": "nan"}, "schedule_conservativeness_ratio"),
        ("sglang", {"schedule_conservativeness_ratio": "inf"}, "schedule_conservativeness_ratio"),
    ],
)
def test_numbers_of_knobs(engine, own, name):
    with pytest.raises(SpecError) as caught:
        engine_config(engine, SHARED, own, where="--set")
    assert name in caught.value.what
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"arrivals": {"rate_per_s": 1e-9}, "seed": 1},
            ("only 0 of 2000 requests ever come", "a higher rate_per_s"),
        ),
        (
            {"arrivals": {"rate_per_s": 1e-9}, "seed": 0},
            ("only 1 of 2000 requests ever come", "n_requests = 1"),
        ),
        ({"arrivals": {"rate_per_s": 1e-300}}, ("arrivals.rate_per_s", "from 1e-09")),
        ({"arrivals": {"rate_per_s": 5e-324}}, ("arrivals.rate_per_s", "from 1e-09")),
    ],
)
def test_tiny_rates(changes, words):
    with pytest.raises(SpecError) as caught:
        draw_workload(
            with_changes(resolve_workload("chat"), changes | {"n_requests": 2000}, where="--rate")
        )
    assert all(word in str(caught.value) for word in words), caught.value


def test_speeding_up_a_trace_beyond_reason(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 27, "input_length": 10, "output_length": 5}\n')
    with pytest.raises(SpecError, match="speed_up_ratio"):
        with_changes(
            resolve_workload(str(path)), {"replay": {"speed_up_ratio": 1e-300}}, where="--speed-up"
        )


@pytest.mark.parametrize("arrivals", [None, {"kind": "trace"}])
def test_slowing_a_trace_beyond_int64(arrivals, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 9e7, "input_length": 10, "output_length": 5}\n')
    changes = {"replay": {"speed_up_ratio": 1e-9}}
    if arrivals is not None:
        changes = {"arrivals": arrivals | {"path": str(path), "speed_up_ratio": 1e-9}}
    with pytest.raises(SpecError, match="speed_up_ratio = 1e-09"):
        draw_workload(with_changes(resolve_workload(str(path)), changes, where="--speed-up"))


def test_a_full_disk_is_one_error():
    words = [sys.executable, "-m", "inferometer", "catalog", "models"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert "the answer cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("verb", "words", "name", "value"),
    [
        ("predict", ("m", "--prompt", "2k"), "prompt", 2048),
        ("simulate", ("m", "--rate", "5rps"), "rate", 5.0),
        ("simulate", ("m", "--rate", "300/min"), "rate", 5.0),
        ("simulate", ("m", "--rate", "2.16M/day"), "rate", 25.0),
        ("simulate", ("m", "--rate", "720k/8h"), "rate", 25.0),
        ("size", ("m", "--rate", "1200 requests per 8 minutes"), "rate", 2.5),
        ("simulate", ("m", "--rate", "9k requests per hour"), "rate", 2.5),
        ("simulate", ("m", "--requests", "2k"), "requests", 2000),
        ("simulate", ("m", "--requests", "1e12"), "requests", 10**12),
        ("simulate", ("m", "--requests", "1.5e13"), "requests", 15 * 10**12),
        ("simulate", ("m", "--max-num-batched-tokens", "8K"), "max_num_batched_tokens", 8192),
        ("simulate", ("m", "--gpu-memory-utilization", "85%"), "gpu_memory_utilization", 0.85),
    ],
)
def test_numbers_as_people_write_them(verb, words, name, value):
    with click.Context(app) as context:
        command = app.get_command(context, verb)
    assert command.make_context(verb, list(words)).params[name] == value


@pytest.mark.parametrize("verb", ["simulate", "load"])
def test_a_time_of_nothing_is_refused_by_its_flag(verb):
    run = {"simulate": api.simulate, "load": api.load}[verb]
    with pytest.raises(SpecError, match="not a number above 0") as caught:
        run("localhost:9", duration="0s")
    assert caught.value.where == "duration"


@pytest.mark.parametrize("typed", ["2kk", "5rps", "k", "1e3k"])
def test_other_words_are_no_whole_number(typed):
    with click.Context(app) as context:
        command = app.get_command(context, "simulate")
    with pytest.raises(click.BadParameter, match="is not a valid whole number"):
        command.make_context("simulate", ["m", "--requests", typed])
