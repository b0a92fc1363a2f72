"""How does a call of the front door become a question, and what does its function show of itself?

Notebooks hold numbers of NumPy, durations, dictionaries and earlier answers; options are numbers,
text, paths, and lists of these.
"""

import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args

import numpy as np

from inferometer.api.answer import Answer
from inferometer.api.progress import called_as, command_line
from inferometer.api.python_words import (
    VERBS,
    answer_in_python,
    errors_in_python,
    in_python,
    own_flags,
    parameters_text,
    signature_of,
)
from inferometer.api.question import Field, by_field, fields_of, named_parts, names_of
from inferometer.api.simulate import Simulate
from inferometer.api.studies import CAPACITY, PREDICT, SIMULATE
from inferometer.errors import SpecError
from inferometer.inputs.option_names import engine_setting, nearest_option, of_the_server
from inferometer.inputs.synonyms import OUTPUT, PROMPT
from inferometer.report.page import Page

Function = TypeVar("Function", bound=Callable[..., object])
_STORED: Final = ("record", "run", "model_file")
"""Fields of answers that name what is stored: a run, a fit."""


def takes(
    question: type[Any],
    *,
    functions: Callable[[], Mapping[str, object]],
    of_servers: Callable[..., object] | None = None,
) -> Callable[[Function], Function]:
    """Give a function the options of a question: in its signature, its help and its errors.

    ``of_servers`` answers in its place where the first argument is a URL. ``functions`` gives the
    names of the front door.
    """

    def shown(function: Function) -> Function:
        name, first = function.__name__.strip("_"), positional_names(function)
        options_shown = signature_of(question, first)

        @wraps(function)
        def checked(*given: object, **options: object) -> object:
            if of_servers is not None and _is_url(next(iter(given), options.get(first[0]))):
                return of_servers(*given, **options)
            with called(name=name, question=question, functions=functions):
                check_given(function, given, options, options_shown)
                progress = {key: options.pop(key) for key in ("progress",) if key in options}
                named = dict(zip(first, given, strict=False))
                if twice := named.keys() & options.keys():
                    raise TypeError(f"{name}() got {' and '.join(twice)} twice")
                values = option_values(question, named | options)
                with called_as(words_of_call(name, question, values)):
                    return function(**values, **progress)

        checked.__signature__ = options_shown  # type: ignore[attr-defined]
        checked.__doc__ = parameters_text(
            question,
            about=inspect.cleandoc(function.__doc__ or ""),
            makes_grids=question in {verb.question for verb in (PREDICT, SIMULATE, CAPACITY)},
        )
        checked.question = question  # type: ignore[attr-defined]
        return cast("Function", checked)

    return shown


def called(
    *, name: str, question: type[Any], functions: Callable[[], Mapping[str, object]]
) -> AbstractContextManager[None]:
    """Translate the errors of a call into Python's words."""
    return errors_in_python(name, question, lambda: questions_of(functions()))


def questions_of(functions: Mapping[str, object]) -> dict[str, type[Any]]:
    """The question of each public function that ``takes`` one."""
    found = {
        name: getattr(one, "question", None)
        for name, one in functions.items()
        if inspect.isfunction(one) and not name.startswith("_")
    }
    return {name: question for name, question in found.items() if question is not None}


def pages_in_python(
    answer: Answer, functions: Callable[[], Mapping[str, object]]
) -> tuple[Page, ...]:
    """The pages of an answer as a caller in Python reads them: with keyword arguments and calls."""
    known = questions_of(functions())
    name = getattr(answer, "verb", None) or next(
        (one for one in known if type(answer) in _returned(functions()[one])), None
    )
    pages = answer.pages()
    if name not in known:
        return pages
    own = own_flags(known[name])
    return answer_in_python(pages, lambda text: in_python(text, own, known))


def _returned(function: object) -> tuple[object, ...]:
    hint: object = getattr(function, "__annotations__", {}).get("return")
    return get_args(hint) or (hint,)


def _is_url(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def dry_run_refused() -> SpecError:
    """The error for a dry run, with the command that prints it."""
    return SpecError(
        "a dry run prints, and has no answer",
        where="dry_run",
        try_=f"!{shlex.join(command_line())}",
    )


def option_values(question: type[Any], given: Mapping[str, object]) -> dict[str, object]:
    """The options that a caller gave, with values as the command line has them.

    Settings of an engine, such as ``enable_prefix_caching``, go to ``set``.

    Raises
    ------
    SpecError
        A value that no option takes, or an option of servers under load for a static batch.
    """
    names = names_of(question)
    fields = {field.name: field for field in fields_of(question)}
    values, settings = dict[str, object](), dict[str, object]()
    for name, value in of_the_server(given, names).items():
        setting = engine_setting(name) if "set" in fields and name not in names else None
        if setting is not None:
            settings[setting] = plain_value(name, value)
            continue
        ours = names.get(name)
        if ours is None and name in names_of(Simulate) and nearest_option(name, names) is None:
            raise SpecError(
                f"there is no option {name!r}",
                where=question.__name__,
                allowed="options of one static batch; a server's are those of simulate()",
                try_=f"im.simulate(model, {name}={value!r})",
            )
        values[name] = value if ours is None else plain_value(name, value, fields[ours])
    if settings:
        field = fields["set"]
        values["set"] = (*_as_words(field, values.get("set")), *_as_words(field, settings))
    return values


def _as_words(field: Field, value: object) -> tuple[object, ...]:
    if isinstance(value, Mapping):
        return tuple(named_parts(field, value))
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def plain_value(name: str, value: object, field: Field | None = None) -> object:
    """One value, or a list of them, as an option takes it.

    Raises
    ------
    SpecError
        A table in memory, where only its file is read; an answer whose run was not stored; a
        dictionary where an option has no names.

    Example
    -------
    >>> plain_value("slo", {"ttft": {"p95": timedelta(milliseconds=500)}, "tpot_p95": "50ms"})
    'ttft:p95<0.5s,tpot_p95<50ms'
    >>> plain_value("workload", {"prompt": (512, 2048), "output": 256})
    'prompt=512..2048,output=256'
    """
    if isinstance(value, type):  # numpy.float16 is a format
        return value.__name__
    if hasattr(value, "columns"):
        is_pandas = hasattr(value, "to_csv")
        write = "to_csv('trace.csv', index=False)" if is_pandas else "write_csv('trace.csv')"
        raise _in_memory(name, "a table", f"frame.{write}", "trace.csv")
    if isinstance(value, Answer):
        return _stored(name, value)
    if isinstance(value, np.timedelta64):
        return f"{value / np.timedelta64(1, 's'):.12g}s"
    if isinstance(value, timedelta):  # also pandas' Timedelta
        return f"{value.total_seconds():.12g}s"
    if isinstance(value, Mapping):
        return _mapping(name, value, field)
    as_list = getattr(value, "tolist", getattr(value, "to_list", None))
    if as_list is not None:  # an array of NumPy, or a column of pandas or polars
        value = as_list()
    if isinstance(value, Iterator | KeysView | ValuesView):
        value = list(value)
    return _listed(name, value, field) if isinstance(value, list | tuple) else value


def _listed(name: str, values: Iterable[object], field: Field | None) -> object:
    """The values; of one path for an option that takes one, the path."""
    values = list(values)
    if any(isinstance(one, Mapping) for one in values):
        rows = "pathlib.Path('trace.json').write_text(json.dumps(rows))"
        raise _in_memory(name, "a list of dicts", rows, "trace.json")
    listed = [plain_value(name, one) for one in values]
    takes_one = field is not None and field.kind is Path and not (field.is_many or field.is_axis)
    if takes_one and len(listed) != 1:
        raise SpecError(
            f"{name} is a list of {len(listed)} paths",
            where=name,
            allowed="one path; several runs: the folder that holds their folders",
        )
    return listed[0] if takes_one else listed


def _mapping(name: str, value: Mapping[Any, object], field: Field | None) -> object:
    if field is not None and field.is_many:
        return value
    if name == "speculative":  # vLLM's speculative_config
        return json.dumps(value)
    if name == "slo":
        return ",".join(_limits(value))
    if name == "workload":
        return _lengths(value)
    is_path = field is not None and field.kind is Path
    raise SpecError(
        f"{name} is a dict",
        where=name,
        allowed="the path of a file" if is_path else "one value, or a list of them for a grid",
    )


def _limits(slo: Mapping[Any, object]) -> Iterator[str]:
    """``{"ttft": {"p95": "500ms"}}``, ``{"ttft:p95": "500ms"}`` or ``{"ttft": "p95<500ms"}``."""
    for metric, limits in slo.items():
        each = limits if isinstance(limits, Mapping) else {None: limits}
        for statistic, limit in each.items():
            latency = str(metric if statistic is None else f"{metric}:{statistic}").rstrip("<= ")
            text = str(plain_value("slo", limit)).lstrip("<= ")
            yield f"{latency}:{text}" if "<" in text else f"{latency}<{text}"


def _lengths(workload: Mapping[Any, object]) -> str:
    """Lengths in tokens: ``{"prompt": 1024, "output": (64, 256)}``."""
    sides = {_side(str(name)): value for name, value in workload.items()}
    is_nested = any(isinstance(value, Mapping) for value in sides.values())
    if None in sides or is_nested or not {"prompt", "output"} <= sides.keys():
        raise SpecError(
            f"a workload of {', '.join(map(str, workload)) or 'nothing'}",
            where="workload",
            allowed="a dict of prompt, output and prefix, in tokens; the keys of a workload file are"
            " read from one (docs/workloads.md)",
            try_="pathlib.Path('traffic.json').write_text(json.dumps(workload)), then"
            " workload='traffic.json'",
        )
    return ",".join(f"{side}={_range(value)}" for side, value in sides.items())


def _side(name: str) -> str | None:
    flag = f"--{name.replace('_', '-')}"
    if name in {"prompt", "prefix"} or flag in PROMPT:
        return name if name == "prefix" else "prompt"
    return "output" if flag in OUTPUT else None


def _range(value: object) -> str:
    value = plain_value("workload", value)
    return "..".join(map(str, value)) if isinstance(value, list) else str(value)


def _in_memory(name: str, what: str, write: str, file: str) -> SpecError:
    return SpecError(
        f"{name} is {what} in memory",
        where=name,
        allowed="the path of a file",
        try_=f"{write}, then {name}={file!r}",
    )


def _stored(name: str, answer: Answer) -> str:
    """The folder or file of an answer, where a run or a fit is wanted."""
    kind = type(answer).__name__
    known = [getattr(answer, one) for one in _STORED if hasattr(answer, one)]
    if any(known):
        return str(next(filter(None, known)))
    raise SpecError(
        f"this {kind} is not stored",
        where=name,
        allowed="a path, or the answer of a run or a fit that was stored",
        try_="out='PATH' in the call that gave the answer, and here the same path",
    )


def words_of_call(name: str, question: type[Any], given: dict[str, object]) -> tuple[str, ...]:
    """The call as a command: its verb, arguments and flags."""
    values, words = by_field(question, given), list[str]()
    for field in sorted(fields_of(question), key=lambda one: not one.option.is_argument):
        value = values.get(field.name)
        if value is not None:
            words += _flags(field, value)
    return (VERBS.get(name, name), *words)


def _flags(field: Field, value: object) -> list[str]:
    yes, _, no = max(field.flags, key=len).partition("/")
    if isinstance(value, bool):
        return [yes] if value else [no] if no else []
    if isinstance(value, Mapping):
        value = named_parts(field, value)
    if isinstance(value, int | float) and field.option.metavar == "DURATION":
        value = f"{value:.12g}s"  # a command line wants the unit
    several = list(value) if isinstance(value, list | tuple | range) else [value]
    if not field.is_many:
        several = [",".join(map(str, several))]
    flag = [] if field.option.is_argument else [yes]
    return [word for one in several for word in (*flag, str(one))]


def positional_names(function: Callable[..., object]) -> list[str]:
    """The parameters of a function that may be given without their names."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]


def check_given(
    function: Callable[..., object],
    given: tuple[object, ...],
    named: Mapping[str, object],
    options: inspect.Signature,
) -> None:
    """Options have names: ``predict("llama-3.1-8b", "h100")`` is refused with what to write."""
    names = positional_names(function)
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    for name in names[len(given) :]:
        if name not in named and parameters[name].default is inspect.Parameter.empty:
            raise SpecError(
                f"{name} is missing",
                where=f"{function.__name__.strip('_')}()",
                allowed=f"{', '.join(names)} without a name, all else by name",
                try_=f"help(im.{function.__name__.strip('_')})",
            )
    if len(given) > len(names):
        first, beyond = ", ".join(map(repr, given[: len(names)])), given[len(names)]
        raise SpecError(
            f"{beyond!r} stands without the name of its option",
            where=f"{function.__name__}()",
            allowed=f"{', '.join(names)} without a name, all else by name",
            try_=(
                f"{function.__name__}({first}, hardware={beyond!r})"
                if "hardware" in options.parameters
                else None
            ),
        )
