"""Names of options in Python calls: those of other tools, and an engine's own settings."""

import math
import re
import warnings
from collections.abc import Container, Mapping
from difflib import get_close_matches
from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.serve_command import read_benchmark_command, read_serve_command
from inferometer.inputs.synonyms import (
    ALIKE,
    ARGUMENTS,
    ENGINE_SETTINGS,
    ENGINE_SWITCHES,
    OTHER_COUNTS,
    OUTPUT,
    PROMPT,
    SAME,
    counted_devices,
    our_flag,
)

_MEMORY: Final = "gpu_memory_utilization"
_MEMORY_FLAG: Final = "--gpu-memory-utilization"
_FRACTION: Final = re.compile(r"[01]?\.\d+|1")


def in_our_names(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """The values of a Python call under our names, where the command line takes theirs too.

    ``names``: accepted names -> option. Names without one of ours stay.

    Raises
    ------
    SpecError
        Two names mean the same option.

    Example
    -------
    >>> names = {"rate": "rate", "workload": "workload", "hardware": "hardware", "tp": "tp"}
    >>> in_our_names({"request_rate": 2, "isl": 1024, "osl": 256, "gpu": "2xH100"}, names)
    {'rate': 2, 'hardware': 'H100', 'tp': 2, 'workload': '1024x256'}
    """
    options = {f"--{one.replace('_', '-')}": one for one in names}
    found, lengths = dict[str, object](), dict[str, tuple[str, object]]()
    for name, value in _memory_apart(values, names).items():
        flag = f"--{name.replace('_', '-')}"
        side = "prompt" if flag in PROMPT else "output" if flag in OUTPUT else ""
        ours = name if name in names else options.get(our_flag(flag, options), side or name)
        if side and ours == side and side not in names:
            lengths[side] = (name, value)
        elif ours in found:
            raise SpecError(f"{ours!r} is given under two names", where=name, allowed="one of them")
        else:
            found |= _counted(ours, value, names, values)
    if (
        len(lengths) == len(("prompt", "output"))
        and "workload" in names
        and "workload" not in found
    ):
        return found | {"workload": f"{lengths['prompt'][1]}x{lengths['output'][1]}"}
    return found | dict(lengths.values())


def _memory_apart(values: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
    """An engine's share of memory among its settings (``mem_fraction_static=0.9``) as our option."""
    settings = values.get("set")
    if not isinstance(settings, (list, tuple)) or _MEMORY not in names or _MEMORY in values:
        return values
    share, left = dict[str, object](), list[object]()
    for setting in settings:
        name, _, value = str(setting).partition("=")
        is_share = our_flag(f"--{name.replace('_', '-')}", {_MEMORY_FLAG}) == _MEMORY_FLAG
        if is_share and not share and _FRACTION.fullmatch(value):
            share = {_MEMORY: float(value)}
        else:
            left.append(setting)
    return {**values, "set": tuple(left)} | share


def _counted(
    name: str, value: object, names: Mapping[str, str], given: Mapping[str, object]
) -> dict[str, object]:
    """``8xH100`` as device and number, where a call has one meaning for the number."""
    is_device = name in {"gpus", "hardware"} and isinstance(value, str)
    counted = counted_devices(str(value)) if is_device else None
    number = {} if counted is None else number_of_devices(counted[0], names, given)
    missing = {one: n for one, n in number.items() if one not in given}
    return {name: value} if counted is None or not number else {name: counted[1]} | missing


def number_of_devices(
    n: int, names: Container[str], given: Mapping[str, object]
) -> dict[str, object]:
    """The option that makes ``n`` devices, with its value; none where it could be several.

    ``names``: the options that there are. Of a fleet ``n`` devices are one replica or ``n``, unless
    ``tp`` or ``replicas`` is given; ``size`` has a number for all.

    Example
    -------
    >>> number_of_devices(8, {"tp", "replicas"}, {"tp": 2})
    {'replicas': 4}
    >>> number_of_devices(8, {"tp", "replicas"}, {})
    {}
    >>> number_of_devices(16, {"tp", "replicas"}, {"data_parallel_size": 8})
    {'tp': 2}
    >>> number_of_devices(8, {"tp", "replicas"}, {"tp": 2, "replicas": 4})
    {'tp': 2}
    """
    return _missing_number(n, names, given) or _given_number(n, names, given)


def _given_number(n: int, names: Container[str], given: Mapping[str, object]) -> dict[str, object]:
    """One of the numbers that are given, where they make ``n`` devices together."""
    counts = ("tp", "replicas", "data_parallel_size", "pp")
    texts = {one: str(given[one]) for one in counts if one in given and one in names}
    if "gpus" in names or not texts or not all(one.isdecimal() for one in texts.values()):
        return {}
    name, text = next(iter(texts.items()))
    return {name: int(text)} if math.prod(map(int, texts.values())) == n else {}


def _missing_number(
    n: int, names: Container[str], given: Mapping[str, object]
) -> dict[str, object]:
    """The one number that is missing to make ``n`` devices."""
    is_total = "gpus" in names
    ranks = str(given.get("data_parallel_size", ""))
    others = OTHER_COUNTS - {"data_parallel_size"}
    if not is_total and ranks.isdecimal() and int(ranks) > 1 and others.isdisjoint(given):
        is_known = {"tp", "replicas"}.isdisjoint(given) and n % int(ranks) == 0
        return {"tp": n // int(ranks)} if is_known and "tp" in names else {}
    numbers = ("total_gpus",) if is_total else ("tp", "replicas")
    missing = [one for one in numbers if one in names and one not in given]
    shares = {one: str(given[one]) for one in numbers if one in given}
    if len(missing) != 1 or any(one not in names for one in shares):
        return {}
    if not is_total and not OTHER_COUNTS.isdisjoint(given):
        return {}
    for share in shares.values():
        if not share.isdecimal() or not int(share) or n % int(share):
            return {}
        n //= int(share)
    return {missing[0]: n}


def engine_setting(name: str) -> str | None:
    """An engine's own setting under its name or its flag's; None for other names.

    Example
    -------
    >>> engine_setting("enable_prefix_caching"), engine_setting("scheduling_policy")
    ('enable_prefix_caching', 'policy')
    """
    return (
        name
        if name in {*ENGINE_SWITCHES, *ENGINE_SETTINGS.values()}
        else ENGINE_SETTINGS.get(f"--{name.replace('_', '-')}")
    )


def of_the_server(given: Mapping[str, object], names: Container[str]) -> dict[str, object]:
    """The options, with those of a server's start command in the place of ``model``.

    Flags that choose kernels are a warning.

    Example
    -------
    >>> of_the_server({"model": "vllm serve m -tp 2 --port 80", "rate": 2}, {"tp", "policy", "rate"})
    {'model': 'm', 'policy': 'vllm', 'tp': '2', 'rate': 2}
    """
    model = given.get("model")
    if not isinstance(model, str) or " " not in model:
        return dict(given)
    command, traffic = read_serve_command(model), read_benchmark_command(model, sends=False)
    if traffic is not None:
        named = {flag.strip("-").replace("-", "_"): value for flag, value in traffic}
        return {"model": "", **named, **{name: given[name] for name in given if name != "model"}}
    if command is None:
        return dict(given)
    if command.remark:
        warnings.warn(command.remark, stacklevel=3)
    found: dict[str, object] = {"model": command.model}
    if engine := next((one for one in ("policy", "engine") if one in names), None):
        found[engine] = command.engine
    for flag, value in command.flags:
        name = flag.strip("-").replace("-", "_")
        is_off = value is None and name.startswith("no_")
        found[name.removeprefix("no_") if is_off else name] = not is_off if value is None else value
    return found | {name: value for name, value in given.items() if name != "model"}


def nearest_option(name: str, names: Mapping[str, str]) -> str | None:
    """The option of a Python function that is a synonym of the name, or spelled like it.

    ``names``: accepted names -> option.

    Example
    -------
    >>> names = {"rate": "rate", "workload": "workload"}
    >>> nearest_option("qps", names), nearest_option("isl", names)
    ('rate', 'workload="1024x256"')
    """
    flag = f"--{name.replace('_', '-')}"
    options = {f"--{one.replace('_', '-')}": option for one, option in names.items()}
    side = "--prompt" if flag in PROMPT else "--output" if flag in OUTPUT else ""
    if side and "--workload" in options:
        return f'{options["--workload"]}="1024x256"'
    ours = side if side in options else our_flag(flag, options)
    ours = ours if ours in options else ALIKE.get(flag, ARGUMENTS.get(flag, flag))
    ours = ours if ours.startswith("--") else f"--{ours}"
    if ours in options or flag in SAME:  # a known synonym of another option is not a typo
        return options.get(ours)
    close = get_close_matches(name, names, n=1, cutoff=0.7)
    return names[close[0]] if close else None
