"""Does every file stay within the budgets that keep it readable?"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "inferometer"
TEXTS = {
    path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))
}
TREES = {name: ast.parse(text) for name, text in TEXTS.items()}
FUNCTIONS = [
    (name, node)
    for name, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 50
MAX_IMPORTS = 20
MAX_COLUMNS, MAX_WIDE_FRACTION = 100, 0.01
MAX_ANY_COLUMNS = 120
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def n_code_lines(function) -> int:
    """Its lines without the docstring."""
    n_lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return n_lines
    docstring = function.body[0]
    return n_lines - (docstring.end_lineno - docstring.lineno + 1)


def modules_imported_in(function):
    """Their lines and names."""
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def test_there_is_something_to_judge():
    assert len(TREES) > 100
    assert len(FUNCTIONS) > 1000


def test_modules_are_short():
    lengths = {name: len(text.splitlines()) for name, text in TEXTS.items()}
    too_long = [
        f"{name} has {n_lines} lines; split it by noun"
        for name, n_lines in lengths.items()
        if n_lines > MAX_MODULE_LINES
    ]
    assert not too_long, "\n".join(too_long)


def test_functions_are_short():
    too_long = {
        f"{name} {function.name}": n_code_lines(function)
        for name, function in FUNCTIONS
        if n_code_lines(function) > MAX_FUNCTION_LINES
    }
    assert not too_long, too_long


def test_lines_are_narrow():
    lines = [line for text in TEXTS.values() for line in text.splitlines()]
    n_wide = sum(len(line) > MAX_COLUMNS for line in lines)
    assert n_wide <= MAX_WIDE_FRACTION * len(lines), f"{n_wide} of {len(lines)} lines"
    wider = [
        name
        for name, text in TEXTS.items()
        for line in text.splitlines()
        if len(line) > MAX_ANY_COLUMNS
    ]
    assert not wider, wider


def test_imports_are_few():
    counts = {
        name: sum(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)
        for name, tree in TREES.items()
    }
    too_many = [
        f"{name} has {count} import statements"
        for name, count in counts.items()
        if count > MAX_IMPORTS
    ]
    assert not too_many, "\n".join(too_many)


def test_own_package_is_imported_at_the_top():
    """Late imports of our own package hide cycles.

    The table of verbs, which keeps ``--help`` fast, goes through importlib.
    """
    late = {
        f"{name}:{line} imports {module} in a function"
        for name, function in FUNCTIONS
        for line, module in modules_imported_in(function)
        if module.startswith("inferometer")
    }
    assert not late, "\n".join(sorted(late))


def test_names_say_something():
    vague = [
        f"{name}: a module is named after its noun" for name in TREES if Path(name).stem in VAGUE
    ]
    assert not vague, "\n".join(vague)
