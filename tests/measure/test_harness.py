"""The loop around a real engine: what runs in which order, and what is refused."""

from dataclasses import replace

import pytest

from inferometer.errors import EngineError
from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.ceilings import NumpyCeilings
from inferometer.measure.engines.protocol import Measure, Probed, ProbeSettings
from inferometer.measure.engines.transformers_engine import open_engine
from inferometer.measure.engines.worker import check_honoured, run_point
from inferometer.records.types import ProbeKind

POINT = SweepPoint(prompt_tokens=5, batch_size=2, gen_tokens=3)
PROBES = ProbeSettings(
    kinds=(ProbeKind.READ,), footprint_bytes=2**24, matmul_dtype="float32", n_threads=1
)
TASK = Measure(point=POINT, n_warmup=2, n_reps=3, seed=0, vocab_size=1000, probes=PROBES)


@pytest.fixture(scope="module")
def engine(tiny):
    return open_engine(EngineSpec(load_format="dummy", n_threads=1), tiny)


@pytest.mark.slow
def test_warmups_come_first_and_every_repetition_stands_between_two_probes(engine):
    results = list(run_point(engine, TASK, NumpyCeilings()))
    kinds = "".join(
        "P" if isinstance(result, Probed) else "w" if result.repetition.is_warmup else "R"
        for result in results
    )
    assert kinds == "wwPRPRPRP"
    repetitions = [result.repetition for result in results if not isinstance(result, Probed)]
    assert [repetition.index for repetition in repetitions] == [0, 1, 2, 3, 4]
    assert all(repetition.ended_ns > repetition.started_ns for repetition in repetitions)
    assert all(repetition.reserved_bytes > 2**24 for repetition in repetitions), (
        "a process with torch is larger than that"
    )


def test_a_later_visit_goes_on_with_the_count(engine):
    task = Measure(
        point=POINT, n_warmup=1, n_reps=2, seed=0, vocab_size=1000, probes=None, first_repetition=5
    )
    repetitions = [result.repetition for result in run_point(engine, task, NumpyCeilings())]
    assert [repetition.index for repetition in repetitions] == [5, 6, 7]
    assert [repetition.is_warmup for repetition in repetitions] == [True, False, False]


@pytest.mark.slow
def test_probes_can_be_left_out(engine):
    assert not any(
        isinstance(result, Probed)
        for result in run_point(engine, replace_probes(None), NumpyCeilings())
    )


def test_repetitions_get_different_prompts(engine):
    results = run_point(engine, replace_probes(None), NumpyCeilings())
    assert len({result.repetition.output_ids for result in results}) > 1


def replace_probes(probes):
    return Measure(
        point=TASK.point,
        n_warmup=TASK.n_warmup,
        n_reps=TASK.n_reps,
        seed=0,
        vocab_size=1000,
        probes=probes,
    )


@pytest.fixture(scope="module")
def repetition(engine):
    return next(iter(run_point(engine, replace_probes(None), NumpyCeilings()))).repetition


@pytest.mark.slow
@pytest.mark.parametrize("output_ids", [((1, 2, 3),), ((1, 2, 3), (1, 2)), ((1, 2), (1, 2))])
def test_an_engine_that_gives_less_is_refused(repetition, output_ids):
    check_honoured(repetition, POINT)
    with pytest.raises(EngineError, match="should have run 2 sequences of 3 tokens"):
        check_honoured(replace(repetition, output_ids=output_ids), POINT)
