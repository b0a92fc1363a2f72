"""Does `size --groups --routing` find who should serve whom, and size groups whose users wait for one another?

The known answers are those of sizings and simulations of every way.
"""

import itertools

import pytest
from tests.api import test_fleet

import inferometer as im
from inferometer.errors import SpecError

KINDS = {
    "small": 'server = { hardware = "l4" }',
    "middle": 'server = { hardware = "l40s", max_num_seqs = 64 }',
    "big": 'server = { hardware = "h100_sxm" }',
}
PRICES = "source: test\ndate_utc: 2026\nusd_per_hour: {l4: 1.0, l40s: 2.2, h100_sxm: 6.0}\n"


def file_of(names, rules=None):
    rules = rules or {}
    return "\n".join(
        f'[[groups]]\nname = "{name}"\n{rules.get(name, "")}\n{KINDS[name]}' for name in names
    )


def sized(folder, groups, workload=test_fleet.MIX, **options):
    (folder / "mix.toml").write_text(workload)
    (folder / "groups.toml").write_text(groups)
    (folder / "prices.yaml").write_text(PRICES)
    return im.size(
        "llama-3.1-8b",
        groups=folder / "groups.toml",
        workload=str(folder / "mix.toml"),
        prices=folder / "prices.yaml",
        **{
            "datasheet": True,
            "probe_requests": 300,
            "time_limit": 120,
            "slo": "ttft:p95<800ms",
            **options,
        },
    )


def usd_of(answer):
    return answer.groups.whole.usd_per_hour


@pytest.mark.slow
@pytest.mark.parametrize("rate", [6, pytest.param(30, marks=pytest.mark.long)])
def test_the_cheapest_of_all_ways_to_serve_the_classes(tmp_path, rate):
    """Each way is written as rules of classes, and sized by them."""
    free = sized(tmp_path, file_of(KINDS), rate=rate, routing="class")
    every = []
    for chosen in itertools.product(KINDS, repeat=2):
        names = [name for name in KINDS if name in chosen]
        whose = {
            name: [one for one, to in zip(("chat", "report"), chosen, strict=True) if to == name]
            for name in names
        }
        rules = {name: f"classes = {own}".replace("'", '"') for name, own in whose.items()}
        answer = sized(tmp_path, file_of(names, rules), rate=rate)
        if answer.verdict != "missed":  # a datasheet leaves step times open
            every.append((usd_of(answer), chosen))
    assert free.verdict != "missed"
    assert usd_of(free) == min(every)[0], sorted(every)
    assert {one.name: one.weight_fraction for one in free.groups.routes} == {
        "chat": 1.0,
        "report": 1.0,
    }


def test_rules_of_the_file_hold_for_free_routing_too(tmp_path):
    """The small device would be cheaper, and may take prompts up to 500 tokens alone."""
    rules = {"small": "max_prompt_tokens = 500"}
    answer = sized(tmp_path, file_of(["small", "middle"], rules), rate=10, routing="class")
    routes = {one.name: (one.group, one.takers) for one in answer.groups.routes}
    assert routes["report"] == ("middle", ("middle",))
    assert routes["chat"][1] == ("small", "middle")


def test_a_group_that_serves_nothing_has_no_replicas(tmp_path):
    answer = sized(tmp_path, file_of(["small", "big"]), rate=1, routing="class", slo="ttft:p95<60s")
    small, big = answer.groups.rows
    assert (big.n_replicas, big.n_devices, big.usd_per_hour) == (0, 0, 0)
    assert (big.rule, big.verdict) == ("nothing", "met")
    assert usd_of(answer) == small.n_replicas * 1.0
    assert "big" not in answer.pages()[0].title.split("→")[1]
    assert "no big" in answer.groups.next_step


@pytest.mark.slow
def test_a_split_costs_no_more_and_holds_when_it_is_simulated(tmp_path):
    """One class on a cheap small device and a dear large one, at a rate that fills no whole number of either."""
    one = test_fleet.MIX[: test_fleet.MIX.rindex("[[classes]]")]
    groups = file_of(["small", "big"])
    options = {"rate": 33, "slo": "ttft:p95<500ms", "workload": one}
    whole = sized(tmp_path, groups, routing="class", **options)
    split = sized(tmp_path, groups, routing="weighted", **options)
    assert "missed" not in {split.verdict, whole.verdict}  # a datasheet leaves step times open
    assert usd_of(split) <= usd_of(whole)
    shares = {one.group: one.weight_fraction for one in split.groups.routes}
    assert sum(shares.values()) == pytest.approx(1)
    used = [row for row in split.groups.rows if row.n_replicas]
    text = "\n".join(
        f'[[groups]]\nname = "{row.name}"\nreplicas = {row.n_replicas}\n'
        f"weights = {{ chat = {shares[row.name]} }}\n{KINDS[row.name]}"
        for row in used
    )
    (tmp_path / "found.toml").write_text(text)
    found = im.simulate(
        "llama-3.1-8b",
        workload=str(tmp_path / "mix.toml"),
        rate=33,
        requests=4000,
        groups=tmp_path / "found.toml",
        datasheet=True,
    )
    for row, group in zip(used, found.groups, strict=True):
        assert group.summary.n_requests / 4000 == pytest.approx(row.share_fraction, abs=0.005)
        assert group.summary.latency("ttft").percentile(0.95).seconds.value < 0.5


USERS = test_fleet.MIX.replace(
    'arrivals = { kind = "open", rate_per_s = 24 }',
    'arrivals = { kind = "closed", concurrency = 40, think_s = { kind = "constant", value = 1.0 } }',
)
BY_CLASS = {"small": 'classes = ["chat"]', "middle": 'classes = ["report"]'}


@pytest.mark.slow
def test_users_of_both_groups_get_the_smallest_numbers_of_all(tmp_path):
    """Each user asks both groups: every mix up to 4 and 4 is simulated whole."""
    groups = file_of(["small", "middle"], BY_CLASS)
    answer = sized(tmp_path, groups, USERS, slo="ttft:p95<600ms")
    within = []
    for n_small, n_middle in itertools.product(range(1, 5), repeat=2):
        rules = {
            name: f"replicas = {n}\n{BY_CLASS[name]}"
            for name, n in (("small", n_small), ("middle", n_middle))
        }
        (tmp_path / "mixed.toml").write_text(file_of(["small", "middle"], rules))
        found = im.simulate(
            "llama-3.1-8b",
            workload=str(tmp_path / "mix.toml"),
            requests=4000,
            groups=tmp_path / "mixed.toml",
            datasheet=True,
        )
        p95s = [one.summary.latency("ttft").percentile(0.95).seconds.value for one in found.groups]
        if max(p95s) < 0.6:
            within.append((n_small * 1.0 + n_middle * 2.2, n_small, n_middle))
    usd, *numbers = min(within)
    assert [row.n_replicas for row in answer.groups.rows] == numbers
    assert usd_of(answer) == pytest.approx(usd)
    assert answer.users == 40
    assert answer.rate_per_s > 0


OWN_USERS = """
[[classes]]
name = "chat"
concurrency = 30
weight_ratio = 3
prompt_tokens = { kind = "constant", value = 200 }
output_tokens = { kind = "constant", value = 20 }
[[classes]]
name = "report"
concurrency = 10
prompt_tokens = { kind = "constant", value = 2000 }
output_tokens = { kind = "constant", value = 100 }
"""


@pytest.mark.slow
def test_users_of_a_class_wait_for_nobody_else(tmp_path):
    """Classes with users of their own may be routed: each group has those of its classes."""
    groups = file_of(["small", "middle"], BY_CLASS)
    answer = sized(tmp_path, groups, OWN_USERS)
    small, middle = answer.groups.rows
    assert (small.users_load, middle.users_load, answer.users) == (30, 10, 40)
    assert small.requests_per_s > 0
    free = sized(tmp_path, file_of(["small", "middle"]), OWN_USERS, routing="class")
    assert usd_of(free) <= usd_of(answer)
    assert sum(row.users_load for row in free.groups.rows) == 40


@pytest.mark.slow
def test_why_names_the_limit_that_is_nearest(tmp_path):
    """The report's own limit is nearer than that of all, and more latency away from nothing."""
    own = test_fleet.MIX.replace('name = "report"', 'name = "report"\nslo = "ttft:p95<1500ms"')
    groups = file_of(["small", "middle"], BY_CLASS)
    answer = sized(tmp_path, groups, own, rate=5, slo="ttft:p95<20s")
    small, middle = answer.groups.rows
    assert middle.weakest.startswith("class report: ttft:p95<1500ms")
    assert "20s" in small.weakest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": "class", "workload": USERS}, "users who wait for one class"),
        ({"routing": "weighted", "workload": OWN_USERS}, "users who wait"),
    ],
)
def test_users_who_would_be_split_are_refused(tmp_path, options, message):
    with pytest.raises(SpecError, match=message):
        sized(tmp_path, file_of(["small", "middle"]), **options)


def test_routing_is_of_groups():
    with pytest.raises(SpecError, match="routing= class without groups"):
        im.size("llama-3.1-8b", gpus="l4", rate=5, slo="ttft:p95<1s", routing="class")


def test_weights_of_the_file_are_those_of_simulate(tmp_path):
    weights = {"small": "weights = { chat = 0.25 }", "middle": "weights = { chat = 0.75 }"}
    (tmp_path / "mix.toml").write_text(test_fleet.MIX)
    (tmp_path / "groups.toml").write_text(file_of(["small", "middle"], weights))
    found = im.simulate(
        "llama-3.1-8b",
        workload=str(tmp_path / "mix.toml"),
        rate=4,
        requests=400,
        groups=tmp_path / "groups.toml",
        datasheet=True,
    )
    n_chat = next(one.n_requests for one in found.classes if one.name == "chat")
    small, middle = (one.summary.n_requests for one in found.groups)
    assert middle == pytest.approx(0.75 * n_chat, abs=3)
    assert small == 400 - middle, "a quarter of chat, and the class without weights"
    (tmp_path / "groups.toml").write_text(
        file_of(["small", "middle"], weights).replace("0.75", "0.7")
    )
    with pytest.raises(SpecError, match=r"weights of class chat are 0\.95"):
        im.simulate("llama-3.1-8b", groups=tmp_path / "groups.toml", rate=1, requests=10)
