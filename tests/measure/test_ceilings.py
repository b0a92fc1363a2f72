import time

import pytest

from inferometer.measure.ceilings import (
    MAX_FOOTPRINT_BYTES,
    MIN_FOOTPRINT_BYTES,
    NumpyCeilings,
    fastest_s,
    probe_footprint_bytes,
)
from inferometer.measure.engines.protocol import ProbeSettings
from inferometer.measure.engines.torch_ceilings import TorchCeilings
from inferometer.records.types import ProbeKind

MIB = 2**20
ALL = (ProbeKind.READ, ProbeKind.COPY, ProbeKind.MATMUL)


def settings(**changes: object) -> ProbeSettings:
    return ProbeSettings(
        **{"kinds": ALL, "footprint_bytes": 32 * MIB, "matmul_dtype": "float32", "n_threads": 1}
        | changes
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weight_bytes", "footprint_bytes"),
    [
        (1, MIN_FOOTPRINT_BYTES),
        (100 * MIB + 5, 100 * MIB),
        (2**40, MAX_FOOTPRINT_BYTES),
        (None, MAX_FOOTPRINT_BYTES),
    ],
)
def test_footprint_follows_the_weights_between_clamps(weight_bytes, footprint_bytes):
    assert probe_footprint_bytes(weight_bytes) == footprint_bytes


@pytest.mark.slow
@pytest.mark.parametrize("probe", [NumpyCeilings(), TorchCeilings()], ids=["numpy", "torch"])
def test_ceilings_are_those_of_a_computer(probe):
    measured = {ceiling.kind: ceiling for ceiling in probe.measure(settings())}
    assert set(measured) == set(ALL)
    assert measured[ProbeKind.READ].footprint_bytes == 32 * MIB
    assert 1e8 < measured[ProbeKind.READ].value_per_s < 1e13
    assert 1e8 < measured[ProbeKind.COPY].value_per_s < 1e13
    assert 1e8 < measured[ProbeKind.MATMUL].value_per_s < 1e16
    assert measured[ProbeKind.MATMUL].dtype == "float32"
    assert probe.held_bytes >= 32 * MIB


@pytest.mark.parametrize("probe", [NumpyCeilings(), TorchCeilings()], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    "footprint_bytes", [pytest.param(538_060_032, marks=pytest.mark.slow), 16 * MIB + 12, 5000]
)
def test_a_footprint_of_any_size_is_probed(probe, footprint_bytes):
    (read,) = probe.measure(settings(kinds=(ProbeKind.READ,), footprint_bytes=footprint_bytes))
    assert read.value_per_s > 1e8
    assert footprint_bytes - 4096 <= read.footprint_bytes <= footprint_bytes


def test_numpy_has_no_bfloat16_and_says_nothing():
    assert (
        NumpyCeilings().measure(settings(kinds=(ProbeKind.MATMUL,), matmul_dtype="bfloat16")) == ()
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_answers_in_a_moment_where_the_processor_has_no_instructions_for_the_format(dtype):
    probe, asked = TorchCeilings(), settings(kinds=(ProbeKind.MATMUL,), matmul_dtype=dtype)
    begin_s = time.process_time()
    (ceiling,) = probe.measure(asked)
    assert time.process_time() - begin_s < 10  # 2,048 rows took 50 s on one that has none
    assert ceiling.dtype == dtype
    assert ceiling.value_per_s > 1e8
    assert probe.measure(asked)[0].footprint_bytes == ceiling.footprint_bytes


def test_fastest_of_at_least_so_many():
    calls = []
    assert fastest_s(lambda: calls.append(1), budget_s=0.0, min_passes=5) > 0
    assert len(calls) == 5
