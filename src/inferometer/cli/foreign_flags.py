"""What do other tools' flags mean here, and is each of ours given once, with a value?

A flag of vLLM, SGLang, TensorRT-LLM, AIPerf, GuideLLM or inference-perf that means exactly one of
ours is taken as ours; one whose values are written in another way is answered with ours.
"""

import shlex
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

import click

from inferometer import suggestions
from inferometer.cli.terminal import talk
from inferometer.errors import SpecError
from inferometer.inputs.option_names import number_of_devices
from inferometer.inputs.serve_command import in_quotes, read_benchmark_command, read_serve_command
from inferometer.inputs.synonyms import (
    A_FILE_ELSEWHERE,
    ALIKE,
    ARGUMENTS,
    ENDPOINTS,
    ENGINE_SETTINGS,
    ENGINE_SWITCHES,
    FIRST_WORDS,
    OUTPUT,
    PROMPT,
    SAME,
    SWEPT,
    counted_devices,
    our_flag,
)

_SWITCHES: Final = {f"--{name.replace('_', '-')}": f"{name}=true" for name in ENGINE_SWITCHES} | {
    f"--no-{name.replace('_', '-')}": f"{name}=false"
    for name in ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
}

_SPECULATION: Final = (
    "--speculative",
    "--speculative-config",
    "--speculative-algorithm",
    "--speculative-algo",
)
_LISTS: Final = ("slo", "gpus")
"""Options of a list: two flags of it are two parts, and neither may be lost."""
_NAMED: Final = "NAME=VALUE"
_DRAFTS: Final = "--speculative eagle:3 (ngram, medusa, mtp, or a draft model)"
"""How to write speculation."""

_DATASET: Final = "--dataset-name"
_NO_FILE: Final = "random"
"""Name of a data set whose lengths other flags give."""
_LENGTHS: Final = "--workload prompt=512..2048,output=256"
_ALWAYS: Final = "leave it out: p50 to p99 of each latency are in the answer"
_FOUND: Final = "leave it out: the end of the warm-up is found in the run"
_WITHOUT: Final = "leave it out: it has no effect here"
_NO_LORA: Final = "leave it out: LoRA adapters are not simulated; they make steps longer"
_NO_OFFLOAD: Final = "leave it out: KV caches beyond the device's memory are not simulated"
_INSTEAD: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(("--percentile-metrics", "--metric-percentiles"), ("--workload", _ALWAYS)),
    **dict.fromkeys(
        ("--rate-type", "--profile", "--arrival-pattern", "--request-rate-mode"),
        ("--rate", "--rate 5 (Poisson; --burstiness X for other gaps) or --concurrency 8"),
    ),
    **dict.fromkeys(
        (
            "--random-range-ratio",
            "--synthetic-input-tokens-stddev",
            "--output-tokens-stddev",
            "--isl-stddev",
            "--osl-stddev",
        ),
        ("--workload", _LENGTHS),
    ),
    **dict.fromkeys(
        ("--random-prefix-len", "--prefix-len", "--shared-system-prompt-length"),
        ("--workload", "--workload prompt=1024,output=256,prefix=512"),
    ),
    **dict.fromkeys(
        ("--num-warmups", "--warmup-request-count", "--warmup-percent"), ("--stream", _FOUND)
    ),
    "--ignore-eos": ("--respect-eos", "leave it out: the default; --respect-eos is the opposite"),
    **dict.fromkeys(("--result-filename", "--output-file"), ("--export", "--export vllm-bench")),
    "--temperature": ("--body", "--body temperature=0"),
    **dict.fromkeys(
        (
            "--disable-tqdm",
            "--trust-remote-code",
            "--ui",
            "--service-kind",
            "--ready-check-timeout-sec",
        ),
        ("--stream", _WITHOUT),
    ),
    **dict.fromkeys(
        ("--context", "--ctx", "--context-length", "--max-model-len", "--max-context"),
        ("--prompt", "--prompt 32k: with --output it is the context"),
    ),
    "--workload": (
        "--prompt",
        "--prompt 1024 --output 256; traffic: inferometer simulate MODEL --hardware ID --workload chat",
    ),
    **dict.fromkeys(
        ("--energy", "--power", "--cost"),
        ("--what-if", "leave it out: energy and cost are in the answer (--verbose, --json)"),
    ),
    **dict.fromkeys(
        ("--price", "--gpu-price", "--price-per-hour", "--cost-per-hour"),
        ("--usd-per-hour", "--usd-per-hour 2.5, the price of one device"),
    ),
    **dict.fromkeys(
        ("--lora", "--loras", "--enable-lora", "--max-loras"), ("--replicas", _NO_LORA)
    ),
    **dict.fromkeys(
        ("--kv-offload", "--kv-offloading", "--kv-offloading-size", "--kv-cache-offload"),
        ("--replicas", _NO_OFFLOAD),
    ),
    **dict.fromkeys(
        ("--enable-dp-attention", "--dp-attention", "--attention-dp", "--enable-attention-dp"),
        ("--data-parallel-size", "--data-parallel-size 8 --tp 1: 8 ranks of one device each"),
    ),
    **dict.fromkeys(
        ("--prefix-caching", "--prefix-cache", "--cache-hit-rate", "--prefix-hit-rate"),
        (
            "--workload",
            "--workload prompt=1024,output=256,prefix=512: prompts that begin alike; the cache is on",
        ),
    ),
    **dict.fromkeys(
        ("--turns", "--num-turns", "--multi-turn", "--sessions", "--conversations"),
        (
            "--workload",
            "--workload with a file of sessions (docs/workloads.md), or a trace of chats",
        ),
    ),
    **dict.fromkeys(
        ("--within", "--deadline", "--makespan"),
        ("--slo", "--rate 1M/8h --slo 'e2e:p95<1h': a job for which nobody waits"),
    ),
    **dict.fromkeys(
        ("--budget", "--max-cost", "--max-price"),
        ("--total-gpus", "leave it out: the least cost is the answer; --total-gpus N bounds it"),
    ),
    "--time-limit": (
        "--probe-for",
        "--max-probes 10 --probe-for 60s: at most 10 tests of 60 s each",
    ),
    "--goodput": ("--slo", "--slo 'ttft:p95<500ms, tpot:p95<50ms'"),
    "--port": ("--stream", "the URL with its port: http://127.0.0.1:8000"),
}
"""Flag of a benchmark: a flag that a verb has where the remedy holds, and the remedy."""


def in_our_words(words: Sequence[str], command: click.Command) -> list[str]:
    """The command line with other tools' flags translated to ours.

    Raises
    ------
    SpecError
        A length of prompts without one of answers, or lengths beside a workload.
    """
    own = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    arguments = {one.name for one in command.params if isinstance(one, click.Argument)}
    words = in_quotes(words, own) if tuple(words[:2]) in FIRST_WORDS else words
    words = _of_a_benchmark(words, own, arguments)
    if "model" in arguments:
        words = _taken_apart(words, own, command)
    words = _as_settings(_of_benchmarks(_hyphenated(words, own), own), own)
    if words and not words[0].startswith("-") and not arguments and "--model" in own:
        words = ["--model", *words]  # `sweep MODEL`, as `quick MODEL`
    ended = list(words).index("--") if "--" in words else len(words)
    written, lengths, flag_before = list[str](), dict[str, tuple[str, str]](), ""
    for word in words[:ended]:
        flag, equals, value = word.partition("=")
        is_word_of_ours = flag in own or flag == A_FILE_ELSEWHERE
        side = "" if is_word_of_ours and not _is_half(flag, words, own) else _side(flag, own)
        if flag_before:
            _set_length(lengths, _side(flag_before, own), flag_before, word)
            flag_before = ""
        elif side and equals:
            _set_length(lengths, side, flag, value)
        elif side:
            flag_before = flag
        elif flag not in own and ARGUMENTS.get(flag) in arguments:
            written.extend([value] if equals else [])
        else:
            is_foreign = flag.startswith("-") and flag not in own
            written.append((our_flag(flag, own) if is_foreign else flag) + equals + value)
    if flag_before:
        written.append(flag_before)
    written = _infinite_rate_as_closed_loop(_counted_devices(written, own), own)
    return [*_in_seconds(written, words), *_workload(lengths, own, words), *words[ended:]]


def _of_a_benchmark(
    words: Sequence[str], own: set[str], arguments: Collection[str | None]
) -> list[str]:
    """A benchmark's command as its flags; without its model and URL where these are given."""
    written = list[str]()
    for before, word in pairwise(["", *words]):
        is_text = " " in word and not before.startswith("-")
        flags = read_benchmark_command(word, sends="url" in arguments) if is_text else None
        is_first = words[0] == word or words[0].startswith("-")
        for flag, value in flags or ():
            if is_first or flag in own or ARGUMENTS.get(flag) not in arguments:
                written += [flag] if value is None else [flag, value]
        written += [word] if flags is None else []
    return written


def _taken_apart(words: Sequence[str], own: set[str], verb: click.Command) -> list[str]:
    """A server's start command, in MODEL's place, as the model and the flags of the server.

    Raises
    ------
    SpecError
        It has a flag that makes steps longer or shorter in a way that is unknown here.
    """
    known = own.union(SAME, _SWITCHES, ENGINE_SETTINGS, _SPECULATION)
    options = [one for one in verb.params if isinstance(one, click.Option) and one.is_flag]
    switches = {flag for one in options for flag in (*one.opts, *one.secondary_opts)}
    written = list[str]()
    for before, word in pairwise(["", *words]):
        is_value = before.startswith("-") and "=" not in before and before not in switches
        command = read_serve_command(word) if " " in word and not is_value else None
        if command is None:
            written.append(word)
            continue
        if unknown := [one for one in command.flags if one[0] not in known]:
            raise _no_meaning(unknown, word, verb)
        engine = next((flag for flag in ("--policy", "--engine") if flag in own), None)
        written += [command.model, *([engine, command.engine] if engine is not None else [])]
        written += [part for one in command.flags for part in one if part is not None]
        if command.remark:
            talk(command.remark)
    return written


def _no_meaning(
    unknown: Sequence[tuple[str, str | None]], text: str, verb: click.Command
) -> SpecError:
    """The error for flags of a server that make steps longer or shorter in an unknown way."""
    left_out, words = dict(unknown), shlex.split(text)
    rest = list[str]()
    for before, word in pairwise(["", *words]):
        flag = word.partition("=")[0].replace("_", "-")
        is_value = left_out.get(before.replace("_", "-")) == word
        if flag not in left_out and not is_value:
            rest.append(word)
    names = ", ".join(dict.fromkeys(flag for flag, _ in unknown))
    return SpecError(
        f"{names} of the server's command {'has' if len(unknown) == 1 else 'have'} no meaning here",
        where="MODEL",
        allowed="flags of its scheduler, memory, formats and devices",
        try_=suggestions.command(verb.name or "", shlex.join(rest)),
    )


def _hyphenated(words: Sequence[str], own: set[str]) -> list[str]:
    """Flags with hyphens for those with underscores, as vLLM reads them; values stay."""
    known = own.union(
        SAME, ARGUMENTS, ALIKE, _SWITCHES, ENGINE_SETTINGS, _SPECULATION, PROMPT, OUTPUT, SWEPT
    )
    ended = list(words).index("--") if "--" in words else len(words)
    written = list[str]()
    for word in words[:ended]:
        flag, equals, value = word.partition("=")
        hyphenated = flag.replace("_", "-")
        is_flag = flag.startswith("--") and hyphenated in known
        written.append(hyphenated + equals + value if is_flag else word)
    return [*written, *words[ended:]]


def _of_benchmarks(words: Sequence[str], own: set[str]) -> list[str]:
    """Benchmarks' names of endpoints and of data sets as ours.

    A name beside a file is left out: the format is found in the file. So is that of random
    lengths, which other flags give.
    """
    ended = list(words).index("--") if "--" in words else len(words)
    left, written = list(words[:ended]), list[str]()
    flags = [word.partition("=")[0] for word in left]
    has_file = not {"--dataset-path", "--input-file", "--data"}.isdisjoint(flags)
    has_lengths = any(_side(flag, own) for flag in flags)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        is_endpoint = our_flag(flag, own) == "--endpoint" and "--endpoint" in own
        is_dataset = flag == _DATASET and "--workload" in own
        if not (is_endpoint or is_dataset) or not (equals or left):
            written.append(word)
            continue
        value = value if equals else left.pop(0)
        if is_endpoint:
            written += [flag, ENDPOINTS.get(value, value)]
        elif not has_file and not (has_lengths and value == _NO_FILE):
            written += ["--workload", value]
    return [*written, *words[ended:]]


def _as_settings(words: Sequence[str], own: set[str]) -> list[str]:
    """Flags of an engine as ``--set NAME=VALUE``, where the verb has it and no flag of that name."""
    ended = list(words).index("--") if "--" in words else len(words)
    if "--set" not in own:
        return list(words)
    written, name = list[str](), ""
    for word in words[:ended]:
        flag, equals, value = word.partition("=")
        is_engines = flag not in own and not name
        if name:
            written.append(f"{name}={word}")
            name = ""
        elif is_engines and word in _SWITCHES:
            written += ["--set", _SWITCHES[word]]
        elif is_engines and flag in ENGINE_SETTINGS:
            name = "" if equals else ENGINE_SETTINGS[flag]
            written += ["--set", *([f"{ENGINE_SETTINGS[flag]}={value}"] if equals else [])]
        else:
            written.append(word)
    return [*written, *words[ended:]]


def _counted_devices(words: Sequence[str], own: set[str]) -> list[str]:
    """Split `8xH100` into device and number, where the words have one meaning for the number.

    ``predict`` is of one replica (``--tp``), ``size`` of all devices (``--total-gpus``). Elsewhere
    eight devices are one replica or eight, unless ``--tp`` or ``--replicas`` is given: the refusal
    of the name says which flags tell them apart.
    """
    named = "--gpus" if "--gpus" in own else "--hardware"
    written = list[str]()
    for word in words:
        flag, equals, value = word.partition("=")
        is_apart = not equals and bool(written) and written[-1] == named
        device = word if is_apart else value if flag == named else ""
        counted = counted_devices(device) if device else None
        number = [] if counted is None else _number_of(counted[0], words, own)
        if counted is None or not number:
            written.append(word)
        else:
            written += [counted[1] if is_apart else f"{named}={counted[1]}", *number]
    return written


def _number_of(n: int, words: Sequence[str], own: set[str]) -> list[str]:
    """The flag, and its value, that make ``n`` devices; none where it could be several."""
    names, given = {_name_of(flag) for flag in own}, dict[str, object]()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            given[_name_of(flag)] = value if equals else following
    found = number_of_devices(n, names, given)
    return [part for name, n in found.items() for part in (f"--{name.replace('_', '-')}", str(n))]


def _name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _infinite_rate_as_closed_loop(words: Sequence[str], own: set[str]) -> list[str]:
    """Translate vLLM bench's rate `inf` into a closed loop of all requests.

    A cap of the concurrency decides alone; without one all requests are in flight.
    """
    if not {"--rate", "--requests", "--concurrency"} <= own:
        return list(words)
    kept, values = list[str](), dict[str, str]()
    is_value_of = ""
    for word in words:
        flag, equals, value = word.partition("=")
        values |= {is_value_of: word} if is_value_of else {flag: value} if equals else {}
        if "--rate" not in {is_value_of, flag}:
            kept.append(word)
        is_value_of = flag if flag in own and not equals else ""
    if values.get("--rate", "").lower() not in {"inf", "infinity"}:
        return list(words)
    if {"--concurrency", "--max-concurrency"} & values.keys():
        return kept
    return [*kept, "--concurrency", values["--requests"]] if "--requests" in values else list(words)


def _is_half(flag: str, words: Sequence[str], own: set[str]) -> bool:
    """Is this flag of ours one of a pair of lengths, with another tool's flag for the other?"""
    others = {*PROMPT} - own
    return flag in OUTPUT and any(word.partition("=")[0] in others for word in words)


def _side(flag: str, own: set[str]) -> str:
    """The length that this flag sets; '' where it sets none, or the verb has no workload."""
    if not {"--workload"} & own and not {"--prompt", "--output"} <= own:
        return ""
    return "prompt" if flag in PROMPT else "output" if flag in OUTPUT else ""


def _set_length(lengths: dict[str, tuple[str, str]], side: str, flag: str, value: str) -> None:
    """Set one of the two lengths; of several values the last counts."""
    before, length = lengths.get(side, (flag, value))
    if length != value:
        talk(f"{before} {length}, {flag} {value} are one option; the last one counts")
    lengths[side] = (flag, value)


def _workload(
    lengths: dict[str, tuple[str, str]], own: set[str], words: Sequence[str]
) -> list[str]:
    if not lengths:
        return []
    if "--workload" not in own:
        return [part for side, (_, value) in lengths.items() for part in (f"--{side}", value)]
    flags = ", ".join(flag for flag, _ in lengths.values())
    if any(word.partition("=")[0] == "--workload" for word in words):
        raise SpecError(
            f"{flags} beside --workload, which has lengths",
            where=flags,
            allowed="one of them",
            try_="the same command without --workload",
        )
    if len(lengths) < len(("prompt", "output")):
        raise SpecError(
            f"{flags} gives only one of the two lengths",
            where=flags,
            allowed="both, as --workload PROMPTxOUTPUT",
            try_="--workload 1024x256",
        )
    prompts, outputs = (lengths[side][1].split(",") for side in ("prompt", "output"))
    return ["--workload", ",".join(f"{one}x{other}" for one in prompts for other in outputs)]


def _in_seconds(written: Sequence[str], words: Sequence[str]) -> list[str]:
    """Other tools' durations are bare numbers of seconds."""
    if "--for" in {word.partition("=")[0] for word in words}:
        return list(written)
    changed = list[str]()
    for word in written:
        flag, _, value = word.partition("=")
        is_time = flag == "--for" or (bool(changed) and changed[-1] == "--for")
        is_bare = is_time and (value if flag == "--for" else word).replace(".", "", 1).isdigit()
        changed.append(f"{word}s" if is_bare else word)
    return changed


def check_given(words: Sequence[str], command: click.Command) -> None:
    """Refuse or name what click takes in silence: lost values, and a flag in a value's place.

    Raises
    ------
    SpecError
        Parts of a list are given by several flags, or another flag follows one that takes a value.
    """
    own = {
        flag: one
        for one in command.params
        if isinstance(one, click.Option)
        for flag in (*one.opts, *one.secondary_opts)
    }
    ended = list(words).index("--") if "--" in words else len(words)
    given, flag_before, switch = dict[str, list[tuple[str, str]]](), "", ""
    arguments = [one.nargs for one in command.params if isinstance(one, click.Argument)]
    n_free = ended if -1 in arguments else sum(arguments)
    for word in words[:ended]:
        flag, equals, value = word.partition("=")
        if not flag_before and not word.startswith("-"):
            n_free -= 1
            if switch and n_free < 0:
                raise _no_value(switch, word, command)
        is_switch = flag in own and own[flag].is_flag
        switch = flag if is_switch and not flag.startswith("--no-") else ""
        if flag_before and word.startswith("--") and flag in own:
            raise SpecError(
                f"{flag_before} has no value: {flag} follows it",
                where=f"inferometer {command.name}",
                try_=suggestions.command(command.name or "", "--help"),
            )
        if flag_before:
            given.setdefault(own[flag_before].name or "", []).append((flag_before, word))
        elif (equals or is_switch) and flag in own:
            given.setdefault(own[flag].name or "", []).append((flag, value))
        takes_value = flag in own and not is_switch
        flag_before = flag if takes_value and not equals and not flag_before else ""
    for each in given.values():
        option = own[each[0][0]]
        if option.metavar == _NAMED and option.multiple:
            _settings_once(each)
        elif not option.multiple and _meanings(option, each) > 1:
            _several(option, each, command)


def _no_value(switch: str, word: str, command: click.Command) -> SpecError:
    """The error for a switch with a word after it, such as a file for what is printed."""
    printed = switch in {"--csv", "--json"}
    return SpecError(
        f"{switch} takes no value, and {word!r} follows it",
        where=f"inferometer {command.name}",
        allowed=f"{switch} alone; it prints, so its file is written by > FILE"
        if printed
        else switch,
        try_=f"{switch} > {shlex.quote(word)}" if printed else switch,
    )


def _settings_once(given: Sequence[tuple[str, str]]) -> None:
    """Name settings that have two values; the last one counts."""
    values = dict[str, tuple[str, str]]()
    for flag, setting in given:
        name, _, value = setting.partition("=")
        before = values.get(name.strip())
        if before is not None and before[1] != value:
            talk(
                f"{before[0]} {name}={before[1]}, {flag} {setting} are one setting; the last one counts"
            )
        values[name.strip()] = (flag, value)


def _meanings(option: click.Option, given: Sequence[tuple[str, str]]) -> int:
    """Number of different values that these flags give the option; a switch is on or off."""
    return len({flag in option.opts if option.is_flag else value for flag, value in given})


def _several(
    option: click.Option, given: Sequence[tuple[str, str]], command: click.Command
) -> None:
    """Refuse parts of one list; of other values the last counts, as it does in most tools."""
    names = list(dict.fromkeys(flag for flag, _ in given))
    flag, values = names[-1], [value for _, value in given]
    what = (
        f"{flag} is given {len(given)} times: {', '.join(values)}"
        if len(names) == 1
        else f"{', '.join(' '.join(filter(None, one)) for one in given)} are one option"
    )
    if option.name in _LISTS:
        raise SpecError(
            what,
            where=f"inferometer {command.name}",
            allowed=f"{flag} once, with commas between its parts",
            try_=suggestions.flags(flag, ", ".join(dict.fromkeys(values))),
        )
    each = f"; for each of them {flag} {','.join(values)}" * (option.type.name == "several")
    talk(f"{what}; the last one counts{each}")


def meant_by(name: str, context: click.Context | None) -> str | None:
    """The verb's name for a flag of another tool or verb.

    None where nothing of it is known, or the verb has none of that meaning.
    """
    arguments = (
        []
        if context is None
        else [one.name for one in context.command.params if isinstance(one, click.Argument)]
    )
    own = (
        set() if context is None else {flag for one in context.command.params for flag in one.opts}
    )
    if name in _SPECULATION and context is not None:
        return _DRAFTS if "--speculative" in own else None
    has_csv = context is not None and any("--csv" in one.opts for one in context.command.params)
    if has_csv and SAME.get(name, name) == "--out":
        return "--csv > FILE, --json > FILE, or a page: --report FILE"
    if SAME.get(name) == "--total-gpus":
        return " or ".join(flag for flag in ("--tp", "--replicas") if flag in own) or None
    if name in _INSTEAD and _INSTEAD[name][0] in own:
        return _INSTEAD[name][1]
    ours = name.strip("-") if name.strip("-") in arguments else (SAME | ALIKE).get(name)
    has_it = context is not None and any(
        ours in one.opts or ours == one.name for one in context.command.params
    )
    return (
        _of_simulate(name, context)
        if ours is None or not has_it
        else ours
        if ours.startswith("--")
        else f"{ours.upper()}, without a flag before it"
    )


def _of_simulate(name: str, context: click.Context | None) -> str | None:
    """The command for a flag of servers under a load, where ``predict`` has only a static batch."""
    app = None if context is None or context.info_name != "predict" else context.parent
    simulate = (
        app.command.get_command(app, "simulate")
        if app is not None and isinstance(app.command, click.Group)
        else None
    )
    known = {} if simulate is None else {flag: one for one in simulate.params for flag in one.opts}
    found = known.get(our_flag(name, known))
    if found is None:
        return None
    value = () if isinstance(found, click.Option) and found.is_flag else ("VALUE",)
    return suggestions.command("simulate", "MODEL", our_flag(name, known), *value)
