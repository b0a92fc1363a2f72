"""Does text reach the terminal whole.

Pasteable on a narrow one, plain in a pipe, and without harm where nobody reads it?
"""

import errno
import io
import os
import subprocess
import sys

import pytest
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.api.progress import PartsDone
from inferometer.cli import answer, progress, terminal
from inferometer.cli.main import _end_of_the_system
from inferometer.inputs.types import Caution
from inferometer.measure.load.watch import LoadProgress
from inferometer.report.page import Line, Number, Page
from inferometer.report.tables import TextTable
from inferometer.report.terminal import BriefTable, WholeTable, numbers_text, page_text, table_text

COMMAND = (
    "inferometer sweep /a/folder/whose/name/is/longer/than/any/line/of/a/terminal --out 'runs/2026"
    " a' --budget 10min"
)
PAGE = Page(
    title="word " * 30,
    lines=(
        Line(label="LIMIT", text="word " * 60),
        Line(label="NEXT", text=f"more points: {COMMAND}"),
    ),
)


def on_a_terminal(shown, width):
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    console.print(answer.whole_words(shown), crop=False)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_command_is_never_broken_by_a_newline_and_prose_is_wrapped(width):
    shown = on_a_terminal(Group(page_text(PAGE), Text(f"CAUTION a – {COMMAND}")), width)
    assert shown.count(COMMAND) == 2
    prose = [line for line in shown.splitlines() if COMMAND not in line]
    assert max(len(line.rstrip()) for line in prose) <= max(width, 30)


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (
            60,
            ("1 25 ms [12, 50] 7 ms [6, 8] 5.9 [5.2, 6.7]", "8 101 ms [64, 203] 7.4 ms [6.6, 8] 1"),
        ),
        (46, ("1 25 ms [12, 50] 7 ms [6, 8] 5.9", "8 101 ms [64, 203] 7.4 ms [6.6, 8] 1")),
        (38, ("1 25 ms [12, 50] 7 ms 5.9", "8 101 ms [64, 203] 7.4 ms 1")),
        (26, ("1 25 ms 7 ms 5.9", "8 101 ms 7.4 ms 1")),
    ],
)
def test_the_last_intervals_go_first_where_there_is_no_room(width, rows):
    table = TextTable(
        caption="",
        header=("batch", "TTFT", "TPOT", "$"),
        rows=(
            ("1", "25 ms [12, 50]", "7 ms [6, 8]", "5.9 [5.2, 6.7]"),
            ("8", "101 ms [64, 203]", "7.4 ms [6.6, 8]", "1"),
        ),
    )
    shown = on_a_terminal(page_text(Page(title="", table=table)), width)
    assert tuple(" ".join(line.split()) for line in shown.splitlines()[-2:]) == rows


def test_in_a_pipe_nothing_is_wrapped_and_no_line_ends_in_blanks(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("what", "where", box=None)
    table.add_row("a", "words " * 60)
    table.add_row("b", "")
    drawn = answer.drawn(Group(Padding(table, (0, 0, 1, 0)), Text("word " * 100), page_text(PAGE)))
    assert "words " * 59 in drawn
    assert "word " * 99 in drawn
    assert all(line == line.rstrip() for line in drawn.split("\n"))


def test_a_reader_of_stderr_that_goes_away_ends_nothing():
    code = (
        "from inferometer.cli.terminal import talk\nfor n in range(9):\n talk('x' *"
        " 99_999)\nprint('measured')"
    )
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writing, text=True, check=False
    )
    os.close(writing)
    assert (ended.stdout, ended.returncode) == ("measured\n", 0)


def test_a_closed_stderr_ends_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    terminal.talk("a word")
    assert not terminal.STDERR.isatty()


def test_no_open_files_left_is_advised_as_that(capsys):
    with pytest.raises(SystemExit) as ended:
        _end_of_the_system(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert ended.value.code == 3
    assert "try: ulimit -n 65536" in capsys.readouterr().err


def test_what_stands_beside_the_bar_of_a_load_test_fits_a_line():
    """The bar and the counts take 34 of 110 columns."""
    now = LoadProgress(
        elapsed_s=30.0,
        n_planned=10_000,
        n_sent=5_000,
        n_in_flight=1_024,
        n_good=3_900,
        n_failed=76,
        sent_per_s=100.0,
        first_bytes_s=1.2,
        first_bytes_p95_s=3.4,
        read_gap_s=0.0123,
        read_gap_p95_s=0.0456,
        worst_lag_s=0.001,
        errors=(("timeout", 76),),
    )
    assert progress.so_far(now) == (
        "1,024 in flight · TTFT 1200 ms, p95 3400 ms · TPOT 12.3 ms, p95 45.6 ms · 76 failed"
        " · 50 s left"
    )
    assert "first bytes 1200 ms, p95 3400 ms" in progress.sentence(now)


@pytest.mark.parametrize("width", [80, 110])
def test_no_column_of_a_wide_table_is_cut_off(width):
    names = [f"name{i}" for i in range(9)]
    cells = [f"cell{i} of {'x' * 12}" for i in range(8)]
    shown = on_a_terminal(
        table_text(TextTable(caption="", header=tuple(names), rows=((*cells, "1.02x"),))), width
    )
    assert "1.02x" in shown
    assert max(len(line) for line in shown.splitlines()) <= width


@pytest.mark.parametrize("width", [40, 60, 72, 80, 95, 110, 130])
def test_a_table_of_numbers_with_their_intervals_has_room_at_every_width(width):
    """Columns of a percentile and its interval went past the edge, or were cut off there."""
    header = ("latency", "mean", "p50", "p95", "p95, least … most of 19 draws")
    row = ("TTFT", "245 ms [219 ms, 271 ms]", "244 ms [200 ms, 271 ms]", "354 ms (n too small)")
    rows = tuple((name, *row[1:], "234 ms … 1250 ms") for name in ("TTFT", "queue"))
    table = TextTable(caption="", header=header, rows=rows)
    lines = on_a_terminal(Padding(WholeTable(table), (0, 0, 1, 0)), width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    joined = "".join("".join(line.split()) for line in lines)
    assert joined.count("1250ms") == 2
    assert joined.count("draws") == 1


def test_a_grid_without_room_shows_the_same_rows_of_each_block():
    """Of four policies the first alone was shown."""
    rows = tuple((policy, str(n)) for policy in ("none", "static", "vllm") for n in (1, 2, 4, 8))
    table = TextTable(caption="", header=("policy", "users"), rows=rows, n_in_block=4)
    lines = on_a_terminal(BriefTable(table, 6), 80).splitlines()
    shown = [tuple(line.split()) for line in lines[1:-1]]
    assert shown == [(policy, n) for policy in ("none", "static", "vllm") for n in ("1", "8")]
    assert lines[-1] == "… 6 more rows: --verbose"


def test_many_findings_are_fewer_and_whole():
    findings = tuple(f"Finding {i} {'of a sentence of two lines ' * 4}end{i}." for i in range(14))
    table = TextTable(caption="", header=("x",), rows=tuple((str(i),) for i in range(30)))
    lines = on_a_terminal(page_text(Page(title="Many", findings=findings, table=table)), 80)
    assert len(lines.splitlines()) <= 25
    assert "end0." in lines
    assert "more findings: --verbose" in lines


def test_commands_that_the_terminal_wraps_count_as_its_lines():
    """An answer with long cautions took 27 lines of 80 columns."""
    cautions = tuple(
        Caution(code="C", text="so it is " * 9, remedy="inferometer sweep on this device")
        for _ in range(2)
    )
    lines = tuple(Line(label="WHY", text="a reason of several lines " * 12) for _ in range(4))
    page = Page(title="Long", lines=lines, cautions=cautions, table=TextTable(
        caption="", header=("x",), rows=tuple((str(i),) for i in range(16)),
    ))  # fmt: skip
    shown = on_a_terminal(page_text(page), 80).splitlines()
    assert sum(max(-(-len(line.rstrip()) // 80), 1) for line in shown) <= 25


def test_bars_are_shorter_where_notes_would_have_no_room():
    note = "8.04x a reader (5.3 tok/s)"
    number = Number(
        name="cost of 1M output tok", value=42.5, unit="tok/s", low=34, high=53, note=note
    )
    narrow, wide = (on_a_terminal(numbers_text((number,)), width) for width in (80, 120))
    assert len(narrow.splitlines()) == 2
    assert note in wide
    assert narrow.count("·") + narrow.count("━") < wide.count("·") + wide.count("━")


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_a_table_without_room_is_shown_in_blocks_of_whole_words_and_each_names_its_rows(width):
    header = ("device", "batch", *(f"tok/s of kind{i}" for i in range(12)))
    rows = [(device, str(n), *["104 ms"] * 11, "bandwidth") for device in "ab" for n in (1, 8)]
    table = TextTable(caption="", header=header, rows=tuple(rows))
    lines = on_a_terminal(WholeTable(table), width).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert all(words.count(f"kind{i}") == 1 for i in range(12))
    assert words.count("bandwidth") == 4
    blocks = sum("device" in line for line in lines)
    starts = [line.split()[:2] for line in lines if line[:1] in "ab" and line[1:2] == " "]
    assert starts == [["a", "1"], ["a", "8"], ["b", "1"], ["b", "8"]] * blocks
    assert (blocks == 1) == (width == 200)


def test_what_the_first_part_alone_waits_for_is_no_time_left(monkeypatch, capsys):
    now_s = iter((100.0, 100.0, 160.0, 170.0, 180.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now_s))
    listener = progress.TerminalListener(as_json=False, prints=True)
    for n_done in range(4):  # the first takes a minute to compile, each other ten seconds
        listener(PartsDone("step times", n_done, 20))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [
        "1/20 step times",
        "2/20 step times, about 3 min left",
        "3/20 step times, about 3 min left",
    ]
