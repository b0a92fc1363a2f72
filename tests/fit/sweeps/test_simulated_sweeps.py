"""Does a simulation of the static batches that were measured give what was measured, within the fit's interval?"""

from pathlib import Path

import numpy as np
import pytest

from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.reading import read_run
from inferometer.records.repetitions import repetitions_of
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig

DATA = Path(__file__).parents[1] / "data"


def simulated_s(model, point):
    """Time to the first token and from it to the last, of one batch whose prompts are computed in one step."""
    config = SchedulerConfig(
        num_blocks=4096,
        max_model_len=4096,
        max_num_seqs=point.batch_size,
        max_num_batched_tokens=point.batch_size * point.prompt_tokens,
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    n = point.batch_size
    batch = demand(
        np.zeros(n, np.int64), np.full(n, point.prompt_tokens), np.full(n, point.gen_tokens)
    )
    requests = simulate(batch, config, arrays_of(model)).requests
    assert len(set(requests.first_token_ns.tolist())) == 1, "one static batch"
    return (
        requests.first_token_ns[0] / 1e9,
        (requests.finished_ns[0] - requests.first_token_ns[0]) / 1e9,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["smollm2-135m-float32", "qwen2.5-0.5b-float32", "qwen2.5-0.5b-bfloat16"]
)
def test_measured_static_batches_are_simulated_within_the_fits_interval(name):
    run = read_run(DATA / name)
    model = fit_step_time([run])
    inside, errors = [], []
    for point in repetitions_of(run):
        prefill_s, decode_s = simulated_s(model, point.point)
        n, prompt, steps = (
            point.point.batch_size,
            point.point.prompt_tokens,
            point.point.gen_tokens - 1,
        )
        shapes = [
            prefill_shape(batch_size=n, prompt_tokens=prompt),
            decode_shape(batch_size=n, context_tokens=prompt + steps // 2 + 1),
        ]
        for simulated, measured, said in zip(
            (prefill_s, decode_s / steps),
            (point.prefill_s, point.decode_step_s),
            model.predict_all(shapes),
            strict=True,
        ):
            factor = said.duration_s.high / said.duration_s.value
            spread = np.quantile(
                measured, [0, 1]
            )  # three repetitions on a machine whose speed changes
            errors.append(simulated / np.median(measured) - 1)
            inside.append(bool(spread[0] / factor <= simulated <= spread[1] * factor))
            assert simulated == pytest.approx(said.duration_s.value, rel=0.01), (
                "the same model, step by step"
            )
    assert np.mean(inside) >= 0.9
    assert np.median(np.abs(errors)) < 0.05
