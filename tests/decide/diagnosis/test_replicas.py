"""Is one replica of several on a page observed as if it were alone on it?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.api.diagnose_latencies import replica_cautions
from inferometer.api.diagnose_source import Source, stated_limits
from inferometer.api.diagnosis import answer_of
from inferometer.decide.diagnosis.observed import checked
from inferometer.decide.diagnosis.rebuilding import rebuilt_servers
from inferometer.decide.diagnosis.replicas import observed_replica
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import ModelError, SpecError
from inferometer.measure.server_identity import ServerIdentity
from inferometer.records.exposition import SeriesName, labels_of, labels_text
from inferometer.records.server_names import kept_series
from inferometer.records.tables import concat
from inferometer.records.types import EngineFacts, SchedulerFacts, ServerSampleTable
from inferometer.simulate import step_cost
from inferometer.simulate.scheduler_config import SchedulerConfig

STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
CONFIG = SchedulerConfig(
    num_blocks=20_000, max_model_len=20_100, max_num_seqs=16, max_num_batched_tokens=8192
)
START_S, FOR_S = 5.0, 10.0
RATES = (4.0, 12.0, 5.0)


def labelled(samples, **labels):
    """The samples with these labels besides their own; ``up`` is of the page."""
    of_page = samples.name == "up"
    texts = [labels_text(labels_of(one) | labels) for one in samples.labels.tolist()]
    return samples._replace(labels=np.where(of_page, samples.labels, np.array(texts, np.str_)))


def alone(rank, names="vllm", config=CONFIG):
    rate = RATES[rank]
    plan = poisson(rate, round(15 * rate), seed=rank, prompt=(200, 0.3), output=(60, 0.3))
    return served_pages(config, STEPS, plan, start_s=START_S, for_s=FOR_S, names=names)[0]


def together(*each):
    """One page: what is scraped at once is answered once."""
    first, *others = each
    rest = [one._make(column[one.name != "up"] for column in one) for one in others]
    return concat(ServerSampleTable, [first, *rest])


def page(label="engine", names="vllm"):
    return together(*(labelled(alone(rank, names), **{label: str(rank)}) for rank in range(3)))


@pytest.mark.parametrize("label", ["engine", "instance", "pod"])
def test_of_several_the_fullest_is_observed_as_if_it_were_alone(label):
    found = observed_window(page(label))
    expected = observed_window(alone(1))
    assert (found.replica.name, found.replica.n_replicas) == (f"{label}=1", 3)
    assert found.summary == expected.summary
    for name in ("running", "waiting", "finished", "prompt_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.summary.n_kv_blocks == CONFIG.num_blocks


def test_another_one_is_observed_where_it_is_wanted():
    found = observed_window(page(), replica="engine=2")
    assert found.replica.name == "engine=2"
    assert found.summary == observed_window(alone(2)).summary
    (caution,) = replica_cautions(found.replica)
    assert "3 replicas, which differ in engine: this is engine=2" in caution.text
    assert caution.remedy.startswith("--replica engine=1")


@pytest.mark.parametrize(
    ("wanted", "complaint", "remedy"),
    [
        ("engine=7", "none of the replicas", "--replica engine=0"),
        ("1", "none of the replicas", "--replica engine=0"),
        ("", "none of the replicas", "--replica engine=0"),
    ],
)
def test_a_replica_that_is_not_there_is_refused(wanted, complaint, remedy):
    with pytest.raises(SpecError, match=complaint) as caught:
        observed_window(page(), replica=wanted)
    assert caught.value.allowed == "engine=0, engine=1, engine=2"
    assert caught.value.try_ == remedy


def test_a_lone_server_has_no_replicas_to_choose_from():
    assert observed_replica(alone(1)).replica is None
    with pytest.raises(SpecError, match="its page has a single server"):
        observed_window(alone(1), replica="engine=0")


def test_replicas_of_two_labels_are_named_by_both_and_one_label_may_be_of_several():
    samples = together(
        *(
            labelled(alone(rank), instance=f"10.0.0.{rank // 2}:8000", engine=str(rank % 2))
            for rank in range(3)
        )
    )
    assert observed_replica(samples).replica.name == "engine=1,instance=10.0.0.0:8000"
    with pytest.raises(SpecError, match="2 of the replicas"):
        observed_replica(samples, "engine=0")
    assert observed_replica(samples, "instance=10.0.0.1:8000").replica.labels["engine"] == "0"


def test_an_uneven_load_is_seen_though_one_replica_is_observed():
    checks = {one.name: one for one in checked(observed_window(page()))}
    assert checks["uneven_engines"].finding == "found"
    models = together(*(labelled(alone(rank), model_name=f"m{rank}") for rank in (0, 1)))
    checks = {one.name: one for one in checked(observed_window(models))}
    assert checks["uneven_engines"].finding == "not reported"


def test_limits_that_the_server_states_are_those_of_each_engine():
    facts = SchedulerFacts(max_num_seqs=16, data_parallel_size=3)
    identity = ServerIdentity(None, EngineFacts(engine="vllm", version="0.33", scheduler=facts))
    stated = stated_limits(Source(window=observed_window(page()), identity=identity), {})
    assert stated["max_num_seqs"].value == 16


def test_ranks_that_share_their_counters_are_observed_together_and_that_is_said():
    """SGLang counts requests in one process, and has gauges of each rank."""
    samples = page(names="sglang")
    is_gauge = np.isin(samples.name, ["sglang:num_running_reqs", "sglang:num_queue_reqs"])
    bare = [
        labels_text({name: value for name, value in labels_of(one).items() if name != "engine"})
        for one in samples.labels.tolist()
    ]
    shared = samples._replace(labels=np.where(is_gauge, samples.labels, np.array(bare, np.str_)))
    found = observed_replica(shared)
    assert (found.replica, found.n_added_up) == (None, 3)
    with pytest.raises(SpecError, match="share their counters"):
        observed_replica(shared, "engine=1")


def test_nothing_alike_among_added_engines_has_a_remedy_that_can_help():
    agreement = rebuilt_servers(observed_window(alone(1)), {})
    off = {name: 9 * value + 9 for name, value in agreement.measured.items()}
    with pytest.raises(ModelError) as caught:
        agreement._replace(measured=off, n_added_up=3).check()
    assert "3 engines that share their counters" in caught.value.what
    assert "--known" not in caught.value.try_


def test_a_federation_keeps_the_label_of_each_server():
    """Its ``cache_config_info`` has forty labels, which are dropped but for what is read."""
    labels = {"instance": "10.0.0.1:8000", "block_size": "16", "num_gpu_blocks": "90", "seed": "1"}
    found = kept_series(SeriesName("vllm:cache_config_info", labels_text(labels)))
    assert labels_of(found.labels) == {one: labels[one] for one in labels if one != "seed"}


@pytest.mark.slow
def test_the_limit_of_one_engine_is_named_where_four_are_on_a_page():
    """Added up they showed a batch of 64, and the traffic as the cause."""
    plans = [poisson(10.0, 150, seed=seed) for seed in range(4)]
    steps = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
    config = replace(CONFIG, max_num_seqs=16)
    samples = together(
        *(
            labelled(
                served_pages(config, steps, plan, start_s=START_S, for_s=FOR_S)[0],
                engine=str(rank),
            )
            for rank, plan in enumerate(plans)
        )
    )
    window = observed_window(samples)
    agreement = rebuilt_servers(window, {})
    agreement.check()
    answer = answer_of("http://127.0.0.1:8000", Source(window=window), agreement, None, {}).answer
    assert (answer.finding, answer.cause) == ("limited", "max_num_seqs")
    assert (answer.limits[0].low, answer.limits[0].high) == (16, 16)
    assert answer.n_replicas == 4
    assert "one_of_several_replicas" in {one.code for one in answer.cautions}
