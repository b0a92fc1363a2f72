"""Are the answers of the verbs that compute those of the last accepted commit, number for number?

``INFEROMETER_ACCEPT_GOLDEN=1`` accepts what is different; look at the diff. Numbers may differ in the last places, as
mathematical libraries do between machines. A search that a busy machine's time limit cuts has no
place here.
"""

import json
import math
import os
import re
import shlex
import zlib
from pathlib import Path

import command_line
import pytest

HERE = Path(__file__).parent
COMMANDS = [
    line
    for line in (HERE / "commands.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
RELATIVE = 1e-5
"""A fit's sums differ by some 1e-8 between two runs of one machine, by 4e-6 between processors of
two makers."""
VOLATILE = {
    "version",
    "inferometer_version",
    "git_commit",
    "started_utc",
    "made_utc",
    "code_version",
}


def name_of(line):
    words = re.sub(r"[^a-z0-9]+", "-", line.lower()).strip("-")
    return f"{words[:60].strip('-')}-{zlib.crc32(line.encode()):08x}"


def settled(value):
    """The answer without what changes from day to day."""
    if isinstance(value, dict):
        return {key: settled(one) for key, one in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [settled(one) for one in value]
    if isinstance(value, str):
        return re.sub(r"\d{4}-\d\d-\d\d(-\d{6}-[0-9a-f]{8}|T[\d:.]+(Z|\+00:00)?)?", "DATE", value)
    return value


def differences(now, before, where=""):
    if isinstance(now, dict) and isinstance(before, dict):
        return [
            one
            for key in sorted(now.keys() | before.keys())
            for one in differences(now.get(key), before.get(key), f"{where}.{key}")
        ]
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [
            one
            for i, (a, b) in enumerate(zip(now, before, strict=True))
            for one in differences(a, b, f"{where}[{i}]")
        ]
    is_number = all(isinstance(one, int | float) for one in (now, before))
    if is_number and math.isclose(now, before, rel_tol=RELATIVE):
        return []
    return [] if now == before else [f"{where}: {before!r:.100} became {now!r:.100}"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_answers_are_those_of_the_last_commit(tmp_path):
    complaints = []
    for line in COMMANDS:
        verb, *words = shlex.split(line)
        answer = command_line.run(verb, *words, "--json", folder=tmp_path)
        try:
            said = json.loads(answer.stdout) if answer.stdout.strip() else answer.stderr
        except json.JSONDecodeError:
            said = answer.stdout
        now = {"exit_code": answer.returncode, "answer": settled(said)}
        path = HERE / "answers" / f"{name_of(line)}.json"
        if os.environ.get("INFEROMETER_ACCEPT_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(now, indent=1) + "\n")
            continue
        found = differences(now, json.loads(path.read_text()))
        complaints += [f"{line}\n    " + "\n    ".join(found[:8])] if found else []
    assert not complaints, "\n".join(complaints)
