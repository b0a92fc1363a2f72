"""inferometer emulate: an OpenAI-compatible server at the pace of a simulated one."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import click
import numpy as np

from inferometer.api.cluster import Servers
from inferometer.api.fleet import FleetOptions, servers_described
from inferometer.api.groups import GROUPS_OPTION
from inferometer.api.question import duration_option, option
from inferometer.api.server import Server
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.terminal import talk
from inferometer.errors import SpecError
from inferometer.serve import emulator_plan, emulator_process
from inferometer.serve.emulator_plan import DEFAULT_MEAN_TOKENS, LOOPBACK, EmulatorPlan
from inferometer.serve.emulator_server import ServedCounts
from inferometer.stats.quantiles import min_samples
from inferometer.units import format_duration, s_from_ns

# What does an emulated server say when it stops: how much it served, and how punctually?


_MAX_LATENESS_S: Final = 5e-3
"""Half of the tokens later than this: steps overtake the writing of what they yield."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateAnswer:
    """What was served; lateness is the delay from a token's due time to its write."""

    model_name: str
    engine: str
    step_times_from: str
    n_kv_blocks: int
    n_requests: int
    n_output_tokens: int
    served_s: float
    cpu_s: float
    """CPU time of this process while it served."""
    lateness_p50_s: float | None
    """Median of the latest 100,000 chunks; None without chunks."""
    lateness_p99_s: float | None
    """None of fewer chunks than a 99th percentile's interval needs."""
    emission_log: str | None


def answer_of(
    plan: EmulatorPlan, step_times_from: str, counts: ServedCounts, *, served_s: float, cpu_s: float
) -> EmulateAnswer:
    """The answer after so long."""
    lateness_ns = np.array(counts.lateness_ns, dtype=np.int64)
    return EmulateAnswer(
        model_name=plan.model_name,
        engine=plan.config.engine,
        step_times_from=step_times_from,
        n_kv_blocks=plan.config.n_kv_blocks,
        n_requests=counts.n_requests,
        n_output_tokens=counts.n_tokens,
        served_s=served_s,
        cpu_s=cpu_s,
        lateness_p50_s=s_from_ns(int(np.quantile(lateness_ns, 0.5))) if lateness_ns.size else None,
        lateness_p99_s=(
            s_from_ns(int(np.quantile(lateness_ns, 0.99)))
            if lateness_ns.size >= min_samples(0.99)
            else None
        ),
        emission_log=None if plan.emission_log is None else str(plan.emission_log),
    )


def emulate_sentence(answer: EmulateAnswer) -> str:
    """The answer for people."""
    sentence = (
        f"ANSWER {answer.n_requests:,} requests and {answer.n_output_tokens:,} tokens in"
        f" {format_duration(answer.served_s)}"
    )
    sentence += f", {format_duration(answer.cpu_s)} of CPU"
    if answer.lateness_p50_s is not None:
        tail = (
            ""
            if answer.lateness_p99_s is None
            else f" (p99 {format_duration(answer.lateness_p99_s)})"
        )
        sentence += (
            f"\nTRUST  tokens were written {format_duration(answer.lateness_p50_s)} after they were"
            f" due{tail}"
        )
        sentence += f"; step times: {answer.step_times_from}"
        if answer.lateness_p50_s > _MAX_LATENESS_S:
            sentence += (
                "\nCAUTION this machine did not keep the pace; try fewer sequences at once (--max-num-seqs) or"
                " a larger --time-scale"
            )
    return sentence if answer.emission_log is None else f"{sentence}\nDATA   {answer.emission_log}"


ANSWER = EmulateAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulate:
    """The server to emulate, and its address."""

    server: Server
    fleet: FleetOptions = field(default_factory=FleetOptions)
    groups: Annotated[Path | None, GROUPS_OPTION] = None
    host: str = option(
        LOOPBACK, "Address to listen on; by default only this machine can connect.", is_common=True
    )
    port: int = option(8000, "Port; 0: any free one.", is_common=True, least=0, most=65535)
    served_model_name: str | None = option(
        None, "What clients call the model. [MODEL]", metavar="NAME"
    )
    duration: float | None = duration_option(
        None, "Stop after this time. [when stopped]", is_common=True, flags=("--for",)
    )
    seed: int = option(
        0, "Seed of answers and faults: the n-th request always gets the same.", least=0
    )
    output_tokens: str = option(
        f"{DEFAULT_MEAN_TOKENS:.0f}",
        "Length of answers to requests without ignore_eos.",
        metavar="MEAN|max",
    )
    fault: tuple[str, ...] = option(
        (),
        "What goes wrong, and how often; see below. Repeatable.",
        is_common=True,
        metavar="FAULTS",
    )
    time_scale: float = option(1.0, "Factor by which every step takes longer.")
    enable_prompt_tokens_details: bool = option(
        False, "Send the number of cached prompt tokens with the usage, as vLLM with this flag."
    )
    tokenizer: Path | None = option(None, "A tokenizer.json. [a token is a word between spaces]")
    emission_log: Path | None = option(
        None, "File to write the due time and the send time of each token to."
    )
    otlp_endpoint: str | None = option(
        None,
        "Send a span of each answer, as vLLM's, to this OpenTelemetry collector (OTLP over HTTP).",
        metavar="URL",
    )
    given: frozenset[str] = frozenset()


@click.command(
    "emulate",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer emulate llama-3.1-8b --hardware h100_sxm --port 0 --for 1s
  inferometer emulate llama-3.1-8b --hardware h100_sxm --port 0 --for 1s --replicas 2 --order shortest-remaining
  inferometer emulate smollm2-135m --hardware l4 --port 0 --for 1s --fault 'http-429:0.05, stall:0.01(for=3s)'

\b
Without --for it serves until it is stopped (Ctrl-C). Then, from another shell:
  curl -N http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{"prompt": "say something", "max_tokens": 20, "stream": true}'
  curl http://127.0.0.1:8000/metrics

\b
Faults, each as KIND, KIND:SHARE or KIND:SHARE(option=value), with commas between:
  before an answer   http-429 (retry_after=1s), http-500, http-503, redirect-loop, gzip-bomb (bytes=16MiB),
                     never-answers, endless-headers (bytes=16MiB), slow-headers (for=2s)
  in the stream      reset, truncated-sse, error-event, malformed-json, invalid-utf8 (after=3 tokens),
                     stall (after=3, for=2s), huge-chunk (bytes=16MiB), split-writes, comments, tokens-per-chunk=4
  at its end         wrong-usage (count=1), no-usage, missing-done
""",
)
@asks(Emulate, has_page=False)
def command(question: Emulate, *, as_json: bool) -> None:
    """Serve MODEL's answers as fast as this server would: completions and chats, streamed, and vLLM's /metrics.

    The scheduler and the step times are those of `inferometer simulate`, on the wall clock; the
    words mean nothing. For load clients that must be held to a known truth, and for first steps
    without a GPU.
    """
    servers = servers_described(question.groups, question.server, question.fleet)
    origins = dict.fromkeys(one.step_times.origin for one in servers.kinds)
    give(
        _served(plan_of(question, servers), "; ".join(origins)),
        as_json=as_json,
        show=emulate_sentence,
    )


def plan_of(question: Emulate, servers: Servers) -> EmulatorPlan:
    """The plan of an emulated server.

    Raises
    ------
    SpecError
        A value is invalid.
    """
    served = emulator_plan.served_fleet(servers, question.fleet.gate, question.seed)
    return EmulatorPlan(
        model_name=question.served_model_name or servers.deployment.model.model_id,
        fleet=served.fleet,
        class_names=served.known.class_names,
        tenant_names=served.known.tenant_names,
        host=question.host,
        port=question.port,
        seed=question.seed,
        mean_output_tokens=_mean_tokens(question.output_tokens),
        faults=tuple(rule for text in question.fault for rule in emulator_plan.parse_faults(text)),
        time_scale_ratio=question.time_scale,
        emission_log=question.emission_log,
        otlp_endpoint=question.otlp_endpoint,
        tokenizer=question.tokenizer,
        for_s=question.duration,
        enable_prompt_tokens_details=question.enable_prompt_tokens_details,
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


def _served(plan: EmulatorPlan, step_times_from: str) -> EmulateAnswer:
    started_s, cpu_before_s = time.perf_counter(), time.process_time()
    counts = emulator_process.run_emulator(plan, lambda url: _introduce(plan, url))
    served_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_before_s
    return answer_of(plan, step_times_from, counts, served_s=served_s, cpu_s=cpu_s)


def _introduce(plan: EmulatorPlan, url: str) -> None:
    ends = (
        "until it is stopped (Ctrl-C)"
        if plan.for_s is None
        else f"for {format_duration(plan.for_s)}"
    )
    n_replicas = plan.fleet.n_replicas
    where = f"{n_replicas} x {plan.config.engine}" if n_replicas > 1 else plan.config.engine
    gate = ", behind a gate" if plan.fleet.gate is not None else ""
    talk(f"{url} answers as {plan.model_name} on {where}{gate}, {ends}")
    if plan.host != LOOPBACK:
        talk(f"anyone who can reach {plan.host} can send requests: there is no API key")
