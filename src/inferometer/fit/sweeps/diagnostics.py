"""Diagnostics of a step-time model: unidentified parameters, and unexplained time."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from inferometer.fit.sweeps.observations import PhaseName, kv_traffic_ratio, observe
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.perfmodel.types import Limit, StepPrediction, Term
from inferometer.records.types import Run

_ENTANGLED: Final = 0.95

_REMEDIES: Final = {
    "launch_s": "batches of 1 and 2 at a short context, and a run whose memory ceiling was probed",
    "weight_bytes_per_s": (
        "a second dtype or model width, or a run whose memory ceiling was probed: launches do not"
        " change with them"
    ),
    "kv_bytes_per_s": (
        "decode steps at two contexts that differ by a factor of 8 or more, at a large batch"
    ),
    "matmul_flop_per_s": "prefills of 512 and more tokens",
    "attention_flop_per_s": (
        "prefills of one long prompt and of many short ones with as many tokens in all"
    ),
    "per_sequence_s": (
        "batches that differ by a factor of 8 at the same number of context tokens in all"
    ),
    "link_bytes_per_s": "prefills of several lengths with tensor parallelism",
    "message_s": "decode steps with tensor parallelism at batch 1",
    "floor_s": "a compiled engine mode beside the eager one",
    "prefill_ratio": "prefills of a few tokens beside decode steps",
    "overlap_ratio": "batches around the one where the step time begins to rise",
    "blend_ratio": "batches or prefills of 64 to 512 rows",
    "mixed_kv_ratio": (
        "requests that arrive while others decode long contexts: a load test, not static batches"
    ),
    "sag_ratio": "prefills of 512 and of 8192 tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unidentified:
    """Parameters that the data do not identify, alone or jointly, and what to measure."""

    parameters: tuple[str, ...]
    why: str
    remedy: str


def unidentified(model: StepTimeModel) -> tuple[Unidentified, ...]:
    """Parameters that the data do not identify.

    First parameters that kept their prior, then pairs of the others with a posterior correlation
    above 0.95.
    """
    alone = [
        Unidentified(
            parameters=(entry.name,),
            why=f"the data do not determine {entry.name}: it is as assumed",
            remedy=_REMEDIES[entry.name],
        )
        for entry in model.parameters
        if entry.informed_by == "prior"
    ]
    assumed = {entry.parameters[0] for entry in alone}
    names = [name for name in model.free if name in PARAMETERS]
    covariance = model.posterior().covariance[: len(names), : len(names)]
    sd = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(sd, sd)
    pairs = [
        Unidentified(
            parameters=(names[i], names[j]),
            why=(
                f"the data determine {names[i]} and {names[j]} only together (correlation"
                f" {correlation[i, j]:+.2f})"
            ),
            remedy=_REMEDIES[names[i]],
        )
        for i in range(len(names))
        for j in range(i)
        if abs(correlation[i, j]) > _ENTANGLED and not {names[i], names[j]} & assumed
    ]
    return (*at_bounds(model), *alone, *pairs)


def at_bounds(model: StepTimeModel) -> tuple[Unidentified, ...]:
    """Rates that the data would put above the device's peak.

    The steps are then shorter than the assumed work allows.
    """
    attention = model.trained_on.attention_implementation
    assumed = kv_traffic_ratio(model.model, model.engine, attention)
    if assumed <= model.kv_traffic_ratio:
        return _at_peaks(model)
    words = (
        f"{assumed:g} bytes for each byte of KV cache, which {attention or 'this'} attention moves,"
        " would exceed the device's bandwidth"
    )
    leaner = Unidentified(
        parameters=("kv_bytes_per_s",),
        why=f"{words}: {model.kv_traffic_ratio:g} are assumed",
        remedy="--mode compiled, if that is what was measured",
    )
    return (leaner, *_at_peaks(model))


def _at_peaks(model: StepTimeModel) -> tuple[Unidentified, ...]:
    return tuple(
        Unidentified(
            parameters=(entry.name,),
            why=(
                f"{entry.name} is at the peak of the device: the measured steps are shorter than"
                " what is assumed to be computed and moved"
            ),
            remedy=(
                "check that --hardware, --dtype and --mode are those of the measurement, and the"
                " units of its table"
            ),
        )
        for entry in model.parameters
        if entry.informed_by == "bound"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """Measured time of one phase of one point, and its parts."""

    phase: PhaseName
    prompt_tokens: int
    batch_size: int
    measured_s: float
    """Median over repetitions, at the machine speed at which it was measured."""
    terms: tuple[Term, ...]
    """Parts that sum to ``measured_s``; the last is what the model does not explain, negative where
    the model predicts more."""
    limited_by: Limit
    prediction: StepPrediction


def explain(run: Run, model: StepTimeModel) -> tuple[ExplainedStep, ...]:
    """Parts of the measured time of this run's points, by this model.

    Long generations give several rows a point.

    Raises
    ------
    ModelError
        Nothing of the run ended well.
    """
    rows = observe([run], is_drift_removed=False).rows
    explained: list[ExplainedStep] = []
    for row, prediction in zip(rows, model.predict_all([row.shape for row in rows]), strict=True):
        unexplained = Term(
            name="unexplained", duration_s=row.duration_s - prediction.duration_s.value
        )
        explained.append(
            ExplainedStep(
                phase=row.phase,
                prompt_tokens=row.prompt_tokens,
                batch_size=row.batch_size,
                measured_s=row.duration_s,
                terms=(*prediction.terms, unexplained),
                limited_by=prediction.limited_by,
                prediction=prediction,
            )
        )
    return tuple(explained)
