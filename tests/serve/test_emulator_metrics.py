"""Does the emulator's page of metrics say what a vLLM server's says, and are its numbers those of what happened?"""

import asyncio
from pathlib import Path

import pytest
from emulated import PLAN, talking
from prometheus_client.parser import text_string_to_metric_families

from inferometer.serve.emulator_metrics import Now, metrics_of
from inferometer.simulate.fleet import ClusterConfig, Fleet, lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

RECORDED = Path(__file__).parents[1] / "records" / "expositions" / "vllm-0.32-after.txt"
ONLY_WITH_A_FLAG = "vllm:estimated_"
"""The recorded server had --enable-mfu-metrics."""


def families(page):
    return {family.name: family for family in text_string_to_metric_families(page)}


def page_after(*asked, config=None):
    async def main():
        async with talking(**({} if config is None else {"config": config})) as client:
            for prompt, n_tokens in asked:
                await client.complete(prompt, max_tokens=n_tokens)
            reply = await client.ask("GET", "/metrics", accept="text/plain;version=0.0.4")
            assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
            return families(reply.body.decode())

    return asyncio.run(main())


def value(page, name, **labels):
    """The one sample with this name and these labels."""
    samples = [
        sample
        for family in page.values()
        for sample in family.samples
        if sample.name == f"vllm:{name}"
    ]
    (found,) = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    return found


def test_every_family_of_a_real_server_is_there_with_its_labels_and_buckets():
    recorded = families(RECORDED.read_text())
    real = {
        name: family
        for name, family in recorded.items()
        if name.startswith("vllm:") and not name.startswith(ONLY_WITH_A_FLAG)
    }
    ours = page_after(("one two", 3))
    assert len(real) > 40
    differ = []
    for name, family in real.items():
        if name not in ours:
            differ.append(f"{name} is absent")
        elif ours[name].type != family.type:
            differ.append(f"{name} is a {ours[name].type}")
        elif name != "vllm:cache_config_info":
            said, meant = shape(ours[name]), shape(family)
            if said != meant:
                differ.append(f"{name}: {said} for {meant}")
    assert not differ, "\n".join(differ)
    assert set(ours) <= {*real, "process_start_time_seconds"}
    info = "vllm:cache_config_info"
    assert set(ours[info].samples[0].labels) <= set(real[info].samples[0].labels)


def shape(family):
    """Names, labels and values of labels of a family's samples; of token counts the buckets end with the context."""
    series = {
        (sample.name, *sorted(item for item in sample.labels.items() if item[0] != "model_name"))
        for sample in family.samples
    }
    return (
        {
            one
            for one in series
            if not any(key == "le" and float(edge) > 100 for key, edge in one[1:])
        }
        if "token" in family.name
        else series
    )


def test_counts_and_times_of_two_requests():
    page = page_after(("one two three", 5), ("one two three", 1))
    assert value(page, "prompt_tokens_total") == 6
    assert value(page, "generation_tokens_total") == 6
    assert value(page, "request_success_total", finished_reason="length") == 2
    assert value(page, "time_to_first_token_seconds_count") == 2
    assert value(page, "inter_token_latency_seconds_count") == 4
    assert value(page, "inter_token_latency_seconds_sum") == pytest.approx(4e-3)
    assert value(page, "request_decode_time_seconds_sum") == pytest.approx(4e-3)
    assert value(page, "request_time_per_output_token_seconds_sum") == pytest.approx(1e-3)
    assert value(page, "request_queue_time_seconds_sum") == 0
    assert value(page, "e2e_request_latency_seconds_sum") == pytest.approx(6e-3)
    assert value(page, "request_generation_tokens_bucket", le="1.0") == 1
    assert value(page, "request_generation_tokens_bucket", le="5.0") == 2
    assert value(page, "iteration_tokens_total_sum") == 12
    assert value(page, "cache_config_info", block_size="16", num_gpu_blocks="2000") == 1


@pytest.mark.parametrize("has_prefix_cache", [True, False])
def test_only_a_prefix_cache_is_queried(has_prefix_cache):
    """``fit --load`` tells by it whether the server caches prefixes."""
    config = SchedulerConfig(
        num_blocks=100, max_model_len=128, enable_prefix_caching=has_prefix_cache
    )

    async def page_of_one():
        async with talking(fleet=lone_replica(config, PLAN.fleet.step_times)) as client:
            await client.complete("one two three", max_tokens=2)
            return families((await client.ask("GET", "/metrics")).body.decode())

    page = asyncio.run(page_of_one())
    assert value(page, "prefix_cache_queries_total") == (3 if has_prefix_cache else 0)


def shared(n_ranks, n_requests):
    """The page of replicas that share experts, after these requests."""
    rules = ClusterConfig(
        engine=PLAN.config, n_replicas=n_ranks, in_lockstep=True, router="round-robin"
    )

    async def page():
        fleet = Fleet(replicas=rules, step_times=PLAN.fleet.step_times)
        async with talking(fleet=fleet) as client:
            for n_tokens in range(1, n_requests + 1):
                await client.complete("one two three", max_tokens=n_tokens)
            return (await client.ask("GET", "/metrics")).body.decode()

    return asyncio.run(page())


def test_each_rank_of_data_parallel_replicas_has_its_series():
    """One engine's series were shown for all of them, where vLLM has one for each rank."""
    text = shared(n_ranks=2, n_requests=4)
    page = families(text)
    assert text.count("# TYPE vllm:num_requests_running ") == 1
    for engine, n_tokens in (("0", 1 + 3), ("1", 2 + 4)):
        assert value(page, "generation_tokens_total", engine=engine) == n_tokens
        assert value(page, "prompt_tokens_total", engine=engine) == 6
        assert value(page, "request_success_total", engine=engine, finished_reason="length") == 2
        assert value(page, "e2e_request_latency_seconds_count", engine=engine) == 2
        assert value(page, "kv_cache_usage_perc", engine=engine) < 0.1
        assert value(page, "cache_config_info", engine=engine, num_gpu_blocks="2000") == 1
    rejected = page["vllm:admission_rejections"].samples
    assert sum(one.name.endswith("_total") for one in rejected) == 2, "the front end's: once"
    assert shape(page["vllm:num_requests_waiting_by_reason"]) == {
        ("vllm:num_requests_waiting_by_reason", ("engine", engine), ("reason", reason))
        for engine in "01"
        for reason in ("capacity", "deferred")
    }


def test_preemptions_are_seen():
    config = SchedulerConfig(
        num_blocks=9, max_model_len=128, max_num_seqs=4, scheduler_reserve_full_isl=False
    )
    page = asyncio.run(crowded(config))
    assert value(page, "num_preemptions_total") > 0
    assert value(page, "request_num_preemptions_sum") == value(page, "num_preemptions_total")


async def crowded(config):
    async with talking(fleet=lone_replica(config, PLAN.fleet.step_times)) as client:
        port = client.writer.get_extra_info("peername")[1]
        others = [await type(client).connect(port) for _ in range(4)]
        await asyncio.gather(
            *(other.complete(f"{i} " * 30, max_tokens=60) for i, other in enumerate(others))
        )
        page = families((await client.ask("GET", "/metrics")).body.decode())
        for other in others:
            await other.close()
        return page


def test_labels_are_escaped():
    metrics = metrics_of('a"b\\c\nd', PLAN.config)
    page = families(metrics.text(Now(1, 2, 0.5)).decode())
    assert value(page, "num_requests_waiting", model_name='a"b\\c\nd') == 2
    assert value(page, "kv_cache_usage_perc") == 0.5
