"""Do steps of two widths run on a real model in transformers, in turns, and leave it as it was?"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from inferometer.inputs.catalog import find_model  # noqa: E402
from inferometer.inputs.types import EngineSpec  # noqa: E402
from inferometer.measure.engines.protocol import ModelReference  # noqa: E402
from inferometer.measure.engines.transformers_engine import open_engine  # noqa: E402
from inferometer.records.summaries import step_shares  # noqa: E402
from inferometer.records.tables import from_rows  # noqa: E402
from inferometer.records.types import SEQUENCES_OF_STEP, CeilingTable, ProbeKind  # noqa: E402

pytestmark = pytest.mark.slow


def test_both_widths_step_in_turns():
    engine = open_engine(
        EngineSpec(dtype="float32", load_format="dummy"),
        ModelReference(kind="spec", location=None, spec=find_model("smollm2-135m")),
    )
    try:
        weight_bytes = engine.facts().weight_bytes
        steps = engine.paired_steps()
        assert engine.facts().weight_bytes == weight_bytes
        kinds = [ProbeKind(step.kind) for step in steps]
        assert kinds[:6] == [kind for kind in SEQUENCES_OF_STEP for _ in range(2)]
        assert len(steps) % 6 == 0
        sizes = {step.footprint_bytes for step in steps}
        assert max(sizes) == weight_bytes
        assert min(sizes) < 0.03 * weight_bytes
        rows = [
            {
                "point_index": -1,
                "repetition": -1,
                "started_ns": step.started_ns,
                "kind": step.kind,
                "dtype": "",
                "footprint_bytes": step.footprint_bytes,
                "value_per_s": step.value_per_s,
            }
            for step in steps
        ]
        shares = step_shares(from_rows(CeilingTable, rows))
        assert shares is not None
        assert 0 < shares.parts[0].fraction.value <= 1
    finally:
        engine.close()


def test_a_compiled_engine_has_none():
    engine = open_engine(
        EngineSpec(dtype="float32", load_format="dummy", mode="compiled"),
        ModelReference(kind="spec", location=None, spec=find_model("smollm2-135m")),
    )
    try:
        assert engine.paired_steps() == ()
    finally:
        engine.close()
