"""Is a rate that is named beside a number of devices judged by what their best layout carries?"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from inferometer.api.grid_ties import is_tie
from inferometer.api.server import Server, deployment_of
from inferometer.api.sized_fleets import BestUse, UseRow, best_use_of, best_use_page
from inferometer.decide.best_use import FoundUse, Use
from inferometer.decide.capacity import Capacity

ROW = UseRow(
    hardware_id="h100_sxm",
    hardware="H100",
    layout="TP1",
    weights_dtype="bfloat16",
    kv_cache_dtype="bfloat16",
    tensor_parallel_size=1,
    n_replicas=8,
    n_prefill=0,
    n_devices=8,
    located_requests_per_s=100.0,
    met_requests_per_s=95.0,
    missed_requests_per_s=110.0,
    needs_quality_check=False,
)


@pytest.mark.parametrize(
    ("asked_per_s", "rows", "verdict"),
    [
        (None, (ROW,), "met"),
        (95.0, (ROW,), "met"),
        (100.0, (ROW,), "undecided"),
        (110.0, (ROW,), "missed"),
        (1.0, (), "missed"),
    ],
)
def test_a_rate_is_met_missed_or_undecided(asked_per_s, rows, verdict):
    use = BestUse(
        n_total=8,
        rows=rows,
        n_candidates=3,
        n_unexamined=0,
        is_split_examined=True,
        why_none=None,
        next_step=None,
        asked_requests_per_s=asked_per_s,
    )
    assert use.verdict == verdict


def test_a_row_shows_its_step_budget_where_several_were_on_offer():
    assert ROW.setting == "TP1"
    assert replace(ROW, step_budget_tokens=2048).setting == "TP1, step budget 2048"


def use_at(tp, load, n_prefill=0, hardware="h100_sxm"):
    deployment = deployment_of(Server(model="llama-3.1-8b", hardware=hardware, tp=tp))
    offer = SimpleNamespace(hardware=deployment.hardware)
    candidate = SimpleNamespace(
        deployment=deployment, offer=offer, layout=f"TP{tp} bfloat16", n_devices_beside=0,
        n_devices=tp, step_budget_tokens=None,
    )  # fmt: skip
    found = Capacity(
        kind="requests_per_s", located_load=load, met_load=0.99 * load, missed_load=1.01 * load,
        is_located=True, is_resolved=True, why="", probes=(),
    )  # fmt: skip
    return Use(candidate, 8 // tp, n_prefill, found, is_close=True)


def test_layouts_that_may_carry_as_much_are_named():
    """Layouts of one device err together, those of another device by themselves."""
    uses = (
        use_at(1, 100.0), use_at(2, 92.0), use_at(1, 83.0, hardware="h200_sxm"), use_at(4, 79.0),
    )  # fmt: skip
    found = FoundUse(uses, 4, 0, None, is_split_examined=True, n_step_budgets=1)
    answer = best_use_of("llama-3.1-8b", 8, [found], None, [])
    assert [row.ratio_to_best is None for row in answer.rows] == [True, False, False, False]
    ties = [is_tie(row.ratio_to_best) for row in answer.rows[1:]]
    assert ties == [True, True, False]
    page = best_use_page(answer, "llama-3.1-8b", "ttft:p95<1s", "likely", ())
    (why,) = (line.text for line in page.lines if line.label == "WHY")
    assert why.startswith("undecided against TP2 bfloat16, 4 replicas (0.92x [")
    assert "of its load) and 1 more" in why
