"""Is a plan read back as it was written, and is a broken file named by line?"""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from own_trace_files import write_own_trace
from plan_strategies import plans

from inferometer.errors import SpecError
from inferometer.inputs.types import Caution
from inferometer.inputs.workload.own_trace import read_own_trace
from inferometer.inputs.workload.plan import NONE, DrawnWorkload
from inferometer.inputs.workload.traces import read_trace
from inferometer.inputs.workload.types import TraceSource

HEAD = '{"format":"inferometer-requests","version":1,"name":"x","class_names":["a"],"class_slos":[null],"tenant_names":["t"]}'
ROWS = '{"arrival_ns":0,"prompt_tokens":5,"output_tokens":2}\n{"arrival_ns":3,"prompt_tokens":5,"output_tokens":2}\n'


def workload(plan):
    caution = Caution(code="c", text='it\'s "quoted"', remedy="none")
    return DrawnWorkload(
        name="näme, 'quoted'",
        plan=plan,
        class_names=("a", "b, c"),
        class_slos=("ttft p95 < 1s", None),
        tenant_names=("t", "u", "v"),
        cautions=(caution,),
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@settings(max_examples=40)
@given(plan=plans())
def test_what_is_written_is_read_back(tmp_path_factory, suffix, plan):
    path = tmp_path_factory.mktemp("trace") / f"requests{suffix}"
    write_own_trace(workload(plan), path)
    trace = read_trace(TraceSource(path=str(path)))
    assert trace.format == "inferometer"
    found = trace.workload
    for name, column in plan._asdict().items():
        assert np.array_equal(getattr(found.plan, name), column), name
    assert (
        found.name,
        found.class_names,
        found.class_slos,
        found.tenant_names,
        found.cautions,
    ) == (
        "näme, 'quoted'",
        ("a", "b, c"),
        ("ttft p95 < 1s", None),
        ("t", "u", "v"),
        workload(plan).cautions,
    )


@given(plan=plans(), shift=st.integers(1, 5))
def test_rows_out_of_order_are_sorted_on_request(tmp_path_factory, plan, shift):
    """Swapping whole unrelated requests changes nothing but their places."""
    path = tmp_path_factory.mktemp("trace") / "requests.jsonl"
    write_own_trace(workload(plan), path)
    head, *rows = path.read_text().splitlines()
    if (
        np.any(plan.follows != NONE)
        or np.any(plan.prefix_request != NONE)
        or len(np.unique(plan.arrival_ns)) < plan.n_requests
    ):
        return
    path.write_text("\n".join([head, *rows[shift:], *rows[:shift]]))
    found = read_own_trace(path, is_sorted=False).plan
    assert np.array_equal(found.prompt_tokens, plan.prompt_tokens)
    if 0 < shift < plan.n_requests:
        with pytest.raises(SpecError, match=r"line .* arrives at .* before its predecessor"):
            read_own_trace(path)


def test_pointers_move_with_the_rows_they_point_to(tmp_path):
    path = tmp_path / "r.csv"
    head = f"# {HEAD}\narrival_ns,prompt_tokens,output_tokens,follows,think_ns,prefix_request,prefix_tokens\n"
    path.write_text(head + "9,5,2,,,,0\n,9,2,0,4,0,6\n1,7,2,,,,0\n")
    plan = read_own_trace(path, is_sorted=False).plan
    assert plan.prompt_tokens.tolist() == [7, 5, 9]
    assert plan.follows.tolist() == [NONE, NONE, 1]
    assert plan.prefix_request.tolist() == [NONE, NONE, 1]


def test_only_what_is_known_must_be_said(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(f"{HEAD}\n{ROWS}")
    plan = read_own_trace(path).plan
    assert plan.max_tokens.tolist() == [2, 2]
    assert plan.session_index.tolist() == [NONE, NONE]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"{HEAD}\n{ROWS}{{]", "line 4 is broken"),
        (f'{HEAD}\n{ROWS}{{"arrival_ns":3}}', "line 4 is broken: its columns"),
        (
            f'{HEAD}\n\n{{"arrival_ns":0,"prompt_tokens":null,"output_tokens":2}}',
            "line 3 is broken: prompt_tokens is absent",
        ),
        (f'{HEAD}\n{{"arrival_ns":0,"prompt_tokens":1.5,"output_tokens":2}}', "line 2 is broken"),
        (
            f'{HEAD}\n{{"arrival_ns":0,"prompt":1,"output_tokens":2}}',
            r"missing columns: \['prompt_tokens'\], unknown: \['prompt'\]",
        ),
        (
            f'{HEAD}\n{ROWS}{{"arrival_ns":3,"prompt_tokens":0,"output_tokens":2}}',
            "prompt_tokens of the request of line 4 is 0",
        ),
        (
            f'{HEAD}\n{{"arrival_ns":0,"prompt_tokens":1,"output_tokens":2,"class_index":1}}',
            "class_index has indices up to 1",
        ),
        (f"{HEAD.replace(':1,', ':2,', 1)}\n{ROWS}", "version 2"),
        (
            f"# {HEAD}\narrival_ns,prompt_tokens,output_tokens\n0,5\n",
            "line 3 is broken: 2 fields for 3 columns",
        ),
        (f"# {HEAD}\narrival_ns,prompt_tokens,output_tokens\n0,5,x\n", "line 3 is broken"),
        (f"{HEAD}\n", "missing columns"),
    ],
)
def test_broken_files_are_named_by_line(tmp_path, text, what):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match=what) as caught:
        read_trace(TraceSource(path=str(path)))
    assert str(path) in caught.value.where


def test_a_foreign_or_broken_parquet_file_is_refused(tmp_path):
    path = tmp_path / "r.parquet"
    path.write_bytes(b"PAR1 nothing more")
    with pytest.raises(SpecError, match="cannot be read"):
        read_trace(TraceSource(path=str(path)))
    import duckdb

    duckdb.sql("SELECT 1 AS arrival_ns").write_parquet(str(path))
    with pytest.raises(SpecError, match=r"without a head[^$]*as CSV or JSON lines"):
        read_trace(TraceSource(path=str(path)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "arrival_ns,prompt_tokens,output_tokens\n0,512,128\n5,64,9\n"),
        (
            "log.jsonl",
            "\n".join(
                (
                    '{"arrival_ns": 0, "prompt_tokens": 512, "output_tokens": 128}',
                    '{"arrival_ns": 5, "prompt_tokens": 64, "output_tokens": 9}',
                )
            ),
        ),
    ],
)
def test_three_columns_are_a_trace_without_a_head(name, text, tmp_path):
    """docs/workloads.md: only arrivals, prompts and outputs must be there."""
    path = tmp_path / name
    path.write_text(text)
    found = read_trace(TraceSource(path=str(path)))
    assert (found.format, found.workload.name) == ("inferometer", "log")
    assert found.workload.plan.arrival_ns.tolist() == [0, 5]
    assert found.workload.plan.prompt_tokens.tolist() == [512, 64]
    assert found.workload.plan.output_tokens.tolist() == [128, 9]


def test_a_trace_of_unknown_columns_says_which_are_known(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("time,words,letters\n0,512,128\n")
    with pytest.raises(SpecError, match="format is not known") as caught:
        read_trace(TraceSource(path=str(path)))
    assert "arrival_s,prompt_tokens,output_tokens" in caught.value.try_
