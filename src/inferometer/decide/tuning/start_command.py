"""Which settings does a server's start command state, and how does it read with others?

Flags are added or replaced by name. Which flag sets what is known for vLLM, SGLang and
``inferometer emulate``; any other command is taken to have vLLM's.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.decide.tuning.playbook import Value
from inferometer.errors import SpecError

Family: TypeAlias = Literal["vllm", "sglang", "emulate"]

_VALUED: Final[Mapping[Family, Mapping[str, tuple[str, ...]]]] = {
    "vllm": {
        "max_num_seqs": ("--max-num-seqs",),
        "max_num_batched_tokens": ("--max-num-batched-tokens",),
        "long_prefill_token_threshold": ("--long-prefill-token-threshold",),
        "gpu_memory_utilization": ("--gpu-memory-utilization",),
        "kv_dtype": ("--kv-cache-dtype",),
        "quantization": ("--quantization", "-q"),
        "policy": ("--scheduling-policy",),
        "tp": ("--tensor-parallel-size", "-tp"),
        "dp": ("--data-parallel-size", "-dp"),
        "speculation": ("--speculative-config", "-sc"),
    },
    "sglang": {
        "max_num_seqs": ("--max-running-requests",),
        "max_num_batched_tokens": ("--chunked-prefill-size",),
        "gpu_memory_utilization": ("--mem-fraction-static",),
        "kv_dtype": ("--kv-cache-dtype",),
        "quantization": ("--quantization",),
        "schedule_policy": ("--schedule-policy",),
        "schedule_conservativeness_ratio": ("--schedule-conservativeness",),
        "tp": ("--tensor-parallel-size", "--tp-size", "--tp"),
        "dp": ("--data-parallel-size", "--dp-size", "--dp"),
    },
    "emulate": {
        "max_num_seqs": ("--max-num-seqs",),
        "max_num_batched_tokens": ("--max-num-batched-tokens",),
        "gpu_memory_utilization": ("--gpu-memory-utilization",),
        "kv_dtype": ("--kv-dtype", "--kv-cache-dtype"),
        "quantization": ("--quantization",),
        "tp": ("--tp",),
    },
}
"""Flags of each setting, the one to write first."""
_SWITCHES: Final[Mapping[Family, tuple[str, ...]]] = {
    "vllm": (
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "async_scheduling",
        "scheduler_reserve_full_isl",
    ),
    "sglang": ("enable_mixed_chunk", "disable_radix_cache", "disable_overlap_schedule"),
    "emulate": (),
}
"""vLLM's have a ``--no-`` form; SGLang's are there or not."""
_FORMATS: Final[Mapping[Family, Mapping[str, str]]] = {
    "vllm": {"float8": "fp8"},
    "sglang": {"float8": "fp8_e4m3"},
    "emulate": {},
}
_DRAFT_NAMES: Final = frozenset({"draft_method", "num_speculative_tokens", "acceptance_fraction"})
_OF_CLUSTER: Final = frozenset({"replicas", "router"})
_EXAMPLE: Final = "--start 'vllm serve MODEL'"
_FLAGS: Final = "flags of the server with their values, in one pair of quotation marks"
_OPERATORS: Final = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"})
_VARIABLE: Final = re.compile(r"\$\w+|\$\{\w+\}")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})


class StartCommand(NamedTuple):
    """A command line, as its words."""

    words: tuple[str, ...]
    family: Family

    @property
    def text(self) -> str:
        """For a shell."""
        return shlex.join(self.words)

    def value(self, setting: str) -> str | None:
        """Value that the command gives a setting; None: the default."""
        flags = _VALUED[self.family].get(setting, (f"--{setting.replace('_', '-')}",))
        found = None
        for index, word in enumerate(self.words):
            name, has_value, value = word.partition("=")
            if name in flags:
                found = value if has_value else next(iter(self.words[index + 1 : index + 2]), None)
        return found

    def switch(self, setting: str) -> bool | None:
        """Whether a switch is stated on or off; None: neither."""
        flag = setting.replace("_", "-")
        states = {f"--{flag}": True, f"--no-{flag}": False}
        return next((states[word] for word in reversed(self.words) if word in states), None)


def parse_start(text: str) -> StartCommand:
    """The command of this text.

    Raises
    ------
    SpecError
        A quotation is not closed, there is no word, or it needs a shell.

    Example
    -------
    >>> parse_start("vllm serve m --max-num-seqs 8").value("max_num_seqs")
    '8'
    """
    words = words_of(text, where="--start", allowed="a command, quoted as for a shell")
    if not words:
        raise SpecError("the command is empty", where="--start", try_=_EXAMPLE)
    _check_no_shell(words)
    if "=" in words[0]:  # NAME=VALUE before the command, as in a shell
        words = ("env", *words)
    return StartCommand(words, _family_of(words))


def command_of(words: Sequence[str]) -> StartCommand:
    """The command of a process that runs."""
    return StartCommand(tuple(words), _family_of(words))


def words_of(text: str, *, where: str, allowed: str) -> tuple[str, ...]:
    """The words of a text, as a shell cuts it.

    Raises
    ------
    SpecError
        A quotation is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError(f"{text!r}: {error}", where=where, allowed=allowed) from error


def parse_flags(text: str) -> tuple[str, ...]:
    """Words of flags that are tried as one change.

    Raises
    ------
    SpecError
        A quotation is not closed, or no flag comes first.
    """
    words = words_of(text, where="--try", allowed=_FLAGS)
    if not words or not words[0].startswith("-"):
        raise SpecError(f"{text!r} begins with no flag", where="--try", allowed=_FLAGS)
    return words


def _check_no_shell(words: Sequence[str]) -> None:
    """Refuse shell syntax: the words start one program, to which flags are added."""
    for word in words:
        if word in _OPERATORS or _VARIABLE.fullmatch(word):
            raise SpecError(
                f"{word!r} is for a shell, and none reads the command",
                where="--start",
                allowed="one program and its words; NAME=VALUE may stand before it",
                try_=_EXAMPLE,
            )
    if PurePath(words[0]).name in _SHELLS and "-c" in words:
        raise SpecError(
            f"{words[0]} -c does not pass on the flags that are added to it",
            where="--start",
            allowed='the program itself, or a script that ends in "$@"',
            try_=_EXAMPLE,
        )


def _family_of(words: Sequence[str]) -> Family:
    names = {PurePath(word).name for word in words}
    if "emulate" in names:
        return "emulate"
    return "sglang" if any(name.startswith("sglang") for name in names) else "vllm"


def without_flags(words: Sequence[str], flags: Sequence[str], *, has_value: bool) -> list[str]:
    """The words without these flags and their values."""
    taken, skips = list[str](), False
    for word in words:
        if skips:
            skips = False
        elif word in flags:
            skips = has_value
        elif word.partition("=")[0] not in flags:
            taken.append(word)
    return taken


def with_words(start: StartCommand, added: Sequence[str]) -> StartCommand:
    """The command with the user's flags, which replace those of the same name.

    Example
    -------
    >>> with_words(parse_start("vllm serve m -O 1"), ["-O", "3"]).text
    'vllm serve m -O 3'
    """
    words = list(start.words)
    for index, word in enumerate(added):
        if word.startswith("-"):
            following = added[index + 1 : index + 2]
            has_value = bool(following) and not following[0].startswith("-")
            words = without_flags(words, [word.partition("=")[0]], has_value=has_value)
    return start._replace(words=(*words, *added))


def with_settings(start: StartCommand, settings: Mapping[str, Value]) -> StartCommand:
    """The command with these settings of the playbook.

    Raises
    ------
    SpecError
        One start command cannot make it so: several replicas, or a setting without a flag.

    Example
    -------
    >>> with_settings(parse_start("vllm serve m --max-num-seqs 8"), {"max_num_seqs": 64}).text
    'vllm serve m --max-num-seqs 64'
    """
    if start.family == "emulate":
        return _emulated(start, settings)
    words, given = list(start.words), dict(settings)
    if _DRAFT_NAMES & given.keys():
        given = {name: value for name, value in given.items() if name not in _DRAFT_NAMES}
        given["speculation"] = _speculation(settings)
    for name, value in given.items():
        words = _with_one(words, start.family, name, value)
    return start._replace(words=tuple(words))


def _with_one(words: list[str], family: Family, name: str, value: Value) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if name in _SWITCHES[family]:
        off = f"--no-{flag.removeprefix('--')}"
        rest = without_flags(words, [flag, off], has_value=False)
        return [*rest, flag] if value else [*rest, off] if family == "vllm" else rest
    flags = _VALUED[family].get(name)
    if flags is None:
        what = (
            "several servers, and --start starts one"
            if name in _OF_CLUSTER
            else f"no flag of {family} sets {name}"
        )
        raise SpecError(what, where="--start")
    rest = without_flags(words, flags, has_value=True)
    return [*rest, flags[0], _FORMATS[family].get(str(value), _text(value))]


def _emulated(start: StartCommand, settings: Mapping[str, Value]) -> StartCommand:
    words = list(start.words)
    for name, value in settings.items():
        flags = _VALUED["emulate"].get(name)
        if flags is not None:
            words = [*without_flags(words, flags, has_value=True), flags[0], _text(value)]
        else:
            words = [*_without_set(words, name), "--set", f"{name}={_text(value)}"]
    return start._replace(words=tuple(words))


def _without_set(words: Sequence[str], name: str) -> list[str]:
    taken = list[str]()
    for word in words:
        if word.startswith(f"{name}=") and taken and taken[-1] == "--set":
            taken.pop()
        else:
            taken.append(word)
    return taken


def _speculation(settings: Mapping[str, Value]) -> str:
    return json.dumps(
        {
            "method": settings.get("draft_method", "ngram"),
            "num_speculative_tokens": settings.get("num_speculative_tokens", 2),
            "prompt_lookup_max": 4,
        }
    )


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
