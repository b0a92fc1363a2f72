"""Rows of a structured array, declared once: for numpy, for the compiler and for type checkers.

A class lists the fields of a row with their widths in memory. In compiled code they are attributes;
in Python a row is numpy's, and has them by name.
"""

from functools import cache
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, cast, get_type_hints, overload

import numpy as np
from numpy.typing import NDArray

i32: TypeAlias = Annotated[int, np.int32]
i64: TypeAlias = Annotated[int, np.int64]
f64: TypeAlias = Annotated[float, np.float64]


class Row:
    """The fields of a row, which Python has by name: it is a row of numpy's in truth."""

    def __getitem__(self, field: str) -> int:
        """A field's number."""
        number: int = getattr(self, field)
        return number

    def __setitem__(self, field: str, number: int) -> None:
        """Set it."""
        setattr(self, field, number)


Kind = TypeVar("Kind", bound=Row)


class Rows(np.ndarray[Any, np.dtype[Any]], Generic[Kind]):
    """The type of an array of rows; where replicas are stacked, two numbers name one of them."""

    @overload  # type: ignore[override]
    def __getitem__(self, place: int | tuple[int, int]) -> Kind: ...
    @overload
    def __getitem__(self, place: slice) -> "Rows[Kind]": ...
    @overload
    def __getitem__(self, place: str | tuple[slice, int] | NDArray[Any]) -> NDArray[Any]: ...
    def __getitem__(self, place: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A row, or what numpy gives."""
        return super().__getitem__(place)


class RowsOfBatches(np.ndarray[Any, np.dtype[Any]], Generic[Kind]):
    """The type of an array with an axis for the batches in flight."""

    @overload  # type: ignore[override]
    def __getitem__(self, place: int) -> Rows[Kind]: ...
    @overload
    def __getitem__(self, place: tuple[int, int]) -> Kind: ...
    @overload
    def __getitem__(self, place: str) -> NDArray[Any]: ...
    def __getitem__(self, place: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A batch's rows, one of them, or what numpy gives."""
        return super().__getitem__(place)


def blank(n_rows: int, kind: type[Kind]) -> Rows[Kind]:
    """An array of such rows, in which all is 0."""
    return cast("Rows[Kind]", np.zeros(n_rows, _dtype_of(cast("type", kind))))


def blank_of_batches(n_batches: int, n_rows: int, kind: type[Kind]) -> RowsOfBatches[Kind]:
    """The same for each batch that may be in flight."""
    return cast("RowsOfBatches[Kind]", np.zeros((n_batches, n_rows), _dtype_of(cast("type", kind))))


@cache
def _dtype_of(kind: type) -> np.dtype[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, hint.__metadata__[0]) for name, hint in hints.items()], align=True)
