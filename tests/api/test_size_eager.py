"""Is a sizing without CUDA graphs that of slower steps, and does each command it proposes say so?"""

import pytest

import inferometer as im
from inferometer.errors import SpecError

OPTIONS = {
    "gpus": "h100_sxm",
    "tp": "1",
    "max_num_seqs": "256",
    "max_num_batched_tokens": "2048",
    "slo": "tpot:p95<50ms, ttft:p95<2s",
    "probe_requests": 200,
    "time_limit": 2,
}


def sized(**more):
    return im.size("llama-3.1-8b", **(OPTIONS | more))


def test_without_graphs_more_replicas_are_needed():
    with_graphs, without = (sized(rate=50, enforce_eager=is_eager) for is_eager in (False, True))
    assert without.pick.n_replicas > with_graphs.pick.n_replicas
    assert "kernels launched one by one" in without.pick.step_times_from
    assert "kernels launched" not in with_graphs.pick.step_times_from


def test_the_best_use_of_devices_proposes_the_same_engine():
    used = sized(total_gpus=2, enforce_eager=True)
    assert "--enforce-eager" in used.best_use.next_step


def test_steps_that_were_fitted_have_their_graphs(tmp_path):
    with pytest.raises(SpecError, match="enforce_eager=True changes the steps that were fitted"):
        sized(rate=4, enforce_eager=True, fit=tmp_path / "fit.json")
