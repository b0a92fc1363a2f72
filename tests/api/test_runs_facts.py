"""Facts of tables beside runs that state their own are refused, not ignored."""

from pathlib import Path

import pytest

from inferometer.api.explain import Explain, explain
from inferometer.api.runs import Runs, shown_of
from inferometer.errors import SpecError


@pytest.mark.parametrize(
    ("given", "flag"), [({"model": "llama-3.1-8b"}, "--model"), ({"batch_size": 2}, "--batch")]
)
def test_facts_of_a_table_are_refused_where_no_run_is_one(tmp_path, given, flag):
    with pytest.raises(SpecError, match=f"{flag} is of a table"):
        shown_of(Runs(runs=(tmp_path,), **given))
    shown_of(Runs(runs=(tmp_path, Path("sweep.csv")), **given))


def test_a_trace_takes_no_options_of_sweeps(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 9,'
        ' "pid": 0, "tid": 7}]}'
    )
    assert explain(Explain(runs=Runs(runs=(trace,))))
    with pytest.raises(SpecError, match="--hardware is of sweeps"):
        explain(Explain(runs=Runs(runs=(trace,), hardware="h100_sxm")))
