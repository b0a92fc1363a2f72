"""What do load tests say of each limit and switch in words, what does a simulation take where they say nothing, and what would tell?"""

from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.fit.knob_fit import KnobFit
from inferometer.fit.knob_profiles import LimitInterval, SwitchVerdict
from inferometer.fit.load_looks import Crowd
from inferometer.fit.server_knobs import Limit, Switch, Terms

_DEFAULTS: Final[dict[Limit, tuple[int, ...]]] = {"max_num_seqs": (256, 1024), "max_num_batched_tokens": (2048, 8192)}
"""Of vLLM 0.32.0, on smaller and larger devices: what is assumed where the load tests set no upper end."""
_FURTHER: Final = 3
"""A probe goes so far beyond what was seen."""
LIMIT_WORDS: Final[dict[str, str]] = {
    "max_num_seqs": "seats",
    "n_kv_blocks": "KV blocks",
    "max_num_batched_tokens": "tokens per step",
}
_SWITCH_WORDS: Final[dict[Switch, str]] = {
    "async_scheduling": "asynchronous scheduling",
    "enable_chunked_prefill": "chunked prefill",
    "enable_prefix_caching": "prefix caching",
}


class Address(NamedTuple):
    """Where the server is, and what it calls the model: for probes."""

    url: str
    served_model: str


def told_fit(name: Limit | Switch, value: int | bool) -> KnobFit:  # noqa: FBT001 -- a limit or a switch
    """A limit or switch that the server named."""
    bound = None if isinstance(value, bool) else value
    return KnobFit(name=name, value=value, low=bound, high=bound, told_by="server", said="as the server says", probe=None)


def limit_fit(found: LimitInterval, most: Crowd, terms: Terms, address: Address, n_seats: int) -> KnobFit:
    """A limit with its interval; where it has no upper end, what a simulation takes is assumed. ``n_seats``: as it takes them."""
    word = LIMIT_WORDS[found.name]
    if found.high is not None:
        said = f"{found.low:,} {word}" if found.low == found.high else f"{found.low:,} to {found.high:,} {word}"
        return KnobFit(name=found.name, value=_round(found), low=found.low, high=found.high, told_by="load", said=said, probe=None)
    probe = _limit_probe(found.name, most, address)
    if found.name == "n_kv_blocks" and found.is_likely_inside:  # of seats and step budgets usual values are likelier than a faint best
        said = f"{found.low:,} {word} or more: {found.best:,} fits best, and none at all hardly worse"
        return KnobFit(name=found.name, value=found.best, low=found.low, high=None, told_by="load", said=said, probe=probe)
    value = _assumed(found, terms, n_seats)
    said = f"{found.low:,} {word} or more: never used up; {value:,} is assumed"
    return KnobFit(name=found.name, value=value, low=found.low, high=None, told_by="assumed", said=said, probe=probe)


def switch_fit(found: SwitchVerdict, address: Address, *, has_prefixes: bool) -> KnobFit:
    """A switch; undecided, it is in the position that fits a little better, or as vLLM's default is."""
    word = _SWITCH_WORDS[found.name]
    if found.is_decided:
        said = f"{word} is {'on' if found.best else 'off'}"
        return KnobFit(name=found.name, value=found.best, low=None, high=None, told_by="load", said=said, probe=None)
    why = "no prompts began alike" if found.name == "enable_prefix_caching" and not has_prefixes else "on and off explain the loads alike"
    said = f"{word} is not known ({why}); {'on' if found.best else 'off'} is assumed"
    probe = _switch_probe(found.name, address)
    return KnobFit(name=found.name, value=found.best, low=None, high=None, told_by="assumed", said=said, probe=probe)


def _round(found: LimitInterval) -> int:
    """The best value; of a limit that people choose, the roundest number that the interval holds, in binary as they do."""
    if found.name == "n_kv_blocks" or found.high is None:
        return found.best
    unit = 1
    while -(-found.low // (2 * unit)) * 2 * unit <= found.high:
        unit *= 2
    return min(max(round(found.best / unit), -(-found.low // unit)), found.high // unit) * unit


def _assumed(found: LimitInterval, terms: Terms, n_seats: int) -> int:
    if found.name == "n_kv_blocks":
        return max(found.low, n_seats * -(-terms.max_model_len // terms.block_tokens))
    return next((value for value in _DEFAULTS[found.name] if value >= found.low), found.low)


def _limit_probe(name: Limit, most: Crowd, address: Address) -> str:
    """A closed loop so much larger than what was seen at once: it fills the seats, or the cache, or the steps, whichever is least."""
    users = _FURTHER * max(most.n_inside, 8)
    further = {
        "max_num_seqs": ("--concurrency", users, "--for", "60s"),
        "n_kv_blocks": ("--workload", "long-context", "--concurrency", users, "--for", "120s"),
        "max_num_batched_tokens": ("--workload", "long-context", "--concurrency", users, "--for", "60s"),
    }
    return suggestions.command("load", address.url, "--model", address.served_model, *further[name])


def _switch_probe(name: Switch, address: Address) -> str:
    further = {
        "async_scheduling": ("--concurrency", 1, "--for", "60s"),
        "enable_chunked_prefill": ("--workload", "long-context", "--concurrency", 16, "--for", "60s"),
        "enable_prefix_caching": (
            "--workload",
            "chat",
            "--concurrency",
            8,
            "--for",
            "60s",
            "--endpoint",
            "completions",
            "--prompts",
            "token-ids",
        ),
    }
    return suggestions.command("load", address.url, "--model", address.served_model, *further[name])


__all__ = ["LIMIT_WORDS", "Address", "limit_fit", "switch_fit", "told_fit"]
