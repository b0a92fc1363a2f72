"""How long does sizing take: some 200 kinds of replica, an objective, chat traffic?

And does a longer simulation pick the same?

Five devices, tensor parallelism 1 to 8, two formats, three numbers of slots, two step budgets; the
best of each is simulated whole, at three step times, with one replica less. The bar: 20 s by the
clock on 2 cores, the processes' start in it; to be run alone. On a busy machine the clock says
nothing: there its 40 s of CPU are the bar (INFEROMETER_BUSY=1). Ten times longer all devices are
asked again.
"""

import os
import time

from results_log import log_row

from inferometer.decide.candidates import Grid, Offer, candidates_of
from inferometer.decide.sizing import size_by_device
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.prices import rents_of
from inferometer.inputs.workload.reading import resolve_workload
from inferometer.measure.executors.local import Processes

DEVICES = ("h100_sxm", "l40s", "mi300x", "a100_80gb_sxm", "h200_sxm")
GRID = Grid(
    quantizations=(None, "float8"), max_num_seqs=(64, 128, 256), max_num_batched_tokens=(2048, 8192)
)
SLO = "ttft:p95<500ms, tpot:p95<50ms"
N_CORES = 2


def sized(n_requests, in_parts):
    model = catalog.find_model("llama-3.1-8b")
    devices = [catalog.find_hardware(name) for name in DEVICES]
    offers = [
        Offer(hardware=device, price=rent)
        for device, rent in zip(devices, rents_of(devices, None), strict=True)
    ]
    possible = candidates_of(model, offers, GRID).possible
    question = SizingQuestion(
        spec=resolve_workload("chat"),
        offered_load=20.0,
        objective=parse_objective(SLO),
        n_requests=n_requests,
    )
    kinds = [done.best for done in size_by_device(question, possible, in_parts)]
    ranked = sorted(
        (kind for kind in kinds if kind is not None),
        key=lambda kind: (kind.usd_per_hour, kind.n_devices),
    )
    return len(possible), [(kind.hardware_id, kind.layout, kind.n_replicas) for kind in ranked]


def main():
    sized(300, map)  # compiled
    begin_s = time.process_time()
    n_candidates, short = sized(1000, map)
    cpu_s = time.process_time() - begin_s
    load = os.getloadavg()[0]
    begin_s = time.perf_counter()
    sized(1000, Processes(N_CORES).map)
    wall_s = time.perf_counter() - begin_s
    _, long = sized(10_000, Processes(N_CORES).map)
    picked = "the same" if short[0] == long[0] else long[0]
    n_alike = len(set(short) & set(long))
    result = (
        f"{n_candidates} kinds in {wall_s:.1f} s on {N_CORES} cores ({cpu_s:.1f} s of CPU in one"
        " process)"
    )
    told = (
        f"pick {short[0]}, with ten times as many requests {picked}; {n_alike} of {len(short)}"
        f" devices alike; load average {load:.0f}"
    )
    print(result, told, sep="\n")
    log_row("sizing for chat at 20 requests/s, clusters simulated whole", result, told)
    assert n_candidates >= 200
    assert cpu_s <= 40 if os.environ.get("INFEROMETER_BUSY") else wall_s <= 20, (cpu_s, wall_s)
    assert short[0] == long[0], (short, long)


if __name__ == "__main__":
    main()
