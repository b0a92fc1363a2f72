"""Does every reader of foreign bytes go through the one door, ``inputs.foreign_bytes``?"""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "inferometer"
DOORS = {
    "inputs/foreign_bytes.py",
    "inputs/foreign_parquet.py",
    "inputs/file_tables.py",
}
DECODERS = {
    "json.load",
    "json.loads",
    "tomllib.load",
    "tomllib.loads",
    "msgspec.json.decode",
    "msgspec.json.Decoder",
    "msgspec.toml.decode",
    "msgspec.yaml.decode",
    "msgspec.msgpack.decode",
    "msgspec.msgpack.Decoder",
    "yaml.load",
    "yaml.safe_load",
    "yaml.load_all",
    "yaml.safe_load_all",
    "csv.reader",
    "csv.DictReader",
    "gzip.open",
    "gzip.decompress",
    "gzip.GzipFile",
    "zlib.decompress",
    "bz2.open",
    "lzma.open",
    "zipfile.ZipFile",
    "tarfile.open",
    "mmap.mmap",
    "pickle.load",
    "pickle.loads",
    "np.load",
    "np.loadtxt",
    "np.genfromtxt",
}
METHODS = {"read_text", "read_bytes", "read_parquet"}
OWN_OR_GUARDED = {
    "cli/completion.py": "its own catalogue",
    "fit/published/efficiencies.py": "its own data files",
    "measure/engines/remote.py": "messages and log of its own worker",
    "measure/engines/transformers_rank.py": "messages of its own worker",
    "measure/engines/worker.py": "messages of its own parent",
    "measure/environments.py": "its own lock files",
    "measure/executors/ray_cluster.py": "its own source",
    "measure/host.py": "files of the kernel",
    "measure/local_server.py": "files of the kernel",
    "measure/child_processes.py": "files of the kernel",
    "measure/load/messages.py": "messages of its own clients, whose length is capped",
    "measure/scrape.py": "pages that it compressed itself, capped before",
    "measure/served.py": "a version, read up to 1 MiB; what is none counts as not reported",
    "measure/telemetry.py": "files of the kernel",
    "records/answers.py": (
        "one event of a capped answer; what cannot be decoded is counted as such"
    ),
    "records/load_decoding.py": (
        "the start of a capped answer; what cannot be decoded is shown as text"
    ),
    "records/imports/imported.py": "hashed, not decoded, after the door had read it",
    "records/raw_log.py": "frames inside the door's ``refusing``, one at a time",
    "report/html.py": "its own page and cache",
    "serve/emission_log.py": "inside the door's ``refusing``",
    "simulate/compiling.py": "its own sources",
    "inputs/catalog.py": "its own catalogue",
    "inputs/synonyms.py": "its own catalogue",
    "inputs/plans.py": "values of --body that passed the door",
    "inputs/workload/reading.py": "its own presets",
}


def dotted(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def decoders_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found += [f".{node.func.attr}()"] if node.func.attr in METHODS else []
            found += [dotted(node.func)] if dotted(node.func) in DECODERS else []
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [
                name for alias in node.names if (name := f"{node.module}.{alias.name}") in DECODERS
            ]
    return found


def test_only_the_door_decodes_foreign_bytes():
    offenders = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name not in DOORS and name not in OWN_OR_GUARDED and (found := decoders_of(path)):
            offenders[name] = found
    assert not offenders, (
        "read and decode through spec.foreign_bytes.Door, or say in OWN_OR_GUARDED why these bytes"
        " are no surprise"
    )


def test_the_list_of_exceptions_is_not_longer_than_needed():
    assert not [
        name
        for name in OWN_OR_GUARDED
        if not (SOURCE / name).is_file() or not decoders_of(SOURCE / name)
    ]
