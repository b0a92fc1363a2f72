"""Which step times may a server have that we cannot see into?

A few numbers, whatever model runs there on whatever device.

The numbers are those of the closed form as a simulator takes it (``StepTimeArrays``): seconds per
step, per row, per context token, per pair, per sequence. An architecture or a device that is known
narrows what is believed of them; without either they stay wide. Letters of shapes: K unknowns.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from inferometer.fit.inverse import Unknowns
from inferometer.fit.load_looks import FirstPace
from inferometer.perfmodel.scenario import BEST
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, arrays_of
from inferometer.perfmodel.steptime_datasheet import datasheet_step_time
from inferometer.records.columns import F64
from inferometer.spec import catalog
from inferometer.spec.types import EngineSpec, HardwareSpec, ModelSpec

_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "launch_s": ("launch_s", "prefill_launch_s"),
    "read_s": ("read_s", "head_read_s"),
    "row_s": ("matmul_row_s", "head_row_s"),
    "kv_token_s": ("kv_token_s",),
    "pair_s": ("attention_pair_s",),
    "per_sequence_s": ("per_sequence_s",),
    "blend_ratio": ("blend_ratio",),
}
"""Each unknown, and the fields of the closed form that go with it, in proportion to the first."""

STEP_NAMES: Final = tuple(_FIELDS)
FRONT_END: Final = "front_end_s"

_FRONT_END_BELIEF: Final = (math.log(4e-3), 1.0)
_REFERENCE_DEVICE: Final = "h100_sxm"
"""Bytes over bytes and FLOP over FLOP are the model's alone: any device tells them."""
_FAR: Final = 1e15
"""Tokens of a window that is none: JSON has no infinity."""
_PAIR_OF_ROW: Final = 1.5e-4
_KV_OF_READ: Final = 2e-5
"""What (query, key) pairs take of a row's time, and a context token of the weights': amid the
catalogue's models."""
_OVERLAP: Final = 1.5
"""A host that runs ahead hides behind the device, one that does not adds to it: load tests do
not tell the two from a shorter launch."""
_LEAST_S: Final = 1e-12


class StepBelief(NamedTuple):
    """The shape that is scaled, and what is believed of the scales before anything was simulated."""

    base: StepTimeArrays
    unknowns: Unknowns
    """The steps' numbers as logarithms, then the front end's delay."""


def step_belief(
    pace: FirstPace,
    ttft_s: F64,
    model: ModelSpec | None,
    engine: EngineSpec,
    hardware: HardwareSpec | None,
) -> StepBelief:
    """What to believe of a server whose answers come at this pace.

    ``ttft_s`` are the times to the first token of its quietest run.
    """
    base = _base(model, engine, hardware)
    centre, deviation = _from_pace(pace, float(np.nanquantile(ttft_s, 0.2)))
    if model is not None:
        centre["kv_token_s"], deviation["kv_token_s"] = (
            1.5 * centre["read_s"] * base.kv_token_s / float(base.read_s[0]),
            0.8,
        )
        centre["pair_s"], deviation["pair_s"] = (
            2 * centre["row_s"] * base.attention_pair_s / base.matmul_row_s,
            0.8,
        )
    if model is not None and hardware is not None:
        for name, value in (("read_s", float(base.read_s[0])), ("row_s", base.matmul_row_s)):
            centre[name], deviation[name] = value, 0.5
    places = [math.log(max(centre[name], _LEAST_S)) for name in STEP_NAMES]
    return StepBelief(
        base=base,
        unknowns=Unknowns(
            names=(*STEP_NAMES, FRONT_END),
            centre=np.array([*places, _FRONT_END_BELIEF[0]]),
            deviation=np.array([*(deviation[name] for name in STEP_NAMES), _FRONT_END_BELIEF[1]]),
            floor=_at_peaks(model, engine, hardware),
        ),
    )


def steps_at(base: StepTimeArrays, x: F64) -> StepTimeArrays:
    """The closed form with these numbers (logarithms, in the order of ``STEP_NAMES``)."""
    changes: dict[str, Any] = {}
    for (first, *others), place in zip(_FIELDS.values(), x.tolist(), strict=False):
        was = getattr(base, first)
        ratio = math.exp(place) / (float(was[0]) if isinstance(was, np.ndarray) else was)
        changes |= {field: getattr(base, field) * ratio for field in (first, *others)}
    return base._replace(**changes)


def not_below(steps: StepTimeArrays, floors_s: Sequence[float]) -> StepTimeArrays:
    """The same steps, none faster than the device's peaks allow (seconds, in the order of ``STEP_NAMES``; 0: no bound)."""
    changes: dict[str, Any] = {}
    for (first, *others), floor_s in zip(
        _FIELDS.values(), floors_s, strict=False
    ):  # neither the front end, nor where none is known
        was = getattr(steps, first)
        ratio = max(floor_s / (float(was[0]) if isinstance(was, np.ndarray) else was), 1.0)
        changes |= {field: getattr(steps, field) * ratio for field in (first, *others)}
    return steps._replace(**changes)


def _at_peaks(
    model: ModelSpec | None, engine: EngineSpec, hardware: HardwareSpec | None
) -> F64 | None:
    """The least that the unknowns can be on this device; None where the model or the device is not known."""
    if model is None or hardware is None:
        return None
    peak = arrays_of(datasheet_step_time(model, engine, hardware, BEST))
    at_peak = {
        "read_s": float(peak.read_s[0]),
        "row_s": peak.matmul_row_s,
        "kv_token_s": peak.kv_token_s,
        "pair_s": peak.attention_pair_s,
    }
    return np.array(
        [
            math.log(at_peak[name]) if at_peak.get(name, 0.0) > 0 else -math.inf
            for name in (*STEP_NAMES, FRONT_END)
        ]
    )


def _from_pace(pace: FirstPace, quick_ttft_s: float) -> tuple[dict[str, float], dict[str, float]]:
    row_s = pace.prompt_token_s or max(quick_ttft_s - pace.base_s, 0.1 * quick_ttft_s) / 1000
    centre = {
        "launch_s": 0.3 * pace.base_s,
        "read_s": 0.7 * pace.base_s,
        "row_s": row_s,
        "kv_token_s": pace.context_token_s or _KV_OF_READ * pace.base_s,
        "pair_s": _PAIR_OF_ROW * row_s,
        "per_sequence_s": pace.sequence_s or pace.base_s / 300,
        "blend_ratio": 2.0,
    }
    wide = dict.fromkeys(STEP_NAMES, 1.2) | {
        "kv_token_s": 1.5,
        "pair_s": 1.5,
        "per_sequence_s": 1.5,
        "blend_ratio": 0.3,
    }
    return centre, wide


def _base(
    model: ModelSpec | None, engine: EngineSpec, hardware: HardwareSpec | None
) -> StepTimeArrays:
    """The shape of the closed form.

    Of the model where it is known (experts read with the rows, windows, logits), else the plainest.
    """
    if model is None:
        return _plainest()
    device = hardware or catalog.find_hardware(_REFERENCE_DEVICE)
    arrays = arrays_of(datasheet_step_time(model, engine, device))
    return arrays._replace(
        window_tokens=min(arrays.window_tokens, _FAR),
        per_sequence_s=_LEAST_S,
        blend_ratio=1.0,
        overlap_ratio=_OVERLAP,
        sag_ratio=0.0,
    )


def _plainest() -> StepTimeArrays:
    return StepTimeArrays(
        launch_s=1.0,
        prefill_launch_s=1.0,
        overlap_ratio=_OVERLAP,
        blend_ratio=1.0,
        sag_ratio=0.0,
        per_sequence_s=1.0,
        read_log_rows=np.zeros(1),
        read_s=np.ones(1),
        matmul_row_s=1.0,
        head_read_s=_LEAST_S,
        head_row_s=0.0,
        kv_token_s=1.0,
        attention_pair_s=1.0,
        message_s=0.0,
        link_row_s=0.0,
        link_logit_s=0.0,
        window_tokens=_FAR,
        full_share_ratio=1.0,
        staircase_log_rows=np.zeros(1),
        staircase_log_ratio=np.zeros(1),
        computes_all_logits=False,
    )
