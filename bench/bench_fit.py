"""How long does a fit with its cross-validation take, and what does a predicted step cost?

Run on the recorded sweep of the tests, so that every machine fits the same numbers. One line for
each question.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import numba
import numpy as np

from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.perfmodel import steptime_terms
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.types import decode_shape
from inferometer.records.reading import read_run

RECORDED = Path(__file__).parents[1] / "tests" / "fit" / "data" / "smollm2-135m-float32"


def best_s(call: Callable[[], object], n_tries: int) -> float:
    durations = []
    for _ in range(n_tries):
        start_s = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start_s)
    return min(durations)


def compiled_closed_form() -> Callable[..., float]:
    scope = dict(vars(steptime_terms))
    for name in steptime_terms.CLOSED_FORM_PARTS:
        scope[name] = numba.njit(FunctionType(scope[name].__code__, scope))
    closed_form = scope["step_duration_s"]

    @numba.njit
    def many(arrays, n_steps):
        total_s = 0.0
        for step in range(n_steps):
            total_s += closed_form(arrays, 0, 1 + step % 16, 0, 0, 512 + step, 1 + step % 16)
        return total_s

    return many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=RECORDED)
    run = read_run(parser.parse_args().run)
    n_points = np.unique(run.sweep.point_index).size
    print(
        f"fit with {min(n_points, 10)}-fold cross-validation of {n_points} points:"
        f" {best_s(lambda: fit_step_time([run]), 3):.2f} s"
    )
    model = fit_step_time([run])
    shapes = [decode_shape(batch_size=batch, context_tokens=512) for batch in range(1, 17)]
    print(
        "predict with interval, limit and box:"
        f" {best_s(lambda: model.predict(shapes[0]), 20) * 1e3:.2f} ms for one step"
    )
    print(
        f"predict_all: {best_s(lambda: model.predict_all(shapes * 16), 5) / 256 * 1e6:.0f} µs a"
        " step"
    )
    many, arrays = compiled_closed_form(), arrays_of(model)
    many(arrays, 10)
    print(
        "closed form, compiled by numba:"
        f" {best_s(lambda: many(arrays, 1_000_000), 3) / 1e6 * 1e9:.0f} ns a step"
    )


if __name__ == "__main__":
    main()
