"""Safe drawing of text, so that foreign text cannot control the terminal."""

from collections.abc import Iterable
from io import StringIO
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from inferometer.api.progress import printable


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
