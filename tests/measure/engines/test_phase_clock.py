import time

from inferometer.measure.engines.transformers_engine import clock_for


def test_intervals_between_marks():
    clock = clock_for("cpu")
    clock.mark()
    time.sleep(0.02)
    clock.mark()
    clock.mark()
    clock.settle()
    first_ns, second_ns = clock.durations_ns()
    assert first_ns >= 20_000_000
    assert second_ns < first_ns
