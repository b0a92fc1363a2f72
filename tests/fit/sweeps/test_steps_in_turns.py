"""Do steps of a narrow model tell launches from weights, where the sweep's points do not?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.fit.sweeps.step_time import fit_step_time
from inferometer.inputs.catalog import find_model
from inferometer.perfmodel.weights import step_weight_bytes
from inferometer.records.tables import concat, from_rows
from inferometer.records.types import SEQUENCES_OF_STEP, CeilingTable

LAUNCH_S, WEIGHT_BYTES_PER_S, NARROW_SHARE = 0.015, 8e9, 0.02
"""A machine whose products read weights at a third of what its read probe shows."""


@pytest.fixture(scope="module")
def run(made_run, truth):
    slow = replace(truth, launch_s=LAUNCH_S, weight_bytes_per_s=WEIGHT_BYTES_PER_S)
    return made_run(slow, prompts=(128,), batches=(1, 4))


def with_steps_in_turns(run):
    model, engine = find_model("smollm2-135m"), run.manifest.plan.engine
    size_bytes = step_weight_bytes(model, engine, n_rows=1, n_logit_positions=1)
    rows = [
        {
            "point_index": -1,
            "repetition": -1,
            "started_ns": i_round,
            "kind": kind,
            "dtype": "",
            "footprint_bytes": round(size_bytes * share),
            "value_per_s": 1 / (LAUNCH_S + share * (size_bytes / WEIGHT_BYTES_PER_S + n * 1e-4)),
        }
        for i_round in range(10)
        for kind, n in SEQUENCES_OF_STEP.items()
        for share in (1.0, NARROW_SHARE)
    ]
    return replace(
        run, ceilings=concat(CeilingTable, [run.ceilings, from_rows(CeilingTable, rows)])
    )


def log_error(model, name, true):
    found = next(one.estimate.value for one in model.parameters if one.name == name)
    return abs(np.log(found / true))


def test_launches_and_weights_are_told_apart(run):
    alone, in_turns = (fit_step_time([one]) for one in (run, with_steps_in_turns(run)))
    for name, true in (("launch_s", LAUNCH_S), ("weight_bytes_per_s", WEIGHT_BYTES_PER_S)):
        assert log_error(in_turns, name, true) < 0.1
        assert log_error(alone, name, true) > 0.4
