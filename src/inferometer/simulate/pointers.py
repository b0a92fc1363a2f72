"""Pointers with which compiled functions pass tables of arrays.

As one pointer to a list of where the arrays lie.

numba hands a NamedTuple of arrays over by value, each array as seven numbers: of the simulator's
state that was some 220 in each of 280 functions, a quarter of the time to compile them. ``pointed``
lays addresses and shapes down in memory once, and its handle is a single number in compiled code,
where fields read as before. The arrays stay numpy's: compiled code may write to them, and can
neither replace nor free them.

Rows of a structured array are declared once, for numpy, for the compiler and for type checkers: a
class lists the fields of a row with their widths in memory. In compiled code they are attributes;
in Python a row is numpy's, and has them by name.
"""

import ctypes
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.np.arrayobj import get_itemsize, make_array, populate_array
from numpy.typing import NDArray

Table = TypeVar("Table")
_WORD: Final = ir.IntType(64)
_WORD_BYTES: Final = 8
_ADDRESS: Final = ir.IntType(8).as_pointer()

# numba's decorators have no types.
_intrinsic: Final[Any] = extending.intrinsic
_unbox: Final[Any] = extending.unbox
_register_model: Final[Any] = extending.register_model
_infer_getattr: Final[Any] = extending.infer_getattr
_lower_getattr: Final[Any] = extending.lower_getattr_generic
i32: TypeAlias = Annotated[int, np.int32]
i64: TypeAlias = Annotated[int, np.int64]
f64: TypeAlias = Annotated[float, np.float64]


class PointerType(types.Type):
    """The type of a handle: the names and types of the fields that compiled code can read.

    Of a stack also its rows' type.
    """

    def __init__(
        self,
        table_name: str,
        fields: tuple[tuple[str, types.Type], ...],
        row: "PointerType | None" = None,
    ) -> None:
        self.table_name = table_name
        self.fields = fields
        self.row = row
        # numba writes type names into every symbol: a digest is shorter than a list of structured
        # arrays.
        digest = hashlib.sha256(repr(fields).encode()).hexdigest()[:16]
        super().__init__(
            f"Pointer_{table_name}_{digest}" + ("" if row is None else f"_of_{row.name}")
        )

    def field(self, name: str) -> types.Type | None:
        """Type of a field; None for an unknown name."""
        return dict(self.fields).get(name)

    def first_word(self, name: str) -> int:
        """Index of a field's first word."""
        names = [other for other, _ in self.fields]
        return sum(_n_words(kind) for _, kind in self.fields[: names.index(name)])

    @property
    def n_words(self) -> int:
        """The length of the list."""
        return sum(_n_words(kind) for _, kind in self.fields)


class Handle:
    """A table in the form in which compiled code takes it. It keeps the arrays alive."""

    __slots__ = ("_numba_type_", "address", "alive")

    def __init__(self, kind: PointerType, words: Sequence[int], alive: object) -> None:
        memory = np.array(words, np.int64)
        self._numba_type_ = kind
        self.address = _address_of(memory)
        self.alive = (memory, alive)


def pointed(table: Table) -> Table:
    """A pointer to a NamedTuple of C-ordered arrays, numbers and further such tuples.

    Compiled code reads it as it would the tuple; Python reads the tuple.
    """
    kind, words, alive = _laid_down(table)
    return cast("Table", Handle(kind, words, alive))


def pointed_stack(stack: Table, rows: Sequence[Table]) -> Table:
    """Pointer to a table whose arrays have a leading axis; ``row_of`` returns slices."""
    kind, words, alive = _laid_down(stack)
    laid = [_laid_down(row) for row in rows]
    if any(other != laid[0][0] for other, _, _ in laid):
        raise TypeError("rows of a stack have arrays of equal types")
    of_rows = _pointer_type(kind.table_name, kind.fields, laid[0][0])
    return cast(
        "Table",
        Handle(
            of_rows,
            [*words, len(laid), *(word for _, row, _ in laid for word in row)],
            (alive, laid),
        ),
    )


@_intrinsic
def _row_of(
    _typing_context: object, stack: PointerType, index: types.Integer
) -> tuple[Any, Callable[..., Any]]:
    """A row of a stack in compiled code; its numbers and lists follow the stack's own.

    As of an array, the row of -1 is the last: a request that no replica got is dropped there, in
    vain.
    """
    row: Any = stack.row

    def code(
        _context: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[Any]
    ) -> Any:
        address, number = arguments
        wide = number if number.type == _WORD else builder.sext(number, _WORD)
        n_rows = builder.load(
            builder.gep(
                builder.bitcast(address, _WORD.as_pointer()), [ir.IntType(32)(stack.n_words)]
            )
        )
        is_from_end = builder.icmp_signed("<", wide, _WORD(0))
        place = builder.select(is_from_end, builder.add(wide, n_rows), wide)
        row_words = builder.mul(place, _WORD(row.n_words))
        offset = builder.mul(builder.add(row_words, _WORD(stack.n_words + 1)), _WORD(_WORD_BYTES))
        return builder.gep(address, [offset])

    return row(stack, index), code


row_of: Final[Callable[[Any, int], Any]] = _row_of


def _address_of(array: Any) -> int:
    """The same as ``array.ctypes.data`` in a quarter of the time; of arrays with elements that can be written to."""
    return ctypes.addressof(ctypes.c_byte.from_buffer(array))


_NOTHING: Final = np.zeros(512)
_NOWHERE: Final = _address_of(_NOTHING)
"""Where arrays without elements are: nothing is read there."""


def _laid_down(table: Any) -> tuple[PointerType, list[int], list[object]]:
    """Type of a table, its list of words, and objects to keep alive."""
    words: list[int] = []
    alive: list[object] = []
    parts: list[object] = [type(table)]
    for name, value in zip(table._fields, table, strict=True):
        if isinstance(value, np.ndarray):
            flags = value.flags.num
            if not flags & _IN_C_ORDER:
                raise TypeError(f"{name} is not in C order")
            words.append(
                _NOWHERE
                if not value.size
                else _address_of(value)
                if flags & _WRITEABLE
                else value.ctypes.data
            )
            words += value.shape
            alive.append(value)
            parts += (value.dtype, value.ndim, flags)
        elif isinstance(value, tuple):
            nested: Any = pointed(value)
            words.append(nested.address)
            alive.append(nested)
            parts.append(id(nested._numba_type_))
        else:
            words.append(
                struct.unpack("q", struct.pack("d", value))[0]
                if isinstance(value, float)
                else int(value)
            )
            parts.append(type(value))
    key = tuple(parts)
    kind = _kinds.get(key)
    if kind is None:
        kind = _kinds[key] = _pointer_type(type(table).__name__, _typed(table, alive))
    return kind, words, alive


# Types by what they follow from: numba's own types, whose hashes are worked out in Python, took a quarter of a short
# simulation's time as keys. A nested table is named by its type's id, which ``_pointer_type`` keeps alive.
_kinds: Final[dict[tuple[object, ...], PointerType]] = {}
_IN_C_ORDER: Final = 0x1
_WRITEABLE: Final = 0x400
"""Bits of ``numpy.ndarray.flags.num``."""


def _typed(table: Any, alive: Sequence[object]) -> tuple[tuple[str, types.Type], ...]:
    """Fields with their types; ``alive``: arrays and pointers to nested tables, in order."""
    fields: list[tuple[str, types.Type]] = []
    laid: Iterator[Any] = iter(alive)
    for name, value in zip(table._fields, table, strict=True):
        if isinstance(value, np.ndarray):
            next(laid)
            kind = _array_type(
                value.dtype,
                value.ndim,
                is_writeable=value.flags.writeable,
                is_aligned=value.flags.aligned,
            )
        elif isinstance(value, tuple):
            kind = next(laid)._numba_type_
        else:
            kind = (
                types.boolean
                if isinstance(value, bool)
                else types.float64
                if isinstance(value, float)
                else types.int64
            )
        fields.append((name, kind))
    return tuple(fields)


# numba works out a structured array's type anew for each array (0.1 ms, a third of a short simulation's time).
@cache
def _array_type(
    dtype: np.dtype[Any], n_axes: int, *, is_writeable: bool, is_aligned: bool
) -> types.Type:
    """The type that ``numba.typeof`` returns for such a C-ordered array."""
    return types.Array(
        numba.from_dtype(dtype), n_axes, "C", readonly=not is_writeable, aligned=is_aligned
    )


_pointer_type: Final = cache(PointerType)


def _n_words(kind: types.Type) -> int:
    return 1 + kind.ndim if isinstance(kind, types.Array) else 1


@_register_model(PointerType)
class _PointerModel(models.OpaqueModel):
    """Representation in compiled code: an address."""


@_unbox(PointerType)
def _from_python(_kind: PointerType, handle: Any, context: Any) -> extending.NativeValue:
    number = context.pyapi.object_getattr_string(handle, "address")
    address = context.builder.inttoptr(context.pyapi.long_as_ulonglong(number), _ADDRESS)
    context.pyapi.decref(number)
    return extending.NativeValue(address)


@_infer_getattr
class _Fields(AttributeTemplate):
    key = PointerType

    def generic_resolve(self, table: PointerType, name: str) -> types.Type | None:
        return table.field(name)


@_lower_getattr(PointerType)
def _field(context: Any, builder: Any, table: PointerType, address: Any, name: str) -> Any:
    kind, first = table.field(name), table.first_word(name)
    words = builder.bitcast(address, _WORD.as_pointer())

    def word(place: int) -> Any:
        loaded = builder.load(builder.gep(words, [ir.IntType(32)(place)]))
        # Nothing writes to the list while compiled code runs, so that a field may be read once for
        # all its uses.
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if isinstance(kind, types.Array):
        array = make_array(kind)(context, builder)
        item_bytes = context.get_constant(types.intp, get_itemsize(context, kind))
        shape = [word(first + 1 + axis) for axis in range(kind.ndim)]
        strides = [item_bytes]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        data = builder.inttoptr(word(first), array.data.type)
        populate_array(
            array, data=data, shape=shape, strides=strides, itemsize=item_bytes, meminfo=None
        )
        return array._getvalue()
    if isinstance(kind, PointerType):
        return builder.inttoptr(word(first), _ADDRESS)
    if isinstance(kind, types.Float):
        return builder.bitcast(word(first), ir.DoubleType())
    if isinstance(kind, types.Boolean):
        return builder.icmp_unsigned("!=", word(first), _WORD(0))
    return word(first)


class Row:
    """A row of a structured array, with its fields by name, for type checkers."""

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
        """A row, or any numpy selection."""
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
        """Rows of a batch, one of them, or any numpy selection."""
        return super().__getitem__(place)


def blank(n_rows: int, kind: type[Kind]) -> Rows[Kind]:
    """An array of rows of zeros."""
    return cast("Rows[Kind]", np.zeros(n_rows, _dtype_of(cast("type", kind))))


def blank_of_batches(n_batches: int, n_rows: int, kind: type[Kind]) -> RowsOfBatches[Kind]:
    """Rows of zeros for each batch that may be in flight."""
    return cast("RowsOfBatches[Kind]", np.zeros((n_batches, n_rows), _dtype_of(cast("type", kind))))


@cache
def _dtype_of(kind: type) -> np.dtype[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return np.dtype([(name, hint.__metadata__[0]) for name, hint in hints.items()], align=True)
