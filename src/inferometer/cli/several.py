"""What kind of flag takes one value, or several: ``1,2,4`` or ``1..256``?"""

from pathlib import Path
from typing import Any

import click

from inferometer.inputs.sweep_plan import is_listed


class Several(click.ParamType[Any]):
    """A flag's value, or several of them: ``1,2,4`` or ``1..256``."""

    name = "several"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind = click.types.convert_type(kind)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """That of one value."""
        return self.kind.get_metavar(param, ctx)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """One value as its type has it; several as they were written: the grid reads them."""
        if isinstance(value, str) and is_listed(value) and not Path(value).exists():
            return value
        return self.kind.convert(value, param, ctx)


def one_of(kind: click.ParamType[Any]) -> click.ParamType[Any]:
    """The type of one value of a flag that takes several."""
    return kind.kind if isinstance(kind, Several) else kind
