"""Do a gate file's words become the rules that they say, for a workload's classes and tenants?"""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import SpecError
from inferometer.inputs.gate import GateSpec, gate_from_text, read_gate
from inferometer.inputs.workload.plan import DrawnWorkload, request_plan
from inferometer.simulate.gate_config import (
    ClassRules,
    FirstTokenPace,
    GateConfig,
    TenantRules,
    first_token_pace,
    gate_rules,
)
from inferometer.simulate.step_cost import linear_cost

PAGE = Path(__file__).parents[2] / "docs" / "gates.md"
PACE = FirstTokenPace(base_ns=7, per_prompt_token_ns=1.5)
S = 10**9


def workload(
    classes=("chat", "report"),
    slos=("ttft p95 < 500ms, tpot:p50<50ms, ttft p99 < 2s", None),
    tenants=("tenant-0", "tenant-1"),
):
    plan = request_plan("here", arrival_ns=[0], prompt_tokens=[1], output_tokens=[1])
    return DrawnWorkload(
        name="here", plan=plan, class_names=classes, class_slos=slos, tenant_names=tenants
    )


def rules_of(text, **kinds):
    return gate_rules(gate_from_text(text, where="desk.toml"), workload(**kinds), PACE)


def test_nothing_said_is_no_rule():
    assert gate_rules(GateSpec(), workload(), PACE) == GateConfig(
        classes=(ClassRules(name="chat"), ClassRules(name="report")),
        tenants=(TenantRules(),) * 2,
        first_token_ns=7,
        first_token_per_prompt_token_ns=1.5,
    )


def test_the_page_runs():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 8
    assert found.failed == 0


def test_the_page_shows_every_key_and_order():
    text = PAGE.read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    found = rules_of(
        example, classes=("conversation", "report"), tenants=("tenant-0", "tenant-1", "tenant-2")
    )
    report = ClassRules(
        name="report",
        priority=1,
        window_ns=5 * S,
        window_size=16,
        widest_window_ns=20 * S,
        widest_at=8,
        max_in_flight=8,
        max_tokens=512,
        max_wait_ns=600 * S,
    )
    assert found == GateConfig(
        order="earliest-deadline",
        has_bands=True,
        max_in_flight=64,
        classes=(
            ClassRules(name="conversation", priority=0, ttft_limit_ns=S // 2, max_queue=200),
            report,
            ClassRules(name="background", priority=2, max_in_flight=1),
        ),
        oversized_above_tokens=30_000,
        oversized_class=2,
        tenants=(TenantRules(weight=4), *[TenantRules(tokens_per_s=2000, burst_tokens=50_000)] * 2),
        max_queue=500,
        max_queued_tokens=2_000_000,
        max_wait_ns=60 * S,
        lateness="hopeless",
        first_token_ns=30_000_000,
        first_token_per_prompt_token_ns=20_000.0,
    )
    for order in GateSpec.__annotations__["order"].__args__:
        assert f"| `{order}` |" in text


def test_deadlines_are_those_of_the_slo_where_the_gate_says_none():
    by_deadline = "order = 'earliest-deadline'\n"
    assert [one.ttft_limit_ns for one in rules_of(by_deadline).classes] == [S // 2, 0]
    own = (
        by_deadline
        + "[[classes]]\nname = 'chat'\nttft_limit_s = 3\n[[classes]]\nname = '*'\nttft_limit_s = 60"
    )
    assert [one.ttft_limit_ns for one in rules_of(own).classes] == [3 * S, 60 * S]
    assert [one.ttft_limit_ns for one in rules_of("").classes] == [0, 0]  # nobody asks for them


@pytest.mark.parametrize("text", ["order = 'least-slack'", "[admission]\ntoo_late = 'passed'"])
def test_deadlines_must_come_from_somewhere(text):
    with pytest.raises(SpecError, match="no class has a deadline") as raised:
        rules_of(text, slos=(None, "tpot:p95<50ms"))
    assert "chat, report" in str(raised.value)
    assert "ttft_limit_s" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "what", "where", "allowed"),
    [
        ("[[classes]]\nname = 'chatt'", "no class 'chatt'", "--gate", "chat, report, or *"),
        ("[[tenants]]\nname = 'x'", "no tenant 'x'", "--gate", "tenant-0, tenant-1, or *"),
        (
            "[[classes]]\nname = 'a'\nmax_wait_s = -1",
            "classes[0].max_wait_s: -1",
            "key classes[0].max_wait_s",
            "above 0",
        ),
        (
            "[[classes]]\nname = 'a'\nwindow_s = 2\nwidest_window_s = 1\nwidest_at = 3",
            "a window only grows with load",
            "key classes[0]",
            "keys name",
        ),
        (
            "[[tenants]]\nname = 'a'\nweight = 0",
            "tenants[0].weight: 0",
            "key tenants[0].weight",
            "from 1 to 1000",
        ),
        (
            "[[tenants]]\nname = 'a'\ntokens_per_s = 2\nburst_tokens = 10_000_000_000",
            "tenants[0].burst_tokens: 10000000000",
            "key tenants[0].burst_tokens",
            "from 1 to",
        ),
        ("output_token_weight = 0", "output_token_weight: 0", "desk.toml", "from 1 to"),
        (
            "[oversized]\nabove_prompt_tokens = 9",
            "oversized prompts go to class background, for which there are no rules",
            "desk.toml",
            "keys order",
        ),
        (
            "[[classes]]\nname = 'a'\nwindow_size = 2",
            "window_size without window_s",
            "key classes[0]",
            "keys name",
        ),
        (
            "[[tenants]]\nname = 'a'\ntokens_per_s = 2",
            "both tokens_per_s and burst_tokens",
            "key tenants[0]",
            "keys name",
        ),
        (
            "[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'a'",
            "two tenants have one name: a, a",
            "desk.toml",
            "keys order",
        ),
        ("oder = 'fair'", "unknown field `oder`", "desk.toml", "keys order"),
        ("order = ", "the TOML is damaged", "desk.toml", ""),
    ],
)
def test_what_cannot_be_is_named(text, what, where, allowed):
    with pytest.raises(SpecError) as raised:
        rules_of(text)
    assert what in raised.value.what
    assert where in raised.value.where
    assert allowed in (raised.value.allowed or "")


def test_a_file_is_read(tmp_path):
    file = tmp_path / "desk.toml"
    file.write_text("order = 'fair'\n[first_token]\nbase_s = 1\n")
    assert gate_rules(read_gate(file), workload(), PACE).first_token_ns == S
    with pytest.raises(SpecError, match="cannot be read"):
        read_gate(tmp_path / "nowhere.toml")


def test_first_tokens_are_predicted_from_step_times():
    """A prompt of n tokens takes 3 ms and n times 50 us: the line is exact."""
    pace = first_token_pace(linear_cost(launch_s=3e-3, per_row_s=50e-6))
    assert pace == FirstTokenPace(base_ns=3_000_000, per_prompt_token_ns=pytest.approx(50_000))
    bent = first_token_pace(linear_cost(launch_s=3e-3, per_prefill_pair_s=1e-9))
    assert np.isclose(
        bent.base_ns + bent.per_prompt_token_ns * 2048, 3e6 + 2048 * 2049 / 2, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: ClassRules(max_in_flight=-1), "max_in_flight = -1"),
        (lambda: ClassRules(priority=2**31), "priority = 2147483648"),
        (lambda: ClassRules(max_wait_ns=2 * 10**18), "max_wait_ns = 2000000000000000000"),
        (lambda: ClassRules(window_size=2), "window_size = 2 without window_ns"),
        (lambda: ClassRules(window_ns=9, widest_window_ns=5, widest_at=2), "widest_window_ns = 5"),
        (lambda: ClassRules(window_ns=9, widest_window_ns=10), "widest_at = 0"),
        (lambda: TenantRules(weight=0), "weight = 0"),
        (lambda: TenantRules(tokens_per_s=5), "burst_tokens = 0"),
        (lambda: GateConfig(order="lifo"), "order = 'lifo'"),
        (lambda: GateConfig(lateness="late"), "lateness = 'late'"),
        (lambda: GateConfig(max_queue="3"), "max_queue = '3'"),
        (lambda: GateConfig(first_token_per_prompt_token_ns=float("nan")), "token_ns = nan"),
        (lambda: GateConfig(classes=()), "no rules of classes"),
        (
            lambda: GateConfig(
                classes=(ClassRules(),) * 2, oversized_above_tokens=9, oversized_class=2
            ),
            "oversized_class = 2",
        ),
    ],
)
def test_rules_that_no_gate_can_have_are_refused_where_they_are_built(build, text):
    """Compiled code trusts them: a weight of 0 divides by it, a window without an end never opens."""
    with pytest.raises(SpecError, match=re.escape(text)):
        build()
