"""A fleet as a sizing would decide on it, its numbers chosen so that they are easy to reckon with."""

from inferometer.decide.artefacts.packaging import Fleet, OperatingPoint, Promise
from inferometer.inputs import catalog
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import Caution, EngineSpec
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.simulate.scheduler_config import SchedulerConfig

PROMISE = "ttft:p95<500ms, tpot:p90<60ms"
"""An edge of vLLM's histogram, and a limit between the edges 50 and 75 ms."""


def operating_point(step_times="likely", **changes):
    usual = {
        "step_times": step_times,
        "requests_per_s": 4.0,
        "in_flight_load": 20.0,
        "n_waiting_high": 2,
        "kv_used_mean_fraction": 0.3,
        "kv_used_high_fraction": 0.5,
        "preemptions_per_request_ratio": 0.0,
        "ttft_mean_s": 0.1,
        "tpot_mean_s": 0.02,
    }
    return OperatingPoint(**(usual | changes))


def fleet(
    model="llama-3.1-8b", device="h100_sxm", engine=None, scheduler=None, slo=PROMISE, **changes
):
    objective = parse_objective(slo)
    engine = EngineSpec(
        **({"dtype": "bfloat16", "device": "cuda", "tensor_parallel_size": 2} | (engine or {}))
    )
    usual = {
        "model": catalog.find_model(model),
        "hardware": catalog.find_hardware(device),
        "engine": engine,
        "scheduler": SchedulerConfig(
            **(
                {"num_blocks": 10_001, "max_model_len": 8192, "max_num_seqs": 64}
                | (scheduler or {})
            )
        ),
        "utilization_fraction": 0.9,
        "n_replicas": 2,
        "n_replicas_if_one_fails": 3,
        "workload": with_changes(
            resolve_workload("chat"), {"arrivals": {"rate_per_s": 8.0}}, where="a test"
        ),
        "rate_per_s": 8.0,
        "objective": objective,
        "router": "least-loaded",
        "sized_for": "likely",
        "verdict": "undecided",
        "promises": tuple(
            Promise(text=one.text, verdict="met", seen_s=0.04, low_s=0.03, high_s=0.05)
            for one in objective.thresholds
        ),
        "weakest": f"{objective.thresholds[0].text}: 40 ms [30 ms, 50 ms]",
        "breaks_first": None,
        "prompt_mean_tokens": 1000.0,
        "output_mean_tokens": 200.0,
        "e2e_high_s": 12.0,
        "kept_requests_per_s": 5.0,
        "broken_requests_per_s": 5.5,
        "planned": (
            operating_point(),
            operating_point("fast", tpot_mean_s=0.018),
            operating_point("slow", tpot_mean_s=0.03, ttft_mean_s=0.2),
        ),
        "fullest": operating_point(
            requests_per_s=5.0, in_flight_load=30.5, n_waiting_high=6, kv_used_high_fraction=0.8
        ),
        "step_times_basis": "datasheet",
        "step_times_from": "a test",
        "has_stated_links": False,
        "kv_origin": "given",
        "usd_per_hour": 10.0,
        "price_from": "a test",
        "cautions": (Caution(code="TEST", text="numbers are made up", remedy="none"),),
        "tool_version": "0",
    }
    return Fleet(**(usual | changes))
