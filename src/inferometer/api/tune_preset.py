"""Which values are recommended for an interactive or a batch endpoint, and why?

They are where to begin without knowing the traffic; those that depend on the model and the device
are computed from their step times.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from inferometer import suggestions
from inferometer.api.server import Server, deployment_of, server_with
from inferometer.api.tuning import PresetAnswer, PresetRow
from inferometer.decide.artefacts.vllm_command import serve_command, static_fraction
from inferometer.errors import SpecError
from inferometer.perfmodel.kv_cache import kv_bytes_per_token, n_kv_shards
from inferometer.perfmodel.roofline import kv_dtype
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.simulate.deployment import Deployment
from inferometer.units import format_bytes, format_duration

Preset = Literal["interactive", "batch"]

_TPOT_LIMIT_S: Final = 0.05
"""20 tokens a second: several times as fast as people read."""
_CONTEXT_TOKENS: Final = 2048
_AT_ONCE: Final = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_BUDGETS: Final = (512, 1024, 2048, 4096, 8192, 16384)
_BATCH_STREAM: Final = "10"
_WIDE_RATIO: Final = 9.0
"""From least to most, x/÷3 of the middle: an interval wider than this chooses no value."""
_SAFE_UTILIZATION: Final = {"interactive": 0.92, "batch": 0.95}


class _Step(NamedTuple):
    """Time of a step, with the least and the most of its draws."""

    likely_s: float
    least_s: float
    most_s: float

    @property
    def words(self) -> str:
        """``26 ms [22 ms, 30 ms]``"""
        likely, least, most = map(format_duration, self)
        return f"{likely} [{least}, {most}]"

    def is_open(self, limit_s: float) -> bool:
        """Does the interval include the limit?"""
        return self.least_s <= limit_s < self.most_s


class _Sized(NamedTuple):
    """A value with its reason, and the step that it was chosen by."""

    value: int
    why: str
    step: _Step | None = None


def preset_of(preset: Preset, server: Server, policy: str, same: Sequence[object]) -> PresetAnswer:
    """The values of a preset for this model on this device; ``same``: the flags that name the server.

    Raises
    ------
    SpecError, ModelError
        No device is named, or the model does not fit on it.
    """
    if server.hardware is None:
        raise SpecError(
            "values depend on the device", where="--hardware", try_="--hardware h100_sxm"
        )
    is_vllm = policy == "vllm"
    budget = _budget(preset, deployment_of(server))
    values: dict[str, int | float | str | bool] = {
        "max_num_batched_tokens": budget.value,
        "gpu_memory_utilization": _SAFE_UTILIZATION[preset],
    }
    if preset == "batch" and not is_vllm:
        values["schedule_policy"] = "lpm"
    at_once = _at_once(preset, deployment_of(server_with(server, values)))
    values["max_num_seqs"] = at_once.value
    values["max_num_batched_tokens"] = max(budget.value, at_once.value)
    chosen = deployment_of(server_with(server, values))
    rows = (
        *_sizes(at_once, budget, is_vllm=is_vllm),
        _memory(preset, chosen, is_vllm=is_vllm),
        _page(chosen, is_vllm=is_vllm),
        *_of_engine(preset, is_vllm=is_vllm),
        *_of_clients(preset, is_vllm=is_vllm),
    )
    wide = _wide(budget.step, "full of prompts") or _wide(at_once.step, "of decodes")
    slo = "ttft:p95<500ms, tpot:p95<50ms" if preset == "interactive" else "e2e:p95<60s"
    goal = "interactive" if preset == "interactive" else "throughput"
    words = [server.model, *same, "--policy", policy, "--goal", goal]
    command = suggestions.command("tune", *words, "--slo", slo, "--rate", "5")
    stream = ("--stream-interval", _BATCH_STREAM) if preset == "batch" else ()
    return PresetAnswer(
        preset=preset,
        model=chosen.model.model_id,
        hardware=server.hardware,
        engine=chosen.config.engine,
        values=rows,
        trust=f"step times: {chosen.step_times.origin}{wide}",
        command=" ".join((serve_command(chosen), *stream)),
        next_step=f"your own traffic decides: {command}",
    )


def _sizes(at_once: _Sized, budget: _Sized, *, is_vllm: bool) -> tuple[PresetRow, PresetRow]:
    """The batch, and the tokens of a step: at least one for each sequence."""
    return (
        PresetRow(
            setting="max_num_seqs",
            value=str(at_once.value),
            flag="--max-num-seqs" if is_vllm else "--max-running-requests",
            why=at_once.why,
        ),
        PresetRow(
            setting="max_num_batched_tokens",
            value=str(max(budget.value, at_once.value)),
            flag="--max-num-batched-tokens" if is_vllm else "--chunked-prefill-size",
            why=budget.why,
        ),
    )


def _at_once(preset: Preset, plain: Deployment) -> _Sized:
    """The batch: as large as TPOT allows, or as memory does."""
    steps = plain.step_times.likely
    n_held = max(plain.n_kv_tokens // _CONTEXT_TOKENS, 1)
    if preset == "batch":
        fitting = [one for one in _AT_ONCE if one <= n_held] or [n_held]
        why = (
            f"throughput first: the KV cache holds {n_held:,} sequences of {_CONTEXT_TOKENS:,}"
            " tokens; more would be preempted"
        )
        return _Sized(fitting[-1], why)

    def tpot_s(batch: int) -> float:
        shape = decode_shape(batch_size=batch, context_tokens=_CONTEXT_TOKENS)
        return shape_duration_s(steps, shape)

    quick = [one for one in _AT_ONCE if tpot_s(one) <= _TPOT_LIMIT_S and one <= n_held]
    chosen = (quick or [min(_AT_ONCE[0], n_held)])[-1]
    shape = decode_shape(batch_size=chosen, context_tokens=_CONTEXT_TOKENS)
    step, limit = _step(plain, shape), format_duration(_TPOT_LIMIT_S)
    is_open = step.is_open(_TPOT_LIMIT_S)
    expected = "expected step" if is_open else "step"
    why = (
        f"the largest batch whose {expected} of {step.words} is within a TPOT of {limit}"
        + ", though not the slowest" * is_open
        if step.likely_s <= _TPOT_LIMIT_S
        else f"a small batch: its {expected} of {step.words} is beyond a TPOT of {limit} already"
        + ", though not the fastest" * is_open
    )
    held = f"at {_CONTEXT_TOKENS:,} tokens of context; the KV cache holds {n_held:,}"
    return _Sized(chosen, f"{why} {held}", step)


def _step(plain: Deployment, shape: BatchShape) -> _Step:
    """Step time with its interval: least and most of the draws.

    Draws are ordered by a whole generation; of one shape the first is not always the fastest.
    """
    steps = plain.step_times
    levels = [draw.steps for draw in steps.draws] or [steps.fast, steps.slow]
    ends_s = [shape_duration_s(one, shape) for one in levels]
    return _Step(shape_duration_s(steps.likely, shape), min(ends_s), max(ends_s))


def _wide(step: _Step | None, kind: str) -> str:
    """Why a step time is no ground for a value, and what would be; '' where it is one."""
    if step is None or step.most_s <= _WIDE_RATIO * step.least_s:
        return ""
    measured = suggestions.command("load", "URL", "--out", "runs/NAME")
    return (
        f"; a step {kind} is known to a factor of {step.most_s / step.least_s:.0f} only, too wide"
        f" to choose by: undecided until a server of yours is measured ({measured}, and its fit"
        " as --fit)"
    )


def _budget(preset: Preset, plain: Deployment) -> _Sized:
    """Step budget: limited by the delay of decodes, and by what the device processes at once."""
    steps = plain.step_times.likely

    def step_s(n_tokens: int) -> float:
        return shape_duration_s(steps, prefill_shape(batch_size=1, prompt_tokens=n_tokens))

    def full(n_tokens: int) -> _Step:
        return _step(plain, prefill_shape(batch_size=1, prompt_tokens=n_tokens))

    if preset == "batch":
        most = _BUDGETS[-1]
        step = full(most)
        return _Sized(most, f"prompts in few steps: a full one takes {step.words}", step)
    quick = [one for one in _BUDGETS if step_s(one) <= 2 * _TPOT_LIMIT_S]
    chosen = (quick or [_BUDGETS[0]])[-1]
    step = full(chosen)
    is_open = step.is_open(2 * _TPOT_LIMIT_S)
    wait = "at most" if quick else "the smallest, and more than"
    end = ", though not the slowest" if quick else ", though not the fastest"
    why = (
        f"{'an expected' if is_open else 'a'} step full of prompts takes {step.words}, for which"
        f" answers wait: {wait} twice a TPOT of {format_duration(_TPOT_LIMIT_S)}{end * is_open}"
    )
    return _Sized(chosen, why, step)


def _memory(preset: Preset, chosen: Deployment, *, is_vllm: bool) -> PresetRow:
    share = f"{_SAFE_UTILIZATION[preset]:g}"
    why = "vLLM's default; leaves room for peaks"
    if preset == "batch":
        why = "more KV cache, larger batches: try the longest prompt in a full step first"
    elif not is_vllm:
        why = "leaves room for activations and graphs"
    if is_vllm:
        flag, value = "--gpu-memory-utilization", share
    else:
        flag, value = "--mem-fraction-static", static_fraction(chosen) or share
        why = f"weights and KV cache, {share} with activations; {why}"
    return PresetRow(setting="share of memory", value=value, flag=flag, why=why)


def _page(chosen: Deployment, *, is_vllm: bool) -> PresetRow:
    """Pages of 16 to 32 KiB in a layer are read at full bandwidth and waste little."""
    tokens = chosen.config.block_size
    n_shards = n_kv_shards(chosen.model, chosen.engine)
    token_bytes = kv_bytes_per_token(chosen.model, kv_dtype(chosen.engine))
    per_token = token_bytes / chosen.model.n_layers / n_shards
    page_bytes = per_token * tokens
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
        value=_BATCH_STREAM if is_batch else "1",
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
    """Recommendations for clients, for which engines have no flag."""
    is_batch = preset == "batch"
    longest = PresetRow(
        setting="new tokens of a request",
        value="as the task needs" if is_batch else "512",
        flag="--override-generation-config" if is_vllm and not is_batch else "",
        why=(
            "whole documents: what is cut off is computed for nothing"
            if is_batch
            else "256 to 512: bounds how long a request holds its place; `max_tokens` of the client,"
            " or of the server, where longer answers may be cut off"
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
