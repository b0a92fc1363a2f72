"""Do the presets name their sources, and are their numbers those of the sources?"""

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from inferometer.inputs.workload.description import describe
from inferometer.inputs.workload.distributions import Quantiles, mean_of
from inferometer.inputs.workload.plan import NONE
from inferometer.inputs.workload.reading import preset_names, resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.traces import read_trace
from inferometer.inputs.workload.types import (
    OpenArrivals,
    ServeGenSource,
    TraceSource,
    WorkloadSpec,
)

CONV = "azure-llm-2023/AzureLLMInferenceTrace_conv.csv"
CODE = "azure-llm-2023/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake-fast25/conversation_trace.jsonl"
MEAN_ERROR = 0.04
"""What straight lines between quantiles may add: the page on workloads says so."""


def quantiles_of(values, table):
    return np.quantile(values, table.fractions, method="inverted_cdf").tolist()


def score_correlation(plan):
    scores = [
        stats.norm.ppf((stats.rankdata(column) - 0.5) / len(column))
        for column in (plan.prompt_tokens, plan.output_tokens)
    ]
    return np.corrcoef(*scores)[0, 1]


def test_there_are_presets_for_what_people_serve():
    names = {"batch", "chat", "code", "long-context", "reasoning", "sharegpt"}
    assert set(preset_names()) == names


@pytest.mark.parametrize("name", preset_names())
def test_every_part_of_a_preset_names_its_source(name):
    spec = resolve_workload(name)
    assert spec.name == name
    assert spec.note
    assert spec.arrivals.source
    for one in spec.classes:
        parts = [one, *filter(None, (one.sessions, one.system_prompts))]
        assert all(part.source and "@" in part.source for part in parts)
        assert isinstance(one.prompt_tokens, Quantiles)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_can_be_drawn_at_another_rate(name):
    changes = (
        {"n_requests": 500}
        if name == "batch"
        else {"n_requests": 500, "arrivals": {"rate_per_s": 50}}
    )
    drawn = draw_workload(with_changes(resolve_workload(name), changes, where="--rate"))
    assert drawn.plan.n_requests == 500
    assert drawn.cautions == ()


def test_sharegpt_has_the_shares_and_means_of_its_source():
    one = resolve_workload("sharegpt").classes[0]
    at_most = {
        "prompt_tokens": {10: 191, 20: 511, 50: 825, 100: 997, 200: 1182, 500: 1748, 1000: 2102},
        "output_tokens": {10: 202, 20: 448, 50: 814, 100: 979, 200: 1266, 500: 1883, 1000: 2095},
    }
    sums = {"prompt_tokens": 500_552, "output_tokens": 424_529}
    for name, shares in at_most.items():
        lengths = getattr(one, name)
        assert mean_of(lengths) == pytest.approx(sums[name] / 2104, rel=1e-3)
        seen = np.interp(list(shares), lengths.values, lengths.fractions)
        assert seen == pytest.approx(np.array(list(shares.values())) / 2104, abs=1e-4)


@pytest.mark.parametrize(("name", "file"), [("chat", CONV), ("code", CODE)])
def test_azure_presets_are_azures_numbers(published, name, file):
    plan = read_trace(TraceSource(path=published(file))).workload.plan
    one, arrivals = resolve_workload(name).classes[0], resolve_workload(name).arrivals
    assert list(one.prompt_tokens.values) == quantiles_of(plan.prompt_tokens, one.prompt_tokens)
    assert list(one.output_tokens.values) == quantiles_of(plan.output_tokens, one.output_tokens)
    assert mean_of(one.prompt_tokens) == pytest.approx(plan.prompt_tokens.mean(), rel=MEAN_ERROR)
    assert mean_of(one.output_tokens) == pytest.approx(plan.output_tokens.mean(), rel=MEAN_ERROR)
    assert one.correlation_ratio == pytest.approx(score_correlation(plan), abs=5e-4)
    gaps_s = np.diff(plan.arrival_ns) / 1e9
    usual = gaps_s[gaps_s < 20]
    assert arrivals.rate_per_s == pytest.approx(describe(plan).rate_per_s, rel=2e-3)
    assert arrivals.burstiness_ratio == pytest.approx((usual.mean() / usual.std()) ** 2, rel=5e-3)


def test_long_context_is_mooncakes_numbers(published):
    plan = read_trace(TraceSource(path=published(MOONCAKE))).workload.plan
    spec = resolve_workload("long-context")
    one = spec.classes[0]
    owner = np.maximum(plan.prefix_request, 0)
    continues = (
        (plan.prefix_request != NONE)
        & (plan.prefix_tokens >= plan.prompt_tokens[owner] // 512 * 512)
        & (plan.prefix_tokens > 512)
    )
    turn = np.ones(plan.n_requests, int)
    for row in np.flatnonzero(continues):
        turn[row] = turn[owner[row]] + 1
    reached = np.bincount(turn)[1:9]
    assert list(one.sessions.turns.weights) == [*(reached[:-1] - reached[1:]).tolist(), reached[-1]]
    assert list(one.prompt_tokens.values) == quantiles_of(
        np.maximum(plan.prompt_tokens[~continues] - 512, 1), one.prompt_tokens
    )
    assert list(one.output_tokens.values) == quantiles_of(plan.output_tokens, one.output_tokens)
    assert mean_of(one.prompt_tokens) == pytest.approx(
        np.maximum(plan.prompt_tokens[~continues] - 512, 1).mean(), rel=MEAN_ERROR
    )
    assert mean_of(one.output_tokens) == pytest.approx(plan.output_tokens.mean(), rel=MEAN_ERROR)
    held = (plan.prompt_tokens + plan.output_tokens)[owner[continues]]
    grown = np.maximum(plan.prompt_tokens[continues] - held, 1)
    assert list(one.sessions.later_prompt_tokens.values) == quantiles_of(
        grown, one.sessions.later_prompt_tokens
    )
    waited_s = (
        np.diff(np.stack([plan.arrival_ns[owner[continues]], plan.arrival_ns[continues]]), axis=0)[
            0
        ]
        / 1e9
    )
    assert list(one.sessions.think_s.values) == [
        round(value) for value in quantiles_of(waited_s, one.sessions.think_s)
    ]
    assert one.correlation_ratio == pytest.approx(score_correlation(plan), abs=5e-4)
    assert spec.arrivals.rate_per_s == pytest.approx(describe(plan).rate_per_s, rel=2e-3)


def test_long_context_shares_as_much_as_the_trace_it_is_made_of(published):
    """Not fitted: sessions and system prompt together give the trace's share of prefix hits, within a tenth of it."""
    real = describe(read_trace(TraceSource(path=published(MOONCAKE))).workload.plan)
    drawn = describe(
        draw_workload(
            with_changes(resolve_workload("long-context"), {"n_requests": 20_000}, where="here")
        ).plan
    )
    assert drawn.shared_prefix_fraction == pytest.approx(real.shared_prefix_fraction, rel=0.1)


@pytest.mark.parametrize(
    ("name", "stem"), [("reasoning", "reason_deepseek-r1"), ("batch", "language_m-mid")]
)
def test_servegen_presets_are_servegens_numbers(published, name, stem):
    weight, pools = Counter(), (Counter(), Counter())
    with Path(published(f"servegen-alibaba/{stem}_client_rates_3days.csv")).open() as file:
        for row in csv.DictReader(file):
            weight[int(row["client"]), int(float(row["window_start_s"])) // 21600 * 21600] += float(
                row["rate_req_s"]
            )
    with gzip.open(published(f"servegen-alibaba/{stem}_length_pdfs.jsonl.gz")) as file:
        for line in file:
            one = json.loads(line)
            for pool, table in zip(pools, (one["input_tokens"], one["output_tokens"]), strict=True):
                total = sum(table.values())
                for value, share in table.items():
                    pool[int(value)] += weight[one["client"], one["window_start_s"]] * share / total
    preset = resolve_workload(name).classes[0]
    for pool, table in zip(pools, (preset.prompt_tokens, preset.output_tokens), strict=True):
        values = np.array(sorted(pool))
        below = np.cumsum([pool[value] for value in values.tolist()])
        expected = values[
            np.minimum(
                np.searchsorted(below / below[-1], np.array(table.fractions) - 1e-12),
                len(values) - 1,
            )
        ]
        expected[-1] = values[-1]
        assert list(table.values) == np.maximum(expected, 1).tolist()
        mean = sum(value * share for value, share in pool.items()) / below[-1]
        assert mean_of(table) == pytest.approx(mean, rel=MEAN_ERROR)


@pytest.mark.slow
def test_reasoning_arrives_as_its_clients_do(published):
    arrivals = resolve_workload("reasoning").arrivals
    assert isinstance(arrivals, OpenArrivals)
    source = {
        name: published(f"servegen-alibaba/reason_deepseek-r1_{file}")
        for name, file in FILES.items()
    }
    ratios = []
    for hour in range(24):
        replay = ServeGenSource(**source, start_s=hour * 3600, without_lengths="pool")
        ratios.append(
            describe(draw_workload(WorkloadSpec(duration_s=600, replay=replay)).plan).gap_cv_ratio
        )
    assert arrivals.burstiness_ratio == pytest.approx(1 / np.median(ratios) ** 2, abs=0.005)
    with Path(source["rates_path"]).open() as file:
        n_requests = sum(float(row["rate_req_s"]) * 600 for row in csv.DictReader(file))
    assert arrivals.rate_per_s == pytest.approx(n_requests / 86400, rel=2e-3)


FILES = {"rates_path": "client_rates_3days.csv", "lengths_path": "length_pdfs.jsonl.gz"}
