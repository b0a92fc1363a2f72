"""Does our table hold the columns it must, and is somebody else's read for what it says?"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.errors import RecordError
from inferometer.inputs.types import EngineSpec, SweepPoint
from inferometer.records.reading import read_run
from inferometer.records.summaries import flag_text, summarise_points, token_cost_changes
from inferometer.records.sweep_csv import SweepRow, TableFacts, read_sweep_csv, write_sweep_csv
from inferometer.records.types import ABSENT
from inferometer.stats.estimate import Estimate

FIXTURES = Path(__file__).parent / "fixtures"
M1_COLUMNS = [
    "seq_len",
    "batch",
    "gen_tokens",
    "prefill_p50_ms",
    "prefill_ms_per_tok",
    "prefill_tok_s",
    "decode_p50_ms_per_tok",
    "decode_tok_s",
    "total_tok_s",
    "reserved_mb",
    "allocated_mb",
    "mbu",
    "mfu",
    "flag",
]


def rows_of(run, **changes):
    flags = token_cost_changes(run)
    return [
        SweepRow(
            summary=summary,
            flag=(
                "OOM"
                if summary.status == "out_of_memory"
                else flag_text(flags, summary.point_index)
            ),
            **changes,
        )
        for summary in summarise_points(run)
    ]


@pytest.fixture
def measured(make_run):
    near = SweepPoint(prompt_tokens=100, batch_size=2, gen_tokens=11)
    far = SweepPoint(prompt_tokens=200, batch_size=2, gen_tokens=11)
    big = SweepPoint(prompt_tokens=400, batch_size=2, gen_tokens=11)
    return make_run(
        {
            near: ([0.1] * 7, [1.0] * 7),
            far: ([0.49 + 0.01 * i for i in range(7)], [1.1] * 7),
            big: ([], []),
        }
    )


def test_our_table(tmp_path, measured):
    utilisation = Estimate(
        value=0.5, low=0.45, high=0.55, confidence_fraction=0.95, n_samples=7, method="test"
    )
    write_sweep_csv(tmp_path / "sweep.csv", rows_of(measured, mbu_fraction=utilisation))
    with (tmp_path / "sweep.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0])[: len(M1_COLUMNS)] == M1_COLUMNS
    assert {"ttft_ms", "tpot_ms", "prefill_low_ms", "prefill_high_ms", "n_reps"} <= set(lines[0])
    assert [line["seq_len"] for line in lines] == ["100", "200", "400"]
    assert (
        lines[0]["prefill_p50_ms"],
        lines[0]["prefill_ms_per_tok"],
        lines[0]["prefill_tok_s"],
    ) == ("100", "0.5", "2000")
    assert (lines[0]["decode_p50_ms_per_tok"], lines[0]["decode_steps"]) == (
        "100",
        "10",
    ), "decode time / decode steps"
    assert (lines[0]["tpot_ms"], lines[0]["decode_tok_s"]) == ("100", "20")
    assert (lines[0]["mbu"], lines[0]["mbu_low"], lines[0]["mfu"]) == ("0.5", "0.45", "")
    assert (lines[1]["prefill_low_ms"], lines[1]["prefill_high_ms"]) == ("490", "550")
    assert lines[1]["flag"] == "COLLAPSE_PREFILL(x2.6)"
    assert (lines[2]["flag"], lines[2]["prefill_p50_ms"], lines[2]["n_reps"]) == ("OOM", "", "0")


def test_our_table_read_back_says_the_same(tmp_path, measured):
    write_sweep_csv(tmp_path / "sweep.csv", rows_of(measured))
    back = read_run(tmp_path / "sweep.csv")
    for before, after in zip(summarise_points(measured), summarise_points(back), strict=True):
        assert (after.point, after.status) == (before.point, before.status)
        for name in (
            "prefill_s",
            "tpot_s",
            "n_decode_steps",
            "decode_tokens_per_s",
            "total_tokens_per_s",
        ):
            one, other = getattr(before, name), getattr(after, name)
            assert (one is None) == (other is None)
            assert one is None or getattr(other, "value", other) == pytest.approx(
                getattr(one, "value", one), rel=1e-5
            )


def test_the_median_step_is_read_back(tmp_path, measured):
    """Of a sweep's own table the mean step was shown as the median one."""
    first, *others = rows_of(measured)
    step = replace(first.summary.decode_step_s, value=0.09, low=0.08, high=0.1)
    first = replace(first, summary=replace(first.summary, decode_step_s=step))
    write_sweep_csv(tmp_path / "sweep.csv", [first, *others])
    back = read_run(tmp_path / "sweep.csv")
    near, far, _ = summarise_points(back)
    assert (near.decode_step_s.value, near.tpot_s.value) == pytest.approx((0.09, 0.1), rel=1e-5)
    assert far.decode_step_s.value == pytest.approx(0.11, rel=1e-5)
    assert read_text(tmp_path, "seq,batch,tpot ms\n16,1,20\n").sweep.median_step_ns[0] == ABSENT


def test_a_table_of_an_earlier_version_is_read_as_it_was_written(tmp_path):
    """It divided the decode time by the generated tokens in one column and by the decode steps in the other."""
    run = read_text(
        tmp_path,
        "seq_len,batch,gen_tokens,prefill_p50_ms,decode_p50_ms_per_tok,tpot_ms\n32,1,8,185.1,56.5936,64.6784\n",
    )
    assert run.sweep.n_decode_steps.tolist() == [7]
    assert run.sweep.decode_ns[0] == pytest.approx(8 * 56.5936e6, rel=1e-6)


def test_the_published_prompt_axis():
    run = read_run(FIXTURES / "t1_prompt_axis.csv")
    assert (run.manifest.origin, run.manifest.plan, run.manifest.cautions) == (
        "published",
        None,
        (),
    )
    published = [
        (3678.9, 38.29, 183.78),
        (5256.0, 37.83, 576.71),
        (3400.6, 34.03, 1348.36),
        (2331.8, 27.68, 1417.33),
    ]
    for summary, (prefill, decode, total) in zip(summarise_points(run), published, strict=True):
        assert summary.prefill_tokens_per_s.value == pytest.approx(prefill, rel=2e-4)
        assert summary.decode_tokens_per_s.value == pytest.approx(decode, rel=2e-4)
        assert summary.total_tokens_per_s.value == pytest.approx(total, rel=2e-4)
        assert summary.prefill_s.low is None
    assert run.sweep.reserved_bytes[0] == 5974 * 2**20
    assert run.sweep.allocated_bytes.tolist() == [ABSENT] * 4


def test_the_published_batch_axis_as_a_markdown_table():
    facts = TableFacts(
        prompt_tokens=128, gen_tokens=32, engine=EngineSpec(dtype="float16", device="cuda")
    )
    run = read_sweep_csv(FIXTURES / "t1_batch_axis.md", facts)
    assert [point.batch_size for point in run.manifest.plan.points] == [1, 4, 16, 64]
    assert run.manifest.plan.engine.dtype == "float16"
    published = [(37.61, 180.81), (142.03, 649.29), (511.38, 1878.90), (996.56, 2842.37)]
    for summary, (decode, total) in zip(summarise_points(run), published, strict=True):
        assert summary.decode_tokens_per_s.value == pytest.approx(decode, rel=2e-4)
        assert summary.total_tokens_per_s.value == pytest.approx(total, rel=2e-4)


def read_text(tmp_path, text, facts=None):
    (tmp_path / "t.csv").write_text(text)
    return read_sweep_csv(tmp_path / "t.csv", facts)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_four_columns_are_enough(tmp_path, delimiter):
    text = "Seq,Batch Size,Prefill (ms),Decode ms/token\n128,1,34.79,26.1\n256,1,,26.3\n".replace(
        ",", delimiter
    )
    run = read_text(tmp_path, "\ufeff" + text)
    assert run.sweep.prompt_tokens.tolist() == [128, 256]
    assert run.sweep.prefill_ns.tolist() == [34_790_000, ABSENT]
    assert run.sweep.decode_ns.tolist() == [26_100_000, 26_300_000]
    assert [caution.code for caution in run.manifest.cautions] == ["GEN_TOKENS_UNKNOWN"]


def test_a_comma_between_semicolons_may_be_a_decimal_one(tmp_path):
    """12,345 ms of a spreadsheet with decimal commas were 12 s."""
    text = "Seq;Batch;Prefill (ms);Decode ms/token\n128;1;12,345;26.1\n"
    with pytest.raises(RecordError, match="'12,345' may be thousands, or have a decimal comma"):
        read_text(tmp_path, text)
    grouped = read_text(tmp_path, text.replace(";", "\t"))
    assert grouped.sweep.prefill_ns.tolist() == [12_345_000_000]


def test_repeated_lines_are_repetitions(tmp_path):
    run = read_text(tmp_path, "seq,batch,gen,prefill ms\n" + "128,1,8,10\n" * 7)
    (summary,) = summarise_points(run)
    assert summary.n_reps == 7
    assert summary.prefill_s.low == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("", "empty", None),
        ("seq,batch,prefill ms\n", "no lines", None),
        ("name,age\na,3\n", "no known column of times", 1),
        ("seq,seq_len,batch,prefill ms\n1,1,1,1\n", "two columns both say prompt", 1),
        ("seq,batch,prefill ms\n128,1,34.79\n256,1\n", "line 3 has 2 fields, the header has 3", 3),
        ("seq,batch,prefill ms\n128,1,fast\n", "prefill_ms = 'fast'", 2),
        ("seq,batch,prefill ms\n128,1,-3\n", "not positive", 2),
        ("seq,batch,prefill ms\n128,1,inf\n", "prefill_ms = 'inf'", 2),
        ("# a comment\nseq,batch,prefill ms\n\n128,1.5,3\n", "batch = '1.5' is no whole number", 4),
        ("seq,prefill ms\n128,3\n", "does not say batch", 2),
        ("seq,batch,prefill ms\n128,1,n/a\n", "neither a prefill nor a decode time", 2),
    ],
)
def test_broken_tables_name_the_line(tmp_path, text, problem, line):
    with pytest.raises(RecordError, match=problem) as caught:
        read_text(tmp_path, text)
    assert caught.value.exit_code == 4
    if line is not None:
        assert caught.value.where.endswith(f"line {line}")


def test_a_page_is_no_table(tmp_path):
    page = tmp_path / "report.html"
    page.write_text("<!doctype html>\n<p>1,2,3\n")
    with pytest.raises(RecordError, match="a page, not a table") as caught:
        read_sweep_csv(page, TableFacts(model=None, engine=None))
    assert "browser" in str(caught.value.try_)


def test_what_is_no_text(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="in UTF-16"):
        read_run(tmp_path / "t.csv")


def test_nothing_and_nowhere_to_write(tmp_path, measured):
    with pytest.raises(RecordError, match="no points"):
        write_sweep_csv(tmp_path / "sweep.csv", [])
    with pytest.raises(RecordError, match="cannot write"):
        write_sweep_csv(tmp_path / "nowhere" / "sweep.csv", rows_of(measured))


@pytest.mark.parametrize(
    ("column", "is_read"), [("decode ms", False), ("decode ms/tok", True), ("tpot_ms", True)]
)
def test_a_column_of_unclear_meaning_is_not_passed_over_in_silence(tmp_path, column, is_read):
    path = tmp_path / "table.csv"
    path.write_text(f"seq,batch,gen tokens,prefill ms,{column}\n16,1,4,10,20\n")
    cautions = [
        caution
        for caution in read_sweep_csv(path).manifest.cautions
        if caution.code == "COLUMN_NOT_READ"
    ]
    assert bool(cautions) is not is_read
    assert all(column in caution.text for caution in cautions)


@pytest.mark.parametrize("text", ["", "\n# a remark\n", "|---|---|\n|---|---|\n"])
def test_a_table_without_a_header_is_empty(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(RecordError, match="empty"):
        read_sweep_csv(path)
