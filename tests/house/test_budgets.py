"""Does every file stay within the budgets that keep it readable?"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "inferometer"
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_IMPORTS = 12
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_is_short(path):
    n_lines = len(path.read_text().splitlines())
    assert n_lines <= MAX_MODULE_LINES, f"{name_of(path)} has {n_lines} lines; split it by noun"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring_lines = 0
            if ast.get_docstring(node) is not None:
                first = node.body[0]
                docstring_lines = (first.end_lineno or 0) - first.lineno + 1
            n_lines = (node.end_lineno or 0) - node.lineno + 1 - docstring_lines
            assert n_lines <= MAX_FUNCTION_LINES, f"{name_of(path)}:{node.lineno} {node.name} has {n_lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_are_few(path):
    imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imports) <= MAX_IMPORTS, f"{name_of(path)} has {len(imports)} import statements"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_own_package_is_imported_at_the_top(path):
    """Late imports of our own package hide cycles; the table of verbs, which keeps ``--help`` fast, goes through importlib."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                names = [inner.module or ""] if isinstance(inner, ast.ImportFrom) else []
                names += [alias.name for alias in inner.names] if isinstance(inner, ast.Import) else []
                assert not any(name.startswith("inferometer") for name in names), f"{name_of(path)}:{inner.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_names_say_something(path):
    assert path.stem not in VAGUE, f"{name_of(path)}: a module is named after its noun"
