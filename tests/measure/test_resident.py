import gc
import subprocess
import sys

import numpy as np
import psutil

from inferometer.measure.child_processes import (
    available_bytes,
    peak_resident_bytes,
    reset_peak_resident,
)

MIB = 2**20


def test_peak_remembers_what_was_given_back():
    gc.collect()
    assert reset_peak_resident()
    before = peak_resident_bytes()
    block = np.ones(100 * MIB, dtype=np.uint8)
    del block
    after = peak_resident_bytes()
    assert before is not None
    assert after is not None
    assert 95 * MIB < after - before < 140 * MIB
    assert reset_peak_resident()
    forgotten = peak_resident_bytes()
    assert forgotten is not None
    assert forgotten < after - 80 * MIB


def test_children_count():
    before = peak_resident_bytes()
    script = (
        "import sys; b = bytearray(b'x') * (80 * 2**20); print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with_child = peak_resident_bytes()
        child.communicate()
    assert before is not None
    assert with_child is not None
    assert with_child - before > 80 * MIB


def test_available_is_at_most_what_the_machine_has():
    free = available_bytes()
    assert free is not None
    assert 0 < free <= psutil.virtual_memory().total
