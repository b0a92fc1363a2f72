"""What can stand at the cursor, where a shell asks: verbs, models, devices, workloads?

Click's own completion imports the verb, and with it the numerics: a second or more. These
candidates are read without them, as text of the catalogue's files; click completes all else.
"""

import re
from collections.abc import Sequence
from importlib import resources
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from inferometer.cli.terminal import write_answer
from inferometer.cli.verbs import VERBS

_OF_MODELS: Final = frozenset(
    ("quick", "predict", "simulate", "explore", "emulate", "capacity", "size", "tune", "quality")
)
"""Verbs whose first argument is a model; a study has its own name before it."""
_FLAGS: Final = {
    "--model": "models",
    "--hardware": "hardware",
    "--gpus": "hardware",
    "--workload": "workloads",
}
_ID: Final = re.compile(r'^(?:model|hardware)_id = "([^"]+)"', re.MULTILINE)
_FILE: Final = CompletionItem("", type="file")
"""Any path may stand there as well; first, as bash forgets what comes before it."""


def answered(app: click.Command, wanted: str) -> bool:
    """Print the candidates for ``bash_complete``; False where click knows better."""
    shell, _, instruction = wanted.partition("_")
    kind = get_completion_class(shell)
    if instruction != "complete" or kind is None:
        return False
    asking = kind(app, {}, "inferometer", "")
    words, begun = asking.get_completion_args()
    found = candidates(words, begun)
    if found is None:
        return False
    write_answer("\n".join(map(asking.format_completion, found)))
    return True


def candidates(words: Sequence[str], begun: str) -> list[CompletionItem] | None:
    """What can follow these words of a command and begins so; None where click has to say."""
    if not words:
        verbs = [CompletionItem(name, help=verb.answers) for name, verb in VERBS.items()]
        return None if begun.startswith("-") else _begun_so(verbs, begun)
    if begun == "=":  # bash takes the sign between a flag and its value for a word
        begun = ""
    elif words[-1] == "=":
        words = words[:-1]
    flag, assigned, value = begun.partition("=")
    if assigned and flag in _FLAGS:  # as zsh and fish have it: the whole word
        found = _named(_FLAGS[flag], value)
        return [CompletionItem(f"{flag}={one.value}") for one in found if one is not _FILE]
    if words[-1] in _FLAGS:
        return _named(_FLAGS[words[-1]], begun)
    if begun.startswith("-") or words[-1].startswith("-"):
        return None
    verb, *rest = words
    if verb == "study" and rest:
        verb, rest = "predict", rest[1:]
    return _named("models", begun) if verb in _OF_MODELS and not _has_argument(rest) else None


def _has_argument(words: Sequence[str]) -> bool:
    """Is one of them no flag, nor a flag's value?"""
    before = ["", *words]
    return any(
        not word.startswith("-") and not last.startswith("-")
        for last, word in zip(before, words, strict=False)
    )


def _named(what: str, begun: str) -> list[CompletionItem]:
    """Names of the catalogue; of a list with commas, of its last part."""
    listed, comma, last = begun.rpartition(",")
    names = [CompletionItem(f"{listed}{comma}{one}") for one in _names(what)]
    found = _begun_so(names, begun) if comma or last else names
    return found if what == "hardware" else [_FILE, *found]


def _names(what: str) -> list[str]:
    package = resources.files("inferometer.inputs")
    if what == "workloads":
        files = (package / "workload" / "preset_files").iterdir()
        return sorted(one.name.removesuffix(".toml") for one in files if one.name.endswith(".toml"))
    folder = (package / "catalog_data" / what).iterdir()
    texts = [one.read_text(encoding="utf-8") for one in folder if one.name.endswith(".toml")]
    return sorted({name for text in texts for name in _ID.findall(text)})


def _begun_so(items: Sequence[CompletionItem], begun: str) -> list[CompletionItem]:
    return [one for one in items if one.value.startswith(begun)]
