"""What is known about a step-time parameter before any step was timed.

From the machine's ceilings, its datasheet, its mechanism?

Every prior is a log-normal (the sag: normal) with a width that says how little it is meant to say.
Parameters that the data tell do not feel it; parameters that they do not tell come out as the
prior, and the fit says so (``told_by``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from inferometer.errors import SpecError
from inferometer.fit.sweeps.observations import Observations
from inferometer.perfmodel.roofline import peaks_of
from inferometer.perfmodel.steptime_terms import PARAMETERS, WorkColumns
from inferometer.records.ceilings import probes_of
from inferometer.records.columns import F64
from inferometer.records.types import ProbeKind, Run
from inferometer.spec.types import DTYPE_BITS, EngineSpec, HardwareSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Centre (logarithm; the sag as it is) and standard deviation of one parameter; 0 fixes it.

    ``why`` says where it is from.
    """

    centre_ratio: float
    deviation_ratio: float
    why: str
    highest_ratio: float = math.inf
    """What the device's peak allows at most, as the centre is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """One belief for each of ``PARAMETERS``, and how strongly the staircase may deviate from smooth."""

    beliefs: tuple[Belief, ...]
    staircase_ratios: tuple[float, ...]
    """Standard deviations of the staircase's knots that are tried; the data choose."""

    def centre(self) -> F64:
        """The vector of centres."""
        return np.array([belief.centre_ratio for belief in self.beliefs])

    def deviation(self) -> F64:
        """The vector of standard deviations."""
        return np.array([belief.deviation_ratio for belief in self.beliefs])

    def highest(self) -> F64:
        """The vector of upper bounds."""
        return np.array([belief.highest_ratio for belief in self.beliefs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured or datasheet peaks, None where nobody told."""

    bytes_per_s: float | None
    flop_per_s: float | None
    is_measured: bool
    peaks: dict[str, float] = field(default_factory=dict[str, float])
    """The datasheet's, by the parameter that they bound; empty where no device is known."""


BLEND_OF_GPU: Final = 2.0
"""Least squares of (W^b + M^b)^(1/b) on the linear layers' times of Llama-2-7B and 70B and
Llama-3-8B at 1 to 4096 tokens on A40, A100 and H100 give 1.6 to 2.4 (microsoft/vidur 7d47513,
data/profiling, MIT)."""


def ceilings_of(runs: Sequence[Run], engine: EngineSpec, hardware: HardwareSpec | None) -> Ceilings:
    """The peaks to start from: those that the runs probed, else the datasheet's, which bound every rate."""
    peaks = {} if hardware is None else peak_rates(hardware, engine)
    read = _median_probe(runs, ProbeKind.READ, None)
    matmul = _median_probe(runs, ProbeKind.MATMUL, engine.dtype)
    if read is not None or matmul is not None:
        return Ceilings(bytes_per_s=read, flop_per_s=matmul, is_measured=True, peaks=peaks)
    if hardware is None:
        return Ceilings(bytes_per_s=None, flop_per_s=None, is_measured=False)
    peak = hardware.peak_flop_per_s(engine.dtype)
    return Ceilings(
        bytes_per_s=hardware.memory_bytes_per_s.value,
        flop_per_s=None if peak is None else peak.value,
        is_measured=False,
        peaks=peaks,
    )


def peak_rates(hardware: HardwareSpec, engine: EngineSpec) -> dict[str, float]:
    """What no step of one device can exceed, by the parameter.

    Of products, the peak of the fastest format that takes part.
    """
    memory = hardware.memory_bytes_per_s.value
    found = {"weight_bytes_per_s": memory, "kv_bytes_per_s": memory}
    try:
        peaks = peaks_of(hardware, engine)
    except SpecError:  # the catalogue has no peak in this format, so nothing bounds its products
        return found
    of_weights = (
        None if engine.quantization is None else hardware.peak_flop_per_s(engine.quantization)
    )
    flop_per_s = max(peaks.flop_per_s, 0.0 if of_weights is None else of_weights.value)
    found |= {"matmul_flop_per_s": flop_per_s, "attention_flop_per_s": flop_per_s}
    return (
        found
        if peaks.link_bytes_per_s is None
        else found | {"link_bytes_per_s": peaks.link_bytes_per_s}
    )


def priors_of(seen: Observations, work: WorkColumns, log_s: F64, ceilings: Ceilings) -> Priors:
    """What to believe before fitting these observations."""
    engine, seconds = seen.engine, np.exp(log_s)
    is_gpu = engine.device == "cuda"
    fastest_read = float(np.max((work.layer_bytes + work.head_bytes) / seconds))
    fastest_flop = float(np.max((work.matmul_flop + work.logits_flop) / seconds))
    if ceilings.bytes_per_s is None:
        read, read_sd, read_why = 1.6 * fastest_read, 0.6, "the fastest step seen"
    else:
        # Batch-1 decode of a 0.5B model on a CPU reaches 75 to 90 % of what the read probe does
        # beside it.
        read, read_sd, read_why = (
            0.8 * ceilings.bytes_per_s,
            0.2 if ceilings.is_measured else 0.15,
            "memory ceiling",
        )
    if ceilings.flop_per_s is None:
        flop, flop_sd, flop_why = 1.2 * fastest_flop, 0.5, "the fastest prefill seen"
    else:
        flop, flop_sd, flop_why = 0.7 * ceilings.flop_per_s, 0.5, "matmul ceiling"
    launch = 0.7 * float(seconds.min())
    has_link = bool(np.any(work.link_bytes > 0))
    table = {
        "launch_s": (launch, 1.0, "a share of the shortest step"),
        "weight_bytes_per_s": (read, read_sd, read_why),
        "kv_bytes_per_s": (
            0.4 * read,
            0.8,
            "below the bandwidth of weights: short rows, strided copies",
        ),
        "matmul_flop_per_s": (flop, flop_sd, flop_why),
        "attention_flop_per_s": _attention(seen, read, flop),
        "per_sequence_s": (
            2e-6 * seen.model.n_layers if is_gpu else launch / 300,
            1.0 if is_gpu else 1.5,
            "small beside a launch",
        ),
        "link_bytes_per_s": (0.3 * read, 1.5 if has_link else 0.0, "below memory bandwidth"),
        "message_s": (2e-5, 1.5 if has_link else 0.0, "tens of microseconds"),
        "floor_s": _floor(seen),
        "prefill_ratio": _prefill(seen.engine),
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
    beliefs = [
        _belief(*table[name], ceilings.peaks.get(name, math.inf)) for name in PARAMETERS[:-1]
    ]
    beliefs.append(
        Belief(
            centre_ratio=0.0,
            deviation_ratio=0.05,
            why="efficiency is nearly constant over many rows",
        )
    )
    return Priors(
        beliefs=tuple(beliefs),
        staircase_ratios=(0.0, 0.03, 0.06) if is_gpu else (0.0, 0.05, 0.1, 0.2, 0.4),
    )


def _belief(value: float, deviation: float, why: str, peak: float) -> Belief:
    return Belief(
        centre_ratio=math.log(min(value, peak)),
        deviation_ratio=deviation,
        why=why,
        highest_ratio=math.log(peak),
    )


def _floor(seen: Observations) -> tuple[float, float, str]:
    """A small kernel takes a GPU 2 to 3 µs.

    Eager transformers launches about 36 of them in a layer besides its products.

    Counted by torch.profiler in a step of transformers 5.17's Qwen2. Elsewhere fusion and graphs
    leave about ten. Layer operators of one row take 4 to 5 µs each on A40, A100 and H100 in
    microsoft/vidur 7d47513, data/profiling.
    """
    if seen.engine.device != "cuda":
        return (1e-12, 0.0, "a CPU has no kernels to launch")
    n_kernels = (
        36 if seen.engine.engine == "transformers" and seen.engine.mode != "compiled" else 10
    )
    return (2.8e-6 * n_kernels * seen.model.n_layers, 0.5, "small kernels of a layer at 2.8 µs")


def _prefill(engine: EngineSpec) -> tuple[float, float, str]:
    """Launching a prefill costs transformers more host time than a decode step.

    It also makes the cache and copies more.

    Measured without a device's work (36 layers of width 64, one thread, transformers 5.17): 8.96 ms
    against 7.19 ms with eager attention, 8.21 against 6.86 with sdpa.
    """
    if engine.engine != "transformers":
        return (1.0, 0.1, "a prefill is launched like a decode step")
    return (1.22, 0.08, "host time of a prefill against a decode step without device work")


def _attention(seen: Observations, read: float, flop: float) -> tuple[float, float, str]:
    """Eager attention computes the whole square of scores and moves each through memory; fused attention does neither.

    Per (query, key) pair of a causal prefill and head: two scores of 26 bytes each in 16 bit
    (product written; scale, mask and softmax to 32 bit read and written; cast back; read by the
    weighted sum) and twice 4·head_dim FLOP.
    """
    if seen.attention_implementation != "eager":
        return (0.2 * flop, 1.0, "below the matrix products")
    useful_flop = 4.0 * seen.model.attention.head_dim
    score_bytes = 26.0 * DTYPE_BITS[seen.engine.dtype] / 16
    return (
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
