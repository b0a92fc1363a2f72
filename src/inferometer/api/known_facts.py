"""Facts about a server that ``--known`` states, besides its log and its metrics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.api.question import option
from inferometer.errors import SpecError
from inferometer.fit.loads.server import LIMITS, SWITCHES, Limit, ReportedSettings, Switch

_WHERE: Final = "--known"
_COUNTS: Final = (
    "num_gpu_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "max_model_len",
)
_POSITIONS: Final = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
_MOST: Final = 10**9
EXAMPLE: Final = "--known num_gpu_blocks=2588,max_num_seqs=256"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKnowledge:
    """What the user knows of the server behind load tests."""

    server_log: Path | None = option(
        None, "With --load: the log of its start (vLLM).", "Engine", is_common=True
    )
    known: str | None = option(
        None,
        "With --load: limits and switches of the server that are known, such as"
        " num_gpu_blocks=2588,max_num_seqs=256.",
        "Engine",
        is_common=True,
        metavar="NAME=VALUE,…",
    )
    kernels: Path | None = option(
        None,
        "For a published serving run (LLMServingSim's folder): tables of its device's kernels"
        " (AIConfigurator's folder).",
        "Engine",
        is_common=True,
    )
    workload: str | None = option(
        None,
        "With --load of imported runs: the trace that was sent, for prompts that begin alike.",
        "Engine",
        is_common=True,
        metavar="FILE",
    )

    def check_is_for(self, *, is_load: bool) -> None:
        """Refuse these facts for fits of sweeps, which do not use them."""
        if is_load and self.kernels is not None:
            raise SpecError(
                "--kernels with load tests",
                where="--load, --kernels",
                try_="--load without --kernels",
            )
        flags: dict[str, object] = {"--server-log": self.server_log}
        flags |= (
            {"--known": self.known, "--workload": self.workload} if self.kernels is None else {}
        )
        flag = next((flag for flag, value in flags.items() if value is not None), None)
        if flag is not None and not is_load:
            raise SpecError(f"{flag} without load tests", where=flag, try_=f"--load, with {flag}")


class _Conflict(NamedTuple):
    name: str
    known: object
    reported: object


def known_facts(text: str | None) -> ReportedSettings:
    """The facts of ``NAME=VALUE,…``, under vLLM's names.

    Raises
    ------
    SpecError
        A name that is none of vLLM's limits and switches, named twice, or a value that it cannot
        have.

    Example
    -------
    >>> sorted(known_facts("num_gpu_blocks=2588,max_num_seqs=256").limits.items())
    [('max_num_seqs', 256), ('n_kv_blocks', 2587)]
    """
    counts: dict[str, int] = {}
    switches: dict[Switch, bool] = {}
    for part in [] if text is None else text.split(","):
        name, is_given, value = (word.strip() for word in part.partition("="))
        if name in counts or name in switches:
            raise SpecError(
                f"{name} is named twice", where=_WHERE, allowed="each name once", try_=EXAMPLE
            )
        if is_given and name in _COUNTS:
            counts[name] = _count(name, value)
        elif is_given and name in SWITCHES:
            switches[name] = _position(name, value)
        else:
            raise SpecError(
                f"{part.strip()!r}",
                where=_WHERE,
                allowed=f"NAME=VALUE of {', '.join((*_COUNTS, *SWITCHES))}",
                try_=EXAMPLE,
            )
    limits: dict[Limit, int] = {name: counts[name] for name in LIMITS if name in counts}
    if "num_gpu_blocks" in counts:
        limits["n_kv_blocks"] = counts["num_gpu_blocks"] - 1  # vLLM never hands out block 0
    return ReportedSettings(
        limits=limits,
        switches=switches,
        block_tokens=counts.get("block_size"),
        max_model_len=counts.get("max_model_len"),
    )


def with_known(reported: ReportedSettings, known: ReportedSettings) -> ReportedSettings:
    """Settings that the server reported, completed by ``known``.

    Raises
    ------
    SpecError
        Reported and known settings contradict each other.
    """
    pairs = [
        *((name, value, reported.limits.get(name)) for name, value in known.limits.items()),
        *((name, value, reported.switches.get(name)) for name, value in known.switches.items()),
        ("block_size", known.block_tokens, reported.block_tokens),
        ("max_model_len", known.max_model_len, reported.max_model_len),
    ]
    conflict = next(
        (_Conflict(*pair) for pair in pairs if None not in pair[1:] and pair[1] != pair[2]), None
    )
    if conflict is not None:
        name, off = ("num_gpu_blocks", 1) if conflict.name == "n_kv_blocks" else (conflict.name, 0)
        known_value, reported_value = (
            value + off if off and isinstance(value, int) else value for value in conflict[1:]
        )
        raise SpecError(
            f"{name} = {known_value}",
            where=_WHERE,
            allowed=(
                f"{reported_value}, as the server's log, its metrics or the imported run report"
            ),
            try_=f"--known without {name}",
        )
    return ReportedSettings(
        limits={**reported.limits, **known.limits},
        switches={**reported.switches, **known.switches},
        block_tokens=known.block_tokens or reported.block_tokens,
        max_model_len=known.max_model_len or reported.max_model_len,
    )


def _count(name: str, text: str) -> int:
    least = 2 if name in {"num_gpu_blocks", "max_model_len"} else 1
    digits = text.replace("_", "")
    if not (
        digits.isascii() and digits.isdigit() and len(digits) < 11 and least <= int(digits) <= _MOST
    ):
        raise SpecError(
            f"{name} = {text!r}",
            where=_WHERE,
            allowed=f"a whole number, {least} to {_MOST:,}",
            try_=EXAMPLE,
        )
    return int(digits)


def _position(name: str, text: str) -> bool:
    if text.lower() not in _POSITIONS:
        raise SpecError(
            f"{name} = {text!r}",
            where=_WHERE,
            allowed="on or off",
            try_=suggestions.flags("--known", f"{name}=on"),
        )
    return _POSITIONS[text.lower()]
