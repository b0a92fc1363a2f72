"""Does the Dockerfile copy what is there, run as nobody special, and do its steps work in a fresh environment?

The slow test is also that of the wheel: it is built, installed without make, and answers.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LINES = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line.strip()]
COPIED = [
    name
    for instruction, rest in STEPS
    if instruction == "COPY" and not rest.startswith("--from")
    for name in rest.split()[:-1]
]


def test_what_is_copied_is_there_and_not_ignored():
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(COPIED) == allowed
    assert all((ROOT / name).exists() for name in COPIED)


def test_it_runs_as_a_user_and_is_the_command():
    instructions = [instruction for instruction, _ in STEPS]
    assert instructions.index("USER") < instructions.index("ENTRYPOINT")
    assert dict(STEPS)["USER"] == "inferometer"
    assert dict(STEPS)["ENTRYPOINT"] == '["inferometer"]'
    assert all(rest.startswith("python:${PYTHON}-slim") for what, rest in STEPS if what == "FROM")


def in_fresh_shell(command, folder, **variables):
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "INFEROMETER", "VIRTUAL_ENV"))
    }
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**clean, "XDG_CACHE_HOME": str(folder / "cache"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.slow
def test_its_steps_make_a_command_that_answers(tmp_path):
    source, home = tmp_path / "src", tmp_path / "inferometer"
    source.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    build = [rest for instruction, rest in STEPS if instruction == "RUN"][:2]
    for step in build:
        done = in_fresh_shell(
            re.sub(r"(?<=[ =])/inferometer/", f"{home}/", step), source, ENGINES=""
        )
        assert done.returncode == 0, done.stderr
    command = home / "venv" / "bin" / "inferometer"
    assert "Verbs:" in in_fresh_shell(f"{command} --help", tmp_path).stdout
    predicted = in_fresh_shell(f"{command} predict llama-3.1-8b --hardware h100_sxm", tmp_path)
    assert predicted.stdout.startswith("llama-3.1-8b on "), predicted.stderr
    quick = in_fresh_shell(f"{command} quick smollm2-135m --load-format dummy", tmp_path)
    assert quick.returncode == 2, quick.stderr
    assert "pip install 'inferometer[transformers]'" in quick.stderr
