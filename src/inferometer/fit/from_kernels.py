"""Which step-time model do measured kernels of a device support, before any step of the model was seen?

The closed form is fitted to steps composed of kernels (``kernel/steps.py``). What kernels cannot
tell is believed with a width: host time, the small kernels between the large ones, and how much
slower a kernel is in a step than alone.
"""

from typing import Final

import numpy as np

from inferometer.fit.kernel_beliefs import believed_parameter, step_beliefs
from inferometer.fit.kernel_steps import KernelCurves, kernel_curves, kernel_step_s, link_of
from inferometer.fit.priors import BLEND_OF_GPU, Belief, Priors
from inferometer.fit.regression import Data, Posterior, regress
from inferometer.perfmodel.steptime import StepTimeModel, TrainedOn
from inferometer.perfmodel.steptime_box import box_of
from inferometer.perfmodel.steptime_limits import PhaseDoubt
from inferometer.perfmodel.steptime_terms import PARAMETERS, work_columns
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.records.imports.kernel_tables import KernelTables
from inferometer.spec.types import EngineSpec, ModelSpec

_NOISE_RATIO: Final = 0.03
_NOTHING_S: Final = 1e-9
_NO_LINK_BYTES_PER_S: Final = 1e9
"""Stands where nothing is sent."""
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS: Final = (512, 1024, 2048, 4096)
_MAX_TOKENS: Final = 2**18
"""Of a batch, as far as the tables go."""
_PROMPTS: Final = (128, 256, 512, 1024, 1536, 2048)


def model_from_kernels(
    model: ModelSpec,
    engine: EngineSpec,
    tables: KernelTables,
    *,
    hardware: str,
    n_linked: int | None = None,
) -> StepTimeModel:
    """The step-time model of these kernels.

    ``covariance`` says how far what it cannot know may be from what is believed.

    ``n_linked`` devices exchange rows in every layer: None says those of the tensor-parallel group.

    Raises
    ------
    ModelError
        The tables know no kernels of these sizes.
    """
    pairs = [
        (batch, tokens)
        for batch in _BATCHES
        for tokens in _CONTEXTS
        if batch * tokens <= _MAX_TOKENS
    ]
    shapes = [decode_shape(batch_size=batch, context_tokens=tokens) for batch, tokens in pairs]
    shapes += [prefill_shape(batch_size=1, prompt_tokens=tokens) for tokens in _PROMPTS]
    curves = kernel_curves(model, engine, tables)
    seconds = np.array([kernel_step_s(model, engine, tables, curves, shape) for shape in shapes])
    data = Data(
        work=work_columns(model, engine, shapes, kv_traffic_ratio=1.0),
        log_s=np.log(seconds),
        noise=np.full(len(shapes), _NOISE_RATIO),
        is_prefill=np.array([shape.n_prefill_requests > 0 for shape in shapes]),
    )
    n_linked = engine.tensor_parallel_size if n_linked is None else n_linked
    link = link_of(tables, n_linked) if n_linked > 1 else (_NO_LINK_BYTES_PER_S, _NOTHING_S)
    posterior = regress(data, _priors(model, tables, curves, link))
    beliefs = step_beliefs(model, posterior.vector, has_link=n_linked > 1)
    return _believed(model, engine, beliefs, posterior, shapes, hardware)


def _priors(
    model: ModelSpec, tables: KernelTables, curves: KernelCurves, link: tuple[float, float]
) -> Priors:
    """Wide, for the kernels tell; the host is left out, the link is told by its own table."""
    widest = tables.gemm.n * tables.gemm.k
    large = (widest >= np.quantile(widest, 0.7)) & (tables.gemm.m <= 4)
    read = float(np.median(2.0 * widest[large] / tables.gemm.duration_s[large]))
    flop = float(np.max(2.0 * widest * tables.gemm.m / tables.gemm.duration_s))
    table = {
        "launch_s": (_NOTHING_S, 0.0),
        "weight_bytes_per_s": (read, 0.2),
        "kv_bytes_per_s": (read, 0.3),
        "matmul_flop_per_s": (0.8 * flop, 0.3),
        "attention_flop_per_s": (0.3 * flop, 0.7),
        "per_sequence_s": (_NOTHING_S, 0.0),
        "link_bytes_per_s": (link[0], 0.0),
        "message_s": (link[1], 0.0),
        "floor_s": (float(curves.layer_s.min()) * 0.1 * model.n_layers, 1.0),
        "prefill_ratio": (1.0, 0.0),
        "overlap_ratio": (4.0, 0.0),
        "blend_ratio": (BLEND_OF_GPU, 0.3),
        "mixed_kv_ratio": (1.0, 0.0),
    }
    beliefs = [
        Belief(
            centre_ratio=float(np.log(table[name][0])),
            deviation_ratio=table[name][1],
            why="kernels",
        )
        for name in PARAMETERS[:-1]
    ]
    beliefs.append(Belief(centre_ratio=0.0, deviation_ratio=0.1, why="kernels"))
    return Priors(beliefs=tuple(beliefs), staircase_ratios=(0.0, 0.03, 0.06, 0.1))


def _believed(
    model: ModelSpec,
    engine: EngineSpec,
    beliefs: dict[str, Belief],
    posterior: Posterior,
    shapes: list[BatchShape],
    hardware: str,
) -> StepTimeModel:
    """Kernels as they are in a step, and what they do not tell."""
    free = tuple(name for name in PARAMETERS if beliefs[name].deviation_ratio > 0)
    rows = tuple(round(float(row)) for row in np.exp(posterior.staircase.log_rows))
    deviations = [beliefs[name].deviation_ratio for name in free] + [_NOISE_RATIO] * len(rows)
    return StepTimeModel(
        model=model,
        engine=engine,
        parameters=tuple(believed_parameter(name, beliefs[name]) for name in PARAMETERS),
        kv_traffic_ratio=1.0,
        staircase_rows=rows,
        staircase_log_ratio=tuple(posterior.staircase.log_ratio.tolist()),
        free=(*free, *(f"rows {row}" for row in rows)),
        covariance=tuple(tuple(row) for row in np.diag(np.square(deviations)).tolist()),
        doubts=(
            PhaseDoubt(phase="prefill", spread_ratio=posterior.strengths.prefill_ratio),
            PhaseDoubt(phase="decode", spread_ratio=posterior.strengths.decode_ratio),
        ),
        box=box_of(shapes),
        trained_on=TrainedOn(
            run_ids=(),
            hardware=hardware,
            attention_implementation=None,
            n_observations=len(shapes),
            n_configurations=len(shapes),
            is_drift_removed=False,
        ),
        held_out=(),
    )
