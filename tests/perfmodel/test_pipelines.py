"""How long is a step on the stages of a pipeline?"""

import pytest

from inferometer.errors import SpecError
from inferometer.perfmodel.communication import ParallelPlan
from inferometer.perfmodel.steptime_arrays import shape_duration_s
from inferometer.perfmodel.steptime_levels import datasheet_levels, through_stages
from inferometer.perfmodel.types import decode_shape
from inferometer.spec.catalog import find_hardware, find_model
from inferometer.spec.types import EngineSpec

MODEL, DEVICE = find_model("llama-3.1-405b"), find_hardware("h100_sxm")
TIMES = datasheet_levels(MODEL, EngineSpec(dtype="bfloat16", tensor_parallel_size=8), DEVICE)
TOKEN = decode_shape(batch_size=16, context_tokens=1000)


def test_all_stages_together_take_as_long_as_one_and_the_hand_over():
    """126 layers on two stages: 63 each.

    One hop of 16 rows of 16,384 numbers of 2 bytes, and a message.
    """
    piped = through_stages(TIMES, MODEL, DEVICE, 2)
    hop_s = 16 * 16384 * 2 / (DEVICE.pcie_bytes_per_s.value * 0.65) + 20e-6
    assert shape_duration_s(piped.likely, TOKEN) == pytest.approx(
        shape_duration_s(TIMES.likely, TOKEN) + hop_s, rel=1e-3
    )
    assert piped.n_stages == 2
    assert through_stages(piped, MODEL, DEVICE, 2) is piped


def test_the_stage_with_the_most_layers_counts():
    """126 layers on four: 32 is the most, so all are reckoned as 128."""
    assert ParallelPlan(n_pipeline=4).stage_fraction(126) == 32 / 126
    ratio = shape_duration_s(through_stages(TIMES, MODEL, None, 4).fast, TOKEN) / shape_duration_s(
        TIMES.fast, TOKEN
    )
    assert ratio == pytest.approx(128 / 126)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(SpecError, match="126 layers"):
        through_stages(TIMES, MODEL, DEVICE, 127)
