"""Which further load test would show a limit or a switch that these load tests leave open?

Each is one command that runs as it is, for about a minute, with requests that the server can serve:
none longer than its ``max_model_len`` where that is known, else than the longest that it has
served.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.fit.load_looks import Crowd
from inferometer.fit.server_knobs import Limit, Switch

_FURTHER: Final = 2
"""A closed loop has this many times the concurrency that was seen."""
_MOST_USERS: Final = 1100
"""More than any default of ``max_num_seqs`` in vLLM 0.32.0 (256, 1,024)."""
_SHORT_PROMPT_TOKENS: Final = 32
_PROBE_S: Final = 60
_LONGEST_S: Final = 300
_ANSWER_S: Final = 10.0
"""An answer of a probe takes about this long: several generations of requests end within a
minute."""
_ANSWER_TOKENS: Final = (8, 256)
_PREFILL_SHARE: Final = 0.5
_BUDGET_USERS: Final = (4, 32)
_LARGE_BUDGET: Final = 8192
"""A step budget that is above vLLM's defaults makes no difference to anybody."""


class Address(NamedTuple):
    """Where the server is, what it calls the model, and further flags that its load tests had."""

    url: str
    served_model: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a further load test may ask of the server."""

    address: Address
    most: Crowd
    longest_tokens: int
    """Prompt and answer: the server serves these."""
    median_prompt_tokens: int
    step_s: float
    """Median of the time per token that was seen."""
    prompt_token_s: float
    """Seconds of prefill per prompt token."""

    def answer_tokens(self, n_users: int) -> int:
        """Tokens of an answer that this many concurrent requests get in about ten seconds.

        Steps slow down with the batch at worst.
        """
        step_s = self.step_s * max(n_users / max(self.most.n_streaming, 1), 1.0)
        low, high = _ANSWER_TOKENS
        return max(min(int(_ANSWER_S / step_s), high, self.longest_tokens // 2), low)


def limit_probe(name: Limit, room: Room) -> str:
    """A closed loop that reaches the limit, or shows that it is far above what was seen."""
    if name == "max_num_seqs":
        return _seqs_probe(room)
    return _blocks_probe(room) if name == "n_kv_blocks" else _budget_probe(room)


def switch_probe(name: Switch, room: Room) -> str | None:
    """A load test that the two positions of the switch answer differently.

    None where no flags of ``load`` describe one.
    """
    if (
        name == "async_scheduling"
    ):  # one request at a time: host time of a step is hidden, or is not
        return _short(room, 1)
    return _budget_probe(room) if name == "enable_chunked_prefill" else None


def quiet_probe(room: Room) -> str:
    """A load test at a quarter of the concurrency that was seen: no limit holds its requests back."""
    n_users = max(room.most.n_streaming // 4, 1)
    n_output = room.answer_tokens(n_users)
    n_prompt = max(min(room.median_prompt_tokens, room.longest_tokens - n_output), 1)
    return _load(room, f"{n_prompt}x{n_output}", n_users)


def _seqs_probe(room: Room) -> str:
    """Many short requests: neither memory nor prompts hold them back."""
    return _short(room, min(_FURTHER * max(room.most.n_inside, 8), _MOST_USERS))


def _short(room: Room, n_users: int) -> str:
    n_output = room.answer_tokens(n_users)
    return _load(
        room,
        f"{max(min(_SHORT_PROMPT_TOKENS, room.longest_tokens - n_output), 1)}x{n_output}",
        n_users,
    )


def _blocks_probe(room: Room) -> str:
    """The longest requests that the server serves, as many as hold twice the tokens that were seen inside at once."""
    n_users = min(
        max(_FURTHER * room.most.n_inside_tokens // max(room.longest_tokens, 1), 2), _MOST_USERS
    )
    n_output = room.answer_tokens(n_users)
    n_prompt = max(room.longest_tokens - n_output, 1)
    prefill_s = n_users * n_prompt * room.prompt_token_s
    for_s = min(max(round(prefill_s / _PREFILL_SHARE), _PROBE_S), _LONGEST_S)
    return _load(room, f"{n_prompt}x{n_output}", n_users, for_s)


def _budget_probe(room: Room) -> str:
    """Long prompts that come while others' answers are under way: together they are more than a usual step budget."""
    n_output = room.answer_tokens(_BUDGET_USERS[0])
    longest = max(room.longest_tokens - n_output, 2)
    low, high = _BUDGET_USERS
    n_users = min(max(-(-_FURTHER * _LARGE_BUDGET // longest), low), high)
    return _load(room, f"{max(longest // 8, 1)}..{longest}x{n_output}", n_users)


def _load(room: Room, lengths: str, n_users: int, for_s: int = _PROBE_S) -> str:
    traffic = ("--workload", lengths, "--concurrency", n_users, "--for", f"{for_s}s")
    address = room.address
    return suggestions.command(
        "load", address.url, "--model", address.served_model, *address.flags, *traffic
    )
