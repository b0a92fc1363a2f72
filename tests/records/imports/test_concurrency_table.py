"""Is somebody's table of a serving sweep read as what it says, whatever its columns are called?"""

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.concurrency_table import (
    is_concurrency_table,
    read_concurrency_table,
)
from inferometer.records.imports.detection import read_results

PLAIN = """\
model,gpu,isl,osl,concurrency,ttft_p50_ms,itl_ms,ttft_p99_ms
llama-3.1-8b,H100,1024,128,1,25,7.1,60
llama-3.1-8b,H100,1024,128,32,180,11,700
"""
MARKDOWN = """\
| Users | Input Len | Output Len | Mean TTFT (s) | P50 TPOT ms | GPU |
|---|---|---|---|---|---|
| 16 | 512 | 100 | 0.12 | 15 | 2xA100-80GB |
"""
SEMICOLONS = """\
Max concurrency;ISL;OSL;P50 TTFT ms;P50 ITL ms;Engine;Quantization;TP
8;512;100;40;9.5;TensorRT-LLM;FP8;4
"""


@pytest.fixture
def table(tmp_path):
    def written(text):
        path = tmp_path / "mine.csv"
        path.write_text(text)
        return path

    return written


def test_columns_are_read_by_their_words(table):
    points = read_concurrency_table(table(PLAIN))
    assert points.concurrency.tolist() == [1, 32]
    assert points.prompt_tokens.tolist() == [1024, 1024]
    assert points.hardware_id.tolist() == ["h100_sxm", "h100_sxm"]
    assert points.framework.tolist() == ["", ""]
    # The gaps' statistic is not named: neither are the medians of TTFT beside it.
    assert points.ttft_unnamed_s.tolist() == [0.025, 0.18]
    assert points.tpot_unnamed_s.tolist() == pytest.approx([0.0071, 0.011])
    assert np.isnan(points.ttft_median_s).all()


def test_a_markdown_table_with_several_devices_and_seconds(table):
    points = read_concurrency_table(table(MARKDOWN))
    assert (points.concurrency[0], points.tensor_parallel[0], points.n_devices[0]) == (16, 2, 2)
    assert points.hardware_id[0] == "a100_80gb_sxm"
    assert points.ttft_unnamed_s[0] == pytest.approx(0.12)
    assert points.tpot_unnamed_s[0] == pytest.approx(0.015)


def test_medians_stay_medians_and_engines_have_one_name(table):
    points = read_concurrency_table(table(SEMICOLONS))
    assert (points.framework[0], points.precision[0]) == ("trtllm", "fp8")
    assert points.ttft_median_s[0] == pytest.approx(0.04)
    assert points.tpot_median_s[0] == pytest.approx(0.0095)
    assert points.tensor_parallel[0] == 4
    assert points.hardware_id[0] == ""


def test_it_is_found_out_from_what_is_in_it(table):
    results = read_results(table(PLAIN))
    assert results.tool == "table"
    assert results.points is not None
    assert len(results.points.row) == 2


@pytest.mark.parametrize(
    "text",
    [
        "seq_len,batch,prefill ms,decode ms/tok\n8,1,2,3\n",
        "concurrency,model\n1,llama\n",
        "",
        "{}",
        "a\x00,b",
    ],
)
def test_other_texts_are_none(text):
    assert not is_concurrency_table(text)


def test_what_is_missing_is_named(table):
    with pytest.raises(RecordError, match="no column of isl, osl, tpot_p50_ms"):
        read_concurrency_table(table("users,ttft ms\n1,20\n"))


def test_a_broken_cell_has_its_line(table):
    with pytest.raises(RecordError) as caught:
        read_concurrency_table(table(PLAIN.replace(",25,", ",fast,")))
    assert "line 2" in (caught.value.where or "")
