"""Does ``--groups`` place requests on replicas of different kinds, and say what each did, and what all together can?"""

import pytest
from tests.api import test_fleet

import inferometer as im
from inferometer.api.groups import servers_of_groups
from inferometer.api.server import Server, Settings
from inferometer.errors import SpecError

GROUPS = """
[[groups]]
name = "short"
replicas = 2
max_prompt_tokens = 1000
server = { hardware = "l40s", max_num_seqs = 32 }

[[groups]]
name = "long"
server = { hardware = "h100_sxm", quantization = "fp8", own = { enable_prefix_caching = false } }
"""
MIX = test_fleet.MIX.replace("rate_per_s = 24", "rate_per_s = 4")


def simulated(folder, groups=GROUPS, **options):
    (folder / "mix.toml").write_text(MIX)
    (folder / "groups.toml").write_text(groups)
    return im.simulate(
        "llama-3.1-8b",
        workload=str(folder / "mix.toml"),
        requests=80,
        datasheet=True,
        groups=folder / "groups.toml",
        executor="inline",
        **options,
    )


def test_each_group_has_its_requests_its_device_and_its_settings(tmp_path):
    found = simulated(tmp_path)
    short, long = found.groups
    by_class = {one.name: one for one in found.classes}
    assert [short.summary.n_requests, long.summary.n_requests] == [
        by_class["chat"].n_requests,
        by_class["report"].n_requests,
    ]
    assert "L40S" in short.deployment.hardware
    assert "H100" in long.deployment.hardware
    assert short.deployment.knobs["max_num_seqs"] == 32
    assert long.deployment.quantization == "float8"
    assert long.deployment.knobs["enable_prefix_caching"] is False
    assert (short.rule, long.rule) == ("prompts up to 1,000 tokens", "what is left")
    assert [one.n_requests for one in found.replicas][2] == long.summary.n_requests
    # Whoever has replicas alone is as fast as if there were no others.
    assert short.summary.latency("ttft") == by_class["chat"].latency("ttft")


def test_a_group_is_as_fast_as_the_same_server_alone(tmp_path):
    """All requests go to one H100: the answer is that of ``--hardware h100_sxm``."""
    only = '[[groups]]\nname = "only"\n'
    found = simulated(tmp_path, only, hardware="h100_sxm")
    alone = im.simulate(
        "llama-3.1-8b",
        workload=str(tmp_path / "mix.toml"),
        requests=80,
        datasheet=True,
        hardware="h100_sxm",
        executor="inline",
    )
    assert [one.summary for one in found.levels] == [one.summary for one in alone.levels]


def test_classes_name_their_group_and_an_unknown_one_is_refused(tmp_path):
    rule = 'classes = ["report"]\nserver = { hardware = "h100_sxm" }\n'
    rest = '[[groups]]\nname = "rest"\nserver = { hardware = "l40s" }\n'
    found = simulated(tmp_path, f'[[groups]]\nname = "big"\n{rule}{rest}')
    by_class = {one.name: one.n_requests for one in found.classes}
    assert found.groups[0].summary.n_requests == by_class["report"]
    assert found.groups[0].rule == "class report"
    with pytest.raises(SpecError, match="classes reports"):
        simulated(tmp_path, f'[[groups]]\nname = "big"\n{rule.replace("report", "reports")}{rest}')


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        (GROUPS, {"replicas": 2}, "groups beside other options"),
        (GROUPS, {"order": "fair"}, "groups beside other options"),
        (GROUPS.replace("long", "short"), {}, "two groups have one name"),
        (GROUPS.replace("l40s", "l40z"), {}, "l40z"),
        (GROUPS.replace("max_num_seqs", "max_num_sequences"), {}, "max_num_sequences"),
        (GROUPS.replace("max_num_seqs = 32", "block_size = 32"), {}, "one engine and one size"),
        (GROUPS.replace("own =", "other ="), {}, "a table that is not own"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, groups, options, message):
    with pytest.raises(SpecError, match=message):
        simulated(tmp_path, groups, **options)


def located(folder, groups, **options):
    (folder / "groups.toml").write_text(groups)
    found = im.capacity(
        "llama-3.1-8b",
        slo="ttft:p95<1s",
        datasheet=True,
        probe_requests=100,
        requests=200,
        resolution=0.2,
        time_limit=60,
        executor="inline",
        **({"groups": folder / "groups.toml"} if groups else {}),
        **options,
    )
    return found, [one.capacity.located_load for one in found.levels]


@pytest.mark.slow
def test_one_group_holds_what_its_server_holds(tmp_path):
    options = {"workload": "512x64", "hardware": "l40s"}
    grouped, of_group = located(tmp_path, '[[groups]]\nname = "only"\n', **options)
    _, alone = located(tmp_path, "", **options)
    assert of_group == alone
    assert grouped.model_id == "1 × llama-3.1-8b on NVIDIA L40S (only)"


@pytest.mark.slow
def test_the_capacity_of_groups_is_that_of_the_class_that_fares_worst(tmp_path):
    """Of reports on a slow device beside idle fast ones nobody sees anything in the p95 of all requests."""
    (tmp_path / "mix.toml").write_text(MIX)
    slow = '[[groups]]\nname = "slow"\nclasses = ["report"]\nserver = { hardware = "l4" }\n'
    fast = '[[groups]]\nname = "fast"\nreplicas = 2\nserver = { hardware = "h100_sxm" }\n'
    found, _ = located(tmp_path, slow + fast, workload=str(tmp_path / "mix.toml"))
    assert found.objective == "ttft:p95<1000ms in each class"
    assert found.levels[0].capacity.weakest.startswith("class report: ttft:p95<1000ms")


def test_groups_stand_beside_no_other_options_of_a_fleet(tmp_path):
    with pytest.raises(SpecError, match="groups beside other options"):
        located(tmp_path, GROUPS, workload="chat", replicas=2)


@pytest.mark.parametrize(
    ("flag", "options", "refused"),
    [
        ("--hardware", {"hardware": "a100_sxm_80gb"}, True),
        ("--kv-cache-dtype", {"kv_dtype": "bfloat16"}, True),
        ("--max-num-seqs", {"max_num_seqs": 8}, False),
    ],
)
def test_an_option_that_every_group_overrides_is_refused(flag, options, refused, tmp_path):
    """Before, --hardware was dropped in silence where each group names a device."""
    path = tmp_path / "groups.toml"
    path.write_text(GROUPS.replace('hardware = "', 'kv_dtype = "fp8", hardware = "'))
    options |= {"settings": Settings(kv_dtype=options.pop("kv_dtype", None))}
    server = Server(model="llama-3.1-8b", datasheet=True, **options)
    if not refused:
        assert len(servers_of_groups(path, server).groups.groups) == 2
        return
    with pytest.raises(SpecError, match=f"(?s)every group of .*{flag}"):
        servers_of_groups(path, server)


@pytest.mark.parametrize("own", ["", 'fit = "own.json", '])
def test_a_fit_that_holds_for_no_group_is_refused(own, tmp_path):
    """One group with a fit of its own beside others on other devices let it through."""
    path = tmp_path / "groups.toml"
    path.write_text(GROUPS.replace("server = { ", "server = { " + own, 1))
    server = Server(model="llama-3.1-8b", fit=tmp_path / "fit.json")
    with pytest.raises(SpecError, match=r"(?s)than this fit.*--fit"):
        servers_of_groups(path, server)
