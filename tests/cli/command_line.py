"""The whole command line, in this process: what tests of refusals and of fast verbs call."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

import suggested
from inferometer.cli.main import VERBS, main


def run(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, run in a folder.

    An exception that is none of ours goes through: in a shell it would be a traceback.
    """
    words = ["inferometer", *(str(argument) for argument in arguments)]
    stdout, stderr, exit_code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patched, contextlib.chdir(folder):
        patched.setattr(sys, "argv", words)
        patched.delenv("COLUMNS", raising=False)  # the terminal of whoever runs the tests
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            try:
                main()
            except SystemExit as ended:
                exit_code = int(ended.code or 0)
    _check_advice(arguments, stdout.getvalue() + stderr.getvalue())
    return subprocess.CompletedProcess(words, exit_code, stdout.getvalue(), stderr.getvalue())


def _check_advice(arguments: tuple[object, ...], said: str) -> None:
    """Every flag in what is suggested is one that the verb takes."""
    verb = str(arguments[0]) if arguments else ""
    if verb in VERBS and "--json" not in arguments:
        advice = [
            line
            for line in said.splitlines()
            if line.lstrip().startswith(("try: ", "NEXT", "inferometer ", "CAUTION"))
        ]
        suggested.check_said(verb, "\n".join(advice))


def check_refused(outcome: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    assert outcome.returncode == exit_code, outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    n_errors = sum(
        line.startswith(("inferometer: ", "Error: ")) for line in outcome.stderr.splitlines()
    )
    assert n_errors == 1, outcome.stderr
    assert "\n  from: " in outcome.stderr, outcome.stderr
    assert "\n  allowed: " in outcome.stderr or "\n  try: " in outcome.stderr, outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.stderr
