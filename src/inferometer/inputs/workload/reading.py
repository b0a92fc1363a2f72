"""Workloads from files, presets, lengths and changes to them."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from inferometer.errors import SpecError
from inferometer.inputs.file_tables import table_from, table_from_text, text_of
from inferometer.inputs.foreign_bytes import path_named
from inferometer.inputs.workload import servegen
from inferometer.inputs.workload.traces import known_format
from inferometer.inputs.workload.types import UNNAMED, TraceSource, WorkloadSpec


def resolve_workload(text: str) -> WorkloadSpec:
    """The workload that this text names.

    A preset's name, lengths (`1024x256`), a workload file (.toml, .json), or a trace (any other
    file).

    For ServeGen's client rates: their first ten minutes.

    Raises
    ------
    SpecError
        Neither a preset nor a file, or a file with invalid content.

    Example
    -------
    >>> resolve_workload("chat").classes[0].name
    'chat'
    """
    if text in preset_names():
        return _preset(text)
    if (lengths := lengths_table(text)) is not None:
        return table_from(lengths, WorkloadSpec, where=f"--workload {text}")
    path = path_named(text, where="--workload")
    _check_file(path, text)
    if _is_workload_file(path):
        return read_workload(path)
    if servegen.is_servegen(path):
        return WorkloadSpec(
            name=path.stem, duration_s=servegen.WINDOW_S, replay=servegen.servegen_beside(path)
        )
    return WorkloadSpec(name=path.stem, replay=TraceSource(path=str(path)))


def _check_file(path: Path, text: str) -> None:
    if path.is_dir():
        raise SpecError(
            f"{text!r} is a folder", where="--workload", allowed="one file", try_=_inside(path)
        )
    if path.exists() and not path.is_file():
        raise SpecError(
            f"{text!r} is a pipe or a device, and a workload is read more than once",
            where="--workload",
            allowed="a file",
            try_="its content in a file",
        )
    if not path.is_file():
        raise SpecError(
            f"no workload {text!r}",
            where="--workload",
            allowed=(
                f"a preset ({', '.join(preset_names())}), {SPELLINGS}, a workload file (.toml,"
                " .json), or a trace file"
            ),
            try_=_nearest(text),
        )


@lru_cache(maxsize=32)
def _preset(name: str) -> WorkloadSpec:
    return workload_from_text(preset_text(name), where=f"preset {name}")


def read_workload(path: Path) -> WorkloadSpec:
    """The workload that a TOML or JSON file describes; the paths in it are relative to its folder.

    Raises
    ------
    SpecError
        The file cannot be read, or a key or value is invalid: the message names file, key, value
        and the allowed ones.
    """
    text = text_of(path, noun="workload", endings=".toml or .json")
    spec = workload_from_text(text, where=str(path), is_json=path.suffix.lower() == ".json")
    if spec.name == UNNAMED:  # none was given: "6 requests/s of workload" says nothing
        spec = msgspec.structs.replace(spec, name=path.stem)
    rooted = _rooted(msgspec.to_builtins(spec), path.parent)
    return msgspec.convert(rooted, WorkloadSpec)


def workload_from_text(text: str, *, where: str, is_json: bool = False) -> WorkloadSpec:
    """The workload that this TOML (or JSON) describes.

    Raises
    ------
    SpecError
        A key or value that cannot be; ``where`` names the text.
    """
    return table_from_text(text, WorkloadSpec, where=where, is_json=is_json)


def with_changes(spec: WorkloadSpec, changes: Mapping[str, object], *, where: str) -> WorkloadSpec:
    """The same workload with some keys changed, tables within tables.

    A table of another ``kind`` replaces the old one.

    Raises
    ------
    SpecError
        An invalid key or value; the message has ``where``, the origin of the change.

    Example
    -------
    >>> with_changes(resolve_workload("chat"), {"arrivals": {"rate_per_s": 5}}, where="--rate").arrivals.rate_per_s
    5.0
    """
    return table_from(_merged(msgspec.to_builtins(spec), changes), WorkloadSpec, where=where)


def checked_workload(spec: WorkloadSpec) -> WorkloadSpec:
    """The same workload after a check of its ranges, for specifications built in code.

    Raises
    ------
    SpecError
        A value is invalid.
    """
    return with_changes(spec, {}, where="the workload")


_CALLED: Final = {
    **dict.fromkeys(
        ("rag", "retrieval", "search", "summarization"), "prefix=512,prompt=4096,output=256"
    ),
    **dict.fromkeys(("summarisation", "summary", "documents"), "prompt=8192,output=256"),
    **dict.fromkeys(("conversation", "chatbot", "assistant", "dialogue"), "chat"),
    **dict.fromkeys(("coding", "completion", "copilot", "humaneval"), "code"),
    **dict.fromkeys(("offline", "throughput"), "batch"),
    **dict.fromkeys(("thinking", "cot", "math"), "reasoning"),
    **dict.fromkeys(("long", "mooncake"), "long-context"),
}
"""Other tools' names of traffic -> the preset or lengths that match it."""


def _nearest(text: str) -> str:
    """Suggestion: a synonymous or similar preset, or lengths if only one length was given."""
    if text.isdecimal():
        return f"--workload {text}x256"
    names = {name: name for name in preset_names()} | _CALLED
    close = get_close_matches(text.lower(), names, n=1)
    if close:
        return f"--workload {names[close[0]]}"
    return "--workload 1024x256, with your own lengths of prompts and answers"


def _inside(folder: Path) -> str:
    """The files of a folder that can be a workload."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    usable = [
        str(path)
        for path in files
        if path.suffix == ".toml" or known_format(path) is not None or servegen.is_servegen(path)
    ]
    return " or ".join(usable[:5]) or "a trace: it holds none"


def _is_workload_file(path: Path) -> bool:
    """Is it a workload file: any .toml, or a .json that is not a trace?"""
    suffix = path.suffix.lower()
    return suffix == ".toml" or (suffix == ".json" and known_format(path) is None)


def _merged(old: object, new: Mapping[str, object]) -> dict[str, object]:
    base: dict[str, object] = (
        {str(key): value for key, value in old.items()} if isinstance(old, dict) else {}
    )
    if "kind" in new and base.get("kind") != new["kind"]:
        base = {}
    return base | {
        key: _merged(base.get(key), value) if isinstance(value, Mapping) else value
        for key, value in new.items()
    }


def _rooted(value: object, folder: Path) -> object:
    if isinstance(value, list | tuple):
        return [_rooted(item, folder) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: (
            str(folder / item)
            if (key == "path" or key.endswith("_path")) and isinstance(item, str)
            else _rooted(item, folder)
        )
        for key, item in value.items()
    }


# The built-in workloads.
# Files like the user's own, in ``preset_files``, each number with its source.


_FOLDER: Final = "preset_files"


@lru_cache(maxsize=1)
def preset_names() -> tuple[str, ...]:
    """The names of the built-in workloads, sorted."""
    files = (resources.files("inferometer.inputs.workload") / _FOLDER).iterdir()
    return tuple(
        sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    )


def preset_text(name: str) -> str:
    """The file of a built-in workload."""
    return (resources.files("inferometer.inputs.workload") / _FOLDER / f"{name}.toml").read_text(
        encoding="utf-8"
    )


# Workloads from bare lengths, as benchmark users write them.
# `1024x256`, `8k1k`, `prompt=1024,output=64..256`.


_MOST_TOKENS: Final = 2**31 - 1
_KIBI: Final = 1024
_NUMBER: Final = r"\d+(?:\.\d+)?k?"
_SIDE: Final = rf"{_NUMBER}(?:\.\.{_NUMBER})?"
_PAIR: Final = re.compile(rf"({_SIDE})(?:x|×|/|:|,)({_SIDE})|(\d+k)(\d+k)", re.IGNORECASE)
_PREFIX: Final = "prefix"
_KEYS: Final = {
    "prompt_tokens": ("prompt", "prompt_tokens", "input", "input_tokens", "input_len", "isl", "in"),
    "output_tokens": ("output", "output_tokens", "output_len", "osl", "out", "gen_tokens"),
    _PREFIX: ("prefix", "prefix_tokens", "prefix_len", "shared_prefix"),
}
_KEY_OF: Final = {word: key for key, words in _KEYS.items() for word in words}
SPELLINGS: Final = (
    "lengths such as 1024x256, 8k1k or prompt=512..2048,output=256 (and prefix=1024: tokens"
    " before these that all prompts begin with)"
)


def lengths_table(text: str) -> dict[str, Any] | None:
    """A workload of these lengths (one class, uniform ranges); None for other text.

    ``k`` is 1,024, as in the names of InferenceX's scenarios (8k1k).

    Raises
    ------
    SpecError
        A length of 0 or above 2^31 - 1, a range that ends before it begins, or a side that is
        missing.

    Example
    -------
    >>> lengths_table("1024x64..256")["classes"][0]["output_tokens"]
    {'kind': 'uniform', 'low': 64, 'high': 256}
    """
    sides = _named(text) if "=" in text else _paired(text)
    if sides is None:
        return None
    tables = {key: _distribution(side, text) for key, side in sides.items()}
    prefix = tables.pop(_PREFIX, None)
    shared = {} if prefix is None else {"system_prompts": {"tokens": prefix}}
    return {
        "name": text,
        "arrivals": {"kind": "open"},
        "classes": [{"name": "all", **tables, **shared}],
    }


def prefix_words(text: str) -> tuple[str, ...]:
    """What lengths with a prefix mean, in words; nothing for other text.

    Example
    -------
    >>> prefix_words("prompt=1024,output=256,prefix=768")
    ('each prompt is 768 tokens that all begin with, and then 1024 of its own',)
    """
    sides = (_named(text) if "=" in text else None) or {}
    if _PREFIX not in sides:
        return ()
    own = sides["prompt_tokens"]
    return (
        f"each prompt is {sides[_PREFIX]} tokens that all begin with, and then {own} of its own",
    )


def _paired(text: str) -> dict[str, str] | None:
    found = _PAIR.fullmatch(text.strip())
    if found is None:
        return None
    prompt, output = [side for side in found.groups() if side is not None]
    return {"prompt_tokens": prompt, "output_tokens": output}


def _named(text: str) -> dict[str, str] | None:
    pairs = [part.partition("=") for part in text.split(",")]
    sides = {
        _KEY_OF.get(name.strip().lower().replace("-", "_"), name): side.strip()
        for name, _, side in pairs
    }
    if not set(sides) <= set(_KEYS):
        return None
    if set(sides) - {_PREFIX} != set(_KEYS) - {_PREFIX} or not all(
        re.fullmatch(_SIDE, side, re.IGNORECASE) for side in sides.values()
    ):
        raise SpecError(
            f"{text!r} is not a pair of lengths",
            where="--workload",
            allowed=SPELLINGS,
            try_="--workload prompt=1024,output=256",
        )
    return sides


def _distribution(side: str, text: str) -> dict[str, Any]:
    low, is_range, high = side.partition("..")
    first, last = _tokens(low, text), _tokens(high if is_range else low, text)
    if last < first:
        raise SpecError(f"{side!r} ends before it begins", where="--workload", allowed=SPELLINGS)
    return (
        {"kind": "uniform", "low": first, "high": last}
        if is_range
        else {"kind": "constant", "value": first}
    )


def _tokens(number: str, text: str) -> int:
    is_kibi = number.lower().endswith("k")
    # Capped before the conversion to float: 400 digits would become infinity.
    tokens = round(float(number.rstrip("kK")[:20]) * (_KIBI if is_kibi else 1))
    if not 1 <= tokens <= _MOST_TOKENS:
        raise SpecError(
            f"{number!r} tokens in {text!r}",
            where="--workload",
            allowed=f"1 to {_MOST_TOKENS:,}",
            try_="--workload 1024x256",
        )
    return tokens
