"""Is every version of a record that was ever written still read?"""

import json
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records.reading import read_run
from inferometer.records.run_folder import LOADERS
from inferometer.records.summaries import summarise_points
from inferometer.records.types import SCHEMA_VERSION

FIXTURES = Path(__file__).parent / "fixtures"


def test_every_version_has_a_loader_and_a_fixture():
    assert set(LOADERS) == set(range(1, SCHEMA_VERSION + 1))
    for version in LOADERS:
        assert (FIXTURES / f"version_{version}" / "manifest.json").is_file()


def test_version_1():
    """A small real sweep of SmolLM2-135M, as the first version wrote it; these numbers must never change."""
    run = read_run(FIXTURES / "version_1")
    assert json.loads((FIXTURES / "version_1" / "manifest.json").read_text())["schema_version"] == 1
    assert run.manifest.is_complete
    assert run.manifest.plan is not None
    expected = json.loads((FIXTURES / "version_1_expected.json").read_text())
    found = [
        {
            "prompt_tokens": s.point.prompt_tokens,
            "batch_size": s.point.batch_size,
            "prefill_s": s.prefill_s.value,
            "tpot_s": s.tpot_s.value,
        }
        for s in summarise_points(run)
    ]
    assert found == expected
    assert run.steps is not None
    assert run.ceilings is not None


def test_version_2():
    """A small simulated run of requests, as the second version wrote it; these numbers must never change."""
    run = read_run(FIXTURES / "version_2")
    assert json.loads((FIXTURES / "version_2" / "manifest.json").read_text())["schema_version"] == 2
    assert run.manifest.origin == "simulated"
    assert run.sweep is None
    assert run.ceilings is None
    assert np.bincount(run.requests.status, minlength=6).tolist() == [0, 577, 1, 1, 0, 21]
    assert len(run.steps.start_ns) == 6388
    assert int(run.requests.n_preemptions.sum()) == 19
    assert int(run.parts.n_delivered_tokens.sum()) == int(run.requests.output_tokens.sum())


def test_version_3():
    """The same run as the third version writes it."""
    old, new = read_run(FIXTURES / "version_2"), read_run(FIXTURES / "version_3")
    assert json.loads((FIXTURES / "version_3" / "manifest.json").read_text())["schema_version"] == 3
    for field in ("requests", "steps", "parts"):
        for name, column in zip(getattr(old, field)._fields, getattr(old, field), strict=True):
            assert np.array_equal(getattr(getattr(new, field), name), column), name


def test_version_4():
    """The same run as the fourth version writes it: slots of the batch have their own name."""
    old, new = read_run(FIXTURES / "version_3"), read_run(FIXTURES / "version_4")
    assert json.loads((FIXTURES / "version_4" / "manifest.json").read_text())["schema_version"] == 4
    for field in ("requests", "steps", "parts"):
        for name, column in zip(getattr(old, field)._fields, getattr(old, field), strict=True):
            assert np.array_equal(getattr(getattr(new, field), name), column), name
    assert int(old.parts.slot.max()) == 7
    for version, names in ((3, (True, False)), (4, (False, True))):
        content = (FIXTURES / f"version_{version}" / "step_parts.parquet").read_bytes()
        assert (b"seat" in content, b"slot" in content) == names


def test_a_newer_version_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(RecordError, match="version 99 is unknown") as caught:
        read_run(tmp_path)
    assert "newer inferometer" in str(caught.value)
