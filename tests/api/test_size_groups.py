"""Does `size --groups` find the smallest number of replicas of each group, and say what one less does?

The known answers are those of simulations of every mix.
"""

import itertools

import pytest
from tests.api import test_fleet

import inferometer as im
from inferometer.errors import SpecError

GROUPS = """
[[groups]]
name = "short"
replicas = {short}
max_prompt_tokens = 1000
server = {{ hardware = "l4" }}

[[groups]]
name = "long"
replicas = {long}
server = {{ hardware = "l40s", max_num_seqs = 64 }}
"""
NUMBERS = range(1, 5)
ONE_OF_EACH = GROUPS.format(short=1, long=1)


def sized(folder, groups=ONE_OF_EACH, **options):
    (folder / "mix.toml").write_text(test_fleet.MIX)
    (folder / "groups.toml").write_text(groups)
    options = {"workload": str(folder / "mix.toml"), "slo": "ttft:p95<800ms"} | options
    return im.size(
        "llama-3.1-8b",
        groups=folder / "groups.toml",
        **{"datasheet": True, "probe_requests": 500, "time_limit": 60} | options,
    )


def numbers_of(answer):
    return [row.n_replicas for row in answer.groups.rows]


def usd_of(n_short, n_long):
    """Per hour, by the price list of the test."""
    return n_short * 1.0 + n_long * 2.0


@pytest.fixture
def price_list(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("source: test\ndate_utc: 2026\nusd_per_hour: {l4: 1.0, l40s: 2.0}\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("rate", [10, 24, 36])
def test_it_is_the_cheapest_of_all_mixes(tmp_path, price_list, rate):
    """Every mix up to 4 and 4 is simulated whole; of those where both classes meet the SLO the cheapest is it."""
    answer = sized(tmp_path, rate=rate, prices=price_list)
    within = []
    for n_short, n_long in itertools.product(NUMBERS, NUMBERS):
        (tmp_path / "mixed.toml").write_text(GROUPS.format(short=n_short, long=n_long))
        found = im.simulate(
            "llama-3.1-8b",
            workload=str(tmp_path / "mix.toml"),
            rate=rate,
            requests=4000,
            groups=tmp_path / "mixed.toml",
            datasheet=True,
        )
        p95s = [one.summary.latency("ttft").percentile(0.95).seconds.value for one in found.groups]
        if max(p95s) < 0.8:
            within.append((usd_of(n_short, n_long), n_short, n_long))
    usd, *numbers = min(within)
    assert numbers_of(answer) == numbers
    assert answer.groups.whole.usd_per_hour == usd
    assert answer.groups.whole.n_devices == sum(numbers)


def test_one_less_of_each_misses_and_the_whole_is_what_simulate_says(tmp_path):
    answer = sized(tmp_path, rate=24)
    short, long = answer.groups.rows
    for row in (short, long):
        assert row.n_replicas == 2
        assert (row.fewer.n_replicas, row.fewer.verdict) == (1, "missed")
        assert row.ttft.least_s <= row.ttft.seen.seconds.value <= row.ttft.most_s
    assert short.fewer.why.startswith(("ttft:p95<800ms", "class chat: ttft:p95<800ms"))
    assert (short.rule, short.hardware) == ("prompts up to 1,000 tokens", "NVIDIA L4")
    assert short.share_fraction == pytest.approx(0.75, abs=0.02)
    (tmp_path / "found.toml").write_text(GROUPS.format(short=2, long=2))
    found = im.simulate(
        "llama-3.1-8b",
        workload=str(tmp_path / "mix.toml"),
        rate=24,
        requests=answer.groups.n_requests,
        groups=tmp_path / "found.toml",
        datasheet=True,
    )
    seen = [one.summary.latency("ttft").percentile(0.95).seconds.value for one in found.groups]
    assert [row.ttft.seen.seconds.value for row in (short, long)] == pytest.approx(seen, rel=0.2)


@pytest.mark.slow
def test_a_sizing_of_one_group_is_that_of_its_kind(tmp_path):
    """All requests go to one group of L40S."""
    options = {"rate": 24, "slo": "ttft:p95<2s", "probe_requests": 500, "datasheet": True}
    only = '[[groups]]\nname = "only"\nserver = { hardware = "l40s", max_num_seqs = 64, max_num_batched_tokens = 2048 }\n'
    grouped = sized(tmp_path, only, **options)
    alone = im.size(
        "llama-3.1-8b",
        gpus="l40s",
        tp="1",
        max_num_seqs="64",
        max_num_batched_tokens="2048",
        executor="inline",
        workload=str(tmp_path / "mix.toml"),
        **options,
    )
    assert numbers_of(grouped) == [alone.pick.n_replicas]
    assert grouped.groups.whole.usd_per_hour == alone.pick.usd_per_hour


@pytest.mark.slow
def test_draws_ask_for_no_fewer_than_the_likely_step_times(tmp_path):
    """Published rows tell the steps: the SLO is to be met in 90 % of the draws too."""
    options = {"rate": 24, "datasheet": False, "slo": "ttft:p95<1s", "probe_requests": 200}
    likely, sure = (sized(tmp_path, **options, likely=one) for one in (True, False))
    assert (likely.groups.decided_by, sure.groups.decided_by) == ("likely", "draws")
    assert all(a <= b for a, b in zip(numbers_of(likely), numbers_of(sure), strict=True))
    assert sure.groups.n_servers == 20


@pytest.mark.slow
def test_a_class_that_wants_more_gets_more(tmp_path):
    """The report's own SLO in the workload file is stricter than that of all."""
    easy = sized(tmp_path, rate=24, slo="ttft:p95<4s")
    stricter = test_fleet.MIX.replace('name = "report"', 'name = "report"\nslo = "ttft:p95<400ms"')
    (tmp_path / "stricter.toml").write_text(stricter)
    strict = sized(tmp_path, rate=24, slo="ttft:p95<4s", workload=str(tmp_path / "stricter.toml"))
    assert strict.objective == "ttft:p95<4000ms in each class"
    (short, long), (short_then, long_then) = numbers_of(easy), numbers_of(strict)
    assert short_then == short
    assert long_then > long


def test_a_limit_that_no_number_meets_names_the_group(tmp_path):
    answer = sized(tmp_path, ONE_OF_EACH.replace("l40s", "l4"), rate=5, slo="ttft:p95<250ms")
    assert answer.exit_code == 10
    short, long = answer.groups.rows
    assert long.n_replicas is None
    assert "not even idle replicas meet the SLO" in long.weakest
    assert short.n_replicas is not None
    assert "group long: limits" in answer.groups.next_step


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        (None, {"gpus": "l4"}, "gpus= beside groups="),
        (None, {"tp": "2"}, "tp= beside groups="),
        (None, {"total_gpus": 4}, "total_gpus= beside groups="),
        (None, {"out": "somewhere"}, "out= beside groups="),
        (None, {"replicas": 2}, "groups beside other options"),
        ("max_prompt_tokens = 9000", {}, "no request of mix goes to group long"),
        ('classes = ["reports"]', {}, "classes reports"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, groups, options, message):
    text = (
        ONE_OF_EACH if groups is None else ONE_OF_EACH.replace("max_prompt_tokens = 1000", groups)
    )
    with pytest.raises(SpecError, match=message):
        sized(tmp_path, text, **{"rate": 5} | options)


def test_a_group_needs_a_device(tmp_path):
    with pytest.raises(SpecError, match="nothing says which device group short is on"):
        sized(tmp_path, '[[groups]]\nname = "short"\n', rate=5)


def test_devices_or_groups_must_be_named():
    with pytest.raises(SpecError, match="gpus= is missing"):
        im.size("llama-3.1-8b", rate=5, slo="ttft:p95<1s")
