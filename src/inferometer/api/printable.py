"""How does text become visible, whatever it holds, so that nobody's can drive the terminal?"""

import re
from collections.abc import Iterable
from typing import Final, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_C0_PICTURES: Final = 0x2400
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029\u200b\ufeff\ud800-\udfff]"  # line ends and blanks that nobody sees, halves of characters
)


def _sign(found: re.Match[str]) -> str:
    code = ord(found.group())
    return (
        chr(_C0_PICTURES + code)
        if code < 0x20
        else "\N{SYMBOL FOR DELETE}"
        if code == 0x7F
        else "\N{REPLACEMENT CHARACTER}"
    )


def printable(text: str) -> str:
    """The text with a visible sign for each character that would act on a terminal; tabs and line ends stay.

    >>> printable(chr(27) + "[2J" + chr(0x202E))
    '␛[2J�'
    """
    return _UNPRINTABLE.sub(_sign, text)


def printable_json(text: str) -> str:
    """The same JSON with such characters as escapes: whoever parses it gets the very text."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class SafeConsole(Console):
    """A console on which only rich itself drives the terminal: names are no markup, no emoji, no escape sequences."""

    def __init__(
        self, *, file: TextIO | None = None, width: int | None = None, record: bool = False
    ) -> None:
        super().__init__(
            file=file, width=width, record=record, highlight=False, markup=False, emoji=False
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of anything drawn, their text printable.

        Those with which rich moves the cursor hold no text of others.
        """
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
