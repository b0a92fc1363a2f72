"""Rows of published benchmark tables as closed loops on one engine that can be simulated.

What a row does not state is taken from the scripts that made it (``recipe_of``) or assumed here:
KV cache in what memory is left, in 8 bit where TensorRT-LLM serves a quantised checkpoint, and
where others do so on GPUs of NVIDIA that multiply in 4 bit; max_num_seqs above every concurrency;
of loads with lengths of their own, that users of vLLM and TensorRT-LLM do not stay in step.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from inferometer.errors import SpecError
from inferometer.fit.published.closed_loop import ClosedLoad, Statistic, Workers
from inferometer.inputs.catalog import find_hardware, load_models, nameless
from inferometer.inputs.synonyms import engine_name
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.memory import MemoryQuestion, n_kv_blocks_that_fit
from inferometer.perfmodel.roofline import ParallelPlan, step_work
from inferometer.perfmodel.types import prefill_shape
from inferometer.perfmodel.weights import n_active_parameters
from inferometer.records.imports.imported import PublishedPointTable
from inferometer.simulate.engine_config import EngineConfig, engine_config

BUDGETS: Final = {"vllm": 8192, "sglang": 16384, "trtllm": 16384}
"""Tokens of a step where no script says more."""
_USUAL_FRACTION: Final = 0.9
"""Of the memory in vLLM and SGLang; in TensorRT-LLM of what is free beside the weights
(``KvCacheConfig.free_gpu_memory_fraction``)."""
_WAITED_STEPS: Final = 20
"""``batch_wait_timeout_iters`` in ``70b_*_b200_trt``: a prompt waits for up to this number of
steps, unless nine tenths of a step's budget wait."""
_LEAST_SINCE_1_2: Final = 8192
_QUANTIZATIONS: Final[dict[str, DType | None]] = {
    "fp8": "float8",
    "fp4": "float4",
    "int4": "int4",
    "bf16": None,
    "": None,
}
_BLOCK_TOKENS: Final = 64
_LARGEST_GROUP: Final = 8
"""Larger groups of the tables are racks with separate prefill and decode, of which only the number
of all devices is stated."""
DRAWN_LENGTHS: Final = {(1024, 1024), (1024, 8192), (8192, 1024)}
"""InferenceX's workloads, whose lengths are drawn from 80 to 100 % of these; others are taken as
stated. The statistic that the collected table does not name is then most like a mean: it grows
with the first wave."""
_DRAWN_SHARE: Final = 0.8
_LEAST_RUNNING: Final = 0.5
"""Of the users for whom there is memory: where fewer run at once by the row's own times, its
max_num_seqs was below them."""
_PREFILL_MFU: Final = 0.5
_MOST_OF_PEAK: Final = 0.78
"""The best 16-bit product of H100, H200 and B200, alone."""
_UNSTATED: Final = "prefill and decode apart, by workers that are not stated"
_IN_STEP: Final = frozenset({"sglang"})
"""Engines that compute all waiting prompts before the next token: users of equal lengths whose
requests began together end together, and their TTFT is that of a whole wave. Others mix prompts
and tokens in a step, and what varies in a real server spreads their users: NVIDIA's rows of vLLM
and TensorRT-LLM have a third of a wave's TTFT at 64 users. The spread is simulated as that of
InferenceX's lengths, and the statistic that follows the rows best is then the mean. Rows that name
their statistic are taken as they are stated."""


class Recipe(NamedTuple):
    """Settings with which an engine was started."""

    budget_tokens: int
    memory_fraction: float = _USUAL_FRACTION
    n_waited_steps: int = 0
    """Steps that a prompt waits for others to be computed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLoad:
    """A closed loop on one server, and its measured latencies; None: not published."""

    label: str
    hardware: HardwareSpec
    model: ModelSpec
    engine: EngineSpec
    framework: str
    framework_version: str
    precision: str
    load: ClosedLoad
    statistic: Statistic
    ttft_s: float | None = None
    tpot_s: float | None = None
    device_output_tokens_per_s: float | None = None
    n_sharing: int = 1
    """Replicas of the attention that share the experts."""
    has_expert_parallelism: bool = False
    n_decode_workers: int = 1
    """Servers like this one, behind the prefill workers where there are any."""
    prefill: Workers | None = None
    """Servers that compute prompts, where they are apart."""

    @property
    def plan(self) -> ParallelPlan:
        """Devices of one server."""
        n_tensor = self.engine.tensor_parallel_size
        return ParallelPlan(n_tensor=n_tensor, n_sharing=self.n_sharing)

    @property
    def decode(self) -> Workers:
        """Workers that decode (and prefill, unless others do)."""
        return Workers(n_workers=self.n_decode_workers, plan=self.plan)

    @property
    def n_devices(self) -> int:
        """Devices of the whole deployment."""
        return self.decode.n_devices + (0 if self.prefill is None else self.prefill.n_devices)

    @property
    def key(self) -> tuple[str | int, ...]:
        """The question: rows that share it are repetitions."""
        return (
            *(
                self.hardware.hardware_id,
                self.framework,
                self.framework_version,
                self.model.model_id,
                self.precision,
            ),
            *(
                self.plan.n_tensor,
                self.plan.n_sharing,
                self.has_expert_parallelism,
                self.n_decode_workers,
                "" if self.prefill is None else repr(self.prefill),
                self.load.prompt_tokens,
                self.load.output_tokens,
                self.load.concurrency,
            ),
        )

    @property
    def recipe(self) -> Recipe:
        """Settings with which the engine was started."""
        return recipe_of(self)

    @property
    def served(self) -> EngineSpec:
        """The engine with the number format of its KV cache.

        Recipes for Blackwell ask for 8 bit: rows of llama-3.1-70b, minimax-m2.5, kimi-k2.5 and
        glm-5 hold up to twice what would fit in 16 bit, without waiting.
        """
        is_8_bit = self.engine.quantization is not None and (
            self.framework == "trtllm" or self.hardware.is_blackwell
        )
        return replace(self.engine, kv_cache_dtype="float8") if is_8_bit else self.engine

    @property
    def replica_load(self) -> ClosedLoad:
        """The users of one replica of the attention: they are spread evenly."""
        n_users = -(-self.load.concurrency // self.decode.n_replicas)
        return replace(self.load, concurrency=n_users)


class PublishedLoads(NamedTuple):
    """The rows that can be simulated, and why others cannot."""

    loads: tuple[PublishedLoad, ...]
    left_out: Counter[str]


def published_loads(points: PublishedPointTable) -> PublishedLoads:
    """The closed loops of a table.

    The last of repeated rows counts; of one measurement under two names, the first. One whose
    workers another row states is repeated by it. Rows that state one measurement for different
    layouts are left out: at most one of them is right.
    """
    known = {model.model_id: first_of_shape(model) for model in load_models()}
    kept: dict[tuple[str | int, ...], PublishedLoad] = {}
    measured: set[tuple[object, ...]] = set()
    left_out: Counter[str] = Counter()
    unstated: list[tuple[object, ...]] = []
    for index in range(len(points.row)):
        model = _model_of(str(points.model[index]), known)
        why = _why_not(points, index, model)
        if why == _UNSTATED:
            unstated.append(_measurement(points, index))
        if why or model is None:
            left_out[why] += 1
            continue
        load = _load_of(points, index, model)
        if _ran_fewer_than_fit(load):
            left_out["max_num_seqs below the users, by the row's own times"] += 1
            continue
        same = (*_latencies_of(load), *_layout_of(load))
        left_out["repeated"] += load.key in kept or same in measured
        if same not in measured:
            kept[load.key] = load
        measured.add(same)
    stated = {
        _measurement(points, index)
        for index in range(len(points.row))
        if points.is_disaggregated[index] and points.prefill_workers[index] > 0
    }
    n_stated = sum(one in stated for one in unstated)
    left_out["repeated"] += n_stated
    left_out[_UNSTATED] -= n_stated
    found = _of_one_layout(kept.values())
    left_out["a measurement that another row states with another layout"] = len(kept) - len(found)
    impossible = {_series(one) for one in found if _computes_too_much(one)}
    loads = tuple(one for one in found if _series(one) not in impossible)
    left_out["more prompts computed than the device can, in the row's series"] = len(found) - len(
        loads
    )
    return PublishedLoads(loads, +left_out)


def _of_one_layout(loads: Iterable[PublishedLoad]) -> list[PublishedLoad]:
    """Rows whose values no other row gives for another layout of the devices."""
    layouts: dict[tuple[object, ...], set[tuple[object, ...]]] = defaultdict(set)
    alike = [(_latencies_of(one), one) for one in loads]
    for latencies, one in alike:
        layouts[latencies].add(_layout_of(one))
    return [one for latencies, one in alike if len(layouts[latencies]) == 1]


def _latencies_of(load: PublishedLoad) -> tuple[object, ...]:
    """The measured latencies; two servers do not agree in both to 10 µs.

    Some collections round their times to that.
    """
    ttft_s, tpot_s = load.ttft_s or math.nan, load.tpot_s or math.nan
    return (load.hardware.hardware_id, load.load, round(ttft_s, 5), round(tpot_s, 5))


def _layout_of(load: PublishedLoad) -> tuple[object, ...]:
    decode = (load.engine, load.n_sharing, load.n_decode_workers)
    return (*decode, load.has_expert_parallelism, load.prefill)


def _measurement(points: PublishedPointTable, index: int) -> tuple[object, ...]:
    """The measured row, without its prefill workers."""
    names = (points.hardware_id, points.framework, points.precision)
    numbers = (points.prompt_tokens, points.output_tokens, points.concurrency)
    found = (*(str(one[index]) for one in names), *(int(one[index]) for one in numbers))
    ttft_s, tpot_s = _seen(points, index)
    return (*found, round(ttft_s, 6), round(tpot_s, 8))  # of one float, written in two ways


def first_of_shape(model: ModelSpec) -> ModelSpec:
    """The catalogue's first model with these matrices: DeepSeek-R1 takes the time of DeepSeek-V3."""
    return _firsts_of_shapes().get(nameless(model), model)


@lru_cache(maxsize=1)
def _firsts_of_shapes() -> dict[ModelSpec, ModelSpec]:
    return {nameless(model): model for model in reversed(load_models())}


def _model_of(name: str, known: dict[str, ModelSpec]) -> ModelSpec | None:
    """The catalogue's model behind a published name; quantised variants have longer names."""
    low = name.lower().rpartition("/")[2]
    return next(
        (known[one] for one in sorted(known, key=len, reverse=True) if low.startswith(one)), None
    )


def scheduler_of(load: PublishedLoad) -> EngineConfig:
    """The engine's scheduler, with an unlimited KV cache where the loop cannot fill it.

    Raises
    ------
    SpecError
        The engine cannot hold such a request.
    """
    longest = load.load.prompt_tokens + load.load.output_tokens + _BLOCK_TOKENS
    budget = load.recipe.budget_tokens
    needed = load.replica_load.concurrency * longest
    room = _kv_tokens(load)
    tokens = 2 ** (math.ceil(math.log2(needed)) + 1) if room > needed else max(room, 2 * longest)
    block = 32 if load.framework == "trtllm" else 16
    own = {
        "vllm": {"enable_prefix_caching": "false"},
        "sglang": {"disable_radix_cache": "true", "max_prefill_tokens": str(budget)},
        "trtllm": {"enable_block_reuse": "false"},
    }
    shared = {
        "num_blocks": tokens // block,
        "block_size": block,
        "max_model_len": longest,
        "max_num_seqs": 2048,
        "max_num_batched_tokens": max(budget, 2048),
    }
    config = engine_config(load.framework, shared, own[load.framework], where=load.label)
    if load.load.prompt_tokens > config.max_prompt_tokens:
        text = f"prompts of {load.load.prompt_tokens} tokens"
        raise SpecError(
            text,
            where=load.label,
            allowed=f"up to {config.max_prompt_tokens} in a step of this engine",
        )
    return config


# Settings of the engines, as the start scripts of InferenceX give them: its rows state neither the
# step budget nor the share of the memory (SemiAnalysisAI/InferenceX@843c6254f,
# ``benchmarks/single_node``, and its versions at the dates of the rows).


def recipe_of(row: PublishedLoad) -> Recipe:
    """Settings of this row's engine; the defaults where no script is known."""
    usual = Recipe(BUDGETS[row.framework])
    is_drawn = (row.load.prompt_tokens, row.load.output_tokens) in DRAWN_LENGTHS
    if row.prefill is not None or not is_drawn:
        return usual
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[row.framework](row, usual)


def _vllm(row: PublishedLoad, usual: Recipe) -> Recipe:
    if row.model.model_id.startswith("minimax") and row.hardware.is_blackwell:
        return Recipe(2 * row.load.prompt_tokens)
    return usual


def _sglang(row: PublishedLoad, usual: Recipe) -> Recipe:
    # A request comes at any step between two looks: half of the interval is its mean wait.
    started = _sglang_started(row, usual)
    return started._replace(n_waited_steps=_steps_between_looks(row) // 2)


def _sglang_started(row: PublishedLoad, usual: Recipe) -> Recipe:
    model_id, precision = row.model.model_id, row.precision
    if (model_id, precision) == ("deepseek-v3", "fp8"):
        is_large = row.n_devices >= _LARGEST_GROUP
        return Recipe(32768) if is_large else Recipe(8192, memory_fraction=0.95)
    if model_id == "glm-5":
        return Recipe(32768 if row.hardware.is_blackwell else 8192)
    if model_id.startswith("qwen3.5") and precision in {"bf16", "fp4"}:
        return Recipe(32768)
    return usual


def _steps_between_looks(row: PublishedLoad) -> int:
    """Decode steps after which SGLang takes new requests (``--scheduler-recv-interval``)."""
    model_id, precision = row.model.model_id, row.precision
    is_deepseek, is_qwen = model_id == "deepseek-v3", model_id.startswith("qwen3.5")
    is_spread = row.plan.n_sharing > 1
    if not row.hardware.is_blackwell or is_spread or (model_id, precision) == ("glm-5", "fp8"):
        return 1
    if not (is_deepseek or is_qwen):
        return 10 if model_id == "glm-5" else 1
    on_b200 = row.hardware.hardware_id == "b200_sxm"
    is_never_late = (is_deepseek and precision == "fp8" and row.n_devices < _LARGEST_GROUP) or (
        is_qwen and precision == "fp8" and not on_b200
    )
    n_users_late = 5 if is_qwen and on_b200 and precision != "bf16" else 16
    return 10 if is_never_late or row.load.concurrency < n_users_late else 30


def _trtllm(row: PublishedLoad, usual: Recipe) -> Recipe:
    model_id, load = row.model.model_id, row.load
    if model_id == "deepseek-v3":
        of_batch = -(-(load.concurrency + load.prompt_tokens + 64) // 64) * 64
        is_later = row.framework_version.startswith(("1.2", "1.3"))
        budget = max(of_batch, _LEAST_SINCE_1_2) if is_later else of_batch
        return Recipe(budget, memory_fraction=0.8 if row.hardware.is_blackwell else 0.75)
    if model_id.startswith("gpt-oss"):
        return Recipe(20000, memory_fraction=0.85)
    is_short = (load.prompt_tokens, load.output_tokens) == (1024, 1024)
    if model_id.startswith("llama") and is_short and row.n_devices < _LARGEST_GROUP:
        return usual._replace(n_waited_steps=_WAITED_STEPS)
    return usual


def _kv_tokens(load: PublishedLoad) -> int:
    recipe = load.recipe
    # TensorRT-LLM gives the KV cache a share of what is free; the others share all of it.
    is_of_free = load.framework == "trtllm"
    question = MemoryQuestion(
        model=load.model,
        engine=load.served,
        hardware=load.hardware,
        context_tokens=1,
        prompt_tokens=recipe.budget_tokens,
        max_step_tokens=recipe.budget_tokens,
        block_tokens=_BLOCK_TOKENS,
        utilization_fraction=1.0 if is_of_free else recipe.memory_fraction,
        n_expert_shards=load.plan.n_sharing,
    )
    n_users = load.replica_load.concurrency
    n_blocks = n_kv_blocks_that_fit(question, max_num_seqs=n_users)
    return round(_BLOCK_TOKENS * n_blocks * (recipe.memory_fraction if is_of_free else 1.0))


def _ran_fewer_than_fit(load: PublishedLoad) -> bool:
    """Did fewer requests run than users and memory allowed (Little's law)?

    A request does not wait in vain while the prompts of all users are computed.
    """
    if load.prefill is not None or load.ttft_s is None or load.tpot_s is None:
        return False
    drawn = (1 + load.load.least_share_ratio) / 2
    decoded_s = drawn * load.load.output_tokens * load.tpot_s
    longest = load.load.prompt_tokens + load.load.output_tokens + _BLOCK_TOKENS
    room = _kv_tokens(load) / (load.replica_load.concurrency * longest)
    waited_s = max(load.ttft_s - _all_prompts_s(load), 0.0)
    return decoded_s / (waited_s + decoded_s) < _LEAST_RUNNING * min(room, 1.0)


def _computes_too_much(load: PublishedLoad) -> bool:
    """Do the prompts need more FLOP/s than the best matrix product reaches?

    By Little's law. Then they were not all computed (a prefix cache, repeated prompts), or the row
    is of another format.
    """
    if load.prefill is not None or load.n_sharing > 1 or not (load.ttft_s and load.tpot_s):
        return False
    drawn = (1 + load.load.least_share_ratio) / 2
    cycle_s = load.ttft_s + (drawn * load.load.output_tokens - 1) * load.tpot_s
    shape = prefill_shape(batch_size=1, prompt_tokens=round(drawn * load.load.prompt_tokens))
    flop = step_work(load.model, load.served, shape, plan=load.plan).total_flop
    formats = (load.engine.dtype, load.engine.quantization or load.engine.dtype)
    peaks = (load.hardware.peak_flop_per_s(one) for one in formats)
    peak = max((one.value for one in peaks if one is not None), default=math.inf)
    return load.load.concurrency / cycle_s * flop > _MOST_OF_PEAK * peak


def _series(load: PublishedLoad) -> tuple[str, ...]:
    """Rows that were measured in the same way."""
    device, version = load.hardware.hardware_id, load.framework_version
    return (device, load.framework, version, load.model.model_id, load.precision)


def _all_prompts_s(load: PublishedLoad) -> float:
    """Time to compute one prompt of each user at a usual share of the device's FLOP/s."""
    peak = load.hardware.peak_flop_per_s("bfloat16")
    if peak is None:
        return 0.0
    n_tokens = load.load.concurrency * load.load.prompt_tokens
    flop = 2 * n_active_parameters(load.model) * n_tokens
    return flop / (_PREFILL_MFU * peak.value * load.n_devices)


def _why_not(points: PublishedPointTable, index: int, model: ModelSpec | None) -> str:
    plan, framework = _plan_of(points, index), str(points.framework[index])
    is_apart = bool(points.is_disaggregated[index])
    reasons = {
        _UNSTATED: (
            is_apart and min(points.decode_workers[index], points.prefill_workers[index]) < 1
        ),
        "devices of several nodes, by their number alone": (
            not is_apart and not 1 <= points.n_devices[index] <= _LARGEST_GROUP
        ),
        "several servers, by the users of one batch alone": (
            not is_apart and points.decode_workers[index] > 1
        ),
        "a model that the catalogue does not have": model is None,
        "a device that the catalogue does not have": not points.hardware_id[index],
        "replicas of a dense model": (
            plan.n_sharing > 1 and model is not None and model.moe is None
        ),
        "speculation": bool(points.uses_speculation[index]),
        "an engine that is not simulated": engine_name(framework) not in BUDGETS,
        "a precision that is not known": str(points.precision[index]) not in _QUANTIZATIONS,
        "no latencies or no concurrency": (
            points.concurrency[index] < 1 or not all(value > 0 for value in _seen(points, index))
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


def _plan_of(points: PublishedPointTable, index: int) -> ParallelPlan:
    return ParallelPlan(
        n_tensor=max(int(points.tensor_parallel[index]), 1),
        n_sharing=max(int(points.data_parallel[index]), 1),
    )


def _prefill_of(points: PublishedPointTable, index: int) -> Workers | None:
    if not points.is_disaggregated[index]:
        return None
    plan = ParallelPlan(
        n_tensor=max(int(points.prefill_tensor_parallel[index]), 1),
        n_sharing=max(int(points.prefill_data_parallel[index]), 1),
    )
    return Workers(n_workers=int(points.prefill_workers[index]), plan=plan)


def _seen(points: PublishedPointTable, index: int) -> tuple[float, float]:
    """TTFT and TPOT (s): medians where they are published."""
    median = float(points.ttft_median_s[index]), float(points.tpot_median_s[index])
    return (
        (float(points.ttft_unnamed_s[index]), float(points.tpot_unnamed_s[index]))
        if math.isnan(median[0])
        else median
    )


def _load_of(points: PublishedPointTable, index: int, model: ModelSpec) -> PublishedLoad:
    precision, framework = str(points.precision[index]), str(points.framework[index])
    ttft_s, tpot_s = _seen(points, index)
    rate = float(points.device_output_tokens_per_s[index])
    lengths = int(points.prompt_tokens[index]), int(points.output_tokens[index])
    framework = engine_name(framework)
    is_named = math.isnan(float(points.ttft_unnamed_s[index]))
    is_spread = lengths in DRAWN_LENGTHS or not (is_named or framework in _IN_STEP)
    plan = _plan_of(points, index)
    return PublishedLoad(
        label=f"{points.source_file[index]} row {points.row[index]}",
        hardware=find_hardware(str(points.hardware_id[index])),
        model=model,
        engine=EngineSpec(
            engine="vllm",
            mode="compiled",
            dtype="bfloat16",
            device="cuda",
            quantization=_QUANTIZATIONS[precision],
            tensor_parallel_size=plan.n_tensor,
        ),
        n_sharing=plan.n_sharing,
        n_decode_workers=max(int(points.decode_workers[index]), 1),
        prefill=_prefill_of(points, index),
        has_expert_parallelism=model.moe is not None and bool(points.expert_parallel[index] > 1),
        framework=framework,
        framework_version=str(points.framework_version[index]),
        precision=precision,
        load=ClosedLoad(
            concurrency=int(points.concurrency[index]),
            prompt_tokens=lengths[0],
            output_tokens=lengths[1],
            least_share_ratio=_DRAWN_SHARE if is_spread else 1.0,
        ),
        statistic="mean" if is_spread and not is_named else "median",
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        device_output_tokens_per_s=None if math.isnan(rate) else rate,
    )
