"""Step times as expected and at both ends of their interval, from a fit or from a datasheet.

Draws (plausible machines) are sampled from a fit's uncertainty: that of its parameters, and the
model error of each phase. The errors of decode and prefill are drawn independently, so a machine
that decodes slowly need not prefill slowly. Of many draws, those near the 5th, 10th, … 95th
percentile of both times of a typical request are used, among them the ones whose decode steps and
first tokens are spread as evenly. So the least and the most of any of these are the ends of a 90 %
interval, with less noise than a sample of that size. Letters of shapes: D draws, K free parameters.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.errors import ModelError, SpecError
from inferometer.inputs.types import DTYPE_BITS, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.matrices import Linear, linears, n_shards
from inferometer.perfmodel.roofline import (
    ParallelPlan,
    all_gather,
    matmul_flop_per_row,
    step_traffic,
)
from inferometer.perfmodel.scenario import BEST, LIKELY, WORST, Efficiency, fixed_step_s, peaks_at
from inferometer.perfmodel.steptime import FittedParameter, StepTimeModel, TrainedOn, arrays_of
from inferometer.perfmodel.steptime_limits import BoxRange, PhaseName
from inferometer.perfmodel.steptime_terms import (
    CAPTURED_TOKENS_OF_A_SEQUENCE,
    PARAMETERS,
    Staircase,
    StepParameters,
    StepTimeArrays,
    no_faster,
    parameters_of,
    slowed,
    term_columns,
)
from inferometer.perfmodel.types import (
    NOTHING_STATED,
    Basis,
    FitSubject,
    decode_shape,
    prefill_shape,
)
from inferometer.perfmodel.weights import expected_experts, linear_bits
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90, Estimate

N_DRAWS: Final = 19
_N_SAMPLED: Final = 400
_SEED: Final = 20261123
_BATCH: Final = 32
_PROMPT_TOKENS: Final = 1024
_OUTPUT_TOKENS: Final = 256
_OF_PROMPTS: Final = (
    "matmul_row_s",
    "expert_row_s",
    "attention_pair_s",
    "prefill_launch_s",
    "captured_launch_s",
)
"""Fields of ``StepTimeArrays`` that contribute much to prefills, and little to decode steps."""
_MOST_SPREADS: Final = 3.0
_NEIGHBOURS: Final = 9
"""Draws on either side of a quantile, not quite half of those between two."""
_N_DESCENTS: Final = 3
_ENDS_WEIGHT: Final = 4.0
LAUNCHED_SINGLY: Final = "kernels launched one by one, in 0.26 to 1.2 ms a layer (a prior of hosts)"
_STRIDE: Final = 11
"""Shares no factor with the number of draws, 19."""


class StepDraw(NamedTuple):
    """One plausible machine: its step times, and a request's time outside the engine."""

    steps: StepTimeArrays
    front_end_s: float


class _Draws(NamedTuple):
    """Parameters and factors of D plausible machines, of a phase's steps or of TTFT alone."""

    vector: F64
    """(D, parameters)"""
    log_ratio: F64
    """(D, knots) Log ratios of the staircase."""
    decode_ratio: F64
    prefill_ratio: F64
    front_end_s: F64
    first_token_ratio: F64


def drawn_steps(
    fit: StepTimeModel, arrays: Callable[[StepTimeModel], StepTimeArrays] = arrays_of
) -> tuple[StepDraw, ...]:
    """``N_DRAWS`` plausible machines, the fastest first; ``arrays`` converts each to numbers."""
    sampled = _posterior_draws(fit)
    decode_s, prefill_s = _phases_s(fit, sampled)
    # not their sum, so that the same draws are chosen whatever a setting does to either
    both_s = np.sqrt(decode_s * prefill_s)
    first_token_s = (prefill_s + sampled.front_end_s) * sampled.first_token_ratio
    chosen = _evenly_spread(np.stack([both_s, decode_s, first_token_s]))
    fastest = fit.at_peaks()
    bound = None if fastest is None else arrays(fastest)
    drawn = (_draw(fit, sampled, int(index), arrays) for index in chosen)
    return tuple(
        one if bound is None else one._replace(steps=no_faster(one.steps, bound)) for one in drawn
    )


def _posterior_draws(fit: StepTimeModel) -> _Draws:
    """``_N_SAMPLED`` plausible machines, sampled from the fit's posterior and its other errors."""
    posterior = fit.posterior()
    # a fixed seed, so that the same question has the same answer
    rng = np.random.default_rng(_SEED)
    normal = np.clip(
        rng.standard_normal((_N_SAMPLED, len(fit.free) + 3)), -_MOST_SPREADS, _MOST_SPREADS
    )
    values, axes = np.linalg.eigh(posterior.covariance)
    moves = normal[:, : len(fit.free)] * np.sqrt(np.maximum(values, 0.0)) @ axes.T
    places = [PARAMETERS.index(name) for name in fit.free if name in PARAMETERS]
    vector = np.tile(posterior.vector, (_N_SAMPLED, 1))
    vector[:, places] += moves[:, : len(places)]
    spreads = _spreads(fit)
    # separate streams, so that the draws of fits without these do not change
    others = [np.random.default_rng([_SEED, k]).standard_normal(_N_SAMPLED) for k in (1, 2)]
    machine, waits = np.clip(others, -_MOST_SPREADS, _MOST_SPREADS)
    front_end = fit.front_end_s
    return _Draws(
        vector=vector,
        log_ratio=posterior.staircase.log_ratio + moves[:, len(places) :],
        decode_ratio=np.exp(normal[:, -3] * spreads["decode"] + machine * fit.machine_ratio),
        prefill_ratio=np.exp(normal[:, -2] * spreads["prefill"] + machine * fit.machine_ratio),
        front_end_s=(
            np.zeros(_N_SAMPLED)
            if front_end is None
            else front_end.value * np.exp(normal[:, -1] * front_end.log_sd)
        ),
        first_token_ratio=np.exp(waits * fit.first_token_spread_ratio),
    )


def _spreads(fit: StepTimeModel) -> dict[PhaseName, float]:
    """Standard deviation of the logarithm of step times around the model, by phase."""
    known = {one.phase: one.spread_ratio * one.interval_ratio / Z_90 for one in fit.uncertainties}
    widest = max(known.values(), default=0.0)
    return {"decode": known.get("decode", widest), "prefill": known.get("prefill", widest)}


def _phases_s(fit: StepTimeModel, sampled: _Draws) -> tuple[F64, F64]:
    """(D) Device time of a typical request: its share of batched decode steps, and its prefill."""
    work = fit.work(
        [
            decode_shape(batch_size=_BATCH, context_tokens=_PROMPT_TOKENS + _OUTPUT_TOKENS // 2),
            prefill_shape(batch_size=1, prompt_tokens=_PROMPT_TOKENS),
        ]
    )
    staircase = Staircase(fit.posterior().staircase.log_rows, sampled.log_ratio)
    step_s = term_columns(sampled.vector.T[:, :, None], staircase, work).total_s
    decode_s = step_s[:, 0] * sampled.decode_ratio * _OUTPUT_TOKENS / _BATCH
    return np.asarray(decode_s), np.asarray(step_s[:, 1] * sampled.prefill_ratio)


def _evenly_spread(times_s: F64) -> list[int]:
    """Indices of draws whose times, (3, D), are near their ``N_DRAWS`` quantiles: fastest first.

    Those of the first row are next to them; which of the neighbours, descent finds for the others.
    """
    places = np.arange(1, N_DRAWS + 1) / (N_DRAWS + 1) * (_N_SAMPLED - 1)
    weights = np.where(np.isin(np.arange(N_DRAWS), (0, N_DRAWS - 1)), _ENDS_WEIGHT, 1.0)
    ranks = np.argsort(np.argsort(times_s, axis=1, kind="stable"), axis=1).T
    near = np.rint(places).astype(int)[:, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)
    candidates = np.argsort(times_s[0], kind="stable")[near]
    chosen = candidates[:, _NEIGHBOURS].copy()
    for index in list(range(N_DRAWS)) * _N_DESCENTS:
        moved = np.repeat(chosen[None], len(candidates[index]), axis=0)
        moved[:, index] = candidates[index]
        off = np.sort(ranks[moved], axis=1) - places[:, None]
        chosen[index] = candidates[index, np.argmin(np.einsum("mns,n->m", off**2, weights))]
    return [int(index) for index in chosen]


def _draw(
    fit: StepTimeModel, draws: _Draws, index: int, arrays: Callable[[StepTimeModel], StepTimeArrays]
) -> StepDraw:
    """The step times of one of the sampled machines."""
    physical = parameters_of(draws.vector[index])
    moved = replace(
        fit,
        parameters=tuple(
            replace(one, estimate=replace(one.estimate, value=value, low=value, high=value))
            for one in fit.parameters
            for value in [float(getattr(physical, one.name))]
        ),
        staircase_log_ratio=tuple(draws.log_ratio[index].tolist()),
    )
    decode_ratio = float(draws.decode_ratio[index])
    first_token_ratio = float(draws.first_token_ratio[index])
    # what makes first tokens later is waited in no step; earlier, their steps are shorter too
    prompts_ratio = float(draws.prefill_ratio[index]) * min(first_token_ratio, 1.0) / decode_ratio
    steps = slowed(arrays(moved), decode_ratio)
    steps = steps._replace(
        first_token_ratio=first_token_ratio,
        **{name: getattr(steps, name) * prompts_ratio for name in _OF_PROMPTS},
    )
    return StepDraw(steps, float(draws.front_end_s[index]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Expected step times, and both ends of their interval."""

    basis: Basis
    origin: str
    engine: EngineSpec
    likely: StepTimeArrays
    fast: StepTimeArrays
    slow: StepTimeArrays
    box: tuple[BoxRange, ...] = ()
    """The valid box of a fit; empty for a datasheet."""
    n_stages: int = 1
    """Stages of the pipeline."""
    front_end_s: float | None = None
    """Time of a request outside the engine; None if unknown (sweeps)."""
    front_end_ends_s: tuple[float, float] | None = None
    """That time with the fast and with the slow steps; None: the likely one, or each draw's own."""
    subject: FitSubject | None = None
    """Subject of the fit; None for a datasheet."""
    n_sharing: int = 1
    """Replicas that share their experts and take each step together."""
    draws: tuple[StepDraw, ...] = ()
    """Plausible machines, the fastest first; empty for a datasheet."""
    all_reduce_s: float | None = None
    """Latency of one all-reduce, if it was given."""
    machine_share_fraction: float | None = None
    """Of the variance of a step's log time, the part that all layouts share; None: of a datasheet."""

    def changed(
        self, change: Callable[[StepTimeArrays, Efficiency], StepTimeArrays], addition: str = ""
    ) -> "StepTimes":
        """The step times after a change of each level, to which its efficiency is given."""
        return replace(
            self,
            origin=self.origin + addition,
            likely=change(self.likely, LIKELY),
            fast=change(self.fast, BEST),
            slow=change(self.slow, WORST),
            draws=tuple(one._replace(steps=change(one.steps, LIKELY)) for one in self.draws),
        )


def datasheet_levels(
    model: ModelSpec,
    engine: EngineSpec,
    hardware: HardwareSpec,
    *,
    n_sharing: int = 1,
    all_reduce_s: float | None = None,
) -> StepTimes:
    """Step times from a datasheet: at its peaks, and at the likely and the lowest published shares.

    ``n_sharing`` replicas share their experts, and take each step together. ``all_reduce_s`` is the
    latency of one all-reduce; None: a prior.

    Raises
    ------
    SpecError
        The device does not compute in the format, several devices have no known link between them,
        or there are no experts to share.
    """
    if n_sharing > 1 and peaks_at(hardware, engine, LIKELY).link_bytes_per_s is None:
        raise SpecError(
            "no link between devices is known",
            where="--hardware",
            allowed="one device, or a link that is stated",
            try_=suggestions.flags("--link", "pcie4"),
        )
    levels = (
        level if all_reduce_s is None else replace(level, message_latency_s=all_reduce_s)
        for level in (BEST, LIKELY, WORST)
    )
    fast, likely, slow = (
        lockstep_arrays(datasheet_step_time(model, engine, hardware, level), n_replicas=n_sharing)
        for level in levels
    )
    stated = "" if all_reduce_s is None else f"; all-reduces of {1e6 * all_reduce_s:g} µs"
    shared = f"; experts shared by {n_sharing} replicas, all chosen alike" if n_sharing > 1 else ""
    return StepTimes(
        basis="datasheet",
        origin=(
            f"{_sheet_text(hardware)}: likely shares of its peaks, an engine with"
            f" graphs{stated}{shared}"
        ),
        engine=engine,
        likely=likely,
        fast=fast,
        slow=slow,
        front_end_s=LIKELY.front_end_s,
        front_end_ends_s=(BEST.front_end_s, WORST.front_end_s),
        n_sharing=n_sharing,
        all_reduce_s=all_reduce_s,
    )


def _sheet_text(hardware: HardwareSpec) -> str:
    """Source of the device's peaks, in words."""
    is_measured = hardware.memory_bytes_per_s.source.kind == "measured"
    return f"{'ceilings measured on' if is_measured else 'the datasheet of'} {hardware.name}"


def fitted_levels(fit: StepTimeModel, *, n_sharing: int = 1) -> StepTimes:
    """Step times of a fit, with draws of plausible machines.

    ``n_sharing`` replicas share their experts, and take each step together.

    Raises
    ------
    ModelError
        The fit does not state its uncertainty.
    """
    if not fit.uncertainties:
        raise ModelError(
            "these step times have no uncertainty",
            where="uncertainties",
            allowed="a fit's",
            try_="--hardware, for a datasheet's",
        )
    subject = fit.subject or NOTHING_STATED
    hardware = fit.trained_on.hardware or "a device that is not named"
    carried = (
        ""
        if subject.transferred_from is None
        else f", transferred from {subject.transferred_from} to {subject.device}"
    )

    def arrays(model: StepTimeModel) -> StepTimeArrays:
        return lockstep_arrays(model, n_replicas=n_sharing)

    draws = drawn_steps(fit, arrays)
    prefill = np.hypot(_spreads(fit)["prefill"], fit.machine_ratio)
    # with slow steps, the wait for which TTFT is at its own end: both at theirs are far beyond
    wait_ratio = float(np.exp(Z_90 * (np.hypot(prefill, fit.first_token_spread_ratio) - prefill)))
    return StepTimes(
        basis="fitted",
        origin=(
            f"fitted to {fit.trained_on.n_observations} step times on {hardware}{carried}, within a"
            f" factor of {fit.uncertainty_ratio:.2f}"
        ),
        engine=fit.engine,
        likely=arrays(fit),
        fast=draws[0].steps._replace(first_token_ratio=1 / wait_ratio),
        slow=draws[-1].steps._replace(first_token_ratio=wait_ratio),
        box=fit.box,
        front_end_s=None if fit.front_end_s is None else fit.front_end_s.value,
        subject=subject,
        n_sharing=n_sharing,
        draws=draws,
        machine_share_fraction=fit.machine_share_fraction,
    )


def captured_within(times: StepTimes, max_num_seqs: int) -> StepTimes:
    """The step times of a vLLM with this ``max_num_seqs``, which limits its captured graphs.

    vLLM captures steps of up to twice as many tokens (``VllmConfig._set_cudagraph_sizes``), at most
    as large as the fit's. Larger steps are launched kernel by kernel.
    """
    most = float(CAPTURED_TOKENS_OF_A_SEQUENCE * max_num_seqs)

    if times.likely.captured_tokens <= most:
        return times
    return times.changed(
        lambda steps, _: steps._replace(captured_tokens=min(steps.captured_tokens, most))
    )


def launched_singly(times: StepTimes, model: ModelSpec) -> StepTimes:
    """The step times without CUDA graphs (vLLM's ``--enforce-eager``).

    The host launches each kernel by itself; the longer of host and device counts, beside the work
    between steps. The host's time is a prior (``Efficiency``), over which draws are spread.
    """
    n_layers, n_draws = model.n_blocks / 2, len(times.draws)
    hosts_s = np.geomspace(BEST.eager_layer_s, WORST.eager_layer_s, 2 * n_draws + 1)[1::2]

    def singly(steps: StepTimeArrays, layer_s: float) -> StepTimeArrays:
        return steps._replace(singly_s=n_layers * layer_s, captured_tokens=0.0)

    changed = times.changed(
        lambda steps, reached: singly(steps, reached.eager_layer_s), f"; {LAUNCHED_SINGLY}"
    )
    draws = (
        one._replace(steps=singly(one.steps, float(hosts_s[_STRIDE * index % n_draws])))
        for index, one in enumerate(changed.draws)
    )
    return replace(changed, draws=tuple(draws))


# A datasheet has nothing about the host, the front end and the shapes of kernels: simulations with
# ``BEST``, ``LIKELY`` and ``WORST`` show how far the answer may be off.
_NOTHING_S: Final = 1e-12
"""Stands for 0 in parameters whose logarithm is taken."""
_BLEND: Final = {"everything": 64.0, "compute and memory": 64.0, "nothing": 1.0}
"""Blend exponent by what overlaps: 64 for the maximum of reading and multiplying, 1 for the sum."""


def datasheet_step_time(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, efficiency: Efficiency = LIKELY
) -> StepTimeModel:
    """Step-time model of a device at these shares of its peaks, under an engine with graphs.

    Raises
    ------
    SpecError
        The device does not compute in the format, or several devices have no known link between
        them.
    """
    peaks = peaks_at(hardware, engine, efficiency)
    if engine.tensor_parallel_size > 1 and peaks.link_bytes_per_s is None:
        raise SpecError(
            "no link between devices is known",
            where="--hardware",
            allowed="one device",
            try_="--tp 1",
        )
    parameters = StepParameters(
        launch_s=max(fixed_step_s(model, efficiency), _NOTHING_S),
        weight_bytes_per_s=peaks.memory_bytes_per_s,
        kv_bytes_per_s=peaks.kv_bytes_per_s,
        matmul_flop_per_s=peaks.flop_per_s,
        attention_flop_per_s=peaks.flop_per_s,
        per_sequence_s=_NOTHING_S,
        link_bytes_per_s=peaks.link_bytes_per_s or peaks.memory_bytes_per_s,
        message_s=max(peaks.message_latency_s, _NOTHING_S),
        floor_s=_NOTHING_S,
        prefill_ratio=1.0,
        overlap_ratio=1.0,
        blend_ratio=_BLEND[efficiency.overlap],
        sag_ratio=0.0,
    )
    return StepTimeModel(
        model=model,
        engine=engine,
        parameters=tuple(
            FittedParameter(name=name, estimate=_assumed(value), informed_by="fixed")
            for name, value in asdict(parameters).items()
        ),
        kv_traffic_ratio=1.0,
        staircase_rows=(),
        staircase_log_ratio=(),
        free=(),
        covariance=(),
        uncertainties=(),
        box=(),
        trained_on=TrainedOn(
            run_ids=(),
            hardware=hardware.name,
            attention_implementation=None,
            n_observations=0,
            n_configurations=0,
            is_drift_removed=False,
        ),
        held_out=(),
    )


def _assumed(value: float) -> Estimate:
    """A number from a datasheet as an estimate whose interval has no width."""
    return Estimate(
        value=value, low=value, high=value, confidence_fraction=0.9, n_samples=1, method="datasheet"
    )


# Data parallelism with expert parallelism, as in vLLM: each of D replicas schedules its own
# requests and stores 1/D of the experts. In every layer the tokens of all replicas are sent to the
# experts and back. So all replicas run each step together, and it takes as long as that of the
# busiest replica (``DPEngineCoreProc.run_busy_loop`` of vLLM 0.32.0). Attention, dense matrices and
# logits depend on a replica's own requests, the experts on the rows of all replicas
# (``steptime_terms.group_step_duration_s``). A replica may itself be split over devices (vLLM's
# ``--tensor-parallel-size`` beside ``--data-parallel-size``, SGLang's DP attention with fewer ranks
# than devices): each then stores a part of its replica's experts. Assumption: tokens choose all experts equally often;
# a device whose experts are chosen more often takes longer.


def check_sharing(model: ModelSpec, n_replicas: int) -> None:
    """Check that ``n_replicas`` replicas of this model can share their experts.

    Raises
    ------
    SpecError
        A dense model: its replicas need not wait for one another.
    """
    if n_replicas > 1 and model.moe is None:
        raise SpecError(
            f"{model.model_id!r} is dense: its replicas share no experts, and each steps by itself",
            where="--data-parallel-size",
            allowed="a mixture of experts",
            try_=suggestions.flags("--replicas", n_replicas) + ", in its place",
        )


def lockstep_arrays(model: StepTimeModel, *, n_replicas: int) -> StepTimeArrays:
    """Step times of a replica in a lockstep group, by its own tokens and the rows of all.

    Two exchanges in each layer of experts: every replica's rows are gathered by all, and results
    are summed and scattered. The reductions inside a replica that is split are of its own rows;
    they count as if all replicas had as many.

    Raises
    ------
    SpecError
        A dense model: its replicas need not wait for one another.
    """
    spec, physical = model.model, model.physical()
    if n_replicas == 1:
        return arrays_of(model)
    check_sharing(spec, n_replicas)
    whole, n_tensor = arrays_of(model), model.engine.tensor_parallel_size
    experts = [part for part in linears(spec) if part.n_copies > 1]
    dense = [part for part in linears(spec) if part.n_copies == 1]
    rows = np.exp(whole.read_log_rows)
    expert_bytes = np.array(
        [sum(_read_bytes(part, model, float(count)) for part in experts) for count in rows]
    )
    dense_bytes = sum(_read_bytes(part, model, 1.0) for part in dense)
    expert_flop = sum(
        2.0 * part.n_in * part.n_out * part.n_active_copies * part.n_layers for part in experts
    )
    expert_flop /= n_tensor
    dense_flop = matmul_flop_per_row(spec, n_tensor) - expert_flop
    n_sparse = spec.n_expert_layers
    row_bytes = spec.hidden_size * DTYPE_BITS[model.engine.dtype] / 8
    sent_bytes = 2 * n_sparse * all_gather(row_bytes / n_tensor, n_replicas).sent_bytes
    return whole._replace(
        read_s=(dense_bytes + expert_bytes / n_replicas) / physical.weight_bytes_per_s
        + physical.floor_s,
        matmul_row_s=dense_flop / physical.matmul_flop_per_s,
        expert_row_s=expert_flop / n_replicas / physical.matmul_flop_per_s,
        message_s=whole.message_s + 2 * n_sparse * physical.message_s,
        link_row_s=whole.link_row_s / n_replicas + sent_bytes / physical.link_bytes_per_s,
    )


def _read_bytes(part: Linear, model: StepTimeModel, n_rows: float) -> float:
    """Bytes of a matrix that a device reads; of experts, only those that some row is routed to."""
    touched = expected_experts(part.n_copies, part.n_active_copies, round(n_rows))
    share = part.n_runs * touched / part.n_copies
    n_devices = n_shards(part, model.engine.tensor_parallel_size)
    return linear_bits(part, model.engine) / 8 * part.n_weights * share / n_devices


# Pipeline parallelism: a step takes as long as on one group of devices, plus the transfer from each
# stage to the next. The stage with the most layers is the bottleneck, so every stage counts as if
# it had as many layers as that one.


def through_stages(
    times: StepTimes, model: ModelSpec, hardware: HardwareSpec | None, n_stages: int
) -> StepTimes:
    """The step times on ``n_stages`` pipeline stages: the sum of all stages, with transfers.

    Transfers between stages go over the network, for which PCIe's bandwidth is taken.

    Raises
    ------
    SpecError
        More stages than layers, or step times that are those of another number of stages.
    """
    if n_stages == times.n_stages:
        return times
    if times.n_stages != 1 or n_stages > model.n_layers:
        what = f"{model.n_layers} layers of {model.model_id!r} on {n_stages} pipeline stages"
        raise SpecError(
            what,
            where="pipeline_parallel_size",
            allowed=f"1 to {model.n_layers}, the same for all pools",
        )
    plan = ParallelPlan(n_tensor=times.engine.tensor_parallel_size, n_pipeline=n_stages)
    uneven_ratio = n_stages * plan.stage_fraction(model.n_layers)
    link = None if hardware is None else hardware.pcie_bytes_per_s or hardware.link_bytes_per_s
    hops = step_traffic(
        model, times.engine.dtype, replace(plan, n_tensor=1), n_rows=1, n_logit_positions=0
    )

    def piped(steps: StepTimeArrays, reached: Efficiency) -> StepTimeArrays:
        uneven = slowed(steps, uneven_ratio)
        if link is None:
            return uneven
        return uneven._replace(
            message_s=uneven.message_s + hops.n_messages * reached.message_latency_s,
            link_row_s=uneven.link_row_s
            + hops.sent_bytes / (link.value * reached.host_link_fraction),
        )

    unpriced = "" if link is not None else ", hand-overs between them left out (no link is known)"
    addition = f"; {n_stages} pipeline stages{unpriced}"
    return replace(times.changed(piped, addition), n_stages=n_stages)
