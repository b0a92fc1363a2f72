"""Published closed loops of other people's tables, and the questions that are asked of them.

A *group* is one device, engine, model and precision of one table; a *family* one engine, model and
precision. Families are halved by hash: sizes, shares and widths of ``fit.published`` were chosen on
the *learned* half, and results are shown on the *reported* half.
"""

import argparse
import hashlib
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

import inferometer
from inferometer.errors import SpecError
from inferometer.fit.published.loads import (
    DRAWN_LENGTHS,
    PublishedLoad,
    published_loads,
    scheduler_of,
)
from inferometer.fit.published.posterior import SimulatedLoad, simulated
from inferometer.records.imports.imported import PublishedPointTable
from inferometer.records.imports.inferencex import read_inferencex, read_silicon

DATA = Path(__file__).parents[2] / "shared" / "data"
TABLES = ("inferencemax-official-2025-11", "inferencex-silicon")
LEAST_ROWS, LEAST_SEEN, FEW_USERS = 10, 4, 16
AT_ODDS = {("h200_sxm", "vllm", "qwen3-235b-a22b"), ("b300_sxm", "sglang", "deepseek-v3")}
"""Of these rows no other model learns, and the package has no entry of them. They are read as they
stand (tensor parallelism alone and replicas agree), but a token takes 51 to 59 ms on two devices
from 4 to 20 users and 34 to 46 ms on four from 8 to 48, as if every step read all experts; with
SGLang 15 to 18 and 15 to 29 ms. By all other rows they are 1.7 times too slow, three standard
deviations of what kinds of the learned half are off; and mixtures of experts by vLLM in 8 bit were
predicted to decode up to 1.2 times slower on H200 than on H100. DeepSeek by SGLang on B300 computes 8,192
tokens in 1.4 s alone and 55 s among 128, where B200, the same chip, takes 0.3 s: with these rows
attention on B300 was fitted twenty times slower than expected before any row for these, and 2.4 times
slower than on B200 for Kimi K2.5 by vLLM. They stay in the tables of errors."""
SOURCES = Path(inferometer.__file__).parent
SCHEDULED_BY = ("simulate", "fit/published/closed_loop.py")
"""Sources on which a simulated schedule depends."""


def take_data(parser: argparse.ArgumentParser):
    """The option ``--data``, which ``data_of`` reads."""
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("INFEROMETER_PUBLISHED_DATA") or DATA),
        help="Folder with the published tables, each in a folder of its own.",
    )


def data_of(arguments: argparse.Namespace, needed: Sequence[str] = TABLES) -> Path:
    """The folder of the published tables; ends the program where one that is needed lacks."""
    lacking = [name for name in needed if not (arguments.data / name).is_dir()]
    if lacking:
        raise SystemExit(
            f"{arguments.data} has no folder {' and no '.join(lacking)}. Name the folder of"
            " the published tables by --data, or by INFEROMETER_PUBLISHED_DATA."
        )
    return arguments.data


def half(parts):
    return int(hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest(), 16) % 2


def side_of(one):
    return "reported" if half(family_of(one)) else "learned"


def is_at_odds(one):
    """Does no other device or model learn of this row?"""
    return (one.hardware.hardware_id, one.framework, one.model.model_id) in AT_ODDS


def family_of(one):
    return (one.framework, one.model.model_id, one.precision)


def sum_of_sources(*names):
    """SHA-256 of the package's files of these folders and files."""
    digest = hashlib.sha256()
    for name in names:
        path = SOURCES / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in {".py", ".toml", ".json"}:
                digest.update(file.read_bytes())
    return digest.hexdigest()


def tables(data: Path, name: str) -> PublishedPointTable:
    if name == "inferencex-silicon":
        return read_silicon(data / name / "silicon_sample.csv")
    parts = [read_inferencex(path) for path in sorted((data / name).glob("agg_*.json"))]
    return PublishedPointTable._make(
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )


class Loads:
    """Simulated loads, kept in a folder between runs. ``None``: the engine has no room for it."""

    def __init__(self, folder: Path | None):
        self.folder, self.known = folder, {}
        self.sources = sum_of_sources(*SCHEDULED_BY)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, one: PublishedLoad) -> SimulatedLoad | None:
        if one.key not in self.known:
            self.known[one.key] = self._made(one)
        return self.known[one.key]

    def _made(self, one):
        try:
            config = None if one.prefill else scheduler_of(one)
        except SpecError as error:
            print("  no room:", one.label, error, flush=True)
            return None
        asked = repr((self.sources, config, one.recipe, one.served, one.load, *one.key))
        path = self.folder and self.folder / hashlib.sha256(asked.encode()).hexdigest()
        if path and path.exists():
            kept = pickle.loads(path.read_bytes())  # noqa: S301 -- written by this program
            return kept and replace(kept, published=one)
        try:
            made = simulated(one)
        except SpecError as error:
            print("  no room:", one.label, error, flush=True)
            made = None
        if path:
            store(path, made)
        return made


def store(path, made):
    """Whole or not at all: others may read the folder meanwhile, and a run may be stopped."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(made))
    part.replace(path)


class Question(NamedTuple):
    """Rows of which some others are predicted."""

    way: str
    group: str
    seen: tuple[PublishedLoad, ...]
    asked: tuple[PublishedLoad, ...]


def groups_of(loads, name):
    """Groups of a table with rows enough; NVIDIA's own rows are a table of their own."""
    groups = defaultdict(list)
    for one in loads:
        if one.prefill is None:  # workers apart are asked about as topologies
            table = name if _lengths_of(one) in DRAWN_LENGTHS else "nvidia"
            groups[table, one.hardware.hardware_id, *family_of(one)].append(one)
    return {key: rows for key, rows in groups.items() if len(rows) >= LEAST_ROWS}


def group_questions(loads: Sequence[PublishedLoad], name: str) -> Iterator[Question]:
    """Questions of each group of one table, in which rows enough are seen."""
    groups = groups_of(loads, name)
    for key, rows in sorted(groups.items()):
        others = [
            one
            for other, theirs in groups.items()
            if other[0] == key[0] and other[2:] == key[2:] and other != key
            for one in theirs
            if not is_at_odds(one)
        ]
        for way, seen, asked in _splits(rows, others):
            if len(seen) >= LEAST_SEEN and asked:
                yield Question(way, " ".join(key), tuple(seen), tuple(asked))


def _splits(rows, others):
    def split(way: str, is_seen: Callable[[PublishedLoad], bool]):
        return (
            way,
            [one for one in rows if is_seen(one)],
            [one for one in rows if not is_seen(one)],
        )

    yield split("concurrency", lambda one: half(one.key) == 0)
    degrees = sorted({one.n_devices for one in rows})
    for degree in degrees if len(degrees) > 1 else ():
        yield split("degree", lambda one, degree=degree: one.n_devices != degree)
    pairs = [_lengths_of(one) for one in rows]
    base = (1024, 1024) if (1024, 1024) in pairs else max(sorted(set(pairs)), key=pairs.count)
    yield split("lengths", lambda one: _lengths_of(one) == base)
    yield split("batches", lambda one: one.load.concurrency <= FEW_USERS)
    few = _three_an_axis(rows, base)
    yield split("few rows", lambda one: one.key in few)
    yield "device", others, rows


def _lengths_of(one):
    return (one.load.prompt_tokens, one.load.output_tokens)


def _three_an_axis(rows, base):
    """Keys of rows along each axis through one of them: least, middle and largest, others alike."""
    alike = [one for one in rows if _lengths_of(one) == base]
    common = max(sorted({one.n_devices for one in alike}), key=[o.n_devices for o in alike].count)
    users = sorted({one.load.concurrency for one in alike if one.n_devices == common})
    middle = users[len(users) // 2]
    axes = (
        (lambda one: one.load.concurrency, lambda one: (_lengths_of(one), one.n_devices)),
        (_lengths_of, lambda one: (one.load.concurrency, one.n_devices)),
        (lambda one: one.n_devices, lambda one: (_lengths_of(one), one.load.concurrency)),
    )
    centre = next(o for o in alike if (o.n_devices, o.load.concurrency) == (common, middle))
    keys = set()
    for along, besides in axes:
        line = sorted((one for one in rows if besides(one) == besides(centre)), key=along)
        keys |= {line[k].key for k in {0, len(line) // 2, len(line) - 1}}
    return keys


def topology_of(one):
    """Model, precision, framework, device, parallelism and lengths, as AISimulate counts them."""
    workers = "" if one.prefill is None else f"{one.prefill} {one.decode}"
    plan = (one.plan.n_tensor, one.plan.n_sharing, one.has_expert_parallelism)
    return (*family_of(one), one.hardware.hardware_id, *plan, workers, *_lengths_of(one))


def topology_questions(loads: Sequence[PublishedLoad]) -> Iterator[Question]:
    """Each topology, left out of all rows of its family."""
    families = defaultdict(lambda: defaultdict(list))
    for one in loads:
        families[family_of(one)][topology_of(one)].append(one)
    for _, topologies in sorted(families.items()):
        for name, asked in sorted(topologies.items(), key=str):
            seen = [one for other, mine in topologies.items() if other != name for one in mine]
            informing = [one for one in seen if asked[0].prefill or not one.prefill]
            yield Question("topology", " ".join(map(str, name)), tuple(informing), tuple(asked))


def published(data: Path) -> tuple[dict[str, tuple[PublishedLoad, ...]], dict[str, dict[str, int]]]:
    """Table -> its closed loops, and what was left out of it, with reasons."""
    loads, left_out = {}, {}
    for name in TABLES:
        found = published_loads(tables(data, name))
        loads[name], left_out[name] = found.loads, dict(sorted(found.left_out.items()))
    return loads, left_out
