"""A server's fit as a file, made by hand: what verbs do with it is the same whoever found it."""

from pathlib import Path

import numpy as np

from inferometer.fit.loads.load_tests import StepPace
from inferometer.fit.loads.server import STEP_NAMES, KnobFit, step_prior
from inferometer.fit.loads.server_fit import SeenLoad, ServerFit, plain_base
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime import FittedParameter
from inferometer.stats.estimate import Estimate

VALUES = (2e-3, 8e-3, 4e-5, 1e-7, 6e-9, 3e-5, 2.0, 50e-3)
LIMITS = {"max_num_seqs": 24, "max_num_batched_tokens": 1024, "n_kv_blocks": 2000}
SWITCHES = {
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "async_scheduling": True,
}
FRONT_END_S = VALUES[-1]


def server_fit() -> ServerFit:
    pace = StepPace(base_s=0.01, sequence_s=0.0, context_token_s=0.0, prompt_token_s=0.0)
    base = step_prior(pace, np.ones(3), None, EngineSpec(), None).base
    estimates = [
        Estimate(
            value=v,
            low=0.9 * v,
            high=1.1 * v,
            confidence_fraction=0.9,
            n_samples=500,
            method="made",
        )
        for v in VALUES
    ]
    names = (*STEP_NAMES, "front_end_s")
    plain = {
        "low": None,
        "high": None,
        "informed_by": "load",
        "text": "made by hand",
        "probe": None,
    }
    return ServerFit(
        served_model="hidden",
        model=None,
        hardware=None,
        engine=EngineSpec(engine="vllm"),
        block_tokens=16,
        max_model_len=4000,
        knobs=tuple(
            KnobFit(name=name, value=value, **plain) for name, value in (LIMITS | SWITCHES).items()
        ),
        parameters=tuple(
            FittedParameter(name=n, estimate=e, informed_by="data")
            for n, e in zip(names, estimates, strict=True)
        ),
        covariance=tuple(tuple(row) for row in (0.02**2 * np.eye(len(names))).tolist()),
        base=plain_base(base),
        seen=SeenLoad(
            run_ids=("a", "b"),
            n_requests=500,
            n_answers_at_once=24,
            median_prompt_tokens=300,
            median_context_tokens=400,
            longest_tokens=3000,
        ),
        scatter_ratio=0.3,
        n_simulations=100,
    )


def write_server(folder: Path) -> Path:
    path = folder / "server.json"
    server_fit().save(path)
    return path
