"""Is the page on accuracy what the stored record says, and does the record count failures as failures?"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import inferometer

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import accuracy
import accuracy_page
import published_tables

RECORD = json.loads(accuracy_page.RECORD.read_text())
TEXT = accuracy_page.TEXT.read_text()
PAGE = accuracy_page.PAGE.read_text()
SWEEPS = PAGE.partition("| sweep | phase |")[2].partition("\n\n")[0]


def page_of(record):
    """The sweeps' table is held against the sweeps themselves by ``test_readme.py``."""
    return accuracy_page.page_of(record, TEXT, f"| sweep | phase |{SWEEPS}")


def test_the_page_and_its_curves_are_those_of_the_record():
    """After a change of either: ``python bench/accuracy.py --page``."""
    assert page_of(RECORD) == PAGE
    for name, text in accuracy_page.charts_of(RECORD).items():
        assert (accuracy_page.IMAGES / name).read_text() == text
        assert f"(images/{name})" in PAGE


def test_the_readme_says_what_the_record_says():
    readme = accuracy_page.README.read_text()
    assert accuracy_page.readme_of(RECORD, readme) == readme
    n_loops = sum(one["n_loops"] for one in RECORD["cohort"].values())
    assert f"On {n_loops:,} published closed loops" in readme
    found = accuracy_page.facts_by_way(RECORD)
    for way, words in (("concurrency", "is {} (other"), ("datasheet", "to {} (a device")):
        miss = accuracy_page.percent(found[way, "reported", "all"]["tpot"]["median"])
        assert words.format(miss) in readme
    with pytest.raises(SystemExit, match="lacks"):
        accuracy_page.readme_of(RECORD, "a README without the sentence")


def test_the_page_follows_the_record():
    changed = copy.deepcopy(RECORD)
    for one in changed["ways"]:
        if (one["way"], one["side"], one["engine"]) == ("device", "reported", "all"):
            one["tpot"]["median"], one["n_failed"] = 0.4321, 98765
    assert "43 %" in page_of(changed)
    assert "98,765" in page_of(changed)
    assert "98,765" not in PAGE


def test_every_way_is_there_on_both_halves():
    found = accuracy_page.facts_by_way(RECORD)
    for way in accuracy_page.WAYS:
        for side in ("reported", "learned"):
            mine = found[way, side, "all"]
            engines = [found.get((way, side, name)) for name in accuracy_page.ENGINES]
            assert mine["n_rows"] == sum(one["n_rows"] for one in engines if one)
            assert mine["n_failed"] == sum(one["n_failed"] for one in engines if one)
            for metric in accuracy_page.METRICS:
                assert 0 < mine[metric]["inside"] <= 1
                assert mine[metric]["quantiles"] == sorted(mine[metric]["quantiles"], key=_last)
    assert {one["engine"] for one in RECORD["beside"]["engines"]} == {"all", *accuracy_page.ENGINES}


def _last(value):
    return np.inf if value is None else value


def row(miss, half=0.2, version="0.18.0"):
    both = (miss, miss), (half, half), (-1.0, -1.0)
    return accuracy.Row("device", "g", "reported", "vllm", "t", ("k",), version, 9, *both)


def test_a_row_without_a_prediction_is_infinitely_far_off():
    told = accuracy.facts_of([row(0.1), row(0.1), row(-0.3)])
    assert told["n_failed"] == 0
    assert told["tpot"]["median"] == pytest.approx(np.expm1(0.1), rel=1e-3)
    assert told["tpot"]["inside"] == pytest.approx(2 / 3, rel=1e-3)
    assert told["tpot"]["roofline"] == pytest.approx(1 - np.exp(-1.0), rel=1e-3)
    failing = accuracy.facts_of([row(0.1), row(np.inf), row(np.inf)])
    assert failing["n_failed"] == 2
    assert failing["tpot"]["median"] is None
    assert accuracy_page.percent(failing["tpot"]["median"]) == "–"
    assert failing["tpot"]["inside"] == 1  # of those with an interval


def test_a_topology_of_which_nothing_is_told_is_lost():
    theirs = {("k",): accuracy.Theirs([[0.2, 0.2], [0.05, 0.05]], 2)}
    told = [one._replace(way="topology") for one in (row(0.1), row(0.1))]
    mine = accuracy.beside(told, theirs)["engines"][0]
    assert mine["nearer"] == {"aisimulate": [1.0, 1.0], "aiconfigurator": [0.0, 0.0]}
    lost = accuracy.beside([row(np.inf)._replace(way="topology")], theirs)["engines"][0]
    assert (lost["n_failed"], lost["nearer"]["aisimulate"]) == (1, [0.0, 0.0])


def test_topologies_are_compared_on_rows_of_the_newest_engine_version():
    """As AISimulate's are of one run; the share over all rows stands beside it."""
    theirs = {("k",): accuracy.Theirs([[0.2, 0.2], [0.05, 0.05]], 1)}
    rows = [row(0.1), row(2.0, version="0.11.2"), row(2.0, version=""), row(2.0, version="dev")]
    facts = accuracy.beside([one._replace(way="topology") for one in rows], theirs)
    assert (facts["n_rows_here"], facts["n_all_rows_here"], facts["n_with_their_rows"]) == (1, 4, 1)
    assert facts["engines"][0]["nearer"]["aisimulate"] == [1.0, 1.0]
    assert facts["all_rows"][0]["nearer"]["aisimulate"] == [0.0, 0.0]
    versions = ["", "nightly", "0.5.9", "0.5.10.post1", "1.2.0rc6.post2", "1.2.0rc6.post3"]
    assert sorted(set(versions), key=accuracy.version_order) == versions


def test_halves_are_fixed():
    """Another half would be a half that widths were set on."""
    assert published_tables.half(("vllm", "llama-3.1-70b", "fp8")) == 1
    assert published_tables.half(("sglang", "deepseek-v3", "fp4")) == 0


def test_a_part_measured_again_is_named_once_at_its_newest():
    first = accuracy.told_again({}, "2026-11-24", "a1", {"runs", "device"})
    again = accuracy.told_again({"again": first}, "2026-11-25", "b2", {"runs"})
    assert again == [
        {"date": "2026-11-24", "commit": "a1", "parts": ["device"]},
        {"date": "2026-11-25", "commit": "b2", "parts": ["runs"]},
    ]
    page = page_of({**RECORD, "again": again})
    assert "2026-11-25 at commit b2: the published runs of requests." in page
    assert "a1: another device" in page


def test_without_the_published_tables_the_folder_that_lacks_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("INFEROMETER_PUBLISHED_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--folder", str(tmp_path / "kept")])
    with pytest.raises(SystemExit, match="and no inferencex-silicon") as told:
        accuracy.main()
    assert "INFEROMETER_PUBLISHED_DATA" in str(told.value)
    assert not (tmp_path / "kept").exists()


def test_the_sources_that_predictions_rest_on_exist():
    """Their sum says whether stored answers still hold: a module that moved would end the run."""
    folder = Path(inferometer.__file__).parent
    named = (*accuracy.PREDICTED_BY, *published_tables.SCHEDULED_BY)
    assert not [name for name in named if not (folder / name).exists()]
