"""How fast was each point of a sweep, and how sure is that? Every number is an Estimate over repetitions, or None."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from inferometer.records.ceilings import judging_ceilings_per_s, matmul_probes_of, probes_of
from inferometer.records.repetitions import PointRepetitions, repetitions_of
from inferometer.records.types import CeilingTable, PointStatus, ProbeKind, Run
from inferometer.spec.types import SweepPoint
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
    """One sweep point over its repetitions: medians with 95 % intervals. What nobody could tell is None.

    Three views of a decode token are kept apart, because they differ:

    ``decode_step_s``
        one decode step of the whole batch: the median of the steps of a repetition where steps were recorded
        (a single stall does not move it), else decode time / steps.
    ``tpot_s``
        decode time / decode steps, stalls included: TPOT of every sequence of the static batch.
    ``decode_gen_token_s``
        decode time / generated tokens per sequence, *decode p50 ms/tok* of the M1 table. Where the first of the
        generated tokens comes from the prefill there is one step less than tokens, and it is smaller than ``tpot_s``.
    """

    point_index: int
    point: SweepPoint
    status: Status
    n_reps: int
    prefill_s: Estimate | None
    decode_step_s: Estimate | None
    tpot_s: Estimate | None
    decode_gen_token_s: Estimate | None
    ttft_s: Estimate | None
    """In a static batch every first token comes with the end of the prefill."""
    prefill_tokens_per_s: Estimate | None
    decode_tokens_per_s: Estimate | None
    """Output tokens of the decode steps / their time."""
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
    prefill_spread_ratio: float | None
    """Robust relative spread between the repetitions (1.4826 · MAD / median)."""
    decode_spread_ratio: float | None


def summarise_points(run: Run) -> tuple[PointSummary, ...]:
    """How fast was each point? Ordered by prompt, batch and generated tokens; empty for a run without a sweep.

    A point that ran out of memory or failed is there, with what its good repetitions told (mostly nothing).
    """
    read_probes = probes_of(run.ceilings, ProbeKind.READ)
    matmul_probes = matmul_probes_of(run)
    return tuple(_summarise(point, read_probes, matmul_probes) for point in repetitions_of(run))


def _summarise(point: PointRepetitions, read_probes: CeilingTable | None, matmul_probes: CeilingTable | None) -> PointSummary:
    prefill_s = median_estimate(point.prefill_s)
    return PointSummary(
        point_index=point.point_index,
        point=point.point,
        status=_STATUS[point.status],
        n_reps=point.n_reps,
        prefill_s=prefill_s,
        decode_step_s=median_estimate(point.decode_step_s),
        tpot_s=median_estimate(point.tpot_s),
        decode_gen_token_s=median_estimate(point.decode_gen_token_s),
        ttft_s=prefill_s,
        prefill_tokens_per_s=median_estimate(point.prefill_tokens_per_s),
        decode_tokens_per_s=median_estimate(point.decode_tokens_per_s),
        total_tokens_per_s=median_estimate(point.total_tokens_per_s),
        reserved_bytes=median_estimate(point.reserved_bytes),
        allocated_bytes=median_estimate(point.allocated_bytes),
        read_bytes_per_s=median_estimate(judging_ceilings_per_s(point, read_probes)),
        matmul_flop_per_s=median_estimate(judging_ceilings_per_s(point, matmul_probes)),
        cpu_fraction=median_estimate(point.cpu_fraction),
        device_fraction=median_estimate(point.device_fraction),
        energy_joule=median_estimate(point.energy_joule),
        prefill_spread_ratio=relative_spread_ratio(point.prefill_s),
        decode_spread_ratio=relative_spread_ratio(point.decode_step_s),
    )


__all__ = ["PointSummary", "Status", "summarise_points"]
