"""Does every refusal of another tool's file say what to try?"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "inferometer"
ERRORS = frozenset({"SpecError", "RecordError", "ModelError", "OutOfRangeError"})
READERS = (
    *sorted((SOURCE / "records" / "imports").glob("*.py")),
    SOURCE / "records" / "foreign_sweeps.py",
    SOURCE / "records" / "sweep_csv.py",
    SOURCE / "inputs" / "workload" / "own_trace.py",
    SOURCE / "inputs" / "workload" / "traces.py",
    SOURCE / "inputs" / "gguf.py",
)


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.stem)
def test_a_refusal_of_a_file_has_a_remedy(path):
    calls = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)]
    without = [
        f"{path.name}:{one.lineno}"
        for one in calls
        if isinstance(one.func, ast.Name)
        and one.func.id in ERRORS
        and not {"try_", None} & {keyword.arg for keyword in one.keywords}
    ]
    assert not without
