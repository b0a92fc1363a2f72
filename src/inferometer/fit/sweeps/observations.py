"""Observed step times of sweeps, as data of a regression.

One observation is one phase of one point: the median over repetitions of the prefill, or of the
median decode step. Long generations are cut into segments, so that the growth of the context
shows. Warm-ups and failed points are left out. Letters of shapes: N observations, R repetitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.errors import ModelError
from inferometer.fit.sweeps.drift import (
    RESTLESS_RATIO,
    DriftCorrection,
    MachineState,
    Repetitions,
    between_times_ratio,
    estimate_drift,
    machine_states,
)
from inferometer.inputs.types import DTYPE_BITS, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.types import BatchShape
from inferometer.records.columns import F64, I64, Bools
from inferometer.records.types import ABSENT, Phase, PointStatus, Run, SweepTable

PhaseName: TypeAlias = Literal["prefill", "decode"]

SEGMENT_STEPS: Final = 64
"""Decode steps whose median makes one observation."""

_SCORE_BYTES: Final = 10
"""Live bytes per attention score in eager attention of one layer: 16-bit scores, their 32-bit
softmax and its 16-bit copy, rounded up."""

LEANER_TRAFFIC: Final = (3.0, 1.0)
"""Of sdpa on a cache that grows by copying, and of a fused kernel: see ``kv_traffic_ratio``."""

MIN_NOISE_RATIO: Final = 0.003
"""Least standard error of a median step time (log)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measured step time, the shape of the step, and its standard error."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    shape: BatchShape
    duration_s: float
    noise_ratio: float
    """Standard error of the logarithm of ``duration_s``, from the spread between repetitions."""
    n_repetitions: int

    @property
    def configuration(self) -> tuple[int, int]:
        """Point of the sweep without the generation length: the unit of cross-validation."""
        return (self.prompt_tokens, self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The observations of some runs of one model on one engine."""

    model: ModelSpec
    engine: EngineSpec
    attention_implementation: str | None
    run_ids: tuple[str, ...]
    rows: tuple[Observation, ...]
    computes_all_logits: bool
    kv_traffic_ratio: float
    """Bytes that attention moves for each byte of KV cache that decoding requests hold."""
    drift: DriftCorrection | None
    """Correction for machine speed; None without probes, or where it did not help."""
    machine_ratio: float
    """Standard deviation of the machine's log speed between these runs and another time."""
    captured_tokens: int = 0
    """The most tokens of a step with prompts that the engine captures as a graph."""

    def subset(self, keep: Sequence[bool]) -> "Observations":
        """The observations of the rows to keep."""
        return replace(
            self, rows=tuple(row for row, is_kept in zip(self.rows, keep, strict=True) if is_kept)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    """Repetitions of one observation: log seconds and the machine's speed at the time."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    shape: BatchShape
    repetitions: Repetitions


def observe(
    runs: Sequence[Run],
    *,
    hardware: HardwareSpec | None = None,
    is_drift_removed: bool | None = None,
) -> Observations:
    """The step times that these runs show.

    ``hardware`` names the device of published runs, whose engine settings do not state it. With
    ``is_drift_removed`` None, drift is removed where the probes explain the spread between
    repetitions of the same point.

    Raises
    ------
    ModelError
        No run, runs of different models or engines, or nothing that ended well.
    """
    model, engine = _subject(runs)
    if hardware is not None and runs[0].manifest.host is None:
        engine = replace(engine, device="cpu" if hardware.kind == "cpu" else "cuda")
    all_logits = any(
        computes_all_logits(run.sweep, model, engine) for run in runs if run.sweep is not None
    )
    samples = [
        sample
        for run in runs
        if run.sweep is not None
        for sample in _samples(run, run.sweep, all_logits=all_logits)
    ]
    if not samples:
        raise ModelError(
            "no point of these runs ended well",
            allowed="a sweep with at least one complete point",
            try_="inferometer sweep",
        )
    drift = (
        None
        if is_drift_removed is False
        else estimate_drift([sample.repetitions for sample in samples])
    )
    if drift is not None and is_drift_removed is None and not drift.helps:
        drift = None
    pooled = _pooled_spread(
        [_corrected(sample, drift)[~_is_restless(sample)] for sample in samples]
    )
    rows = tuple(_observation(sample, drift, pooled) for sample in samples)
    facts = runs[0].manifest.engine
    attention = _attention_of(engine) if facts is None else facts.attention_implementation
    return Observations(
        model=model,
        engine=engine,
        attention_implementation=attention,
        run_ids=tuple(run.manifest.run_id for run in runs),
        rows=rows,
        computes_all_logits=all_logits,
        kv_traffic_ratio=kv_traffic_ratio(model, engine, attention),
        drift=drift,
        machine_ratio=(between_times_ratio(runs, drift) if engine.device == "cpu" else 0.0),
    )


def _subject(runs: Sequence[Run]) -> tuple[ModelSpec, EngineSpec]:
    if not runs:
        raise ModelError("no run to fit", allowed="one or more runs of one model on one engine")
    subjects: list[tuple[ModelSpec, EngineSpec]] = []
    for run in runs:
        if run.sweep is None and run.requests is not None:
            raise ModelError(
                f"run {run.manifest.run_id} is one of requests, not a sweep",
                where="the run's tables",
                allowed="runs of inferometer sweep or quick, or tables of others",
                try_="inferometer show, or report",
            )
        if run.manifest.model is None or run.manifest.plan is None:
            raise ModelError(
                f"run {run.manifest.run_id} does not name the model or engine that it measured",
                where="the run's manifest",
                try_="for a table: --model MODEL --dtype DTYPE, and --hardware ID",
            )
        subjects.append((run.manifest.model, run.manifest.plan.engine))
    for run, subject in zip(runs, subjects, strict=True):
        if subject != subjects[0]:
            raise ModelError(
                f"runs {runs[0].manifest.run_id} and {run.manifest.run_id} measured different"
                " models or engine settings",
                allowed="runs of one model on one engine",
                try_="fit them apart",
            )
    return subjects[0]


def kv_traffic_ratio(
    model: ModelSpec, engine: EngineSpec, attention_implementation: str | None
) -> float:
    """Bytes that attention moves for each byte of KV cache of a decoding request.

    A fused kernel reads each byte once. Transformers' eager attention on a dynamic cache writes
    the grown cache anew (torch.cat: a read and a write), repeats it for each query head of a
    group (a read, g writes) and multiplies with the repeated tensors (g reads): 3 + 2g bytes.
    Its sdpa path on a dynamic cache still concatenates: 3 bytes. A compiled step has a mask, with
    which sdpa takes no groups, so heads are repeated there too: 1 + 2g bytes. That is 17 for
    Qwen2.5-3B, whose step on an H200 grows with the context as by 17.7 at the measured bandwidth
    (bench/results/h200_transformers).

    Source
    ------
    transformers 5.17, models/qwen2/modeling_qwen2.py (repeat_kv, eager_attention_forward),
    cache_utils.py (DynamicLayer.update), masking_utils.py (is_compileable), and
    integrations/sdpa_attention.py (use_gqa_in_sdpa); 5.23 packs the groups, except where it compiles.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> kv_traffic_ratio(find_model("qwen2.5-3b"), EngineSpec(mode="eager"), "eager")
    19.0
    """
    if engine.engine != "transformers" or model.mla is not None:
        return 1.0
    group = model.attention.n_heads // model.attention.n_kv_heads
    copies = 2.0 if engine.mode == "eager" else 0.0
    is_repeated = attention_implementation == "eager" or (
        attention_implementation == "sdpa" and engine.mode == "compiled"
    )
    return copies + (1.0 + 2.0 * group if is_repeated and group > 1 else 1.0)


def _attention_of(engine: EngineSpec) -> str | None:
    """Eager mode in a published table means eager attention; our own runs record theirs."""
    return "eager" if engine.engine == "transformers" and engine.mode == "eager" else None


def computes_all_logits(sweep: SweepTable, model: ModelSpec, engine: EngineSpec) -> bool:
    """Did the prefill compute the logits of every position?

    Such an engine shows it in the memory that it reserves: at least vocabulary · bytes per
    prompt token beside the cache, after what eager attention takes for its scores. Inferred from
    the growth between the smallest prefill and the others, on a GPU only (a process's resident
    set shows no such thing); without evidence the answer is no.
    """
    if engine.device != "cuda":
        return False
    known = (sweep.status == PointStatus.OK) & (sweep.reserved_bytes != ABSENT)
    n_rows = sweep.prompt_tokens[known].astype(np.float64) * sweep.batch_size[known]
    scores_bytes = _SCORE_BYTES * model.attention.n_heads * n_rows * sweep.prompt_tokens[known]
    grown_bytes = sweep.reserved_bytes[known] - scores_bytes
    larger = n_rows > n_rows.min(initial=np.inf)
    if not larger.any():
        return False
    smallest = int(np.argmin(n_rows))
    slope_bytes = (grown_bytes[larger] - grown_bytes[smallest]) / (
        n_rows[larger] - n_rows[smallest]
    )
    element_bytes = DTYPE_BITS[engine.dtype] / 8
    return bool(
        slope_bytes.min()
        > model.vocab_size * element_bytes + kv_bytes_per_token(model, engine.dtype)
    )


def _samples(run: Run, sweep: SweepTable, *, all_logits: bool) -> list[_Samples]:
    good = (sweep.status == PointStatus.OK) & ~sweep.is_warmup
    states = machine_states(run)
    samples: list[_Samples] = []
    for point in np.unique(sweep.point_index[good]):
        rows = np.flatnonzero(good & (sweep.point_index == point))
        prompt, batch = int(sweep.prompt_tokens[rows[0]]), int(sweep.batch_size[rows[0]])
        prefill = BatchShape(
            n_prefill_requests=batch,
            n_decode_requests=0,
            prefill_tokens=batch * prompt,
            prefill_context_product_tokens2=batch * prompt * (prompt + 1) // 2,
            decode_context_tokens=0,
            n_logit_positions=batch * prompt if all_logits else batch,
        )
        timed = rows[sweep.prefill_ns[rows] > 0]  # a table may lack it
        if timed.size:
            samples.append(
                _sample(
                    "prefill", prompt, batch, prefill, sweep.prefill_ns[timed], states.rows(timed)
                )
            )
        samples += _decode_samples(run, sweep, rows, states)
    return samples


def _decode_samples(run: Run, sweep: SweepTable, rows: I64, states: MachineState) -> list[_Samples]:
    prompt, batch, n_steps = (
        int(column[rows[0]])
        for column in (sweep.prompt_tokens, sweep.batch_size, sweep.n_decode_steps)
    )
    if n_steps < 1:
        return []
    by_repetition = _step_durations(run, sweep, rows)
    if by_repetition is None:
        timed = rows[sweep.decode_ns[rows] > 0]
        mean_ns = sweep.decode_ns[timed] / sweep.n_decode_steps[timed]
        shape = _decode_shape(batch, prompt + (n_steps + 1) / 2)
        return (
            [_sample("decode", prompt, batch, shape, mean_ns, states.rows(timed))]
            if timed.size
            else []
        )
    n_common = by_repetition.shape[1]
    samples: list[_Samples] = []
    for steps in np.array_split(np.arange(n_common), max(1, round(n_common / SEGMENT_STEPS))):
        median_ns = np.median(by_repetition[:, steps], axis=1)
        shape = _decode_shape(batch, prompt + 1 + float(steps.mean()))
        samples.append(_sample("decode", prompt, batch, shape, median_ns, states.rows(rows)))
    return samples


def _step_durations(run: Run, sweep: SweepTable, rows: I64) -> F64 | None:
    """Durations of the decode steps, one row per repetition in the order of ``rows``.

    None where steps were not recorded.
    """
    if run.steps is None:
        return None
    steps = run.steps
    found: list[F64] = []
    for row in rows:
        mine = (
            (steps.point_index == sweep.point_index[row])
            & (steps.repetition == sweep.repetition[row])
            & ~steps.is_warmup
            & (steps.phase == Phase.DECODE)
        )
        order = np.argsort(steps.start_ns[mine], kind="stable")
        found.append(steps.duration_ns[mine][order].astype(np.float64))
    n_common = min(durations.size for durations in found)
    return None if n_common == 0 else np.stack([durations[:n_common] for durations in found])


def _decode_shape(batch: int, context: float) -> BatchShape:
    return BatchShape(
        n_prefill_requests=0,
        n_decode_requests=batch,
        prefill_tokens=0,
        prefill_context_product_tokens2=0,
        decode_context_tokens=round(batch * context),
        n_logit_positions=batch,
    )


def _sample(
    phase: PhaseName,
    prompt: int,
    batch: int,
    shape: BatchShape,
    duration_ns: I64 | F64,
    state: MachineState,
) -> _Samples:
    repetitions = Repetitions(phase=phase, log_s=np.log(duration_ns / 1e9), state=state)
    return _Samples(
        phase=phase, prompt_tokens=prompt, batch_size=batch, shape=shape, repetitions=repetitions
    )


def _corrected(sample: _Samples, drift: DriftCorrection | None) -> F64:
    return sample.repetitions.log_s if drift is None else drift.applied(sample.repetitions)


def _pooled_spread(samples: list[F64]) -> float:
    """Median robust standard deviation between repetitions of a point (log); 0 if none."""
    spreads = [_robust_sd(sample) for sample in samples if sample.size > 2]
    return float(np.median(spreads)) if spreads else 0.0


def _robust_sd(sample: F64) -> float:
    return 1.4826 * float(np.median(np.abs(sample - np.median(sample))))


def _is_restless(sample: _Samples) -> Bools:
    return np.nan_to_num(sample.repetitions.state.unrest) > RESTLESS_RATIO


def _observation(sample: _Samples, drift: DriftCorrection | None, pooled: float) -> Observation:
    # Few repetitions know their own spread badly: two pooled repetitions are added to theirs. A
    # median is 1.25 as noisy as a mean.
    log_s = _corrected(sample, drift)
    is_restless = _is_restless(sample) & (drift is not None)
    quiet = log_s[~is_restless]
    own = _robust_sd(quiet) if quiet.size > 2 else pooled
    quiet_sd = max(
        float(np.sqrt((quiet.size * own**2 + 2 * pooled**2) / (quiet.size + 2))), MIN_NOISE_RATIO
    )
    restless_sd = max(quiet_sd, 0.0 if drift is None else drift.restless_ratio)
    # What a disturbed machine adds is common to the restless repetitions: together they count as
    # one.
    weights = 1 / np.where(
        is_restless, restless_sd**2 * max(int(is_restless.sum()), 1), quiet_sd**2
    )
    return Observation(
        phase=sample.phase,
        prompt_tokens=sample.prompt_tokens,
        batch_size=sample.batch_size,
        shape=sample.shape,
        duration_s=float(np.exp(_weighted_median(log_s, weights))),
        noise_ratio=max(float(1.25 / np.sqrt(weights.sum())), MIN_NOISE_RATIO),
        n_repetitions=log_s.size,
    )


def _weighted_median(values: F64, weights: F64) -> float:
    """Weighted median, interpolated between the middles of the weights' shares.

    Equal weights give the usual one.
    """
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(weights.sum() / 2, shares, values[order]))
