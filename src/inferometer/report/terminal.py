"""Answers on a terminal: at most 25 lines of 80 columns, or the whole.

Nothing here prints: renderables are returned. Readable without colour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from inferometer.errors import COMMAND
from inferometer.inputs.types import Caution
from inferometer.report.page import Number, Page, Section, Tone
from inferometer.report.tables import ABSENT_TEXT, TextTable
from inferometer.units import format_number

_LABEL: Final = 7
_GAP: Final = 2
_SHORT_CELL: Final = 24
_LEAST_COLUMNS: Final = 20
_BAR: Final = 22
_LEAST_BAR: Final = 10
_WIDE: Final = 1000
_ROOMS: Final = ((3, 2, 16), (3, 2, 12), (2, 2, 9), (2, 1, 7), (1, 1, 6), (1, 0, 5))
"""Lines of a sentence, cautions and rows of the table, until all of it has room."""
_FEWER_FINDINGS: Final = ((8, 2, 0, 8), (6, 2, 0, 6), (5, 2, 0, 6), (4, 2, 0, 5), (3, 2, 0, 5))
"""Findings, and the same: a few whole sentences tell more than the beginnings of all."""
_MOST_IN_FULL: Final = 3
_MORE: Final = " … --verbose"
MOST_LINES: Final = 25
_UNIT_LETTERS: Final = 6
_STYLES: Final[dict[Tone, str]] = {
    "good": "bold green",
    "bad": "bold red",
    "open": "bold yellow",
    "plain": "bold",
}


def page_text(page: Page, *, is_verbose: bool = False) -> RenderableType:
    """The first screen of the page; with ``is_verbose`` all of it."""
    if not is_verbose:
        return FirstScreen(page)
    sections = (part for section in page.sections for part in _section(section, page))
    return Group(
        *_first(page, most_lines=None, n_cautions=len(page.cautions), most_rows=None), *sections
    )


class FirstScreen:
    """The first screen, its sentences and cautions as long as all of it has room."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; rich calls this."""
        parts = Group()
        n_all = len(self._page.findings)
        rooms = [(n_all, *room) for room in _ROOMS]
        if n_all > _MOST_IN_FULL:
            rooms[4:] = [room for room in _FEWER_FINDINGS if room[0] < n_all]
        for n_findings, most_lines, n_cautions, n_rows in rooms:
            parts = Group(
                *_first(
                    _with_findings(self._page, n_findings),
                    most_lines=most_lines,
                    n_cautions=n_cautions,
                    most_rows=n_rows,
                )
            )
            lines = Segment.split_lines(console.render(parts, options))
            # a line that holds a command is not wrapped here, but by the terminal
            lengths = (sum(part.cell_length for part in line) for line in lines)
            if sum(max(-(-one // options.max_width), 1) for one in lengths) <= MOST_LINES:
                break
        yield parts


def _with_findings(page: Page, most: int) -> Page:
    """The page with its first findings, and how many more there are."""
    if len(page.findings) <= most:
        return page
    more = f"{len(page.findings) - most} more findings: --verbose"
    return replace(page, findings=(*page.findings[:most], more))


def _first(
    page: Page, *, most_lines: int | None, n_cautions: int, most_rows: int | None
) -> list[RenderableType]:
    """The parts of the first screen."""
    parts: list[RenderableType] = [Prose("", page.title, style="bold")]
    parts += [
        Prose(
            f"{chip.icon} ",
            chip.text,
            style=_STYLES[chip.tone],
            label_style=_STYLES[chip.tone],
            most_lines=most_lines,
        )
        for chip in page.chips
    ]
    parts += [Prose("", page.subtitle, style="dim", most_lines=1 if most_lines else None)]
    parts = parts if page.subtitle else parts[:-1]
    parts += [Prose("- ", finding, most_lines=most_lines) for finding in page.findings]
    parts += [_caution(caution, style="bold") for caution in page.lead_cautions]
    if page.numbers and not page.has_numbers_in_table:
        parts += [Text(""), numbers_text(page.numbers)]
    if page.table is not None:
        parts += [
            Text(""),
            WholeTable(page.table) if most_rows is None else BriefTable(page.table, most_rows),
        ]
    parts += [Text("")] if page.lines or page.cautions else []
    for line in page.lines:
        label = line.label.ljust(_LABEL)
        parts += [Prose(label, line.text, most_lines=most_lines)] if line.text else []
        if line.command:
            parts.append(Prose(" " * _LABEL if line.text else label, line.command))
    parts += [_caution(one, most_lines=most_lines) for one in page.cautions[:n_cautions]]
    n_more = len(page.cautions) - n_cautions
    return [*parts, Prose("CAUTION ", f"{n_more} more: --verbose")] if n_more > 0 else parts


class Prose:
    """A paragraph after a bold word, with hanging indent.

    A line that holds a command stays a single line, which the terminal itself wraps: a newline
    inside would break what is pasted.
    """

    def __init__(
        self,
        word: str,
        text: str,
        *,
        style: str = "",
        label_style: str = "bold",
        most_lines: int | None = None,
    ) -> None:
        self._word, self._text = word, text
        self._style, self._label_style = style, label_style
        self._most_lines = most_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; rich calls this."""
        text = Text(self._text, style=self._style)
        width = max(options.max_width - len(self._word), _LEAST_COLUMNS)
        parts = (
            [part] if COMMAND in part.plain else part.wrap(console, width, overflow="fold")
            for part in text.split("\n")
        )
        lines = [line for part in parts for line in part]
        if self._most_lines and len(lines) > self._most_lines and COMMAND not in self._text:
            del lines[self._most_lines :]
            lines[-1].truncate(width - len(_MORE))
            lines[-1].rstrip()
            lines[-1].append(_MORE)
        for index, line in enumerate(lines):
            word = self._word if index == 0 else " " * len(self._word)
            yield Text.assemble((word, self._label_style), line, no_wrap=True, overflow="ignore")


def numbers_text(numbers: tuple[Number, ...]) -> RenderableType:
    """A row for each number: interval, limit, and position on a bar."""
    return _Numbers(numbers)


class _Numbers:
    """Rows of numbers, with shorter bars where notes would not have room."""

    def __init__(self, numbers: tuple[Number, ...]) -> None:
        self._numbers = numbers

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw them; rich calls this."""
        table = _numbers_table(self._numbers, _BAR)
        has_note = any(number.note for number in self._numbers)
        beyond = console.measure(table, options=options.update_width(_WIDE)).maximum
        beyond -= options.max_width
        if has_note and beyond > 0:
            table = _numbers_table(self._numbers, max(_BAR - beyond, _LEAST_BAR))
        yield table


def _numbers_table(numbers: tuple[Number, ...], bar: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    has_interval = any(number.interval for number in numbers)
    has_limit = any(number.limit is not None for number in numbers)
    has_bar = any(number.places for number in numbers)
    has_note = any(number.note for number in numbers)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for is_there in (True, has_interval, has_limit, has_bar):
        if is_there:
            table.add_column(no_wrap=True)
    if has_note:
        table.add_column(overflow="fold")
    for number in numbers:
        limit = "" if number.limit is None else f"{number.limit_name} {format_number(number.limit)}"
        cells = (
            (f"  {number.name}", True),
            (Text(number.text, style="bold"), True),
            (number.unit, True),
            (number.interval, has_interval),
            (limit, has_limit),
            (_bar(number, bar), has_bar),
            (number.note, has_note),
        )
        table.add_row(*(cell for cell, is_there in cells if is_there))
    return table


class BriefTable:
    """The first rows of a table, or some of each block, in the columns that have room.

    Intervals go before columns do, and the last ones first.
    """

    def __init__(self, table: TextTable, most_rows: int) -> None:
        self._table, self._most_rows = table, most_rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; rich calls this."""
        table = self._table
        rows = tuple(table.rows[index] for index in _places(table, self._most_rows))
        if _width(table.header, rows) > options.max_width:
            rows = _without_last_intervals(table.header, rows, options.max_width)
        n_columns = len(table.header)
        while n_columns > 2 and _width(table.header[:n_columns], rows) > options.max_width:
            n_columns -= 1
        shown = TextTable(
            caption=table.caption,
            header=table.header[:n_columns],
            rows=tuple(row[:n_columns] for row in rows),
        )
        yield table_text(shown)
        left_out = (
            (len(table.rows) - len(rows), "row"),
            (len(table.header) - n_columns, "column"),
        )
        more = [f"{n} more {what}{'s' * (n > 1)}" for n, what in left_out if n]
        if more:
            yield Text(f"… {' and '.join(more)}: --verbose")


def _places(table: TextTable, most: int) -> list[int]:
    """Which rows have room: the first, or the same of each block, both ends of it first."""
    n_rows, n_in_block = len(table.rows), table.n_in_block
    if not n_in_block or n_rows <= most:
        return list(range(min(n_rows, most)))
    starts = range(0, n_rows, n_in_block)
    n_each = max(most // len(starts), 1)
    shown = [starts[place] for place in _spread(len(starts), most)]
    return [start + place for start in shown for place in _spread(n_in_block, n_each)]


def _spread(n_all: int, most: int) -> list[int]:
    """Up to ``most`` of ``n_all`` places, evenly; one alone is the last."""
    if n_all <= most:
        return list(range(n_all))
    if most == 1:
        return [n_all - 1]
    return [round(place * (n_all - 1) / (most - 1)) for place in range(most)]


def _without_last_intervals(
    header: Sequence[str], rows: Sequence[tuple[str, ...]], room: int
) -> tuple[tuple[str, ...], ...]:
    """Intervals of as many first columns as fit without wrapping."""
    columns = [list(cells) for cells in zip(header, *rows, strict=True)]
    for cells in reversed(columns):
        if sum(_GAP + max(map(len, one)) for one in columns) - _GAP <= room:
            break
        cells[1:] = [cell.partition(" [")[0] for cell in cells[1:]]
    return tuple(zip(*(cells[1:] for cells in columns), strict=True))


class WholeTable:
    """A whole table: columns that do not fit are put in blocks below one another.

    Each block begins with the columns that tell the rows apart.
    """

    def __init__(self, table: TextTable) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; rich calls this."""
        table, room = self._table, options.max_width + _GAP
        columns = _columns(table)
        n_keys = _n_keys(columns)
        wide = [_GAP + _least_width(cells) for cells in columns]
        keys = list(range(n_keys))
        blocks = [keys.copy()]
        for index in range(n_keys, len(columns)):
            is_full = sum(wide[i] for i in (*blocks[-1], index)) > room
            if is_full and len(blocks[-1]) > n_keys:
                blocks.append(keys.copy())
            blocks[-1].append(index)
        for number, block in enumerate(blocks):
            yield from [Text("")] * (number > 0)
            yield table_text(_of_columns(table, block))


def _columns(table: TextTable) -> list[list[str]]:
    """The cells of each column, its name first."""
    return [list(cells) for cells in zip(table.header, *table.rows, strict=True)]


def _n_keys(columns: Sequence[Sequence[str]]) -> int:
    """The number of leading columns that distinguish the rows; 1 where none do."""
    for n_keys in range(1, len(columns)):
        rows = list(zip(*columns[:n_keys], strict=True))
        if len(set(rows)) == len(rows):
            return n_keys
    return 1


def _of_columns(table: TextTable, chosen: Sequence[int]) -> TextTable:
    return TextTable(
        caption=table.caption,
        header=tuple(table.header[index] for index in chosen),
        rows=tuple(tuple(row[index] for index in chosen) for row in table.rows),
    )


def _least_width(cells: Sequence[str]) -> int:
    """Least width of a column that keeps short numbers whole; other text is wrapped."""
    name, *others = cells
    is_number = all(_is_number(cell) for cell in others)
    short = (len(cell) for cell in others if is_number and len(cell) <= _SHORT_CELL)
    return max(_longest_word([name, *others]), *short, 0)


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Width of a table without wrapped cells; a header is wrapped at its spaces."""
    width = -_GAP
    for index, name in enumerate(header):
        cells = (len(row[index]) for row in rows)
        width += _GAP + max(*map(len, (name.split() or [""])), *cells, 0)
    return width


def table_text(table: TextTable) -> RenderableType:
    """A table without lines: numbers to the right, all else to the left."""
    return _Columns(table)


class _Columns:
    """A table that is as wide as its texts, or as the room: then long cells and headers are wrapped."""

    def __init__(self, table: TextTable) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; rich calls this."""
        table = self._table
        columns = _columns(table)
        widths = _widths(columns, options.max_width)
        is_right = [
            index > 0 and all(map(_is_number, cells[1:])) for index, cells in enumerate(columns)
        ]
        for number, row in enumerate((table.header, *table.rows)):
            style = "" if number else "bold"
            cells = [
                Text(cell, style=style).wrap(console, max(width, 1), overflow="fold")
                for cell, width in zip(row, widths, strict=True)
            ]
            height = max(map(len, cells), default=0)
            for place in range(height):
                # a header stands on its column, a cell hangs from its row
                shift = [0 if number else height - len(lines) for lines in cells]
                yield _line(
                    [
                        lines[place - down] if 0 <= place - down < len(lines) else Text("")
                        for lines, down in zip(cells, shift, strict=True)
                    ],
                    widths,
                    is_right,
                )


def _line(cells: Sequence[Text], widths: Sequence[int], is_right: Sequence[bool]) -> Text:
    """One line of a row, without blanks at its end."""
    line = Text(no_wrap=True, overflow="ignore")
    for cell, width, right in zip(cells, widths, is_right, strict=True):
        cell.rstrip()
        blanks = " " * (width - cell.cell_len)
        line.append(blanks if right else "").append(cell)
        line.append(("" if right else blanks) + " " * _GAP)
    line.rstrip()
    return line


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths of columns: of the whole texts, or less of the widest until the table has room.

    Short numbers are kept whole where that has room, else words, else nothing is.
    """
    widths = [max(map(len, cells)) for cells in columns]
    room -= _GAP * (len(columns) - 1)
    kinds = (_least_width, _longest_word)
    least = next(
        (found for kind in kinds if sum(found := [kind(cells) for cells in columns]) <= room),
        [1] * len(columns),
    )
    while sum(widths) > room:
        spare = [index for index, width in enumerate(widths) if width > least[index]]
        if not spare:
            break
        widths[max(spare, key=lambda index: (widths[index], index))] -= 1
    return widths


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def _section(section: Section, page: Page) -> Iterator[RenderableType]:
    """Text and tables of a section, without its charts."""
    tables = [table for table in section.tables if not _is_shown(table, page.table)]
    has_more = section.statements or section.cautions or tables or section.groups or section.files
    if not (has_more or section.charts):
        return
    yield Text("")
    yield Text(section.title.upper(), style="bold")
    for statement in section.statements:
        yield Prose("  ", statement.sentence)
    for chart in section.charts:
        yield Prose("  ", chart.finding)
    for caution in section.cautions:
        if caution not in page.cautions:
            yield _caution(caution)
    yield from (part for table in tables for part in _captioned(table, section.title))
    for group in section.groups:
        yield Text(group.title, style="italic")
        for name, value in group.facts:
            yield Prose(f"  {name}: ", value, label_style="")
    for what, path in section.files:
        yield Prose(f"  {what}: ", path, label_style="")


def _captioned(table: TextTable, title: str) -> Iterator[RenderableType]:
    """A table below its caption, where that is not the title above it."""
    if table.caption.lower() != title.lower():
        yield Text(table.caption, style="italic")
    yield Padding(WholeTable(table), (0, 0, 1, 0))


def _is_shown(table: TextTable, first: TextTable | None) -> bool:
    """Is this the table of the first screen?"""
    return first is not None and (table.header, table.rows) == (first.header, first.rows)


def _is_number(cell: str) -> bool:
    """A number, perhaps with its unit and interval, or the sign of absence."""
    has_digit = any(letter.isdigit() for letter in cell)
    n_letters = sum(letter.isalpha() for letter in cell)
    return (has_digit and n_letters <= _UNIT_LETTERS) or cell in {"", ABSENT_TEXT}


def _caution(caution: Caution, *, style: str = "", most_lines: int | None = None) -> Prose:
    text = f"{caution.text} – {caution.remedy}" if caution.remedy else caution.text
    return Prose("CAUTION ", text, style=style, most_lines=most_lines)


def _bar(number: Number, n_cells: int) -> Text:
    """``···━━●━━···│·``: the interval, the value in it, and the limit."""
    places = number.places
    if places is None:
        return Text("")
    cells = ["·"] * n_cells

    def at(name: str) -> int:
        return min(round(places[name] * (n_cells - 1)), n_cells - 1)

    if "low" in places:
        for cell in range(at("low"), at("high") + 1 if "high" in places else n_cells):
            cells[cell] = "━"
    if "limit" in places:
        cells[at("limit")] = "│"
    cells[at("value")] = "●"
    return Text("".join(cells))
