"""Which number does a column of somebody's table hold, judged by its header?

A header is read word by word: the quantity under any of its names, a statistic (p50, mean), a unit.
So `VRAM_reserved (MB)`, `Prompt tokens`, `TTFT ms`, `TPOT mean (s)` and llm_bench's
`2nd_avg_latency(ms)` need no entry of their own.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

FieldName: TypeAlias = Literal[
    "prompt",
    "batch",
    "gen",
    "prefill_ms",
    "decode_ms",
    "step_ms",
    "steps",
    "reserved_mb",
    "allocated_mb",
    "flag",
]


class Column(NamedTuple):
    """The field that a column holds; its numbers times ``scale_ratio`` are in the field's unit.

    Of two columns for one field, the one of lower rank counts.
    """

    field: FieldName
    scale_ratio: float
    rank: int

    @property
    def is_median(self) -> bool:
        """Its header says so; ranks are ten times a name's preference, and a statistic's."""
        return self.rank % 10 == _STATISTIC["median"]


_COUNT_WORDS: Final[dict[str, FieldName]] = {
    **dict.fromkeys(
        (
            "seq", "seq_len", "seqlen", "sequence_length", "sequence_len",
            "prompt", "prompt_len", "prompt_length", "prompt_size",
            "input", "input_len", "input_length", "input_size", "isl",
            "context", "context_len", "context_length", "n_prompt",
        ),
        "prompt",
    ),
    **dict.fromkeys(("batch", "batch_size", "batchsize", "bs", "bsz"), "batch"),
    **dict.fromkeys(
        (
            "gen", "generated", "generation", "new", "max_new",
            "output", "output_len", "output_length", "output_size", "osl", "n_gen", "gen_len", "gen_length",
        ),
        "gen",
    ),
    **dict.fromkeys(("decode_steps", "n_decode_steps"), "steps"),
    **dict.fromkeys(("flag", "flags", "status"), "flag"),
}  # fmt: skip

_TIMES: Final[dict[str, tuple[FieldName, int]]] = {
    **dict.fromkeys(("prefill", "prefill_time", "prefill_latency"), ("prefill_ms", 0)),
    **dict.fromkeys(
        (
            "ttft", "ttft_latency", "time_to_first", "first", "first_latency",
            "1st", "1st_latency", "prompt_eval", "prompt_eval_time",
        ),
        ("prefill_ms", 10),
    ),
    **dict.fromkeys(
        ("tpot", "tpot_latency", "time_output", "2nd_latency", "next_latency", "other_latency"),
        ("step_ms", 0),
    ),
    **dict.fromkeys(("itl", "inter_latency", "tbt", "time_between"), ("step_ms", 10)),
}  # fmt: skip
"""Names without the words `token` and `per`, and their preference: a prefill's own time before a
TTFT, TPOT before gaps."""

_MEMORIES: Final[tuple[FieldName, ...]] = ("reserved_mb", "allocated_mb")
_MEMORY_WORDS: Final = {"vram", "gpu", "cuda", "mem", "memory", "peak", "max", "device", "torch"}
_MS: Final = {
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "seconds"), 1e3),
    **dict.fromkeys(("us", "µs", "microseconds"), 1e-3),
}
_MB: Final = {"mb": 1.0, "mib": 1.0, "gb": 1024.0, "gib": 1024.0, "bytes": 2.0**-20}
_PER_TOKEN: Final = {"per", "tok", "toks", "token", "tokens", "step"}
_STATISTIC: Final = {"p50": 0, "median": 0, "mean": 2, "avg": 2, "average": 2}
_OTHER_STATISTIC: Final = re.compile(
    r"p\d+|min|std|stddev|sd|var|low|high|ci\d*|q\d|iqr|stderr|sem"
)


def column_of(header: str) -> Column | None:
    """The field, unit and rank of a column; None for one not read, such as a rate or a p99.

    A time without a unit is not read: InferenceX writes seconds, most others milliseconds.

    Example
    -------
    >>> column_of("decode ms/step").field, column_of("Prompt tokens").field, column_of("prefill tok/s")
    ('decode_ms', 'prompt', None)
    >>> column_of("TPOT mean (s)")
    Column(field='step_ms', scale_ratio=1000.0, rank=2)
    """
    if re.search(r"tok\w*\s*(?:/|_per_|_|\s)\s*s(?:ec\w*)?\b", header.lower()):
        return None
    words = re.findall(r"[a-z0-9µ]+", header.lower())
    statistic = min((_STATISTIC[word] for word in words if word in _STATISTIC), default=1)
    words = [word for word in words if word not in _STATISTIC]
    if any(_OTHER_STATISTIC.fullmatch(word) for word in words):
        return None
    return _count_of(words) or _time(words, statistic) or _memory(words)


def unit_wanted(header: Sequence[str]) -> str | None:
    """What to do about columns of times that lack nothing but a unit; None where there are none.

    Example
    -------
    >>> unit_wanted(["concurrency", "ttft", "TPOT"])
    "the unit of ttft, TPOT in their names: 'ttft ms' or 'ttft s'"
    """
    lacking = [one for one in header if column_of(one) is None and column_of(f"{one} ms")]
    if not lacking:
        return None
    named, first = ", ".join(lacking), lacking[0]
    return f"the unit of {named} in their names: '{first} ms' or '{first} s'"


def _count_of(words: list[str]) -> Column | None:
    field = _COUNT_WORDS.get(
        "_".join(word for word in words if word not in {"tokens", "token", "n"})
    ) or _COUNT_WORDS.get("_".join(words))
    return None if field is None else Column(field, 1.0, 0)


def _time(words: list[str], statistic: int) -> Column | None:
    units = [word for word in words if word in _MS]
    if len(units) != 1:
        return None
    name = "_".join(word for word in words if word not in _MS and word not in _PER_TOKEN)
    scale = _MS[units[0]]
    is_per_token = any(word in _PER_TOKEN for word in words)
    if name in {"decode", "decode_time", "decode_latency"} and is_per_token:
        return Column("decode_ms", scale, statistic)
    if name not in _TIMES or (name.startswith("prefill") and is_per_token):
        return None
    field, preference = _TIMES[name]
    return Column(field, scale, preference + statistic)


def _memory(words: list[str]) -> Column | None:
    units = [word for word in words if word in _MB]
    names = [word for word in words if word not in _MB and word not in _MEMORY_WORDS]
    for field in _MEMORIES:
        if len(units) == 1 and names == [field.removesuffix("_mb")]:
            return Column(field, _MB[units[0]], 0)
    return None
