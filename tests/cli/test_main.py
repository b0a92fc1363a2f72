"""Does the command line start fast, explain itself, and fail with the right code?"""

import io
import os
import subprocess
import sys
from pathlib import Path

import click
import command_line
import pytest
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.cli.answer import whole_words
from inferometer.cli.flags import as_spec_error
from inferometer.cli.main import VERBS, app
from inferometer.errors import SpecError
from inferometer.inputs.catalog import load_hardware

BIN = Path(sys.executable).parent / "inferometer"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
        timeout=120,
    )


def test_help_is_fast_and_lists_every_verb():
    computed_s = []
    for _ in range(5):
        before = os.times()
        outcome = run("--help")
        after = os.times()
        computed_s.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
        assert outcome.returncode == 0
    assert all(verb in outcome.stdout for verb in VERBS)
    assert 0 < min(computed_s) < 0.3, computed_s


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv=['inferometer','--help']\nfrom inferometer.cli.main import"
        " main\ntry:\n main()\nexcept SystemExit: pass\n"
    )
    code += (
        "heavy={'numpy','duckdb','torch','scipy','numba','rich'} & set(sys.modules);"
        " print('HEAVY', sorted(heavy))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.splitlines()[-1] == "HEAVY []"


def test_a_load_test_is_sent_before_what_its_answer_needs_is_imported():
    code = (
        "import sys, inferometer.cli.main as main; main.begun_by('load', main.VERBS['load'])\n"
        "late={'scipy','numba','inferometer.stats','inferometer.report'} &"
        " set(sys.modules); print('LATE', sorted(late))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.splitlines()[-1] == "LATE []"
    assert VERBS["load"].second_half == "inferometer.api.load:answer_of_test"


def test_a_missing_engine_is_reported_before_what_measures_is_imported():
    code = "import sys, inferometer.cli.main as main; main.begun_by('quick', main.VERBS['quick'])\n"
    code += "print('LATE', sorted({'scipy', 'numba',  'numpy'} & set(sys.modules)))"
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.splitlines()[-1] == "LATE []"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb):
    with click.Context(app) as context:
        command = app.get_command(context, verb)
    assert command is not None
    assert command.help, f"{verb} does not say what it answers"
    assert command.epilog is not None, f"{verb} has no example"
    assert f"inferometer {verb}" in command.epilog, f"{verb} has no example"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_speaks_json(verb):
    with click.Context(app) as context:
        command = app.get_command(context, verb)
        if isinstance(command, click.Group):  # a study: each of them is a command
            command = command.get_command(context, command.list_commands(context)[0])
    assert command is not None
    assert "--json" in {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize(
    ("typed", "verb"), [("bench", "load"), ("plan", "size"), ("serve", "emulate"), ("siz", "size")]
)
def test_what_others_call_a_verb_leads_to_ours(typed, verb):
    with click.Context(app) as context, pytest.raises(SpecError) as caught:
        app.resolve_command(context, [typed])
    assert f"inferometer {verb} --help" in str(caught.value)


def test_an_unknown_verb_is_a_bad_question():
    outcome = run("swep")
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert "try: inferometer sweep" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("capacity", "http://localhost:8000", "--rate", "1"),
            ("--out is missing", "from: --out", "try: --out files"),
        ),
        (
            ("predict", "llama-3.1-8b", "--batch", "0"),
            ("0 is not", "from: --batch", "allowed: a whole number of at least 1"),
        ),
        (
            ("emulate", "llama-3.1-8b", "--port", "a"),
            ("'a' is not", "from: --port", "allowed: a whole number of at least 0 and up to 65535"),
        ),
        (
            ("predict", "llama-3.1-8b", "--prefix-hit", "x"),
            ("'x' is not", "from: --prefix-hit", "allowed: a number"),
        ),
        (
            ("predict", "llama-3.1-8b", "--hardwar", "l4"),
            ("there is no --hardwar", "try: --hardware"),
        ),
        (
            ("simulate", "llama-3.1-8b", "--router", "fast"),
            ("'fast' is not", "from: --router", "allowed: random, "),
        ),
        (("show",), ("RUN... is missing", "try: inferometer show --help")),
        (
            ("load", "--host", "127.0.0.1"),
            ("there is no --host", "try: URL, without a flag before it"),
        ),
        (("show", "--nosuch"), ("there is no --nosuch", "from: inferometer show")),
    ],
)
def test_a_refused_flag_says_what_where_what_is_allowed_and_what_to_try(words, said):
    with pytest.raises(click.ClickException) as refused:
        app(list(words), prog_name="inferometer", standalone_mode=False)
    text = str(as_spec_error(refused.value))
    assert all(part in text for part in said), text


def test_the_package_can_be_run_as_a_module():
    outcome = subprocess.run(
        [sys.executable, "-m", "inferometer", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout[:12]) == (0, "inferometer,")


@pytest.mark.slow
def test_ids_are_whole_at_80_columns():
    listed = run("catalog", "hardware", COLUMNS="80").stdout.splitlines()[3:]
    assert {device.hardware_id for device in load_hardware()} == {
        line.split()[0] for line in listed if not line.startswith(" ")
    }


def test_a_device_that_engines_do_not_run_on_has_that_on_its_page():
    assert "vLLM needs compute capability" in run("catalog", "hardware", "P40").stdout


def test_nothing_is_cut_on_a_narrow_terminal():
    path = "/a/folder/whose/name/is/longer/than/any/column/of/this/table/model.gguf"
    table = Table("what", "where")
    table.add_row("output_tokens_per_s", path)
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(whole_words(Group(Padding(table), Text("the end"))))
    shown = console.export_text()
    assert "…" not in shown
    cells = [
        line[1:-1].partition("│")[2].strip() for line in shown.splitlines() if line.startswith("│")
    ]
    assert "".join(cells) == path


def test_what_does_not_fit_is_the_answer(tmp_path):
    outcome = command_line.run("predict", "deepseek-r1", "--hardware", "l4", folder=tmp_path)
    lines = outcome.stdout.splitlines()
    assert lines[0] == "deepseek-r1 on NVIDIA L4 does not fit"
    assert lines[1] == "✘ does not fit: 629 GiB are needed, 22.5 GiB are there"
    assert lines[2].startswith("float8 weights, else bfloat16 · ")


def test_an_unknown_model_is_a_bad_question_with_a_way_out(tmp_path):
    outcome = command_line.run("predict", "smolm2-135m", "--hardware", "h100_sxm", folder=tmp_path)
    command_line.check_refused(outcome, 2, "smollm2-135m")


def test_without_a_verb_the_help_is_the_answer(tmp_path):
    outcome = command_line.run(folder=tmp_path)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("Usage: inferometer")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("export",), "RUN and --out are missing"),
        (("export", "--out", "x.csv"), "RUN is missing"),
        (("export", "run"), "--out is missing"),
        (("size", "llama-3.1-8b", "--rate", "2"), "--slo is missing"),
        (("capacity", "http://localhost:8000"), "--out is missing"),
        (("capacity", "http://localhost:8000", "--out", "x"), "--slo is missing"),
    ],
)
def test_all_that_is_missing_is_said_at_once(words, missing, tmp_path):
    outcome = command_line.run(*words, folder=tmp_path)
    assert outcome.returncode == 2
    assert missing in outcome.stderr


@pytest.mark.slow
def test_a_closed_stdout_is_no_traceback(tmp_path):
    """``inferometer predict … >&-``: the answer goes nowhere, and the exit code is the answer's."""
    words = (
        sys.executable,
        "-m",
        "inferometer",
        "predict",
        "llama-3.1-8b",
        "--hardware",
        "h100_sxm",
    )
    command = ("sh", "-c", 'exec "$@" >&-', "sh", *words)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "usage"),
    [((), "inferometer [OPTIONS] COMMAND"), (("predict",), "inferometer predict")],
)
def test_help_is_a_verb_too(words, usage, tmp_path):
    outcome = command_line.run("help", *words, folder=tmp_path)
    assert outcome.returncode == 0
    assert outcome.stdout.startswith(f"Usage: {usage}")
