"""Is a rate that is named beside a number of devices judged by what their best layout carries?"""

from dataclasses import replace

import pytest

from inferometer.api.sized_fleets import BestUse, UseRow

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
