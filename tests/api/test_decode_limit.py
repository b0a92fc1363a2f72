"""Is a point's limit that of the paired steps wherever its step is like theirs?"""

from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.api.analysis import _decode_limit, analyse
from inferometer.inputs.types import SweepPoint
from inferometer.records.reading import read_run
from inferometer.records.summaries import StepShares
from inferometer.stats.estimate import Estimate

SMOLLM2 = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"
STEP = Estimate(
    value=0.06, low=0.05, high=0.07, confidence_fraction=0.95, n_samples=20, method="a test"
)
SHARES = StepShares(
    step_s=STEP, parts=(), limited_by="weight bandwidth", n_rounds=20, weight_bytes=538_000_000
)


@pytest.fixture(scope="module")
def analysis():
    return replace(analyse(read_run(SMOLLM2), SMOLLM2, label="a"), steps=SHARES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt_tokens", "batch_size", "limit"),
    [(32, 1, "weight bandwidth"), (512, 1, "weight bandwidth"), (8192, 1, "kv"), (32, 4, "kv")],
)
def test_few_kv_bytes_of_one_sequence_are_like_them(prompt_tokens, batch_size, limit, analysis):
    point = SweepPoint(prompt_tokens=prompt_tokens, batch_size=batch_size, gen_tokens=8)
    assert _decode_limit(analysis, point, "kv") == limit
