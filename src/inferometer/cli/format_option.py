"""Which number format does a flag name?

`fp8`, `bf16` and `awq` are understood wherever a format is.
"""

from collections.abc import Sequence
from typing import Any, Final, get_args

import click

from inferometer.spec.synonyms import number_format
from inferometer.spec.types import DType


class NumberFormat(click.ParamType[str]):
    """A flag's value among ``allowed``, under any spelling of it.

    ``extra`` are further words that stand for themselves.
    """

    name = "format"

    def __init__(self, allowed: Sequence[str], *, extra: Sequence[str] = ()) -> None:
        self.allowed = tuple(allowed)
        self.extra = tuple(extra)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """All that may be typed, as help shows it."""
        del param, ctx
        return f"[{'|'.join((*self.extra, *self.allowed))}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The format under this program's name for it."""
        del ctx
        text = str(value)
        if text in self.extra:
            return text
        flag = "a number format" if param is None else param.opts[0]
        return number_format(text, allowed=(*self.extra, *self.allowed), where=flag)


FORMAT: Final = NumberFormat(get_args(DType))
FORMAT_OR_AUTO: Final = NumberFormat(get_args(DType), extra=("auto",))
FORMAT_OR_NONE: Final = NumberFormat((*get_args(DType), "none"))
