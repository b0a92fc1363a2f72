"""How much traffic does the search for a capacity take, beside a linear sweep of the same precision?

The sweep goes up from the same start in steps of the resolution times the capacity (which it is
told), asks each load at the length of the search's proof, and ends at the first load that breaks
the promise: both end with a bracket of the same width. Beside it stands a sweep that has learned
from the search: short probes until the margin is crossed, then the search's own proof.
"""

import os
import time

from results_log import log_row

from inferometer.decide.candidates import Alike
from inferometer.decide.capacity import CapacityQuestion, find_capacity
from inferometer.decide.probing import FleetProbe
from inferometer.decide.traffic import Traffic
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import EngineSpec
from inferometer.inputs.workload.reading import resolve_workload
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate.deployment import Knobs, deploy

RESOLUTION = 0.05
EFFORT = 2
CASES = (
    ("l40s", "ttft:p95<1s, tpot:p95<100ms"),
    ("h100_sxm", "ttft:p95<500ms, tpot:p95<50ms"),
    ("a100_80gb_sxm", "ttft:p95<2s, tpot:p95<80ms"),
)


def probe_of(device, slo):
    model, hardware = catalog.find_model("llama-3.1-8b"), catalog.find_hardware(device)
    engine = EngineSpec(dtype="bfloat16", device="cuda")
    deployment = deploy(model, engine, hardware, datasheet_levels(model, engine, hardware), Knobs())
    return FleetProbe(
        fleet=Alike().fleet(deployment, "likely", 1),
        traffic=Traffic(spec=resolve_workload("chat")),
        objective=parse_objective(slo),
    )


def swept_s(probe, effort, start, step, is_end):
    load, total_s = start, 0.0
    while True:
        reading = probe(load, effort)
        total_s += reading.took_s
        if is_end(reading):
            return total_s
        load += step


def main():
    ratios = []
    for device, slo in CASES:
        probe = probe_of(device, slo)
        begin_s = time.process_time()
        located = find_capacity(
            probe,
            CapacityQuestion(
                kind="requests_per_s",
                start_load=5.0,
                lowest_load=0.05,
                highest_load=500.0,
                proof_effort=None,
            ),
        ).located_load
        start = located / 3
        question = CapacityQuestion(
            kind="requests_per_s",
            start_load=start,
            lowest_load=start / 100,
            highest_load=start * 100,
            resolution_ratio=RESOLUTION,
            proof_effort=EFFORT,
        )
        found = find_capacity(probe, question)
        step = RESOLUTION * located
        long_s = swept_s(probe, EFFORT, start, step, lambda reading: reading.verdict == "missed")
        short_s = swept_s(probe, 0, start, step, lambda reading: reading.margin_ratio > 1)
        proof_s = sum(one.reading.took_s for one in found.probes if one.effort == EFFORT)
        ratios.append(long_s / found.probe_s)
        bracket = f"{found.met_load:.3g}–{found.missed_load:.3g} requests/s"
        result = (
            f"{long_s / found.probe_s:.1f}x fewer probe-seconds ({found.probe_s:.0f} s,"
            f" {len(found.probes)} probes; sweep {long_s:.0f} s)"
        )
        told = (
            f"from a third of the capacity, {bracket},"
            f" {'resolved' if found.is_resolved else 'unresolved'}; a short sweep with the same "
        )
        told += (
            f"proof: {(short_s + proof_s) / found.probe_s:.2f}x,"
            f" {short_s / (found.probe_s - proof_s):.1f}x of it to locate; "
        )
        told += (
            f"{time.process_time() - begin_s:.0f} s of CPU, load average {os.getloadavg()[0]:.0f}"
        )
        log_row(f"capacity search / linear sweep of 5 %, {device}, {slo}", result, told)
    assert min(ratios) >= 3, ratios


if __name__ == "__main__":
    main()
