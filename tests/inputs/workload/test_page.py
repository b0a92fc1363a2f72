"""Does the page on workloads show what happens?"""

import doctest
import os
import re
from pathlib import Path

import pytest

from inferometer.inputs.workload.description import describe
from inferometer.inputs.workload.distributions import Sampled
from inferometer.inputs.workload.reading import (
    preset_names,
    resolve_workload,
    with_changes,
    workload_from_text,
)
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import Arrivals, TraceFormat
from inferometer.units import format_fraction, format_number

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
TEXT = PAGE.read_text()
FILES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
TABLE = re.compile(
    r"(<!-- presets:[^\n]*\n\|[^\n]*\n\|[^\n]*\n)(.*?)(<!-- end of presets -->)", re.DOTALL
)


def test_examples_run():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 10
    assert found.failed == 0


@pytest.mark.parametrize("text", FILES, ids=lambda text: text.split("\n")[0])
def test_files_are_read(text):
    spec = workload_from_text(text, where="the page")
    if spec.replay is None:
        assert draw_workload(spec, has_beams=True).plan.n_requests > 100


def preset_row(name):
    spec = with_changes(resolve_workload(name), {"n_requests": 20_000}, where="the page")
    found = describe(draw_workload(spec).plan)
    sizes = [
        " / ".join(f"{value:,.0f}" for value in (one.p50_tokens, one.mean_tokens, one.p99_tokens))
        for one in (found.prompt, found.output)
    ]
    is_open = found.rate_per_s is not None
    rate = format_number(spec.arrivals.rate_per_s) if is_open else "all at once"
    variation = format_number(found.gap_cv_ratio) if is_open else "–"
    shared = (
        format_fraction(found.shared_prefix_fraction) if found.shared_prefix_fraction else "none"
    )
    source = spec.classes[0].source.partition(" (")[0]
    return f"| `{name}` | {rate} | {variation} | {sizes[0]} | {sizes[1]} | {shared} | {source} |\n"


def test_the_presets_are_as_the_page_says():
    rows = "".join(map(preset_row, preset_names()))
    if os.environ.get("INFEROMETER_ACCEPT_GOLDEN"):
        PAGE.write_text(TABLE.sub(lambda match: match[1] + rows + match[3], TEXT))
    assert TABLE.search(PAGE.read_text())[2] == rows


def test_every_kind_is_on_the_page():
    kinds = [one.__struct_config__.tag for union in (Arrivals, Sampled) for one in union.__args__]
    for name in [*kinds, *TraceFormat.__args__]:
        assert re.search(rf"^\| `{name}` \|", TEXT, re.MULTILINE), name
