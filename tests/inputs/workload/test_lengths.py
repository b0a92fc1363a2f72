"""Are lengths a workload, as every benchmark's users write them?"""

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.workload.reading import lengths_table, resolve_workload


@pytest.mark.parametrize(
    ("typed", "prompt", "output"),
    [
        ("1024x256", (1024, 1024), (256, 256)),
        ("1024/256", (1024, 1024), (256, 256)),
        ("8k1k", (8192, 8192), (1024, 1024)),
        ("1kx0.5k", (1024, 1024), (512, 512)),
        ("100..2000x50..500", (100, 2000), (50, 500)),
        ("prompt=1024,output=256", (1024, 1024), (256, 256)),
        ("output=64..256, prompt_tokens=512", (512, 512), (64, 256)),
        ("ISL=1024,OSL=1k", (1024, 1024), (1024, 1024)),
    ],
)
def test_lengths_are_one_class_of_requests(typed, prompt, output):
    spec = resolve_workload(typed)
    (only,) = spec.classes
    for side, (low, high) in ((only.prompt_tokens, prompt), (only.output_tokens, output)):
        assert (
            getattr(side, "low", None) or side.value,
            getattr(side, "high", None) or side.value,
        ) == (low, high)
    assert spec.name == typed


@pytest.mark.parametrize("typed", ["chat", "trace.jsonl", "a=b", "1024", "x256", "folder/1024x256"])
def test_other_text_is_no_lengths(typed):
    assert lengths_table(typed) is None


@pytest.mark.parametrize(
    "typed",
    [
        "0x5",
        "5x0",
        "prompt=5",
        "prompt=5,output=",
        "5..2x7",
        "9" * 400 + "x1",
        "99999999999x1",
        "prompt=nan,output=3",
    ],
)
def test_impossible_lengths_are_refused(typed):
    with pytest.raises(SpecError) as caught:
        resolve_workload(typed)
    assert "--workload" in caught.value.where
