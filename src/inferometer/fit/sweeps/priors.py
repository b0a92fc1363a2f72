"""Priors of the step-time parameters: from measured ceilings, the datasheet, and mechanisms.

Every prior is log-normal (the sag: normal) and wide. Data override it; a parameter without data
keeps it, and the fit reports so (``informed_by``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.sweeps.observations import Observations
from inferometer.inputs.types import DTYPE_BITS, EngineSpec, HardwareSpec
from inferometer.perfmodel.steptime_limits import NO_TIME_S, peak_rates
from inferometer.perfmodel.steptime_terms import (
    PARAMETERS,
    VLLM_CAPTURED_TOKENS,
    WorkColumns,
)
from inferometer.records.columns import F64
from inferometer.records.repetitions import probes_of
from inferometer.records.summaries import StepShares, step_shares
from inferometer.records.types import ProbeKind, Run

_SD_IN_TURNS: Final = 0.15
"""Steps in turns are of short contexts, and of the machine's quieter moments."""
SMALL_KERNEL_S: Final = 2.8e-6
"""For a GPU; ``_floor`` has the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPrior:
    """Mean (logarithm; the sag as it is) and standard deviation of one parameter; 0 fixes it.

    ``why`` names the origin.
    """

    mean_ratio: float
    sd_ratio: float
    why: str
    upper_ratio: float = math.inf
    """Bound by the device's peak, on the scale of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """A prior for each of ``PARAMETERS``, and candidates for the staircase's strength."""

    parameters: tuple[ParameterPrior, ...]
    staircase_ratios: tuple[float, ...]
    """Candidate standard deviations of the staircase's knots; the evidence chooses."""

    def mean(self) -> F64:
        """The vector of means."""
        return np.array([prior.mean_ratio for prior in self.parameters])

    def sd(self) -> F64:
        """The vector of standard deviations."""
        return np.array([prior.sd_ratio for prior in self.parameters])

    def upper(self) -> F64:
        """The vector of upper bounds."""
        return np.array([prior.upper_ratio for prior in self.parameters])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured or datasheet peaks; None: unknown."""

    bytes_per_s: float | None
    flop_per_s: float | None
    is_measured: bool
    peaks: dict[str, float] = field(default_factory=dict[str, float])
    """The datasheet's, by the parameter that they bound; empty where no device is known."""
    steps: StepShares | None = None
    """Parts of a decode step, by steps of the model and of a narrow one in turns."""


BLEND_OF_GPU: Final = 2.0
"""Least squares of (W^b + M^b)^(1/b) on the linear layers' times of Llama-2-7B and 70B and
Llama-3-8B at 1 to 4096 tokens on A40, A100 and H100 give 1.6 to 2.4 (microsoft/vidur 7d47513,
data/profiling, MIT)."""


def ceilings_of(runs: Sequence[Run], engine: EngineSpec, hardware: HardwareSpec | None) -> Ceilings:
    """Peaks that the runs probed, else the datasheet's, which bound every rate."""
    peaks = {} if hardware is None else peak_rates(hardware, engine)
    read = _median_probe(runs, ProbeKind.READ, None)
    matmul = _median_probe(runs, ProbeKind.MATMUL, engine.dtype)
    if read is not None or matmul is not None:
        steps = next(filter(None, (step_shares(run.ceilings) for run in runs)), None)
        return Ceilings(
            bytes_per_s=read, flop_per_s=matmul, is_measured=True, peaks=peaks, steps=steps
        )
    if hardware is None:
        return Ceilings(bytes_per_s=None, flop_per_s=None, is_measured=False)
    peak = hardware.peak_flop_per_s(engine.dtype)
    return Ceilings(
        bytes_per_s=hardware.memory_bytes_per_s.value,
        flop_per_s=None if peak is None else peak.value,
        is_measured=False,
        peaks=peaks,
    )


class _Guess(NamedTuple):
    """Prior of one parameter: its median, the standard deviation of its logarithm, and why."""

    value: float
    log_sd: float
    why: str


def priors_of(seen: Observations, work: WorkColumns, log_s: F64, ceilings: Ceilings) -> Priors:
    """Priors for these observations."""
    seconds, is_gpu = np.exp(log_s), seen.engine.device == "cuda"
    read, flop = _read_rate(work, seconds, ceilings), _matmul_rate(work, seconds, ceilings)
    shortest = _Guess(0.7 * float(seconds.min()), 1.0, "a share of the shortest step")
    of_weights, of_launches = (read, shortest)
    if ceilings.steps is not None and not is_gpu:  # whose host runs ahead: steps do not add up
        of_weights, of_launches = _weights_and_launches(ceilings.steps)
    launch = of_launches.value
    has_link = bool(np.any(work.link_bytes > 0))
    table = {
        "launch_s": of_launches,
        "weight_bytes_per_s": of_weights,
        "kv_bytes_per_s": (
            0.4 * read.value,
            0.8,
            "below the bandwidth of weights: short rows, strided copies",
        ),
        "matmul_flop_per_s": flop,
        "attention_flop_per_s": _attention_rate(seen, read.value, flop.value),
        "per_sequence_s": (
            2e-6 * seen.model.n_layers if is_gpu else launch / 300,
            1.0 if is_gpu else 1.5,
            "small beside a launch",
        ),
        "link_bytes_per_s": (0.3 * read.value, 1.5 if has_link else 0.0, "below memory bandwidth"),
        "message_s": (2e-5, 1.5 if has_link else 0.0, "tens of microseconds"),
        "floor_s": _shortest_step(seen),
        "prefill_ratio": _prefill_launches(seen.engine),
        "overlap_ratio": (
            4.0 if is_gpu else 1.0,
            0.25 if is_gpu else 0.0,
            "host runs ahead of a GPU; a CPU does one thing after another",
        ),
        "blend_ratio": (
            BLEND_OF_GPU if is_gpu else 1.5,
            0.15 if is_gpu else 0.3,
            "GEMM sweeps between sum and maximum",
        ),
        "mixed_kv_ratio": (1.0, 0.0, "static batches never mix prefill and decode"),
    }
    parameters = [
        _prior(*table[name], ceilings.peaks.get(name, math.inf)) for name in PARAMETERS[:-1]
    ]
    why = "efficiency is nearly constant over many rows"
    parameters.append(ParameterPrior(mean_ratio=0.0, sd_ratio=0.05, why=why))
    return Priors(
        parameters=tuple(parameters),
        staircase_ratios=(0.0, 0.03, 0.06) if is_gpu else (0.0, 0.05, 0.1, 0.2, 0.4),
    )


def _prior(value: float, sd: float, why: str, peak: float) -> ParameterPrior:
    return ParameterPrior(
        mean_ratio=math.log(min(value, peak)),
        sd_ratio=sd,
        why=why,
        upper_ratio=math.log(peak),
    )


def _read_rate(work: WorkColumns, seconds: F64, ceilings: Ceilings) -> _Guess:
    """Prior of the rate at which weights are read (bytes/s).

    Batch-1 decode of a 0.5B model on a CPU reaches 75 to 90 % of the read probe beside it.
    """
    if ceilings.bytes_per_s is None:
        fastest = float(np.max((work.layer_bytes + work.head_bytes) / seconds))
        return _Guess(1.6 * fastest, 0.6, "the fastest step seen")
    return _Guess(
        0.8 * ceilings.bytes_per_s, 0.2 if ceilings.is_measured else 0.15, "memory ceiling"
    )


def _weights_and_launches(steps: StepShares) -> tuple[_Guess, _Guess]:
    """Priors of weight bandwidth and launch time, from one sequence's steps of two models in turns.

    All that is no launch goes with the weights: one row's products are nothing beside reading them.
    """
    launches = next(part.fraction for part in steps.parts if part.cause == "launch overhead")
    rows_s = steps.step_s.value * (1 - launches.value)
    launches_s = max(steps.step_s.value * launches.value, NO_TIME_S)
    return (
        _Guess(
            steps.weight_bytes / rows_s, _SD_IN_TURNS, "steps of this model and of a narrow one"
        ),
        _Guess(launches_s, _SD_IN_TURNS, "steps of a narrow model"),
    )


def _matmul_rate(work: WorkColumns, seconds: F64, ceilings: Ceilings) -> _Guess:
    """Prior of the rate of matrix products (FLOP/s)."""
    if ceilings.flop_per_s is None:
        fastest = float(np.max((work.matmul_flop + work.logits_flop) / seconds))
        return _Guess(1.2 * fastest, 0.5, "the fastest prefill seen")
    return _Guess(0.7 * ceilings.flop_per_s, 0.5, "matmul ceiling")


def _shortest_step(seen: Observations) -> _Guess:
    """Prior of the shortest time of a step (seconds), which its many small kernels take.

    A small kernel takes a GPU 2 to 3 µs. Eager transformers launches about 36 of them in a layer
    besides its products.

    Counted by torch.profiler in a step of transformers 5.17's Qwen2. Elsewhere fusion and graphs
    leave about ten. Layer operators of one row take 4 to 5 µs each on A40, A100 and H100 in
    microsoft/vidur 7d47513, data/profiling.
    """
    if seen.engine.device != "cuda":
        return _Guess(1e-12, 0.0, "a CPU has no kernels to launch")
    n_kernels = (
        36 if seen.engine.engine == "transformers" and seen.engine.mode != "compiled" else 10
    )
    floor_s = SMALL_KERNEL_S * n_kernels * seen.model.n_layers
    return _Guess(floor_s, 0.5, f"small kernels of a layer at {SMALL_KERNEL_S * 1e6:g} µs")


_LARGER_CAPTURES: Final = ("b200", "b300", "gb200", "gb300")
"""Devices of compute capability 10: there vLLM captures steps of twice as many tokens (as in
``VllmConfig._set_cudagraph_sizes`` of vLLM 0.32)."""


def captured_tokens(engine: EngineSpec, hardware: HardwareSpec | None) -> int:
    """The most tokens of a step with prompts that this engine captures as a graph.

    vLLM's sweeps run with so many sequences that it takes its most.
    """
    if engine.engine != "vllm" or engine.mode != "compiled" or engine.device != "cuda":
        return 0
    is_larger = hardware is not None and hardware.hardware_id.startswith(_LARGER_CAPTURES)
    return (2 if is_larger else 1) * VLLM_CAPTURED_TOKENS


def _prefill_launches(engine: EngineSpec) -> _Guess:
    """Prior of a prefill's launch time as a multiple of a decode step's.

    Launching a prefill costs transformers more host time: it also makes the cache and copies more.

    Measured without a device's work (36 layers of width 64, one thread, transformers 5.17): 8.96 ms
    against 7.19 ms with eager attention, 8.21 against 6.86 with sdpa. Where a GPU's decode step is
    one graph, a prefill is still launched kernel by kernel: 22.8 ms against 1.5 for Qwen2.5-3B
    (bench/results/h200_transformers), by vLLM 46 ms against 3 where it has more tokens than are
    captured (bench/results/h100_vllm).
    """
    if engine.mode == "compiled" and engine.device == "cuda" and engine.engine != "openvino":
        return _Guess(6.0, 1.2, "a prefill's kernels are launched, a decode step is one graph")
    if engine.engine != "transformers":
        return _Guess(1.0, 0.1, "a prefill is launched like a decode step")
    return _Guess(1.22, 0.08, "host time of a prefill against a decode step without device work")


def _attention_rate(seen: Observations, read: float, flop: float) -> _Guess:
    """Prior of the attention rate: eager attention computes and moves the whole square of scores.

    Per (query, key) pair of a causal prefill and head: two scores of 26 bytes each in 16 bit
    (product written; scale, mask and softmax to 32 bit read and written; cast back; read by the
    weighted sum) and twice 4·head_dim FLOP. Fused attention does neither.
    """
    if seen.attention_implementation != "eager":
        return _Guess(0.2 * flop, 1.0, "below the matrix products")
    useful_flop = 4.0 * seen.model.attention.head_dim
    score_bytes = 26.0 * DTYPE_BITS[seen.engine.dtype] / 16
    return _Guess(
        useful_flop / (2 * score_bytes / read + 2 * useful_flop / flop),
        0.5,
        "scores that pass through memory (eager attention)",
    )


def _median_probe(runs: Sequence[Run], kind: ProbeKind, dtype: str | None) -> float | None:
    found = [
        probes.value_per_s
        for run in runs
        if (probes := probes_of(run.ceilings, kind, dtype=dtype)) is not None
    ]
    return float(np.median(np.concatenate(found))) if found else None
