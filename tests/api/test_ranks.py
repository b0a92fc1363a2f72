"""Do ranks of attention data-parallelism have their engine's own limits and router?"""

from dataclasses import replace

import pytest

import inferometer as im
from inferometer.api.cluster import Cluster, servers_of
from inferometer.api.fleet import FleetOptions, servers_described
from inferometer.api.server import Server, Settings, deployment_of, fit_cautions
from inferometer.errors import SpecError


def test_ranks_of_sglang_have_their_part_of_the_servers_limits():
    """As ``--enable-dp-attention`` divides them; 2,048 requests are its default for each rank."""
    server = Server(model="deepseek-v3", hardware="h200_sxm", datasheet=True, policy="sglang")
    config = deployment_of(server, n_sharing=8).config
    assert (config.chunked_prefill_size, config.max_running_requests) == (1024, 2048)
    assert config.schedule_conservativeness_ratio == pytest.approx(0.3)
    named = ("max_running_requests=1024", "chunked_prefill_size=1000000")
    paged = replace(server, set=named, settings=Settings(block_size=64))
    config = deployment_of(paged, n_sharing=8).config
    assert (config.chunked_prefill_size, config.max_running_requests) == (124992, 128)
    each = replace(server, max_num_seqs=64, max_num_batched_tokens=4096)
    config = deployment_of(each, n_sharing=8).config
    assert (config.chunked_prefill_size, config.max_running_requests) == (4096, 64)
    off = replace(server, set=("chunked_prefill_size=-1",))
    assert deployment_of(off, n_sharing=8).config.chunked_prefill_size == -1


def test_each_engines_ranks_are_behind_its_own_router():
    routers = {}
    for policy in ("vllm", "sglang", "trtllm"):
        server = Server(model="deepseek-v3", hardware="h200_sxm", datasheet=True, policy=policy)
        deployment = deployment_of(server, n_sharing=8)
        servers = servers_of(Cluster(data_parallel_size=8), deployment)
        assert servers.cluster.in_lockstep
        routers[policy] = servers.rules.router
        has_caution = any(one.code == "RANKS" for one in fit_cautions(deployment))
        assert has_caution == (policy != "vllm")
    assert routers == {"vllm": "vllm", "sglang": "round-robin", "trtllm": "least-loaded"}


def test_ranks_of_a_dense_model_are_replicas_behind_vllms_balancer():
    """vLLM 0.32.0 starts ``DPEngineCoreProc``, whose steps are in step, for mixtures of experts alone."""
    server = Server(model="llama-3.1-8b", hardware="h100_sxm")
    options = FleetOptions(cluster=Cluster(data_parallel_size=4))
    servers = servers_described(None, server, options)
    assert (servers.n_replicas, servers.n_devices) == (4, 4)
    assert not servers.cluster.in_lockstep
    replicas = FleetOptions(cluster=Cluster(replicas=4, router="vllm"))
    assert servers.cluster == servers_described(None, server, replicas).cluster
    with pytest.raises(SpecError, match="is dense"):
        servers_described(None, replace(server, policy="sglang"), options)
    both = FleetOptions(cluster=Cluster(data_parallel_size=4, replicas=2))
    with pytest.raises(SpecError, match="each of them a replica") as refused:
        servers_described(None, server, both)
    assert refused.value.try_ == "--replicas 8"


def test_all_verbs_have_as_many_replicas_of_a_dense_model_as_ranks():
    start = "vllm serve meta-llama/Llama-3.1-8B-Instruct -dp 2"
    slo = {"slo": "ttft:p95<1s", "time_limit": 1.0}
    found = im.capacity(start, hardware="h100_sxm", **slo)
    assert (found.n_replicas, found.n_devices) == (2, 2)
    pick = im.size(start, gpus="h100_sxm", rate=2.0, **slo).pick
    assert pick is not None
    assert pick.n_replicas == 2
