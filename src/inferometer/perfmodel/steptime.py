"""Fitted step-time model: duration of a step, its parts, its limit, and the uncertainty.

``StepTimeModel`` is the closed form of ``steptime_terms`` with fitted parameters, their
covariance, the box of shapes in which it was checked, and its error on held-out configurations.
It is made by ``inferometer.fit``. Letters of shapes: N steps, K free parameters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import ModelError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel.kv_cache import (
    CacheRows,
    cache_rows,
    layer_bits,
    n_kv_shards,
    state_bytes,
)
from inferometer.perfmodel.roofline import kv_dtype
from inferometer.perfmodel.steptime_limits import (
    BoxRange,
    ParameterPosterior,
    PhaseName,
    PhaseUncertainty,
    interval_factors,
    limits,
    log_half_widths,
    nearest,
    outside,
    posterior_of,
)
from inferometer.perfmodel.steptime_terms import (
    CAPTURED_SHARE,
    StepParameters,
    StepTimeArrays,
    TermColumns,
    WorkColumns,
    term_columns,
    work_columns,
)
from inferometer.perfmodel.types import (
    BatchShape,
    FitSubject,
    Limit,
    StepPrediction,
    Term,
    decode_shape,
    prefill_shape,
)
from inferometer.records.columns import F64
from inferometer.stats.estimate import Z_90, Estimate

SCHEMA_VERSION: Final = 2
"""1 stored `informed_by` as `told_by`, and `uncertainties` as `doubts`."""
CONFIDENCE_FRACTION: Final = 0.9
_USUAL_BATCHES: Final = (1, 8, 64)
_USUAL_BATCH: Final = 32
_USUAL_TOKENS: Final = 512

InformedBy: TypeAlias = Literal["data", "data and prior", "prior", "fixed", "bound"]
"""What determined a parameter's value. "bound": the data alone would give a rate above the device's
peak, so it is the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameter:
    """A physical parameter (the unit is in its name), its interval, and what determined it."""

    name: str
    estimate: Estimate
    informed_by: InformedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """The data to which a model was fitted."""

    run_ids: tuple[str, ...]
    hardware: str | None
    attention_implementation: str | None
    n_observations: int
    n_configurations: int
    is_drift_removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Error on configurations that the model was not fitted to.

    Errors are absolute, relative to what was measured.
    """

    phase: PhaseName
    n_points: int
    n_folds: int
    median_fraction: float
    p95_fraction: float
    coverage_fraction: float
    """Share of held-out points inside their predicted intervals."""
    n_noisy: int = 0
    """Points left out because repetitions disagreed (a disturbed machine)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """A fitted step-time model of one model on one engine and machine."""

    model: ModelSpec
    engine: EngineSpec
    parameters: tuple[FittedParameter, ...]
    kv_traffic_ratio: float
    """Bytes that attention moves for each byte of KV cache that decoding requests hold (eager
    attention copies)."""
    staircase_rows: tuple[int, ...]
    staircase_log_ratio: tuple[float, ...]
    free: tuple[str, ...]
    """Names of the rows of ``covariance``: fitted parameters, then ``rows N`` for the staircase's
    knots."""
    covariance: tuple[tuple[float, ...], ...]
    """Covariance of the logarithms of the free parameters (of the sag and the knots themselves)."""
    uncertainties: tuple[PhaseUncertainty, ...]
    box: tuple[BoxRange, ...]
    trained_on: TrainedOn
    held_out: tuple[HeldOutError, ...]
    computes_all_logits: bool = False
    """Does the engine compute the logits of every prompt token, not only of the last? Overrides the
    shape's ``n_logit_positions``; ``replace(model, computes_all_logits=False)`` predicts an engine
    that does not."""
    front_end_s: Estimate | None = None
    """Time of a request outside the scheduler (front end, detokenizer, HTTP), if clients measured
    it."""
    subject: FitSubject | None = None
    """None in files from versions that did not store it."""
    captured_tokens: int = 0
    """The most tokens of a step with prompts that runs as captured graph pieces; 0: none does."""
    machine_ratio: float = 0.0
    """Standard deviation of the log of the machine's speed: from one time to another for CPUs, whose
    caches, memory and clock are shared; from server to server for published rows of others."""
    first_token_spread_ratio: float = 0.0
    """Standard deviation of the log of the time to the first token, besides that of the steps: what
    published rows leave of TTFT that would have slowed their TPOT, were it in steps with prompts."""
    fastest: StepParameters | None = None
    """Parameters at the device's peaks, a lower bound of step times; given if the fit is not of
    measured steps of this device and model."""
    schema_version: int = SCHEMA_VERSION

    @property
    def other_times_fraction(self) -> float:
        """Relative change of a step's time between occasions, in 90 % of cases."""
        return float(np.expm1(Z_90 * self.machine_ratio))

    @property
    def machine_share_fraction(self) -> float:
        """Share of the variance of a usual decode step's log time that is the machine's."""
        if not self.machine_ratio:
            return 0.0
        shape = decode_shape(batch_size=_USUAL_BATCH, context_tokens=_USUAL_TOKENS)
        half_width = self.log_half_widths([shape], self.work([shape])).item()
        return float((Z_90 * self.machine_ratio / half_width) ** 2)

    @property
    def uncertainty_ratio(self) -> float:
        """Largest (upper end / value) of the predictions for typical steps inside the box."""
        context_tokens = nearest(self.box, "context tokens per decoding request", _USUAL_TOKENS)
        batches = {nearest(self.box, "decoding requests", batch) for batch in _USUAL_BATCHES}
        shapes = [
            decode_shape(batch_size=batch, context_tokens=context_tokens)
            for batch in sorted(batches)
        ]
        prompt_tokens = nearest(self.box, "prompt tokens per request", _USUAL_TOKENS)
        shapes.append(prefill_shape(batch_size=1, prompt_tokens=prompt_tokens))
        predicted = [prediction.duration_s for prediction in self.predict_all(shapes)]
        return max((estimate.high or estimate.value) / estimate.value for estimate in predicted)

    def predict(self, shape: BatchShape) -> StepPrediction:
        """Duration of this step with its 90 % interval, its parts and its limit.

        Outside the box the interval widens with the distance, and ``outside_why`` names what is
        outside.
        """
        return self.predict_all([shape])[0]

    def predict_all(self, shapes: Sequence[BatchShape]) -> tuple[StepPrediction, ...]:
        """Predictions of many steps at once, which takes little longer than one."""
        work, posterior = self.work(shapes), self.posterior()
        terms = self.terms(work)
        limited_by = limits(posterior, work)
        factors = interval_factors(
            self.uncertainties, self.box, shapes, self.log_variance(work), self.machine_ratio
        ).tolist()
        floors = self._least_s(work).tolist()
        reasons = [outside(self.box, shape).reasons for shape in shapes]
        return tuple(
            StepPrediction(
                duration_s=self._estimate(float(terms.total_s[i]), factors[i], floors[i]),
                terms=_terms_at(terms, i),
                limited_by=limited_by[i],
                is_inside_box=not reasons[i],
                outside_why="; ".join(reasons[i]) or None,
            )
            for i in range(len(shapes))
        )

    def work(self, shapes: Sequence[BatchShape]) -> WorkColumns:
        """The work of these steps."""
        if self.computes_all_logits:
            shapes = [replace(shape, n_logit_positions=shape.n_rows) for shape in shapes]
        return work_columns(
            self.model,
            self.engine,
            shapes,
            kv_traffic_ratio=self.kv_traffic_ratio,
            captured_tokens=self.captured_tokens,
        )

    def prefill_launch_ratio(self, n_rows: int) -> float:
        """Host time of a step with ``n_rows`` prompt tokens, relative to a decode step."""
        share = CAPTURED_SHARE if n_rows <= self.captured_tokens else 1.0
        return float(self.physical().prefill_ratio ** share)

    @property
    def kernels_launch_ratio(self) -> float | None:
        """Host time of a step launched kernel by kernel / of a decode step; None: no data."""
        (ratio,) = (one for one in self.parameters if one.name == "prefill_ratio")
        return None if ratio.informed_by in {"prior", "fixed"} else ratio.estimate.value

    def terms(self, work: WorkColumns) -> TermColumns:
        """The parts of each step's time in seconds, by cause."""
        posterior = self.posterior()
        return term_columns(
            posterior.vector, posterior.staircase, work, least_sag_ratio=self.least_sag_ratio
        )

    def limits(self, work: WorkColumns) -> tuple[Limit, ...]:
        """What limits each step (``Limit``); "undecided" if the data do not support an answer."""
        return limits(self.posterior(), work)

    def log_half_widths(self, shapes: Sequence[BatchShape], work: WorkColumns) -> F64:
        """Half the width of the 90 % interval of the logarithm of each step's time."""
        return log_half_widths(
            self.uncertainties, self.box, shapes, self.log_variance(work), self.machine_ratio
        )

    def log_variance(self, work: WorkColumns) -> F64:
        """Variance of log time from the uncertainty of the parameters."""
        return self.posterior().log_time_variance(work)

    def posterior(self) -> ParameterPosterior:
        """The parameters as vectors, with their covariance."""
        return posterior_of(
            self.physical(),
            self.staircase_rows,
            self.staircase_log_ratio,
            self.free,
            self.covariance,
        )

    def physical(self) -> StepParameters:
        """All parameters by name."""
        return StepParameters(**{entry.name: entry.estimate.value for entry in self.parameters})

    def save(self, path: Path) -> None:
        """Write the model to a JSON file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @property
    def least_sag_ratio(self) -> float:
        """Lower bound of the sag: time per row at the peak rate / at 1024 rows; 0: no bound."""
        if self.fastest is None:
            return 0.0
        return self.physical().matmul_flop_per_s / self.fastest.matmul_flop_per_s

    def at_peaks(self) -> "StepTimeModel | None":
        """The model with the parameters in ``fastest``; None if there are none."""
        if self.fastest is None:
            return None
        return replace(
            self,
            parameters=tuple(
                replace(one, estimate=replace(one.estimate, value=value, low=value, high=value))
                for one in self.parameters
                for value in [float(getattr(self.fastest, one.name))]
            ),
            staircase_rows=(),
            staircase_log_ratio=(),
            free=(),
            covariance=(),
            fastest=None,
        )

    def _least_s(self, work: WorkColumns) -> F64:
        fastest = self.at_peaks()
        return np.zeros(len(work.n_rows)) if fastest is None else fastest.terms(work).total_s

    def _estimate(self, duration_s: float, factor_ratio: float, least_s: float) -> Estimate:
        return Estimate(
            value=duration_s,
            low=max(duration_s / factor_ratio, min(least_s, duration_s)),
            high=duration_s * factor_ratio,
            confidence_fraction=CONFIDENCE_FRACTION,
            n_samples=self.trained_on.n_observations,
            method="parameter covariance and held-out errors",
        )


def _terms_at(terms: TermColumns, index: int) -> tuple[Term, ...]:
    seconds = {
        "launch": terms.launch,
        "weights": terms.weights,
        "kv": terms.kv,
        "matmul": terms.matmul,
        "attention": terms.attention,
        "logits": terms.head_weights + terms.head_matmul,
        "per_sequence": terms.per_sequence,
        "communication": terms.communication,
    }
    return tuple(
        Term(name=name, duration_s=float(column[index])) for name, column in seconds.items()
    )


# The step-time model as numbers for the simulator (``steptime_terms``).


_TOKEN: Final = decode_shape(batch_size=1, context_tokens=1)
_PROBES: Final = (
    _TOKEN,
    replace(_TOKEN, n_decode_requests=2, decode_context_tokens=2),
    replace(_TOKEN, n_logit_positions=2),
    prefill_shape(batch_size=1, prompt_tokens=1),
)
_MAX_ROWS: Final = 2**20
_ROWS: Final = {
    "dense": np.ones(1),
    "experts": np.unique(np.round(np.geomspace(1, _MAX_ROWS, 161))),
}
"""Row counts for which the layers' bytes are tabulated: more rows read more experts."""
_SHAPES_OF_ROWS: Final = {
    kind: tuple(
        replace(_TOKEN, n_decode_requests=int(n), decode_context_tokens=int(n)) for n in rows
    )
    for kind, rows in _ROWS.items()
}


def arrays_of(model: StepTimeModel) -> StepTimeArrays:
    """The step-time model as plain numbers for the simulator.

    A test compares both for dense, mixture-of-experts, sliding-window and split models.
    """
    physical, posterior = model.physical(), model.posterior()
    as_asked = replace(model, computes_all_logits=False)
    kind = "dense" if model.model.moe is None else "experts"
    probed = as_asked.work(_PROBES)
    link_bytes = probed.link_bytes.tolist()
    reach = _reach(model)
    layer_bytes = as_asked.work(_SHAPES_OF_ROWS[kind]).layer_bytes
    staircase = posterior.staircase
    has_stairs = bool(staircase.log_rows.size)
    return StepTimeArrays(
        launch_s=physical.launch_s,
        prefill_launch_s=physical.launch_s * physical.prefill_ratio,
        overlap_ratio=physical.overlap_ratio,
        blend_ratio=physical.blend_ratio,
        sag_ratio=physical.sag_ratio,
        per_sequence_s=physical.per_sequence_s,
        read_log_rows=np.log(_ROWS[kind]),
        read_s=layer_bytes / physical.weight_bytes_per_s + physical.floor_s,
        matmul_row_s=float(probed.matmul_flop[0]) / physical.matmul_flop_per_s,
        head_read_s=float(probed.head_bytes[0]) / physical.weight_bytes_per_s,
        head_row_s=float(probed.logits_flop[0]) / physical.matmul_flop_per_s,
        kv_token_s=reach.kv_token_s,
        attention_pair_s=reach.pair_s,
        message_s=float(probed.n_messages[0]) * physical.message_s,
        link_row_s=(link_bytes[1] - link_bytes[0]) / physical.link_bytes_per_s + reach.row_s,
        link_logit_s=(link_bytes[2] - link_bytes[0]) / physical.link_bytes_per_s,
        window_tokens=reach.window_tokens,
        full_share_ratio=reach.full_share_ratio,
        staircase_log_rows=staircase.log_rows if has_stairs else np.zeros(1),
        staircase_log_ratio=staircase.log_ratio if has_stairs else np.zeros(1),
        computes_all_logits=model.computes_all_logits,
        mixed_kv_ratio=physical.mixed_kv_ratio,
        full_pair_share_ratio=reach.full_pair_share_ratio,
        kv_sequence_s=reach.kv_sequence_s,
        least_sag_ratio=model.least_sag_ratio,
        captured_tokens=float(model.captured_tokens),
        captured_launch_s=physical.launch_s * physical.prefill_ratio**CAPTURED_SHARE,
    )


class _Reach(NamedTuple):
    """Seconds of attention per context token, (query, key) pair, sequence and row; its window."""

    window_tokens: float
    kv_token_s: float
    full_share_ratio: float
    pair_s: float
    full_pair_share_ratio: float
    kv_sequence_s: float
    row_s: float


def _reach(model: StepTimeModel) -> _Reach:
    """Attention times of the model, with a single window for all layers: the longest.

    Layers with shorter windows (such as 128 tokens beside an indexer's 4,096) count as if their
    window were full from the first token.
    """
    spec, engine, physical = model.model, model.engine, model.physical()
    kinds = cache_rows(spec)
    longest = max((rows.most_read_tokens or 0 for rows in kinds), default=0)
    short = [rows for rows in kinds if 0 < (rows.most_read_tokens or longest) < longest]
    bent = [rows for rows in kinds if rows not in short]
    full = [rows for rows in bent if rows.most_read_tokens is None]
    bits_s = model.kv_traffic_ratio / n_kv_shards(spec, engine) / 8 / physical.kv_bytes_per_s
    flop_s = 1 / engine.tensor_parallel_size / physical.attention_flop_per_s
    state_s = state_bytes(spec, engine.dtype) / engine.tensor_parallel_size
    state_s *= 2 * model.kv_traffic_ratio / physical.kv_bytes_per_s

    def bits(rows: CacheRows) -> float:
        return layer_bits(rows, kv_dtype(engine))

    def flop(rows: CacheRows) -> float:
        return rows.n_layers * rows.prefill_flop

    # Without attention, which share is of full layers makes no difference.
    all_bits, all_flop = sum(map(bits, bent)) or 1.0, sum(map(flop, bent)) or 1.0
    return _Reach(
        window_tokens=float(longest or math.inf),
        kv_token_s=sum(map(bits, bent)) * bits_s,
        full_share_ratio=sum(map(bits, full)) / all_bits,
        pair_s=sum(map(flop, bent)) * flop_s,
        full_pair_share_ratio=sum(map(flop, full)) / all_flop,
        kv_sequence_s=state_s
        + sum(bits(one) * (one.most_read_tokens or 0) for one in short) * bits_s,
        row_s=sum(flop(one) * (one.most_read_tokens or 0) for one in short) * flop_s,
    )


FIT_NAME: Final = "step_time.json"
"""File name of a fit in the folder of its run."""


def load_step_time_model(path: Path) -> StepTimeModel:
    """Load a step-time model from a JSON file, or from the folder of the run it was fitted to.

    Raises
    ------
    ModelError
        There is no such file, or it is no step-time model of a version that can be read.
    """
    again = fit_command(path)
    path = path / FIT_NAME if path.is_dir() else path
    door = Door(
        noun="step-time model", allowed="a file of inferometer fit", refusal=ModelError, try_=again
    )
    content, where = door.bytes_of(path), str(path)
    version = door.json(content, _Versioned, where=where).schema_version
    if version == 1:
        content, version = in_words_of_version_2(content), SCHEMA_VERSION
    if version != SCHEMA_VERSION:
        raise ModelError(
            f"schema version {version}", where=where, allowed=str(SCHEMA_VERSION), try_=again
        )
    return replace(door.json(content, StepTimeModel, where=where), schema_version=version)


def fit_command(path: Path) -> str:
    """The command that creates the fit that is missing at ``path``.

    It names the run in this folder or beside this file; ``RUN`` if there is none.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / _SWEEP_NAME).is_file():
        return suggestions.command("fit", folder)
    if (folder / _LOAD_NAME).is_file():
        return suggestions.command("fit", "--load", folder)
    return suggestions.command("fit", "RUN")


_SWEEP_NAME: Final = "sweep.parquet"
_LOAD_NAME: Final = "exchanges.parquet"
"""File names in runs of sweeps and load tests, as in ``records.run_folder``, which cannot be imported
here."""


def in_words_of_version_2(content: bytes) -> bytes:
    """The bytes of a fit of schema version 1, with the keys of version 2."""
    for old, new in _RENAMED:
        content = content.replace(b'"%s":' % old, b'"%s":' % new)
    return content


_RENAMED: Final = (
    (b"told_by", b"informed_by"),
    (b"doubts", b"uncertainties"),
    (b"said", b"text"),
)
"""Keys of schema version 1, and their names in version 2. Quotes inside a JSON string are escaped,
so that a text never matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    schema_version: int


_LINEAR: Final = frozenset({"sag_ratio"})
"""Parameters that are normal themselves; of all others the logarithm is."""


def plain_value(name: str, place: float) -> float:
    """The parameter in its own unit, from its value on the scale on which it is normal."""
    return place if name in _LINEAR else math.exp(place)


def parameter_estimate(
    name: str,
    place: float,
    sd: float,
    *,
    n_samples: int,
    method: str,
    lower: float = -math.inf,
    upper: float = math.inf,
) -> Estimate:
    """Value and 90 % interval, bounded by ``lower`` and ``upper`` on the scale of ``place``."""
    return Estimate(
        value=plain_value(name, place),
        low=plain_value(name, max(place - Z_90 * sd, lower)),
        high=plain_value(name, min(place + Z_90 * sd, upper)),
        confidence_fraction=0.9,
        n_samples=n_samples,
        method=method,
    )
