"""Is the lone request a bound: never slower than what the simulator finds on an idle replica, and near it?"""

import pytest

from inferometer.decide.candidates import Alike
from inferometer.decide.lone_request import lone_request
from inferometer.decide.probing import FleetProbe
from inferometer.decide.traffic import Traffic, plan_at
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import EngineSpec
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate.deployment import Knobs, deploy

POISSON = {"arrivals": {"kind": "open", "rate_per_s": 1.0, "process": "poisson"}}


@pytest.mark.parametrize("slo", ["ttft:p95<500ms", "tpot:p95<20ms", "e2e:p90<10s"])
@pytest.mark.parametrize("workload", ["chat", "code", "long-context"])
def test_it_is_a_lower_bound_and_a_near_one(workload, slo):
    model, hardware, engine = (
        catalog.find_model("llama-3.1-8b"),
        catalog.find_hardware("l40s"),
        EngineSpec(dtype="bfloat16", device="cuda"),
    )
    deployment = deploy(model, engine, hardware, datasheet_levels(model, engine, hardware), Knobs())
    spec, objective = (
        with_changes(resolve_workload(workload), POISSON, where="a test"),
        parse_objective(slo),
    )
    n = 300
    alone = lone_request(deployment, plan_at(spec, 1.0, n), objective)
    probe = FleetProbe(
        fleet=Alike().fleet(deployment, "likely", 1),
        traffic=Traffic(spec=spec, n_requests=n),
        objective=objective,
    )
    idle = probe(1e-4, 0)
    assert 0.5 * idle.margin_ratio < alone.margin_ratio <= idle.margin_ratio * (1 + 1e-6)
