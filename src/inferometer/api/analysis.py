"""What do runs say together: summaries, a step-time model, and a row for each point?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from inferometer.api.answer import row_of
from inferometer.errors import ModelError
from inferometer.fit.sweeps.step_time import HeldOutPoint, fit_and_validate
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec, SweepPoint
from inferometer.perfmodel.roofline import exact, mbu_fraction, mfu_fraction, step_work
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.types import (
    BatchShape,
    StepPrediction,
    StepWork,
    decode_shape,
    prefill_shape,
)
from inferometer.records.summaries import (
    PointSummary,
    StepShares,
    TokenCostChange,
    collapses,
    flag_text,
    step_shares,
    summarise_points,
)
from inferometer.records.sweep_csv import SweepRow
from inferometer.records.types import Run
from inferometer.report.views import PhaseName, PointRow
from inferometer.stats.estimate import Z_90, Estimate

_MOST_KV_FRACTION: Final = 0.1
"""KV cache beside the weights: the paired steps hold nearly none, so a step that reads more is not like them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One run with its fitted model; without one, ``why_no_model`` says why."""

    label: str
    run: Run
    path: Path
    points: tuple[PointSummary, ...]
    collapses: tuple[TokenCostChange, ...]
    model: StepTimeModel | None
    why_no_model: str | None
    held_out: tuple[HeldOutPoint, ...]
    hardware: HardwareSpec | None
    """The datasheet to judge by, where one was named."""
    steps: StepShares | None
    """Parts of a decode step, by steps of two widths; None where none were measured."""


def analyse(run: Run, path: Path, *, label: str, hardware: HardwareSpec | None = None) -> Analysis:
    """Summarise a run and, where its data suffice, fit a model to it."""
    model: StepTimeModel | None = None
    why: str | None = None
    held_out: tuple[HeldOutPoint, ...] = ()
    try:
        model, held_out = fit_and_validate([run], hardware=hardware)
    except ModelError as error:
        why = error.what
    return Analysis(
        label=label,
        run=run,
        path=path,
        points=summarise_points(run),
        collapses=collapses(run),
        model=model,
        why_no_model=why,
        held_out=held_out,
        hardware=hardware,
        steps=step_shares(run.ceilings),
    )


def label_runs(runs: Sequence[Run]) -> tuple[str, ...]:
    """The shortest labels that distinguish the runs: their differences, else their ids."""
    candidates = [[_engine_words(run) for run in runs], [_model_words(run) for run in runs]]
    for words in candidates:
        if len(set(words)) == len(runs):
            return tuple(words)
    both = [f"{model} {engine}" for engine, model in zip(*candidates, strict=True)]
    return (
        tuple(both) if len(set(both)) == len(runs) else tuple(run.manifest.run_id for run in runs)
    )


def _engine_words(run: Run) -> str:
    plan = run.manifest.plan
    if plan is None:
        return _own_name(run)
    engine = plan.engine
    if run.manifest.origin == "published":  # --mode and --dtype name no engine
        modes = [] if engine.mode == "eager" else [engine.mode]
        return " ".join((_own_name(run), *modes, engine.dtype))
    words = [engine.engine, engine.mode, engine.dtype] + (
        [f"tp{engine.tensor_parallel_size}"] if engine.tensor_parallel_size > 1 else []
    )
    return " ".join(words)


def _model_words(run: Run) -> str:
    return run.manifest.model.model_id if run.manifest.model is not None else _own_name(run)


def _own_name(run: Run) -> str:
    """A table is called by its file."""
    source = run.manifest.source
    return source.where if source is not None else run.manifest.run_id


def decode_shape_of(point: SweepPoint) -> BatchShape:
    """The middle decode step of a point: its context is the prompt and half of what is generated."""
    return decode_shape(
        batch_size=point.batch_size,
        context_tokens=point.prompt_tokens + max(1, point.gen_tokens // 2),
    )


def prefill_shape_of(point: SweepPoint) -> BatchShape:
    """The prefill of a point."""
    return prefill_shape(batch_size=point.batch_size, prompt_tokens=point.prompt_tokens)


def work_of(analysis: Analysis, shape: BatchShape) -> StepWork | None:
    """Work of this step; None where the run does not name its model."""
    manifest = analysis.run.manifest
    if manifest.model is None or manifest.plan is None:
        return None
    return step_work(manifest.model, manifest.plan.engine, shape)


def held_out_estimate(point: HeldOutPoint) -> Estimate:
    """Prediction for a held-out point, with its 90 % interval."""
    half_width = Z_90 * point.log_deviation_ratio
    return Estimate(
        value=point.predicted_s,
        low=point.predicted_s * math.exp(-half_width),
        high=point.predicted_s * math.exp(half_width),
        confidence_fraction=0.9,
        n_samples=1,
        method=f"held out, {point.n_folds} folds",
    )


def point_rows(analysis: Analysis) -> tuple[PointRow, ...]:
    """The rows of a run, ordered by prompt, batch and generated tokens."""
    held_out: dict[tuple[str, int, int], HeldOutPoint] = {}
    for point in analysis.held_out:
        held_out.setdefault((point.phase, point.prompt_tokens, point.batch_size), point)
    return tuple(_row(analysis, summary, held_out) for summary in analysis.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisations:
    """Share of the machine that a point uses: bandwidth in decode, FLOP/s in prefill.

    Against measured and datasheet peaks.
    """

    mbu_fraction: Estimate | None
    mfu_fraction: Estimate | None
    mbu_datasheet_fraction: Estimate | None
    mfu_datasheet_fraction: Estimate | None


def utilisations(analysis: Analysis, summary: PointSummary) -> Utilisations:
    """MBU of the decode step and MFU of the prefill; None where time, work or ceiling is unknown."""
    return Utilisations(
        mbu_fraction=_used(analysis, summary, "decode", summary.read_bytes_per_s),
        mfu_fraction=_used(analysis, summary, "prefill", summary.matmul_flop_per_s),
        mbu_datasheet_fraction=_used(analysis, summary, "decode", _datasheet(analysis, "decode")),
        mfu_datasheet_fraction=_used(analysis, summary, "prefill", _datasheet(analysis, "prefill")),
    )


def _row(
    analysis: Analysis, summary: PointSummary, held_out: dict[tuple[str, int, int], HeldOutPoint]
) -> PointRow:
    point = summary.point
    flags = [] if summary.status == "ok" else [summary.status.upper()]
    flags += [text] if (text := flag_text(analysis.collapses, summary.point_index)) else []
    place = (point.prompt_tokens, point.batch_size)
    decode, prefill = held_out.get(("decode", *place)), held_out.get(("prefill", *place))
    predicted = _predictions(analysis, point)
    used = utilisations(analysis, summary)
    return row_of(
        PointRow,
        point,
        summary,
        used,
        run_label=analysis.label,
        predicted_decode_step_s=held_out_estimate(decode) if decode else None,
        predicted_ttft_s=held_out_estimate(prefill) if prefill else None,
        decode_limited_by=_decode_limit(
            analysis, point, predicted["decode"].limited_by if predicted else None
        ),
        prefill_limited_by=predicted["prefill"].limited_by if predicted else None,
        flags=tuple(flags),
    )


def _decode_limit(analysis: Analysis, point: SweepPoint, by_model: str | None) -> str | None:
    """By steps of two widths where the point's step is like them: one sequence, few KV bytes; else by the model.

    A model of few points may take launches for weights; these steps tell them apart by design.
    """
    work = work_of(analysis, decode_shape_of(point))
    is_like = (
        point.batch_size == 1
        and work is not None
        and work.kv_read_bytes <= _MOST_KV_FRACTION * work.weight_bytes
    )
    if is_like and analysis.steps is not None:
        return analysis.steps.limited_by or "undecided"
    return by_model


def _predictions(analysis: Analysis, point: SweepPoint) -> dict[PhaseName, StepPrediction] | None:
    if analysis.model is None:
        return None
    prefill, decode = analysis.model.predict_all([prefill_shape_of(point), decode_shape_of(point)])
    return {"prefill": prefill, "decode": decode}


def _used(
    analysis: Analysis, summary: PointSummary, phase: PhaseName, ceiling: Estimate | None
) -> Estimate | None:
    is_decode = phase == "decode"
    taken_s = summary.decode_step_s if is_decode else summary.prefill_s
    work = work_of(
        analysis, decode_shape_of(summary.point) if is_decode else prefill_shape_of(summary.point)
    )
    if taken_s is None or ceiling is None or work is None:
        return None
    return (
        mbu_fraction(taken_s, work, ceiling) if is_decode else mfu_fraction(taken_s, work, ceiling)
    )


def _datasheet(analysis: Analysis, phase: PhaseName) -> Estimate | None:
    hardware, plan = analysis.hardware, analysis.run.manifest.plan
    if hardware is None or plan is None:
        return None
    if phase == "decode":
        return exact(hardware.memory_bytes_per_s.value)
    peak = hardware.peak_flop_per_s(plan.engine.dtype)
    return None if peak is None else exact(peak.value)


CSV_NAME: Final = "sweep.csv"
"""Inside the run's folder, where no other file is named."""


def table_rows(analysis: Analysis) -> list[SweepRow]:
    """The points of the sweep, with utilisation and flags."""
    rows: list[SweepRow] = []
    for summary in analysis.points:
        used = utilisations(analysis, summary)
        flag = (
            flag_text(analysis.collapses, summary.point_index)
            if summary.status == "ok"
            else summary.status.upper()
        )
        rows.append(
            SweepRow(
                summary=summary,
                mbu_fraction=used.mbu_fraction,
                mfu_fraction=used.mfu_fraction,
                flag=flag,
            )
        )
    return rows


def fewer_bytes(engine: EngineSpec, hardware: HardwareSpec | None) -> tuple[str, str]:
    """A format with half the weight bytes, where its rate is known; 4 bits, which meet the products of any."""
    flag: str
    half: DType
    is_wide = engine.dtype == "float32"
    flag, half = ("--dtype", "bfloat16") if is_wide else ("--quantization", "int8")
    is_known = (
        is_wide and find_spec("torch") is not None  # numpy measures no rate of bfloat16
        if engine.device == "cpu"
        else hardware is None or hardware.peak_flop_per_s(half) is not None
    )
    return (flag, half) if is_known and engine.quantization is None else ("--quantization", "int4")
