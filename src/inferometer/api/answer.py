"""What every answer can do: as a dictionary, a table, a page of text, or in a notebook.

How an answer looks is known by another module, which is imported when it is shown: a program that
only computes does not wait for it.
"""

import csv
import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TextIO, TypeVar, cast

import duckdb
import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment

from inferometer.api.progress import printable
from inferometer.errors import EXIT_ANSWERED
from inferometer.inputs.objectives import percentile_name

if TYPE_CHECKING:
    from inferometer.report.page import Page

_PAGED_BY: Final[Mapping[str, str]] = {
    "PredictAnswer": "inferometer.api.predict_page:predict_page",
    "SimulateAnswer": "inferometer.api.simulate_page:simulate_page",
    "CapacityAnswer": "inferometer.api.decision_pages:capacity_page",
    "SizeAnswer": "inferometer.api.size_page:size_page",
    "WatchAnswer": "inferometer.api.watch_page:watch_pages",
    "DiagnoseAnswer": "inferometer.api.diagnose_page:diagnose_page",
    "StepsAnswer": "inferometer.api.diagnose_steps:steps_page",
    "TuneAnswer": "inferometer.api.tune_page:tune_page",
    "MeasuredTune": "inferometer.api.tune_page:measured_tune_page",
    "PlannedTune": "inferometer.api.tune_page:planned_page",
    "PresetAnswer": "inferometer.api.tune_page:preset_page",
    "ExploreAnswer": "inferometer.api.explore_page:answer_page",
    "ExplainAnswer": "inferometer.api.explain:explain_page",
    "TraceAnswer": "inferometer.api.explain_trace:trace_pages",
    "SpansAnswer": "inferometer.api.explain_spans:spans_page",
    "CountersAnswer": "inferometer.api.explain_trace:counters_page",
    "CompareAnswer": "inferometer.api.compare:compare_page",
    "ReportAnswer": "inferometer.api.report:report_page",
    "FitAnswer": "inferometer.api.fit:answer_page",
    "LoadAnswer": "inferometer.api.load:load_page",
    "MeasuredAnswer": "inferometer.api.measured:measured_page",
    "PlannedSweep": "inferometer.api.sweep:planned_page",
    "VerifyAnswer": "inferometer.api.verify:verify_page",
    "ShowAnswer": "inferometer.api.show:show_pages",
    "GridAnswer": "inferometer.api.grid_page:grid_page",
    "CatalogAnswer": "inferometer.api.catalog:catalog_page",
    "DoctorAnswer": "inferometer.api.machine:doctor_page",
    "EnginesAnswer": "inferometer.api.machine:engines_page",
    "QualityAnswer": "inferometer.api.quality_page:quality_page",
}
"""The function that makes the page of an answer, or its pages, as ``module:name``."""
_LINES_BY: Final[Mapping[str, str]] = {
    "ExportAnswer": "inferometer.api.export_run:export_text",
    "DeployAnswer": "inferometer.api.deploy:deploy_text",
    "ImportAnswer": "inferometer.api.import_results:import_text",
    "LedgerAnswer": "inferometer.api.ledger:whole_text",
    "TimelineAnswer": "inferometer.api.timeline:slots_text",
}
"""The function that makes the text of an answer that has no page."""
_COLUMNS: Final = 110
_INPUTS: Final = frozenset({"datasheet.scenario"})
"""Columns of the question in an answer of one row, which has hundreds of columns."""


class Answer:
    """An answer to a question; its fields are what ``--json`` prints."""

    __slots__ = ()

    table: ClassVar[str | None] = None
    """The field that is the main table, with dots into records; None: the answer is one row.

    Subclasses set it without an annotation: of a class with ``__getattr__`` msgspec would write it
    as a field.
    """

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 -- of any class
        """Let no dataclass print its fields instead: they are hundreds of lines."""
        super().__init_subclass__(**options)
        cls.__repr__ = Answer.__repr__  # type: ignore[method-assign]

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0, or that of its verdict."""
        return EXIT_ANSWERED

    @property
    def has_pages(self) -> bool:
        """Else there are only lines to read."""
        return type(self).__name__ in _PAGED_BY

    def to_dict(self) -> dict[str, Any]:
        """The answer as ``--json`` prints it: plain dictionaries, lists, numbers and text.

        JSON has no infinity: the upper end of a lower bound is None.
        """
        return cast("dict[str, Any]", _finite(msgspec.to_builtins(self)))

    def rows(self) -> list[dict[str, Any]]:
        """The main table of the answer: one dictionary of numbers and text for each row.

        Records in records become columns with a dot: ``likely.value``. Where the table is empty
        the answer itself is the one row.
        """
        rows = [] if self.table is None else self.rows_of(self.table)
        return rows or [dict(_flat(msgspec.to_builtins(self)))]

    def rows_of(self, table: str) -> list[dict[str, Any]]:
        """The rows of one of its tables, by the name of its field, with dots into records and lists."""
        rows: Any = msgspec.to_builtins(self)
        for name in table.split("."):
            rows = rows[int(name)] if isinstance(rows, list | tuple) else rows[name]
        return [dict(_flat(row)) for row in rows]

    def to_csv(self) -> str:
        """The main table as comma-separated values, under one line of names."""
        rows = self.rows()
        text = StringIO()
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_arrow(self) -> duckdb.DuckDBPyRelation:
        """The main table as an object of Arrow's C stream interface (``__arrow_c_stream__``).

        pyarrow, pandas 3, polars and others take it as it is: ``pyarrow.table(answer.to_arrow())``.
        """
        database = duckdb.connect()
        database.register("rows_of_answer", _columns(self.rows()))
        return database.sql("SELECT * FROM rows_of_answer")

    def to_frame(self) -> Any:  # noqa: ANN401 -- of whichever library is installed
        """The main table as a DataFrame of pandas, else of polars, else as Arrow."""
        rows = self.rows()
        for library in ("pandas", "polars"):
            if importlib.util.find_spec(library) is not None:
                return importlib.import_module(library).DataFrame(rows)
        return self.to_arrow()

    def pages(self) -> "tuple[Page, ...]":
        """Pages of the answer; one for each of several runs of requests."""
        made = cast("Page | tuple[Page, ...]", _called(_PAGED_BY, self))
        return made if isinstance(made, tuple) else (made,)

    def report(self, path: Path | str) -> None:
        """Write the answer as one offline HTML file, as the command's ``--report`` does."""
        html = importlib.import_module("inferometer.report.html")
        page = importlib.import_module("inferometer.report.page")
        html.write_page(page.joined(self.pages()), Path(path))

    def save_page(self, path: Path | str) -> None:
        """``report``, by its earlier name."""
        self.report(path)

    def drawn(self, *, is_verbose: bool = False) -> RenderableType:
        """The pages for a terminal: their first screens, or all of them; else its lines."""
        if not self.has_pages:
            return cast("RenderableType", _called(_LINES_BY, self))
        terminal = importlib.import_module("inferometer.report.terminal")
        return Group(*(terminal.page_text(page, is_verbose=is_verbose) for page in self.pages()))

    def _drawn_in_python(self) -> RenderableType:
        if not self.has_pages:
            return self.drawn(is_verbose=True)
        terminal = importlib.import_module("inferometer.report.terminal")
        pages = importlib.import_module("inferometer.api.front").worded(self)
        return Group(*(terminal.page_text(page, is_verbose=True) for page in pages))

    if not TYPE_CHECKING:  # type checkers know the fields

        def __getattr__(self, name: str) -> object:
            """Refuse a name that is no field, with the numbers of the answer that it may mean."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(_no_field(self, name))

    def __repr__(self) -> str:
        """Its title; ``print`` shows it in full, and ``dir`` its fields."""
        title = self.pages()[0].title if self.has_pages else str(self).partition("\n")[0]
        return f"<{type(self).__name__}: {title}>"

    def __str__(self) -> str:
        """The answer in words and tables, with keyword arguments for a command's flags."""
        console = SafeConsole(width=_COLUMNS, file=StringIO())
        with console.capture() as captured:
            console.print(self._drawn_in_python(), crop=False)
        return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))

    def _repr_html_(self) -> str:
        """The answer in words and tables for a notebook, in colour."""
        console = SafeConsole(width=_COLUMNS, file=StringIO(), record=True)
        console.print(self._drawn_in_python(), crop=False)
        return console.export_html(inline_styles=True, code_format=_HTML)


def _no_field(answer: Answer, name: str) -> str:
    """The error for a name that is no field, with what it may mean, as a program gets it."""
    wanted = _words_of(name)
    own = {key: f"answer.{key}" for key, _ in _flat(msgspec.to_builtins(answer))}
    rows = {}
    if answer.table is not None:
        rows = {key: f'answer.rows()[0]["{key}"]' for key in answer.rows()[0]}
    known = {
        key: how
        for key, how in (rows | own).items()
        if not (key.endswith(_BESIDE_A_NUMBER) or ("is_" in key and "is" not in wanted))
    }

    def distance(key: str) -> tuple[int, int, int]:
        words = _words_of(key)
        return len(wanted - words), len(words - wanted), key.count(".")

    n_alike = max((len(wanted) + 1) // 2, 1)
    alike = [key for key in known if len(wanted & _words_of(key)) >= n_alike]
    alike.sort(key=distance)
    near = [known[key] for key in alike[:_N_NEAREST] if distance(key)[0] == distance(alike[0])[0]]
    names = [one for one in dir(answer) if not one.startswith("_")]
    near = near or [f"answer.{one}" for one in get_close_matches(name, names, cutoff=0.75)]
    what = f"{type(answer).__name__} has no {name!r}"
    if near:
        return f"{what}; try {' or '.join(near)}"
    return f"{what}; it has {', '.join(names)}; answer.to_dict() shows what is in them"


_N_NEAREST: Final = 3
_BESIDE_A_NUMBER: Final = (
    ".low", ".high", ".confidence_fraction", ".n_samples", ".method", ".is_lower_bound",
    ".why", ".weakest", ".n_needed",
)  # fmt: skip
_UNITS: Final = frozenset({"s", "ms", "sec", "seconds", "value", "in", "of", "n", "num", ""})
_RATE: Final = re.compile(r"per_(?:s|sec|second)(?![a-z])")
_OTHER_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "throughput": ("output", "tokens", "rate"),
    "tps": ("tokens", "rate"),
    "itl": ("tpot",),
    "latency": ("e2e",),
    "qps": ("requests", "rate"),
    "rps": ("requests", "rate"),
    "load": ("load", "rate", "requests"),
    "located": ("located", "max", "capacity"),
    "cost": ("usd",),
    "price": ("usd",),
    "gpus": ("devices",),
    "avg": ("mean",),
    "average": ("mean",),
    "median": ("p50",),
}


def _words_of(name: str) -> frozenset[str]:
    """The words of a name without units, under the names that numbers have here."""
    plain = _RATE.sub("rate", name.lower())
    words = (word for word in re.split(r"[^a-z0-9]+", plain) if word not in _UNITS)
    return frozenset(one for word in words for one in _OTHER_WORDS.get(word, (word,)))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Row = TypeVar("Row")


def row_of(kind: type[Row], *sources: object, **own: object) -> Row:
    """The row with its ``own`` fields; each other one is that of the only source with this name.

    Raises
    ------
    TypeError
        No source has a field, or several have it.

    Example
    -------
    >>> from inferometer.inputs.types import Caution
    >>> row_of(Caution, Caution(code="A", text="b", remedy="c"), text="of the row").text
    'of the row'
    """
    values: dict[str, Any] = dict(own)
    for name in (one.name for one in fields(kind) if one.name not in own):  # type: ignore[arg-type]
        found = [one for one in sources if hasattr(one, name)]
        if len(found) != 1:
            raise TypeError(f"{len(found)} of the sources of {kind.__name__} have {name}")
        values[name] = getattr(found[0], name)
    return kind(**values)


def _called(functions: Mapping[str, str], answer: Answer) -> object:
    module, _, name = functions[type(answer).__name__].partition(":")
    made: object = getattr(importlib.import_module(module), name)(answer)
    return made


A = TypeVar("A", bound=Answer)


class Paged(NamedTuple, Generic[A]):
    """An answer, and its pages where they show more than it holds."""

    answer: A
    pages: "tuple[Page, ...]"
    then: Callable[[], None] | None = None
    """Called once the answer is printed."""


T = TypeVar("T")


class Lines(NamedTuple, Generic[T]):
    """An answer that is printed as lines, without a page."""

    answer: T
    text: RenderableType


_HTML: Final = '<pre style="line-height:normal;overflow-x:auto">{code}</pre>'


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a record and of the records in it; lists but latencies are left out."""
    for name, value in row.items():
        if before + name in _INPUTS:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif name == "latencies" and all({"mean", "percentiles"} <= one.keys() for one in value):
            yield from _flat(_by_metric(value), before)
        elif not isinstance(value, list | tuple):
            yield before + name, value


def _by_metric(latencies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and percentiles of a ``RequestSummary`` by the name of their metric: ``ttft_p95_s``."""
    return {
        f"{one['latency']}_{name}_s": number["seconds"]
        | {"is_lower_bound": number["is_lower_bound"]}
        for one in latencies
        for name, number in (
            *((("mean", one["mean"]),) if one["mean"] else ()),
            *((percentile_name(p["percentile_fraction"]), p) for p in one["percentiles"]),
        )
    }


def _columns(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """The columns of these rows: numbers with NaN where there is none, else objects."""
    columns = dict[str, NDArray[Any]]()
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        known = [value for value in values if value is not None]
        are_numbers = all(isinstance(value, int | float) for value in known)
        if known and are_numbers and not any(isinstance(value, bool) for value in known):
            is_whole = len(known) == len(values) and all(isinstance(one, int) for one in known)
            columns[name] = np.array(
                [np.nan if value is None else value for value in values],
                dtype=np.int64 if is_whole else np.float64,
            )
        else:
            columns[name] = np.array(values, dtype=object)
    return columns


class SafeConsole(Console):
    """A console on which only rich itself drives the terminal: names are no markup, no emoji, no escape sequences."""

    def __init__(
        self, *, file: TextIO | None = None, width: int | None = None, record: bool = False
    ) -> None:
        super().__init__(
            file=file,
            width=width,
            record=record,
            highlight=False,
            markup=False,
            emoji=False,
            # in a notebook rich would display what is drawn, beside the text that is wanted
            force_jupyter=False,
            # FORCE_COLOR is for terminals: a text in memory has no colours
            force_terminal=False if isinstance(file, StringIO) else None,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of anything drawn, their text printable.

        Those with which rich moves the cursor hold no text of others.
        """
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
