"""Are parts done in processes the same as one after the other: order, bits, errors, deaths, Ctrl-C?"""

import os
import signal
import subprocess
import sys
import threading
import time

import parts_to_do
import psutil
import pytest

from inferometer.errors import MeasureError, SpecError
from inferometer.measure.executors.local import Inline, Processes


def test_answers_are_the_same_bits_in_the_same_order():
    here = Inline().map(parts_to_do.spectrum, range(6))
    assert Processes(3).map(parts_to_do.spectrum, range(6)) == here
    assert Processes(1).map(parts_to_do.spectrum, iter(range(6))) == here
    assert Processes(3).map(parts_to_do.spectrum, ()) == ()


def test_progress_is_told():
    told = []
    Processes(2, lambda *counts: told.append(counts)).map(parts_to_do.spectrum, range(4))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_parts_of_a_process_that_died_are_done_again(tmp_path):
    parts = [(seed, tmp_path, seed == 1) for seed in range(4)]
    answers = Processes(2).map(parts_to_do.killed_once, parts)
    assert [seed for seed, _ in answers] == [0, 1, 2, 3]
    assert answers[1] == (1, 2)


def test_a_part_that_always_kills_its_process_is_named_an_error():
    with pytest.raises(MeasureError, match="died 3 times"):
        Processes(2).map(parts_to_do.always_killed, range(3))


@pytest.mark.parametrize("executor", [Inline(), Processes(3)])
def test_the_error_of_the_first_part_is_raised(executor):
    with pytest.raises(SpecError, match="part 2") as caught:
        executor.map(parts_to_do.refused, range(6))
    assert (caught.value.where, caught.value.try_) == ("a test", "another")


def test_a_script_without_a_main_guard_is_run_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun', flush=True)\n"
        "from inferometer.measure.executors.local import Processes\n"
        "import math\n"
        "print(Processes(2).map(math.sqrt, [1.0, 4.0, 9.0]))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["begun", "(1.0, 2.0, 3.0)"]
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_no_process(tmp_path):
    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Processes(2).map(parts_to_do.asleep, [tmp_path] * 3)
    assert time.monotonic() - begun_s < 30
    assert not any(psutil.pid_exists(int(path.name)) for path in tmp_path.iterdir())
