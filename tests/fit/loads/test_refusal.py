"""Is a fit refused whose server does not do as the requests say, and is it said what would settle it?"""

from dataclasses import replace

import numpy as np
import pytest
from black_boxes import Box, config

from inferometer.fit.loads.estimation import Address, ProbeScope, Subject, judged_server, refusal_of
from inferometer.fit.loads.load_tests import LoadTest, PeakLoad
from inferometer.fit.loads.server import ReportedSettings
from inferometer.inputs.types import EngineSpec

REPORTED = ReportedSettings(
    limits={"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    switches={
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "async_scheduling": True,
    },
)
SUBJECT = Subject(
    address=Address("http://127.0.0.1:8000", "m"),
    engine=EngineSpec(engine="vllm"),
    reported=REPORTED,
)


MOST = PeakLoad(8, 4, 100, 400, 300, 100, has_known_prefixes=False)


@pytest.fixture(scope="module")
def plain():
    return judged(is_strange=False)


def judged(*, is_strange):
    """Of a server as vLLM is.

    Or of one that lets each request wait for up to 20 s, whatever it holds, and stalls its answers.
    """
    run = Box(config()).load_test(2.0, 80)
    table = run.requests
    if is_strange:
        rng = np.random.default_rng(3)
        wait_ns = (rng.random(80) ** 3 * 20e9).astype(np.int64)
        stall_ns = (rng.random(80) ** 3 * 30e9).astype(np.int64)
        table = table._replace(
            first_token_ns=table.first_token_ns + wait_ns,
            finished_ns=table.finished_ns + wait_ns + stall_ns,
        )
    return judged_server([LoadTest(run=replace(run, requests=table))], SUBJECT)


@pytest.mark.slow
def test_a_server_as_vllm_is_fitted(plain):
    found = plain
    assert found.refusal is None
    assert found.fit.scatter_ratio < 2
    assert found.fit.tpot_residual_fraction < 0.02


@pytest.mark.slow
def test_a_server_that_does_not_do_as_vllm_is_refused():
    refusal = judged(is_strange=True).refusal
    assert refusal.scatter_ratio > 5
    assert max(refusal.tpot_residual_fraction / 0.1, refusal.ttft_residual_fraction / 0.3) > 1
    assert refusal.facts[0].startswith("--known num_gpu_blocks=N, or --server-log FILE")
    assert any(fact.startswith("--workload FILE") for fact in refusal.facts)
    assert any(fact.startswith("--model ID --hardware ID") for fact in refusal.facts)
    assert refusal.probe.startswith("inferometer load http://127.0.0.1:8000 --model m --workload ")


@pytest.mark.parametrize(
    ("scatter", "tpot", "ttft", "is_refused"),
    [
        (9.0, 0.3, 0.0, True),
        (9.0, 0.01, 0.5, True),
        (9.0, 0.02, 0.1, False),
        (3.0, 0.3, 0.9, False),
    ],
)
def test_both_the_residual_and_its_excess_over_chance_count(scatter, tpot, ttft, is_refused, plain):
    room = ProbeScope(
        address=SUBJECT.address,
        most=MOST,
        longest_tokens=100,
        median_prompt_tokens=50,
        step_s=0.03,
        prompt_token_s=1e-3,
    )
    fit = replace(
        plain.fit, scatter_ratio=scatter, tpot_residual_fraction=tpot, ttft_residual_fraction=ttft
    )
    assert (refusal_of(fit, room, has_known_prefixes=True) is not None) == is_refused
