"""inferometer emulate: a server to talk to, where there is none: which takes how long for what the simulator says."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from inferometer.api.question import DURATION, Option
from inferometer.api.server import Server, deployment_of
from inferometer.cli import emulate_answer
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.terminal import talk
from inferometer.errors import SpecError
from inferometer.serve import emulator_process, fault_specs
from inferometer.serve.emulator_plan import DEFAULT_MEAN_TOKENS, LOOPBACK, EmulatorPlan
from inferometer.simulate.deployment import Deployment
from inferometer.units import format_duration

ANSWER = emulate_answer.EmulateAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulate:
    """Which server is emulated, and where it listens."""

    server: Server
    host: Annotated[
        str,
        Option(
            "Where to listen; others than this machine are let in only so.",
            heading="Output",
            is_common=True,
        ),
    ] = LOOPBACK
    port: Annotated[
        int, Option("0: any that is free.", heading="Output", is_common=True, least=0, most=65535)
    ] = 8000
    served_model_name: Annotated[
        str | None, Option("What clients call the model. [MODEL]", heading="Output", metavar="NAME")
    ] = None
    duration: Annotated[
        float | None,
        Option(
            "Stop after this time. [when stopped]",
            heading="Output",
            is_common=True,
            flags=("--for",),
            metavar="DURATION",
            parse=DURATION,
        ),
    ] = None
    seed: Annotated[
        int,
        Option("Of answers and faults: the n-th request gets the same.", heading="Output", least=0),
    ] = 0
    output_tokens: Annotated[
        str, Option("Length of answers that may end.", heading="Output", metavar="MEAN|max")
    ] = f"{DEFAULT_MEAN_TOKENS:.0f}"
    fault: Annotated[
        tuple[str, ...],
        Option(
            "What goes wrong, and how often; see below. Repeatable.",
            heading="Output",
            is_common=True,
            metavar="FAULTS",
        ),
    ] = ()
    time_scale: Annotated[
        float, Option("Every step takes longer by this factor.", heading="Output")
    ] = 1.0
    tokenizer: Annotated[
        Path | None,
        Option("A tokenizer.json. [a token is a word between spaces]", heading="Output"),
    ] = None
    emission_log: Annotated[
        Path | None, Option("File for when each token was due and was written.", heading="Output")
    ] = None
    given: frozenset[str] = frozenset()


@click.command(
    "emulate",
    cls=QuestionCommand,
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
@asks(Emulate)
def command(question: Emulate, *, as_json: bool) -> None:
    """Serve MODEL's answers as fast as this server would: completions and chats, streamed, and vLLM's /metrics.

    The scheduler and the step times are those of `inferometer simulate`, on the wall clock; the
    words mean nothing. For load clients that must be held to a known truth, and for first steps
    without a GPU.
    """
    deployment = deployment_of(question.server)
    give(
        _served(plan_of(question, deployment), deployment),
        as_json=as_json,
        show=emulate_answer.emulate_sentence,
    )


def plan_of(question: Emulate, deployment: Deployment) -> EmulatorPlan:
    """What is served, of which deployment.

    Raises
    ------
    SpecError
        A value cannot be.
    """
    return EmulatorPlan(
        model_name=question.served_model_name or deployment.model.model_id,
        config=deployment.config,
        cost=deployment.step_times.likely,
        host=question.host,
        port=question.port,
        seed=question.seed,
        mean_output_tokens=_mean_tokens(question.output_tokens),
        faults=tuple(rule for text in question.fault for rule in fault_specs.parse_faults(text)),
        time_scale_ratio=question.time_scale,
        emission_log=question.emission_log,
        tokenizer=question.tokenizer,
        for_s=question.duration,
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


def _served(plan: EmulatorPlan, deployment: Deployment) -> emulate_answer.EmulateAnswer:
    started_s, cpu_before_s = time.perf_counter(), time.process_time()
    counts = emulator_process.run_emulator(plan, lambda url: _introduce(plan, url))
    served_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_before_s
    return emulate_answer.answer_of(
        plan, deployment.step_times.origin, counts, served_s=served_s, cpu_s=cpu_s
    )


def _introduce(plan: EmulatorPlan, url: str) -> None:
    ends = (
        "until it is stopped (Ctrl-C)"
        if plan.for_s is None
        else f"for {format_duration(plan.for_s)}"
    )
    talk(f"{url} answers as {plan.model_name} on {plan.config.engine}, {ends}")
    if plan.host != LOOPBACK:
        talk(f"whoever reaches {plan.host} may ask: there is no key")
