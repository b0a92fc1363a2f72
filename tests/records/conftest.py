"""Runs with known contents: what a summary says of them can be worked out by hand."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from inferometer.inputs.types import EngineSpec, SweepPlan, SweepPoint
from inferometer.records import tables
from inferometer.records.types import (
    CeilingTable,
    EngineFacts,
    HostFacts,
    Phase,
    PointStatus,
    ProbeKind,
    Run,
    RunManifest,
    StepTable,
    SweepTable,
)

SECOND_NS = 1_000_000_000


def plan_of(points: Sequence[SweepPoint], *, n_reps: int = 7) -> SweepPlan:
    return SweepPlan(
        model="smollm2-135m",
        engine=EngineSpec(),
        points=tuple(points),
        n_warmup=1,
        n_reps=n_reps,
        seed=7,
    )


def manifest_of(plan: SweepPlan | None, **changes: object) -> RunManifest:
    facts: dict[str, object] = {
        "run_id": "r1",
        "origin": "measured",
        "created_utc": "2026-11-21T09:00:00Z",
        "command": ("inferometer", "sweep", "--seq", "128,256"),
        "tool_version": "0.1.0",
        "plan": plan,
        "model": None,
        "engine": EngineFacts(
            engine="transformers",
            version="5.17.0",
            libraries=(("torch", "2.13.0"),),
            weight_bytes=269_060_552,
            n_parameters=134_515_008,
            weights_origin="file",
            weights_sha256=None,
            attention_implementation="sdpa",
            load_s=1.5,
            compile_s=None,
        ),
        "host": HostFacts(
            hostname_hash="abc",
            os="Linux",
            kernel="6.1",
            python="3.11.2",
            cpu_model="a CPU",
            n_cores=2,
            n_threads_used=2,
            memory_bytes=2**34,
            cpu_governor=None,
            accelerator=None,
            accelerator_driver=None,
            accelerator_memory_bytes=None,
        ),
        "source": None,
    }
    return RunManifest(**(facts | changes))  # type: ignore[arg-type]


def repetition_row(
    point_index: int, point: SweepPoint, *, repetition: int, started_ns: int, **changes: object
) -> dict[str, object]:
    return {
        "point_index": point_index,
        "repetition": repetition,
        "is_warmup": False,
        "status": PointStatus.OK,
        "prompt_tokens": point.prompt_tokens,
        "batch_size": point.batch_size,
        "gen_tokens": point.gen_tokens,
        "started_ns": started_ns,
        "prefill_ns": None,
        "decode_ns": None,
        "n_decode_steps": point.gen_tokens - 1,
    } | changes


def step_row(
    point_index: int,
    point: SweepPoint,
    *,
    repetition: int,
    start_ns: int,
    duration_ns: int,
    phase: Phase = Phase.DECODE,
) -> dict[str, object]:
    return {
        "point_index": point_index,
        "repetition": repetition,
        "is_warmup": False,
        "phase": phase,
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "n_prefill_requests": 0,
        "n_decode_requests": point.batch_size,
        "n_waiting_requests": 0,
        "n_preempted_requests": 0,
        "prefill_tokens": 0,
        "prefill_context_product_tokens2": 0,
        "decode_context_tokens": point.batch_size * point.prompt_tokens,
    }


def probe_row(
    point_index: int,
    *,
    started_ns: int,
    value_per_s: float,
    kind: ProbeKind = ProbeKind.READ,
    dtype: str = "",
    footprint: int = 2**28,
):
    return {
        "point_index": point_index,
        "repetition": 0,
        "started_ns": started_ns,
        "kind": kind,
        "dtype": dtype,
        "footprint_bytes": footprint,
        "value_per_s": value_per_s,
    }


Times = Mapping[SweepPoint, tuple[Sequence[float], Sequence[float]]]
"""Prefill and decode seconds of each repetition of each point; an empty pair is a point out of
memory."""


def run_of(times: Times, *, origin: str = "measured") -> Run:
    points = tuple(times)
    rows = []
    clock_ns = 0
    for i_point, point in enumerate(points):
        prefills_s, decodes_s = times[point]
        if len(prefills_s) == 0:
            rows.append(
                repetition_row(
                    i_point,
                    point,
                    repetition=0,
                    started_ns=clock_ns,
                    is_warmup=True,
                    status=PointStatus.OUT_OF_MEMORY,
                )
            )
        for i_rep, (prefill_s, decode_s) in enumerate(zip(prefills_s, decodes_s, strict=True)):
            took = {
                "prefill_ns": round(prefill_s * SECOND_NS),
                "decode_ns": round(decode_s * SECOND_NS),
            }
            rows.append(
                repetition_row(i_point, point, repetition=i_rep, started_ns=clock_ns, **took)
            )
            clock_ns += took["prefill_ns"] + took["decode_ns"]
    return Run(
        manifest=manifest_of(plan_of(points), origin=origin),
        sweep=tables.from_rows(SweepTable, rows),
        steps=None,
        ceilings=None,
    )


@pytest.fixture
def make_run() -> Callable[..., Run]:
    return run_of


@pytest.fixture
def make_manifest() -> Callable[..., RunManifest]:
    return manifest_of


@pytest.fixture
def make_plan() -> Callable[..., SweepPlan]:
    return plan_of


@pytest.fixture
def rows():
    """The row makers: ``repetition``, ``step`` and ``probe``."""
    return type(
        "Rows",
        (),
        {
            "repetition": staticmethod(repetition_row),
            "step": staticmethod(step_row),
            "probe": staticmethod(probe_row),
        },
    )


@pytest.fixture
def one_point_tables():
    """The three tables of one measured point, filled with numbers that name the point."""

    def make(
        point_index: int, point: SweepPoint, *, n_reps: int = 3
    ) -> tuple[SweepTable, StepTable, CeilingTable]:
        started_ns = [point_index * SECOND_NS + i * 1000 for i in range(n_reps)]
        sweep = tables.from_rows(
            SweepTable,
            [
                repetition_row(
                    point_index,
                    point,
                    repetition=i,
                    started_ns=started_ns[i],
                    prefill_ns=100 + i,
                    decode_ns=900 + point_index,
                )
                for i in range(n_reps)
            ],
        )
        steps = tables.from_rows(
            StepTable,
            [
                step_row(
                    point_index, point, repetition=i, start_ns=started_ns[i], duration_ns=30 + i
                )
                for i in range(n_reps)
            ],
        )
        ceilings = tables.from_rows(
            CeilingTable,
            [
                probe_row(point_index, started_ns=started_ns[0], value_per_s=2e10),
                probe_row(
                    point_index,
                    started_ns=started_ns[0],
                    value_per_s=np.nan,
                    kind=ProbeKind.MATMUL,
                    dtype="float32",
                ),
            ],
        )
        return sweep, steps, ceilings

    return make
