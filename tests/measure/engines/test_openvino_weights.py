"""Are weights packed for OpenVINO as nncf packs them, by real OpenVINO?"""

import numpy as np
import pytest
from tests.measure.gguf_files import plain_gguf

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.measure.engines.openvino_weights import rounded
from inferometer.measure.engines.protocol import Measure, ModelReference, Repeated
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings
from inferometer.measure.environments import find_environment

POINT = SweepPoint(prompt_tokens=40, batch_size=2, gen_tokens=6)
N_LAYERS = 2


@pytest.mark.parametrize("most", [15, 255])
def test_rounding_errs_by_half_a_step_and_keeps_zero(most):
    groups = np.random.default_rng(1).normal(0.1, 1, (6, 3, 64)).astype(np.float32)
    groups[0, 0] = 0.0
    groups[1, 1, :5] = 0.0
    codes, scales, zeros = rounded(groups, most)
    assert codes.shape == groups.shape
    assert scales.shape == zeros.shape == (6, 3, 1)
    assert codes.max() == most
    wide = (codes.astype(np.float32) - zeros) * scales.astype(np.float32)
    # the zero point is a whole number too, and the scale has 11 bits: less than half a step more
    assert np.all(np.abs(wide - groups) <= scales * 1.1)
    assert np.mean(np.abs(wide - groups)) < 0.3 * scales.mean()
    assert np.all(wide[groups == 0] == 0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, smollm2):
    folder = tmp_path_factory.mktemp("plain")
    path = plain_gguf(smollm2.location, folder / "plain.gguf", N_LAYERS)
    return ModelReference(kind="gguf", location=str(path), spec=None)


def engine_of(model, **options):
    try:
        python = str(find_environment("openvino").python)
    except EngineError as error:
        pytest.skip(str(error))
    spec = EngineSpec(engine="openvino", n_threads=1, **options)
    return RemoteEngine(spec, model, WorkerSettings(python=python))


def answers(engine):
    task = Measure(point=POINT, n_warmup=0, n_reps=1, seed=1, vocab_size=49152, probes=None)
    [only] = [one.repetition for one in engine.measure(task) if isinstance(one, Repeated)]
    return np.array(only.output_ids)


@pytest.mark.slow
def test_weights_of_a_plain_file_are_packed(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    n_layer = 576 * (2 * 576 + 2 * 192 + 3 * 1536)
    n_table = 49152 * 576
    with engine_of(plain) as engine:
        wide, first = engine.facts(), answers(engine)
    with engine_of(plain, quantization="int8") as engine:
        eight, second = engine.facts(), answers(engine)
    with engine_of(plain, quantization="int4") as engine:
        four, third = engine.facts(), answers(engine)
    assert dict(wide.weight_formats) == {"F16": n_table + N_LAYERS * n_layer, "F32": 5 * 576}
    assert dict(eight.weight_formats) == {"int8": n_table + N_LAYERS * n_layer}
    assert dict(four.weight_formats) == {"int8": n_table, "int4": N_LAYERS * n_layer}
    assert wide.weight_bytes > 1.9 * eight.weight_bytes > 1.9 * four.weight_bytes
    assert four.weight_bytes == pytest.approx(
        n_table + 49152 * 3 + N_LAYERS * n_layer * (0.5 + 2.5 / 64), rel=0.01
    )
    assert first.shape == second.shape == third.shape
    assert (first == second).mean() > 0.5  # int8 seldom changes what is most probable
    assert not list(tmp_path.glob("inferometer-openvino-*"))


@pytest.mark.slow
def test_weights_that_are_packed_already_are_refused(smollm2):
    with (
        engine_of(smollm2, quantization="int4") as engine,
        pytest.raises(SpecError, match="are in 16 or 32 bits"),
    ):
        engine.facts()
