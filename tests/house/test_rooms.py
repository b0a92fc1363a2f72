"""Is every module reached, at home in the right file, and the way through the house short?

A module nobody can reach is deleted. A short module with one importer could be a part of it. The
number of files that one verb enters is what a newcomer reads to follow that verb.
"""

import ast
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from inferometer.cli.main import VERBS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
TREES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text()
    )
    for path in sorted((SOURCE / "inferometer").rglob("*.py"))
}
ROOTS = {"inferometer", "inferometer.__main__", "inferometer.cli.main", "inferometer.api.front"} | {
    module
    for verb in VERBS.values()
    for module in (verb.module, (verb.second_half or verb.module).partition(":")[0])
}
"""The verbs and the Python front door."""

PROCESSES = {"inferometer.measure.engines.transformers_rank", "inferometer.measure.served_guard"}
"""Started with ``python -m`` by their only importer."""
LONELY_LINES = 80
LONELY: set[str] = set()
"""Short modules with one importer that still stand alone. The set only shrinks."""

DIALECT = re.compile(
    r"(?:^|_)(?:fore)?(?:told|said|asked|kept|many|reckon(?:ed)?|whence|seats?|doubts?|promises?"
    r"|settled|wording|looks)(?:_|$)"
)
"""Words that the house's plan retires: no file is named by one of them."""
BY_DIALECT: set[str] = set()


NAMED = re.compile(r"inferometer(?:\.\w+)+")


def imported_by(module: str) -> set[str]:
    """Its imports at the top and late, and modules that it names in a string for importlib or -m."""
    found = set()
    prose = {
        node.value
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            found |= set(NAMED.findall(node.value))
    return found & set(TREES)


IMPORTS = {module: imported_by(module) for module in TREES}


def packages_of(module: str) -> set[str]:
    """The packages that are imported on the way to a module."""
    parts = module.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def reached(roots: set[str]) -> set[str]:
    seen: set[str] = set()
    waiting = set(roots)
    while waiting:
        module = waiting.pop()
        seen.add(module)
        waiting |= (IMPORTS[module] | packages_of(module)) - seen
    return seen


def test_every_module_is_reached_from_a_verb_or_the_front_door():
    assert set(TREES) >= ROOTS
    unreachable = sorted(set(TREES) - reached(ROOTS))
    assert not unreachable, unreachable


def test_short_modules_with_one_importer_are_part_of_it():
    importers = {
        module: {other for other, imports in IMPORTS.items() if module in imports}
        for module in TREES
    }
    lonely = {
        module
        for module, tree in TREES.items()
        if len(importers[module]) == 1
        and module not in ROOTS | PROCESSES
        and (SOURCE / f"{module.replace('.', '/')}.py").exists()
        and tree.body
        and tree.body[-1].end_lineno < LONELY_LINES
    }
    assert lonely <= LONELY, f"make them part of their importers: {sorted(lonely - LONELY)}"
    assert lonely >= LONELY, f"no longer lonely: {sorted(LONELY - lonely)}"


def in_order(trees: dict[str, ast.Module]) -> tuple[str, ...]:
    """Every module behind those that it imports at the top."""
    graph = dict[str, set[str]]()
    for module, tree in trees.items():
        found = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names} & set(trees)
                found |= names or {node.module}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        graph[module] = found & set(trees)
    return tuple(TopologicalSorter(graph).static_order())


def test_no_module_imports_itself_by_way_of_others():
    """The contracts of the rooms see circles between rooms only."""
    order = in_order(TREES)
    assert len(order) == len(TREES) > 100
    assert order.index("inferometer.units") < order.index("inferometer.cli.main")


def test_a_circle_is_found():
    texts = {"a": "from b import x", "b": "import c", "c": "from a import y"}
    with pytest.raises(CycleError, match="nodes are in a cycle"):
        in_order({name: ast.parse(text) for name, text in texts.items()})


def imported_at_the_top(tree: ast.Module) -> set[str]:
    """Modules, and names that may be modules."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def others_behind(modules: set[str], trees: dict[str, ast.Module]) -> dict[str, str]:
    """Packages of others that are imported with these modules, each with one that imports it."""
    seen, found = set[str](), dict[str, str]()
    waiting = set(modules)
    while waiting:
        module = waiting.pop()
        seen.add(module)
        imported = imported_at_the_top(trees[module])
        waiting |= {name for name in imported | packages_of(module) if name in trees} - seen
        for name in imported:
            found.setdefault(name.partition(".")[0], module)
    return {name: module for name, module in found.items() if name not in sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("engine", "locks"), [("openvino", ["openvino"]), ("vllm", ["vllm", "torch"])]
)
def test_a_worker_needs_nothing_that_its_engines_environment_lacks(engine, locks):
    """It runs there with this package's sources, and without what the core installs."""
    folder = SOURCE / "inferometer" / "measure" / "locks"
    pins = "\n".join((folder / f"{lock}.lock").read_text() for lock in locks)
    installed = {
        name.lower().replace("-", "_") for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE)
    }
    room = "inferometer.measure.engines"
    needed = others_behind({f"{room}.worker", f"{room}.{engine}_engine"}, TREES)
    del needed["inferometer"]
    assert "msgspec" in needed
    lacking = {name: module for name, module in needed.items() if name not in installed}
    assert not lacking, lacking


def test_a_package_behind_a_helper_is_found():
    texts = {"a": "import json\nfrom b import x", "b": "import psutil"}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    assert others_behind({"a"}, trees)["psutil"] == "b"


def test_no_file_is_named_by_a_word_of_the_dialect():
    named = {
        path.relative_to(SOURCE / "inferometer").as_posix()
        for path in (SOURCE / "inferometer").rglob("*.py")
        if DIALECT.search(path.stem)
    }
    assert named == BY_DIALECT


WATCH = """
import os, sys, threading
seen = set()
def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or code.co_filename in seen or not code.co_flags & 1:  # a function's code
        return
    above, room, name = frame.f_back, *code.co_filename.partition(os.sep + "inferometer" + os.sep)[1:]
    while above is not None and room:
        if above.f_code.co_filename.startswith("<frozen importlib"):
            return  # called while its module is imported
        above = above.f_back
    seen.add(code.co_filename)
    if room:
        with open(os.path.join(os.environ["ENTERED"], str(os.getpid())), "a") as file:
            file.write(name + "\\n")
if "ENTERED" in os.environ:  # not in the process of an engine, which would take ten times as long
    sys.setprofile(note)
    threading.setprofile(note)
"""
COMMANDS = {
    "simulate": "llama-3.1-8b --hardware h100_sxm --rate 5 --requests 200 --workload 1024x128",
    "size": "llama-3.1-8b --gpus h100_sxm --slo ttft:p95<1s --rate 5 --requests 500"
    " --workload 1024x128",
    "sweep": "--model smollm2-135m --load-format dummy --seq 16 --batch-sizes 1 --gen-tokens 2"
    " --reps 1 --out swept",
}
MOST_ENTERED = {"simulate": 81, "size": 86, "sweep": 74}
"""How many files each of them enters. The numbers only shrink, unless a verb learns what
others do by entering their files (`size` took grids, and users in step); the goal is 45."""


@pytest.mark.parametrize("verb", COMMANDS)
def test_few_files_are_entered_by_a_verb(verb, tmp_path):
    if verb == "sweep":
        pytest.importorskip("transformers")
    entered = tmp_path / "entered"
    entered.mkdir()
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}",
        "ENTERED": str(entered),
    }
    done = subprocess.run(
        [sys.executable, "-m", "inferometer", verb, *COMMANDS[verb].split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = {name for log in entered.iterdir() for name in log.read_text().split()}
    sys.stdout.write(f"{verb} enters {len(files)} files: {', '.join(sorted(files))}\n")
    assert 20 < len(files) <= MOST_ENTERED[verb], sorted(files)
