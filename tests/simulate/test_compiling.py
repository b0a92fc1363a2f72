"""Does the key of the compile cache cover every source that compiled code is made of?"""

import ast
from pathlib import Path

from inferometer.simulate import compiling

ROOM = Path(compiling.__file__).parent


def imported_by(file):
    """The modules of this room that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {name.removeprefix("inferometer.simulate.") for name in names}
    return {name for name in found if (ROOM / f"{name}.py").exists()}


def test_the_key_covers_all_that_the_kernel_imports():
    reached, waiting = set(), list((ROOM / "kernel").glob("*.py"))
    while waiting:
        new = imported_by(waiting.pop()) - reached
        reached |= new
        waiting += [ROOM / f"{name}.py" for name in new]
    assert reached == set(compiling.REACHED)
