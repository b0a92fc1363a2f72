"""inferometer emulate: a server to talk to, where there is none: which takes how long for what the simulator says."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from inferometer.cli import emulate_answer
from inferometer.cli.answer import give, json_option
from inferometer.cli.deployment import takes_deployment
from inferometer.cli.terminal import talk
from inferometer.errors import SpecError
from inferometer.serve import emulator_plan, emulator_process, fault_specs
from inferometer.simulate.deployment import Deployment
from inferometer.units import format_duration, parse_duration_s

_PORT: Final = 8000


ANSWER = emulate_answer.EmulateAnswer


@click.command(
    "emulate",
    short_help="Serve OpenAI's interface at a simulated server's pace.",
    epilog="""\b
Examples:
  inferometer emulate llama-3.1-8b --hardware h100_sxm --port 0 --for 1s
  inferometer emulate smollm2-135m --hardware l4 --port 0 --for 1s --fault 'http-429:0.05, stall:0.01(for=3s)' --emission-log log.bin

\b
Without --for it serves until it is stopped (Ctrl-C). Then, from another shell:
  curl -N http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{"prompt": "say something", "max_tokens": 20, "stream": true}'
  curl http://127.0.0.1:8000/metrics

\b
Faults, each as KIND, KIND:SHARE or KIND:SHARE(option=value), with commas between:
  before an answer   http-429 (retry_after=1s), http-500, http-503, redirect-loop, gzip-bomb (bytes=16MiB), never-answers,
                     endless-headers (bytes=16MiB), slow-headers (for=2s)
  in the stream      reset, truncated-sse, error-event, malformed-json, invalid-utf8 (after=3 tokens), stall (after=3, for=2s),
                     huge-chunk (bytes=16MiB), split-writes, comments, tokens-per-chunk=4
  at its end         wrong-usage (count=1), no-usage, missing-done
""",
)
@takes_deployment
@click.option(
    "--host",
    default=emulator_plan.LOOPBACK,
    show_default=True,
    help="Where to listen; others than this machine are let in only so.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="0: any that is free.",
)
@click.option(
    "--served-model-name", "model_name", metavar="NAME", help="What clients call the model. [MODEL]"
)
@click.option("--for", "duration", metavar="DURATION", help="Stop after this time. [when stopped]")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of answers and faults: the n-th request gets the same.",
)
@click.option(
    "--output-tokens",
    default=f"{emulator_plan.DEFAULT_MEAN_TOKENS:.0f}",
    show_default=True,
    metavar="MEAN|max",
    help="Length of answers that may end.",
)
@click.option(
    "--fault",
    "fault",
    multiple=True,
    metavar="FAULTS",
    help="What goes wrong, and how often; see below. Repeatable.",
)
@click.option(
    "--time-scale",
    "time_scale_ratio",
    type=float,
    default=1.0,
    show_default=True,
    help="Every step takes so many times as long.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json. [a token is a word between spaces]",
)
@click.option(
    "--emission-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for when each token was due and was written.",
)
@json_option
def command(deployment: Deployment, *, as_json: bool, **flags: Any) -> None:
    """Serve MODEL's answers as fast as this server would: completions and chats, streamed, and vLLM's /metrics.

    The scheduler and the step times are those of `inferometer simulate`, on the wall clock; the
    words mean nothing. For load clients that must be held to a known truth, and for first steps
    without a GPU.
    """
    give(
        _served(_plan(deployment, flags), deployment),
        as_json=as_json,
        show=emulate_answer.emulate_sentence,
    )


def _plan(deployment: Deployment, flags: Mapping[str, Any]) -> emulator_plan.EmulatorPlan:
    return emulator_plan.EmulatorPlan(
        model_name=flags["model_name"] or deployment.model.model_id,
        config=deployment.config,
        cost=deployment.step_times.likely,
        host=flags["host"],
        port=flags["port"],
        seed=flags["seed"],
        mean_output_tokens=_mean_tokens(flags["output_tokens"]),
        faults=tuple(rule for text in flags["fault"] for rule in fault_specs.parse_faults(text)),
        time_scale_ratio=flags["time_scale_ratio"],
        emission_log=flags["emission_log"],
        tokenizer=flags["tokenizer"],
        for_s=(
            None
            if flags["duration"] is None
            else parse_duration_s(flags["duration"], where="--for")
        ),
    )


def _mean_tokens(text: str) -> float | None:
    if text == "max":
        return None
    try:
        return float(text)
    except ValueError as problem:
        raise SpecError(
            f"{text!r} is no length",
            where="--output-tokens",
            allowed="a mean, or max",
            try_="--output-tokens 128",
        ) from problem


def _served(
    plan: emulator_plan.EmulatorPlan, deployment: Deployment
) -> emulate_answer.EmulateAnswer:
    started_s, cpu_before_s = time.perf_counter(), time.process_time()
    counts = emulator_process.run_emulator(plan, lambda url: _introduce(plan, url))
    served_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_before_s
    return emulate_answer.answer_of(
        plan, deployment.step_times.origin, counts, served_s=served_s, cpu_s=cpu_s
    )


def _introduce(plan: emulator_plan.EmulatorPlan, url: str) -> None:
    ends = (
        "until it is stopped (Ctrl-C)"
        if plan.for_s is None
        else f"for {format_duration(plan.for_s)}"
    )
    talk(f"{url} answers as {plan.model_name} on {plan.config.engine}, {ends}")
    if plan.host != emulator_plan.LOOPBACK:
        talk(f"whoever reaches {plan.host} may ask: there is no key")
