"""How is a row of an answer made of results that have most of its fields?"""

from dataclasses import fields
from typing import Any, TypeVar

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
