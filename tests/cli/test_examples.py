"""Does every example in --help run, and does every --json answer obey its schema?

The examples are the documentation: one that does not run is a bug. Those that measure or read what
was measured run in the slow suite, in the order in which a newcomer would type them.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import command_line
import jsonschema
import pytest
from tests.records.test_device_trace import write_chrome

import pages
from inferometer.cli.main import VERBS, app

pytestmark = pytest.mark.usefixtures("one_core")
BIN = Path(sys.executable).parent
MADE = Path(__file__).parents[2] / "bench" / "mutated_examples"
OTEL = MADE / "otel.jsonl"
COUNTERS = MADE / "dcgm.prom"
MEASURES = ("quick", "sweep", "engines")
READS_RUNS = ("fit", "explain", "show", "report")
IN_AND_OUT = ("import", "export")
"""Their examples are run by ``test_interchange.py``, which has the files."""
NEEDS_A_PLAN = ("deploy",)
"""Its examples are run by ``test_deploy.py``, which sizes one."""
NEEDS_A_SERVER = ("load", "verify", "diagnose", "watch")
"""Their examples are run by ``test_load.py``, ``test_verify.py``, ``test_diagnose_server.py`` and
``test_watch_server.py``, against emulated servers."""
NEEDS_WEIGHTS = ("quality",)
"""Its examples name folders with weights; ``test_quality_real.py`` has some."""
COMPARES_RUNS = ("compare",)
"""Its examples name runs that ``test_compare.py`` makes, and are decided or not: exit codes 0
and 11."""


def examples(verb: str) -> list[str]:
    with click.Context(app) as context:
        command = app.get_command(context, verb)
    assert command is not None
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    return [line for line in lines if line.startswith("inferometer ")]


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(line)
    return subprocess.run(
        [str(BIN / program), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=dict(os.environ),
    )


UNDECIDED_IS_AN_ANSWER = ("capacity", "size", "simulate", "tune")
"""Step times of a datasheet leave their questions open, and so do few requests: exit code 11 is an
answer too."""


def exit_codes(line: str) -> tuple[int, ...]:
    return (0, 11) if line.split()[1] in UNDECIDED_IS_AN_ANSWER else (0,)


def check(line: str, plain: subprocess.CompletedProcess[str]) -> None:
    assert plain.returncode in exit_codes(line), f"{line}\n{plain.stdout}\n{plain.stderr}"
    assert plain.stdout.strip(), f"{line} says nothing"


SMALLER = {
    "size": ("--probe-requests", "200", "--time-limit", "3s"),
    "capacity": ("--probe-requests", "200", "--requests", "2000"),
    "simulate": ("--requests", "300"),
    "tune": ("--requests", "200", "--steps", "max_num_seqs,step_budget"),
    "study policies": ("--requests", "200"),
}
"""In this process, of searches: fewer requests in a probe. ``test_executor_options.py`` has
processes of their own."""
FEWER_REPETITIONS = ("--reps", "2", "--warmup", "1", "--gen-tokens", "4")


def run_here(line: str, *more: str, folder: Path) -> subprocess.CompletedProcess[str]:
    _, *words = shlex.split(line)
    fewer = SMALLER.get(words[0], SMALLER.get(" ".join(words[:2]), ()))
    if "--preset" in words:  # of no traffic
        fewer = ()
    return command_line.run(*words, *fewer, *more, folder=folder)


def check_json(line: str, folder: Path) -> None:
    verb = line.split()[1]
    machine = run_here(line, "--json", folder=folder)
    assert machine.returncode in exit_codes(line), machine.stderr
    schema = json.loads(command_line.run("schema", verb, "--json", folder=folder).stdout)["schema"]
    jsonschema.validate(json.loads(machine.stdout), schema)


LEDGERS = Path(__file__).parents[2] / "ledger"
MEASURE_NOTHING = [
    verb
    for verb in VERBS
    if verb
    not in MEASURES
    + READS_RUNS
    + COMPARES_RUNS
    + NEEDS_A_SERVER
    + NEEDS_A_PLAN
    + NEEDS_WEIGHTS
    + IN_AND_OUT
]


SEARCHES = ("size", "capacity", "tune", "study")


def _slow_if_a_search(verb: str, line: str):
    """Each takes seconds: the fast tests run one example of a verb that searches, for its JSON."""
    return pytest.param(line, marks=pytest.mark.slow if verb in SEARCHES else ())


@pytest.mark.parametrize(
    "line",
    [_slow_if_a_search(verb, line) for verb in MEASURE_NOTHING for line in examples(verb)],
)
def test_examples_that_measure_nothing(line, tmp_path):
    if "--anchor" in line:  # there is none of no ledger
        shutil.copytree(LEDGERS, tmp_path / LEDGERS.name)
    check(line, run_here(line, folder=tmp_path))


JSON_LINES = {"size": 1, "capacity": 1}
"""Which example is asked for JSON: the first, or of searches a short one.

``tests/golden`` holds the answers of all, number for number.
"""


@pytest.mark.parametrize("verb", MEASURE_NOTHING)
def test_json_obeys_its_schema(verb, tmp_path):
    check_json(examples(verb)[JSON_LINES.get(verb, 0)], tmp_path)


@pytest.mark.slow
def test_examples_that_measure_and_read(tmp_path):
    write_chrome(tmp_path / "trace.json.gz")
    shutil.copy(OTEL, tmp_path / "spans.jsonl")
    shutil.copy(COUNTERS, tmp_path / "dcgm.prom")
    for line in examples("sweep"):
        check(line, run(f"{line} {' '.join(FEWER_REPETITIONS)}", tmp_path))
    for line in examples("quick"):
        check(line, run(line.replace("--budget 30s", "--budget 10s"), tmp_path))
    for line in [line for verb in READS_RUNS for line in examples(verb)]:
        check(line, run_here(line, folder=tmp_path))
        check_json(line, tmp_path)


SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("verb", VERBS)
def test_schemas_are_held_still(verb, tmp_path):
    """A key that changes breaks somebody's script: it must be seen here (accept with ``make golden``)."""
    now = command_line.run("schema", verb, folder=tmp_path).stdout
    golden = SCHEMAS / f"{verb}.json"
    if os.environ.get("INFEROMETER_ACCEPT_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(now)
    assert golden.exists(), f"no {golden.name}; make golden"
    assert json.loads(now) == json.loads(golden.read_text())


PURE = ("predict", "simulate", "size", "capacity", "timeline", "doctor", "catalog", "tune")
"""Verbs that need neither a server nor an engine nor a run."""


def documented() -> list[str]:
    """The whole commands of the documentation, without those with placeholders.

    Those that stand with their output are run by ``test_docs.py``.
    """
    shown = {one.command for page in pages.PAGES for one in pages.transcripts(page)}
    lines = [line for page in pages.PAGES for line in pages.commands(page) if line not in shown]
    words = [shlex.split(line, comments=True) for line in lines]
    whole = [
        one
        for one in words
        if one[1] in PURE
        and "--start" not in one  # it starts servers: test_tune_measured.py
        and not (one[1] == "tune" and "--engine" in one)  # test_tune_engine.py runs models
        and not any(
            re.fullmatch(r"[A-Z]+|…|.*\.(toml|json|jsonl|csv)|runs/.*", word) for word in one
        )
    ]
    return [shlex.join(one) for one in whole]


@pytest.mark.slow
@pytest.mark.parametrize("line", documented())
def test_commands_of_the_documentation_run(line, tmp_path):
    """Those that measure, or name files, are parsed by ``tests/house/test_suggestions.py`` and run by the tests of their verbs."""
    outcome = run_here(line, folder=tmp_path)
    assert outcome.returncode in {0, 10, 11}, outcome.stderr
