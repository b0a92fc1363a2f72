"""Published and made-up runs: the rows of a published sweep, and runs whose parameters are known because we chose them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from inferometer.inputs.catalog import find_model, load_hardware
from inferometer.inputs.types import EngineSpec, HardwareSpec, Source, SweepPlan, SweepPoint
from inferometer.perfmodel.steptime_terms import (
    NO_STAIRCASE,
    StepParameters,
    term_columns,
    work_columns,
)
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.tables import from_rows
from inferometer.records.types import (
    CeilingTable,
    EngineFacts,
    Phase,
    PointStatus,
    ProbeKind,
    Run,
    RunManifest,
    StepTable,
    SweepTable,
)

sys.path.insert(0, str(Path(__file__).parent))

from known_truths import CPU_TRUTH, PublishedRow

MEBIBYTE = 2**20


PROMPT_AXIS = (
    PublishedRow(
        prompt_tokens=128, batch_size=1, prefill_ms=34.79, step_ms=26.119, reserved_mib=5974
    ),
    PublishedRow(
        prompt_tokens=512, batch_size=1, prefill_ms=97.41, step_ms=26.433, reserved_mib=6212
    ),
    PublishedRow(
        prompt_tokens=2048, batch_size=1, prefill_ms=602.25, step_ms=29.386, reserved_mib=7412
    ),
    PublishedRow(
        prompt_tokens=4096, batch_size=1, prefill_ms=1756.57, step_ms=36.124, reserved_mib=12116
    ),
)
BATCH_AXIS = (
    PublishedRow(
        prompt_tokens=128, batch_size=1, prefill_ms=34.18, step_ms=26.586, reserved_mib=5974
    ),
    PublishedRow(
        prompt_tokens=128, batch_size=4, prefill_ms=84.44, step_ms=28.164, reserved_mib=6216
    ),
    PublishedRow(
        prompt_tokens=128, batch_size=16, prefill_ms=361.28, step_ms=31.288, reserved_mib=7154
    ),
    PublishedRow(
        prompt_tokens=128, batch_size=64, prefill_ms=1547.56, step_ms=64.221, reserved_mib=10716
    ),
)


def _published_run(rows: Sequence[PublishedRow]) -> Run:
    engine = EngineSpec(mode="eager", dtype="float16", device="cuda")
    points = tuple(
        SweepPoint(prompt_tokens=row.prompt_tokens, batch_size=row.batch_size, gen_tokens=32)
        for row in rows
    )
    sweep = from_rows(
        SweepTable,
        [
            {
                "point_index": i,
                "repetition": 0,
                "is_warmup": False,
                "status": PointStatus.OK,
                "prompt_tokens": row.prompt_tokens,
                "batch_size": row.batch_size,
                "gen_tokens": 32,
                "prefill_ns": round(row.prefill_ms * 1e6),
                "decode_ns": round(31 * row.step_ms * 1e6),
                "n_decode_steps": 31,
                "reserved_bytes": row.reserved_mib * MEBIBYTE,
            }
            for i, row in enumerate(rows)
        ],
    )
    return Run(
        manifest=_manifest_of("published", points, engine, "qwen2.5-3b"),
        sweep=sweep,
        steps=None,
        ceilings=None,
    )


def _manifest_of(
    run_id: str,
    points: Sequence[SweepPoint],
    engine: EngineSpec,
    model: str,
    attention: str | None = None,
) -> RunManifest:
    facts = None
    if attention is not None:
        facts = EngineFacts(
            engine=engine.engine,
            version="5.17",
            libraries=(),
            weight_bytes=None,
            n_parameters=None,
            weights_origin="random",
            weights_sha256=None,
            attention_implementation=attention,
            load_s=None,
            compile_s=None,
        )
    return RunManifest(
        run_id=run_id,
        origin="published" if facts is None else "measured",
        created_utc="2026-11-21T00:00:00+00:00",
        command=(),
        tool_version="0",
        plan=SweepPlan(
            model=model, engine=engine, points=tuple(points), n_warmup=0, n_reps=1, seed=0
        ),
        model=find_model(model),
        engine=facts,
        host=None,
        source=Source(kind="page", where="test"),
    )


@pytest.fixture(scope="session")
def axes() -> dict[str, tuple[PublishedRow, ...]]:
    return {"prompt": PROMPT_AXIS, "batch": BATCH_AXIS}


@pytest.fixture(scope="session")
def published_run() -> Callable[[Sequence[PublishedRow]], Run]:
    return _published_run


@pytest.fixture(scope="session")
def made_run() -> Callable[..., Run]:
    return _made_run


@pytest.fixture(scope="session")
def truth() -> StepParameters:
    return CPU_TRUTH


@pytest.fixture(scope="session")
def laptop_gpu() -> HardwareSpec:
    return next(
        hardware
        for hardware in load_hardware()
        if "5070" in hardware.name and "Laptop" in hardware.name
    )


def _made_run(
    truth: StepParameters = CPU_TRUTH,
    *,
    prompts: Sequence[int] = (32, 128, 512, 1024),
    batches: Sequence[int] = (1, 2, 4, 8, 16),
    n_reps: int = 5,
    noise_ratio: float = 0.01,
    slow_share_fraction: float = 0.0,
    seed: int = 0,
) -> Run:
    """The run that a machine of these parameters would show.

    In a share of its repetitions the machine runs at half speed.
    """
    rng = np.random.default_rng(seed)
    engine = EngineSpec(mode="eager", dtype="float32", device="cpu", n_threads=2)
    model = find_model("smollm2-135m")
    points = [
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=9)
        for prompt in prompts
        for batch in batches
    ]
    sweep: list[dict[str, object]] = []
    steps: list[dict[str, object]] = []
    probes: list[dict[str, object]] = []
    now_ns = 0
    for repetition in range(n_reps):
        for index, point in enumerate(points):
            shapes = [prefill_shape(batch_size=point.batch_size, prompt_tokens=point.prompt_tokens)]
            shapes += [
                decode_shape(
                    batch_size=point.batch_size, context_tokens=point.prompt_tokens + 1 + step
                )
                for step in range(8)
            ]
            work = work_columns(model, engine, shapes, kv_traffic_ratio=3.0)
            speed = 0.5 if rng.random() < slow_share_fraction else 1.0
            seconds = (
                term_columns(truth.vector(), NO_STAIRCASE, work).total_s
                / speed
                * np.exp(rng.normal(0, noise_ratio, len(shapes)))
            )
            durations = [round(value * 1e9) for value in seconds]
            probes += _probes(index, repetition, now_ns, speed)
            start_ns = now_ns + 1_000_000
            sweep.append(
                _point_row(point, index, repetition)
                | {
                    "started_ns": start_ns,
                    "prefill_ns": durations[0],
                    "decode_ns": sum(durations[1:]),
                    "n_decode_steps": 8,
                }
            )
            now_ns = start_ns + durations[0]
            for duration, shape in zip(durations[1:], shapes[1:], strict=True):
                steps.append(
                    _step_row(
                        index,
                        repetition,
                        now_ns,
                        duration,
                        point.batch_size,
                        shape.decode_context_tokens,
                    )
                )
                now_ns += duration
            now_ns += 1_000_000
            probes += _probes(index, repetition, now_ns, speed)
            now_ns += 1_000_000
    return Run(
        manifest=_manifest_of("made", points, engine, "smollm2-135m", attention="sdpa"),
        sweep=from_rows(SweepTable, sweep),
        steps=from_rows(StepTable, steps),
        ceilings=from_rows(CeilingTable, probes),
    )


def _point_row(point: SweepPoint, index: int, repetition: int) -> dict[str, object]:
    return {
        "point_index": index,
        "repetition": repetition,
        "is_warmup": False,
        "status": PointStatus.OK,
        "prompt_tokens": point.prompt_tokens,
        "batch_size": point.batch_size,
        "gen_tokens": point.gen_tokens,
    }


def _step_row(
    index: int,
    repetition: int,
    start_ns: int,
    duration_ns: int,
    batch_size: int,
    context_tokens: int,
) -> dict[str, object]:
    return {
        "point_index": index,
        "repetition": repetition,
        "is_warmup": False,
        "phase": Phase.DECODE,
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "n_prefill_requests": 0,
        "n_decode_requests": batch_size,
        "n_waiting_requests": 0,
        "n_preempted_requests": 0,
        "prefill_tokens": 0,
        "prefill_context_product_tokens2": 0,
        "decode_context_tokens": context_tokens,
    }


def _probes(index: int, repetition: int, at_ns: int, speed: float) -> list[dict[str, object]]:
    common = {
        "point_index": index,
        "repetition": repetition,
        "started_ns": at_ns,
        "footprint_bytes": 2**28,
    }
    return [
        common | {"kind": ProbeKind.READ, "dtype": "", "value_per_s": 22e9 * speed},
        common | {"kind": ProbeKind.MATMUL, "dtype": "float32", "value_per_s": 150e9 * speed},
    ]
