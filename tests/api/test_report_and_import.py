"""Is there one page of a report, and is an infinite rate a fact of an import's JSON?"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import inferometer as im
from inferometer.cli.main import app

RESULTS = Path(__file__).parents[1] / "records" / "imports" / "results"


@pytest.mark.parametrize("flag", ["--out", "--report"])
def test_a_report_is_written_once(tmp_path, flag):
    """``report RUN --report FILE`` wrote a page beside the run too."""
    table = tmp_path / "sweep.csv"
    table.write_text("prompt,batch,gen_tokens,prefill_ms,tpot_ms\n512,1,32,70,8.0\n")
    page = tmp_path / "pages" / "page.html"
    page.parent.mkdir()
    done = CliRunner().invoke(app, ["report", str(table), flag, str(page)])
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.rglob("*.html")] == ["page.html"]
    assert f"REPORT{page}(" in "".join(done.stdout.split())


@pytest.mark.parametrize("rate", ["inf", 20.0])
def test_a_rate_of_infinity_is_not_an_absent_rate(tmp_path, rate):
    result = json.loads((RESULTS / "vllm-bench-detailed.json").read_text())
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result | {"request_rate": rate}))
    (file,) = im.import_results(path).to_dict()["files"]
    (summary,) = file["summaries"]
    assert summary["is_all_at_once"] is (rate == "inf")
    assert summary["offered_requests_per_s"] == (None if rate == "inf" else rate)
