"""Does each reader answer or refuse what ``bench/bench_mutated_inputs.py`` makes of sound examples?

A sample of it.
"""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from bench_mutated_inputs import readers, sample, written


def test_sound_examples_are_read(tmp_path):
    for reader in readers(tmp_path / "made"):
        for content in reader.contents:
            reader.read(written(reader, content, tmp_path / "one"))
            shutil.rmtree(tmp_path / "one")


@pytest.mark.parametrize("first", [0, 10_000])
def test_changed_examples_are_answered_or_refused(first, tmp_path):
    assert sample(range(first, first + 250), tmp_path) == []
