"""inferometer tune: which changes of the settings help this server, and by how much?

Presets are where to begin without knowing the traffic; values that depend on the model and the
device are computed from their step times.
"""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from inferometer import suggestions
from inferometer.api.deployment_folder import check_free
from inferometer.api.fleet import FleetOptions
from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import Option
from inferometer.api.server import Server, deployment_of, server_with
from inferometer.api.tune_answer import answer_of
from inferometer.api.tune_started import Remainder, Starting, answered, job_of, planned_of
from inferometer.api.tune_subject import Subject, Wanted, now_of, subject_of
from inferometer.api.tuning import (
    MeasuredTune,
    PlannedStep,
    PlannedTune,
    PresetAnswer,
    PresetRow,
    TuneAnswer,
)
from inferometer.api.workload import Workload
from inferometer.decide.artefacts.engine_commands import serve_command
from inferometer.decide.tuning.playbook import PLAYBOOK, STEP_NAMES, Step
from inferometer.decide.tuning.search import ROUNDS, Tuning
from inferometer.decide.tuning.trials import N_PAIRS, Goal, pairs_of
from inferometer.errors import SpecError
from inferometer.perfmodel.kv_cache import n_kv_shards
from inferometer.perfmodel.steptime_arrays import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.simulate.deployment import Deployment
from inferometer.units import format_bytes, format_duration

Preset = Literal["interactive", "batch"]

_TPOT_LIMIT_S: Final = 0.05
"""20 tokens a second: several times as fast as people read."""
_CONTEXT_TOKENS: Final = 2048
_AT_ONCE: Final = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_BUDGETS: Final = (512, 1024, 2048, 4096, 8192, 16384)
_SAFE_UTILIZATION: Final = {"interactive": 0.92, "batch": 0.95}


class _Sized(NamedTuple):
    """A value, and why it is this one."""

    value: int
    why: str


def preset_of(preset: Preset, server: Server, policy: str) -> PresetAnswer:
    """The values of a preset for this model on this device.

    Raises
    ------
    SpecError, ModelError
        No device is named, or the model does not fit on it.
    """
    if server.hardware is None:
        raise SpecError(
            "values depend on the device", where="--hardware", try_="--hardware h100_sxm"
        )
    plain = deployment_of(server)
    at_once = _at_once(preset, plain)
    budget = _budget(preset, plain, at_once.value)
    values = {
        "max_num_seqs": at_once.value,
        "max_num_batched_tokens": max(budget.value, at_once.value),
        "gpu_memory_utilization": _SAFE_UTILIZATION[preset],
    }
    chosen = deployment_of(server_with(server, values))
    is_vllm = policy == "vllm"
    rows = (
        PresetRow(
            setting="max_num_seqs",
            value=str(at_once.value),
            flag="--max-num-seqs" if is_vllm else "--max-running-requests",
            why=at_once.why,
        ),
        PresetRow(
            setting="max_num_batched_tokens",
            value=str(values["max_num_batched_tokens"]),
            flag="--max-num-batched-tokens" if is_vllm else "--chunked-prefill-size",
            why=budget.why,
        ),
        _memory(preset, is_vllm=is_vllm),
        _page(chosen, is_vllm=is_vllm),
        *_of_engine(preset, is_vllm=is_vllm),
        *_of_clients(preset, is_vllm=is_vllm),
    )
    slo = "ttft:p95<500ms, tpot:p95<50ms" if preset == "interactive" else "e2e:p95<60s"
    goal = "interactive" if preset == "interactive" else "throughput"
    words = [server.model, "--hardware", server.hardware, "--policy", policy, "--goal", goal]
    command = suggestions.command("tune", *words, "--slo", slo, "--rate", "5")
    return PresetAnswer(
        preset=preset,
        model=chosen.model.model_id,
        hardware=server.hardware,
        engine=chosen.config.engine,
        values=rows,
        command=serve_command(chosen),
        next_step=f"your own traffic decides: {command}",
    )


def _at_once(preset: Preset, plain: Deployment) -> _Sized:
    """The batch: as large as TPOT allows, or as memory does."""
    steps = plain.step_times.likely
    n_held = max(plain.config.n_kv_blocks * plain.config.block_size // _CONTEXT_TOKENS, 1)
    if preset == "batch":
        fitting = [one for one in _AT_ONCE if one <= n_held] or [_AT_ONCE[0]]
        why = (
            f"throughput first: the KV cache holds {n_held:,} sequences of {_CONTEXT_TOKENS:,}"
            " tokens; more would be preempted"
        )
        return _Sized(fitting[-1], why)

    def tpot_s(batch: int) -> float:
        shape = decode_shape(batch_size=batch, context_tokens=_CONTEXT_TOKENS)
        return shape_duration_s(steps, shape)

    quick = [one for one in _AT_ONCE if tpot_s(one) <= _TPOT_LIMIT_S and one <= n_held]
    chosen = (quick or [_AT_ONCE[0]])[-1]
    why = (
        f"the largest batch whose step of {format_duration(tpot_s(chosen))} is within a TPOT of"
        f" {format_duration(_TPOT_LIMIT_S)} at {_CONTEXT_TOKENS:,} tokens of context; the KV cache"
        f" holds {n_held:,}"
    )
    return _Sized(chosen, why)


def _budget(preset: Preset, plain: Deployment, at_once: int) -> _Sized:
    """Tokens of a step: no more than answers may wait for, or as many as the device takes."""
    steps = plain.step_times.likely

    def step_s(n_tokens: int) -> float:
        return shape_duration_s(steps, prefill_shape(batch_size=1, prompt_tokens=n_tokens))

    if preset == "batch":
        most = _BUDGETS[-1]
        return _Sized(
            most, f"prompts in few steps: a full one takes {format_duration(step_s(most))}"
        )
    quick = [
        one for one in _BUDGETS if step_s(one) <= 2 * _TPOT_LIMIT_S and one >= min(at_once, 512)
    ]
    chosen = (quick or [_BUDGETS[0]])[-1]
    why = (
        f"a step full of prompts takes {format_duration(step_s(chosen))}, for which answers wait:"
        f" at most twice a TPOT of {format_duration(_TPOT_LIMIT_S)}"
    )
    return _Sized(chosen, why)


def _memory(preset: Preset, *, is_vllm: bool) -> PresetRow:
    share = _SAFE_UTILIZATION[preset]
    why = "vLLM's default; leaves room for peaks"
    if preset == "batch":
        why = "more KV cache, larger batches: try the longest prompt in a full step first"
    elif not is_vllm:
        why = "leaves room for activations and graphs"
    flag = "--gpu-memory-utilization" if is_vllm else "--mem-fraction-static (weights and KV only)"
    return PresetRow(setting="share of memory", value=f"{share:g}", flag=flag, why=why)


def _page(chosen: Deployment, *, is_vllm: bool) -> PresetRow:
    """Pages of 16 to 32 KiB in a layer are read at full bandwidth and waste little."""
    tokens = chosen.config.block_size
    n_shards = n_kv_shards(chosen.model, chosen.engine)
    page_bytes = chosen.kv_block_bytes / chosen.model.n_layers / n_shards
    per_token = page_bytes / tokens
    return PresetRow(
        setting="KV page",
        value=f"{tokens} token{'s' * (tokens > 1)}",
        flag="--block-size" if is_vllm else "--page-size",
        why=(
            f"the default: {format_bytes(page_bytes)} in each layer of a device"
            f" ({format_bytes(per_token)} a token); a sequence wastes half a page at its end"
        ),
    )


def _of_engine(preset: Preset, *, is_vllm: bool) -> tuple[PresetRow, ...]:
    is_batch = preset == "batch"
    stream = PresetRow(
        setting="tokens in a message",
        value="10" if is_batch else "1",
        flag="--stream-interval",
        why="fewer messages for the host" if is_batch else "people see each token when it is there",
    )
    order = PresetRow(
        setting="order of the queue",
        value="fcfs" if is_vllm or not is_batch else "lpm",
        flag="--scheduling-policy" if is_vllm else "--schedule-policy",
        why=(
            "no request starves; priority where classes have priorities"
            if is_vllm or not is_batch
            else "prompts that share a prefix run together: no user waits for an answer"
        ),
    )
    cache = PresetRow(
        setting="prefix cache",
        value="on",
        flag="--enable-prefix-caching" if is_vllm else "(on unless --disable-radix-cache)",
        why="costs next to nothing where no prompt repeats, saves the prefill where one does",
    )
    overlap = PresetRow(
        setting="scheduling beside the device",
        value="on",
        flag="--async-scheduling" if is_vllm else "(on unless --disable-overlap-schedule)",
        why="hides the host's time for each step",
    )
    speculation = PresetRow(
        setting="speculation",
        value="off",
        flag="--speculative-config" if is_vllm else "--speculative-algorithm",
        why=(
            "a full batch has no room for rejected tokens"
            if is_batch
            else "on only where the acceptance measured on your text gains at your batch"
        ),
    )
    return stream, order, cache, overlap, speculation


def _of_clients(preset: Preset, *, is_vllm: bool) -> tuple[PresetRow, ...]:
    """What engines of continuous batching have no flag for."""
    is_batch = preset == "batch"
    longest = PresetRow(
        setting="new tokens of a request",
        value="as the task needs" if is_batch else "512",
        flag="--override-generation-config" if is_vllm and not is_batch else "",
        why=(
            "whole documents: what is cut off is computed for nothing"
            if is_batch
            else "256 to 512: bounds how long a request holds its place; `max_tokens` of the client"
        ),
    )
    window = PresetRow(
        setting="batching window",
        value="none",
        flag="",
        why=(
            "requests join the next step of continuous batching; a dynamic batcher:"
            f" {'20 to 40' if is_batch else '3 to 5'} ms"
        ),
    )
    return longest, window


_ENGINES: Final = ("vllm", "sglang")
_OF_START: Final = frozenset(
    {"hardware", "fit", "policy", "tp", "dtype", "quantization", "set", "preset", "force"}
    | {"max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_blocks", "block_size"}
)
"""What --start itself says of a server that is measured."""
_CAPACITY_SIMULATIONS: Final = 9
"""Of a search for the highest rate, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """The server as it is, its traffic, and what is better."""

    server: Server
    goal: Annotated[
        Goal,
        Option(
            "interactive: latencies further below the SLO; throughput: more requests/s within it;"
            " cost: the same for each device.",
            heading="Limits",
            is_common=True,
        ),
    ] = "interactive"
    slo: Annotated[
        str | None,
        Option(
            "The SLO: ttft:p95<500ms, tpot:p95<50ms.",
            heading="Limits",
            is_common=True,
            metavar="SLO",
        ),
    ] = None
    workload: Workload = field(default_factory=Workload)
    fleet: FleetOptions = field(default_factory=FleetOptions)
    starting: Starting = field(default_factory=Starting)
    least_gain: Annotated[
        float,
        Option(
            "Gains below this share are not worth a change.",
            heading="Limits",
            least=0,
            most=1,
            is_open=True,
        ),
    ] = 0.02
    steps: Annotated[
        str | None,
        Option(
            f"Only these steps, with commas between. [{','.join(STEP_NAMES)}]",
            heading="Limits",
            metavar="NAMES",
        ),
    ] = None
    preset: Annotated[
        Literal["interactive", "batch"] | None,
        Option(
            "Print recommended values to start from, each with its reason; nothing is searched.",
            heading="Limits",
            is_common=True,
        ),
    ] = None
    dry_run: Annotated[
        bool, Option("Print what would be tried, and how long it takes.", is_common=True)
    ] = False
    out: Annotated[
        Path | None,
        Option("Folder for the answer, its page and the command.", is_common=True, metavar="DIR"),
    ] = None
    force: Annotated[bool, Option("Over what is in --out.")] = False
    given: frozenset[str] = frozenset()


def tune(question: Tune) -> TuneAnswer | MeasuredTune | PlannedTune | PresetAnswer:
    """Which changes of the settings help this server under its traffic, and by how much?

    Each step of a playbook is simulated on 19 machines that may be the one, with the same requests
    before and after. What gains in all of them is taken. The gain of all together is that of fresh
    requests.

    Raises
    ------
    SpecError, ModelError
        The question cannot be answered as it is put.
    """
    if question.starting.start is not None or "://" in question.server.model:
        return _measured(question)
    policy = question.server.policy or _ENGINES[0]
    if policy not in _ENGINES:
        raise SpecError(
            f"the playbook of {policy} is not known",
            where="--policy",
            allowed=", ".join(_ENGINES),
            try_="--policy vllm",
        )
    if question.preset is not None:
        return preset_of(question.preset, question.server, policy)
    steps = _steps(question.steps)
    if question.out is not None:
        check_free(question.out, is_forced=question.force)
    wanted = Wanted(question.goal, question.slo, question.least_gain)
    subject = subject_of(wanted, question.server, question.workload, question.fleet, policy)
    if question.dry_run:
        return _planned(subject, steps)
    talk(f"{len(steps)} steps under {subject.aim.n_requests:,} requests of {subject.aim.spec.name}")
    tuned = Tuning(
        trials=subject.trials,
        steps=steps,
        now_of=lambda variant: now_of(subject, variant),
        least_gain_ratio=question.least_gain,
        seed=subject.aim.spec.seed,
        on_step=lambda step: talk(PartsDone("steps", steps.index(step), len(steps))),
    ).run()
    return answer_of(subject, tuned, question.out)


def _measured(question: Tune) -> MeasuredTune | PlannedTune:
    stated = sorted(question.given & _OF_START)
    if stated:
        raise SpecError(
            f"--{stated[0].replace('_', '-')} describes a server that is simulated",
            where="--start",
            allowed="its own flags, in --start",
            try_="--start 'vllm serve MODEL --max-num-seqs 64'",
        )
    wanted = Wanted(question.goal, question.slo, question.least_gain)
    steps = _steps(question.steps)
    named = frozenset(one.name for one in steps) if question.steps is not None else frozenset()
    remainder = Remainder(wanted, question.workload, steps, named, question.out)
    job = job_of(question.server.model, question.starting, remainder)
    if question.dry_run:
        return planned_of(job)
    return answered(job)


def _steps(names: str | None) -> tuple[Step, ...]:
    if names is None:
        return PLAYBOOK
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in STEP_NAMES]
    if unknown:
        raise SpecError(
            f"there is no step {unknown[0]!r}",
            where="--steps",
            allowed=", ".join(STEP_NAMES),
            try_="--steps max_num_seqs,step_budget",
        )
    return tuple(one for one in PLAYBOOK if one.name in wanted)


def _planned(subject: Subject, steps: tuple[Step, ...]) -> PlannedTune:
    """What would be tried; one simulation is timed."""
    now, rows, n_simulations = now_of(subject, ()), list[PlannedStep](), N_PAIRS
    pairs = pairs_of(2, subject.aim.spec.seed)
    subject.trials.outcomes([()], pairs[:1])  # compiles what is not in the cache
    began_s = time.perf_counter()
    subject.trials.outcomes([()], pairs)
    each_s = time.perf_counter() - began_s
    n_candidates = 0
    for step in steps:
        tries = step.tries(now)
        words = () if isinstance(tries, str) else tuple(one.words for one in tries)
        n_candidates += len(words)
        if words:
            n_simulations += _n_simulations(len(words))
        rows.append(
            PlannedStep(
                name=step.name,
                title=step.title,
                flags=step.flags[subject.policy],
                changes=words,
                why_none=tries if isinstance(tries, str) else "",
                unpredicted=step.unpredicted,
            )
        )
    n_simulations += 2 * N_PAIRS
    n_each = _CAPACITY_SIMULATIONS if subject.aim.is_capacity else 1
    return PlannedTune(
        steps=tuple(rows),
        n_candidates=n_candidates,
        n_simulations=n_simulations * n_each,
        duration_s=math.ceil(n_simulations * each_s),
        n_restarts=0,
    )


def _n_simulations(n_changes: int) -> int:
    """Of a step with this number of changes."""
    n_left, n_simulations = n_changes, 0
    for n_pairs, n_next in ROUNDS:
        n_simulations += n_left * n_pairs
        n_left = min(n_left, n_next)
    return n_simulations + N_PAIRS
