"""How fast was each point of a sweep, and how sure is that?

Every number is an Estimate over repetitions, or None.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from inferometer.inputs.types import SweepPoint
from inferometer.records.ceilings import judging_ceilings_per_s, matmul_probes_of, probes_of
from inferometer.records.repetitions import PointRepetitions, repetitions_of
from inferometer.records.types import CeilingTable, PointStatus, ProbeKind, Run
from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import median_estimate, relative_spread_ratio

Status: TypeAlias = Literal["ok", "out_of_memory", "failed"]

_STATUS: dict[PointStatus, Status] = {
    PointStatus.OK: "ok",
    PointStatus.OUT_OF_MEMORY: "out_of_memory",
    PointStatus.FAILED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """One sweep point over its repetitions: medians with 95 % intervals.

    A number that was not measured is None.

    Every surface (CSV, terminal, page, JSON) reads its numbers here. Speeds are computed from the
    times that stand beside them, so a reader can compute one from the other:
    ``decode_tokens_per_s`` is batch / ``tpot_s``.
    """

    point_index: int
    point: SweepPoint
    status: Status
    n_reps: int
    n_decode_steps: int | None
    """Decode steps of a repetition: one less than the generated tokens where the prefill yields
    the first of them."""
    prefill_s: Estimate | None
    tpot_s: Estimate | None
    """Time per output token: decode time / decode steps, stalls included. The same for every
    sequence of a static batch."""
    decode_step_s: Estimate | None
    """Median decode step: of the steps of a repetition where steps were recorded (a single stall
    does not move it), else TPOT."""
    ttft_s: Estimate | None
    """In a static batch every first token comes with the end of the prefill."""
    prefill_tokens_per_s: Estimate | None
    """Prompt tokens of the batch / ``prefill_s``."""
    decode_tokens_per_s: Estimate | None
    """Output tokens of the decode steps / decode time: batch / ``tpot_s``."""
    output_tokens_per_s: Estimate | None
    """Batch · generated / (prefill + decode): output tokens over the whole time."""
    total_tokens_per_s: Estimate | None
    """(batch · prompt + batch · generated) / (prefill + decode): input and output tokens."""
    reserved_bytes: Estimate | None
    allocated_bytes: Estimate | None
    read_bytes_per_s: Estimate | None
    """The memory's measured ceiling at that time; see ``records.ceilings``."""
    matmul_flop_per_s: Estimate | None
    """The measured matmul ceiling at that time, in the engine's number format."""
    cpu_fraction: Estimate | None
    device_fraction: Estimate | None
    energy_joule: Estimate | None
    """Of one repetition: the whole batch, prefill and decode."""
    power_watt: Estimate | None
    """Mean over a repetition."""
    energy_joule_per_token: Estimate | None
    """Of output; its inverse is output tokens per second and watt."""
    prefill_spread_ratio: float | None
    """Robust relative spread between the repetitions (1.4826 · MAD / median)."""
    decode_spread_ratio: float | None


def summarise_points(run: Run) -> tuple[PointSummary, ...]:
    """How fast was each point?

    Ordered by prompt, batch and generated tokens; empty for a run without a sweep.

    A point that ran out of memory or failed is there, with what its good repetitions told (mostly
    nothing).
    """
    read_probes = probes_of(run.ceilings, ProbeKind.READ)
    matmul_probes = matmul_probes_of(run)
    return tuple(_summarise(point, read_probes, matmul_probes) for point in repetitions_of(run))


def _summarise(
    point: PointRepetitions, read_probes: CeilingTable | None, matmul_probes: CeilingTable | None
) -> PointSummary:
    prefill_s, tpot_s = median_estimate(point.prefill_s), median_estimate(point.tpot_s)
    n_decode_steps = point.n_decode_steps[~np.isnan(point.n_decode_steps)]
    batch, n_prompt_tokens = (
        point.point.batch_size,
        point.point.batch_size * point.point.prompt_tokens,
    )
    return PointSummary(
        point_index=point.point_index,
        point=point.point,
        status=_STATUS[point.status],
        n_reps=point.n_reps,
        n_decode_steps=int(np.median(n_decode_steps)) if len(n_decode_steps) else None,
        prefill_s=prefill_s,
        tpot_s=tpot_s,
        decode_step_s=median_estimate(point.decode_step_s),
        ttft_s=prefill_s,
        prefill_tokens_per_s=None if prefill_s is None else prefill_s.inverted(n_prompt_tokens),
        decode_tokens_per_s=None if tpot_s is None else tpot_s.inverted(batch),
        output_tokens_per_s=median_estimate(point.output_tokens_per_s),
        total_tokens_per_s=median_estimate(point.total_tokens_per_s),
        reserved_bytes=median_estimate(point.reserved_bytes),
        allocated_bytes=median_estimate(point.allocated_bytes),
        read_bytes_per_s=median_estimate(judging_ceilings_per_s(point, read_probes)),
        matmul_flop_per_s=median_estimate(judging_ceilings_per_s(point, matmul_probes)),
        cpu_fraction=median_estimate(point.cpu_fraction),
        device_fraction=median_estimate(point.device_fraction),
        energy_joule=median_estimate(point.energy_joule),
        power_watt=median_estimate(point.power_watt),
        energy_joule_per_token=median_estimate(
            point.energy_joule / (batch * point.point.gen_tokens)
        ),
        prefill_spread_ratio=relative_spread_ratio(point.prefill_s),
        decode_spread_ratio=relative_spread_ratio(point.decode_step_s),
    )
