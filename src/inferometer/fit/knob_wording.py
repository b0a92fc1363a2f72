"""What do load tests say of each limit and switch in words, what does a simulation take where they say nothing, and what would tell?"""

from typing import Final, NamedTuple

from inferometer.fit.knob_fit import KnobFit
from inferometer.fit.knob_profiles import LimitInterval, SwitchVerdict
from inferometer.fit.probes import Room, limit_probe, switch_probe
from inferometer.fit.server_knobs import Limit, Switch, Terms

_DEFAULTS: Final[dict[Limit, tuple[int, ...]]] = {
    "max_num_seqs": (256, 1024),
    "max_num_batched_tokens": (2048, 8192),
}
"""Of vLLM 0.32.0, on smaller and larger devices: what is assumed where the load tests set no
upper end."""
LIMIT_WORDS: Final[dict[str, str]] = {
    "max_num_seqs": "concurrent sequences",
    "n_kv_blocks": "KV blocks",
    "max_num_batched_tokens": "tokens per step",
}
_SWITCH_WORDS: Final[dict[Switch, str]] = {
    "async_scheduling": "asynchronous scheduling",
    "enable_chunked_prefill": "chunked prefill",
    "enable_prefix_caching": "prefix caching",
}


class Usual(NamedTuple):
    """What a simulation takes of the other limits.

    The sequences that it runs at once, and the KV blocks that vLLM takes of the device.
    """

    max_num_seqs: int
    n_kv_blocks: int | None


def told_fit(name: Limit | Switch, value: int | bool) -> KnobFit:  # noqa: FBT001 -- a limit or a switch
    """A limit or switch that the server named."""
    bound = None if isinstance(value, bool) else value
    return KnobFit(
        name=name,
        value=value,
        low=bound,
        high=bound,
        told_by="server",
        said="as the server says",
        probe=None,
    )


def limit_fit(found: LimitInterval, terms: Terms, usual: Usual, room: Room) -> KnobFit:
    """A limit with its interval; where it was never reached, what a simulation takes is assumed."""
    word = LIMIT_WORDS[found.name]
    if found.is_reached:
        said = (
            f"{found.low:,} {word}"
            if found.low == found.high
            else f"{found.low:,} to {found.high:,} {word}"
        )
        return KnobFit(
            name=found.name,
            value=_round(found),
            low=found.low,
            high=found.high,
            told_by="load",
            said=said,
            probe=None,
        )
    probe = limit_probe(found.name, room)
    allows = "" if found.high is None else f", at most {found.high:,} by the device's memory"
    if (
        found.name == "n_kv_blocks" and found.is_likely_inside
    ):  # of seats and step budgets usual values are likelier than a faint best
        said = (
            f"{found.low:,} {word} or more{allows}: {found.best:,} fits best, and none at all"
            " hardly worse"
        )
        return KnobFit(
            name=found.name,
            value=found.best,
            low=found.low,
            high=found.high,
            told_by="load",
            said=said,
            probe=probe,
        )
    value = _assumed(found, terms, usual)
    said = f"{found.low:,} {word} or more{allows}: never used up; {value:,} is assumed"
    return KnobFit(
        name=found.name,
        value=value,
        low=found.low,
        high=found.high,
        told_by="assumed",
        said=said,
        probe=probe,
    )


def switch_fit(found: SwitchVerdict, room: Room, *, has_prefixes: bool) -> KnobFit:
    """A switch; undecided, it is in the position that fits a little better, or as vLLM's default is."""
    word = _SWITCH_WORDS[found.name]
    if found.is_decided:
        said = f"{word} is {'on' if found.best else 'off'}"
        return KnobFit(
            name=found.name,
            value=found.best,
            low=None,
            high=None,
            told_by="load",
            said=said,
            probe=None,
        )
    why = (
        "no prompts began alike"
        if found.name == "enable_prefix_caching" and not has_prefixes
        else "on and off explain the loads alike"
    )
    said = (
        f"{word} is not known ({why}); {'on' if found.best else 'off'} is assumed; --known"
        f" {found.name}=on|off settles it"
    )
    probe = switch_probe(found.name, room)
    return KnobFit(
        name=found.name,
        value=found.best,
        low=None,
        high=None,
        told_by="assumed",
        said=said,
        probe=probe,
    )


def _round(found: LimitInterval) -> int:
    """The best value; of a limit that people choose, the roundest number that the interval holds, in binary as they do."""
    if found.name == "n_kv_blocks" or found.high is None:
        return found.best
    unit = 1
    while -(-found.low // (2 * unit)) * 2 * unit <= found.high:
        unit *= 2
    return min(max(round(found.best / unit), -(-found.low // unit)), found.high // unit) * unit


def _assumed(found: LimitInterval, terms: Terms, usual: Usual) -> int:
    if found.name != "n_kv_blocks":
        return next((value for value in _DEFAULTS[found.name] if value >= found.low), found.low)
    whole_requests = usual.max_num_seqs * -(-terms.max_model_len // terms.block_tokens)
    value = max(found.low, whole_requests if usual.n_kv_blocks is None else usual.n_kv_blocks)
    return value if found.high is None else min(value, found.high)
