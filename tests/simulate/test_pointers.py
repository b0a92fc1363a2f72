"""Where does compiled code look for the arrays of a table, and of which type are they?"""

from typing import NamedTuple

import numpy as np
import pytest

from inferometer.simulate.pointers import pointed


class Inner(NamedTuple):
    numbers: np.ndarray


class Outer(NamedTuple):
    inner: Inner
    numbers: np.ndarray
    share: float
    is_on: bool


def outer(numbers, inner=None, share=0.5):
    return Outer(Inner(numbers if inner is None else inner), numbers, share, True)


def words_of(handle):
    return handle.alive[0].tolist()


def test_the_words_are_addresses_shapes_and_numbers():
    numbers = np.arange(6, dtype=np.int32).reshape(2, 3)
    handle = pointed(outer(numbers))
    inner, address, rows, columns, share, is_on = words_of(handle)
    assert (address, rows, columns, is_on) == (numbers.ctypes.data, 2, 3, 1)
    assert np.array([share]).view(np.float64)[0] == 0.5
    assert handle.address == handle.alive[0].ctypes.data
    assert inner == handle.alive[1][0].address


def test_what_cannot_be_written_to_has_its_address_and_a_type_of_its_own():
    numbers = np.arange(3)
    locked = numbers.copy()
    locked.flags.writeable = False
    free, held = pointed(Inner(numbers)), pointed(Inner(locked))
    assert words_of(held) == [locked.ctypes.data, 3]
    assert free._numba_type_ != held._numba_type_
    assert held._numba_type_.field("numbers").mutable is False


def test_tables_of_equal_types_share_one():
    small, large = np.zeros(2, np.int32), np.zeros((9, 4), np.int32)[3]
    assert pointed(outer(small))._numba_type_ is pointed(outer(large))._numba_type_
    others = (outer(small, np.zeros(2)), outer(small, share=1), outer(small.astype(np.int64)))
    kinds = {pointed(one)._numba_type_ for one in (*others, outer(small))}
    assert len(kinds) == 4


def test_an_empty_array_has_a_shape():
    assert words_of(pointed(Inner(np.zeros((0, 7)))))[1:] == [0, 7]


def test_a_table_whose_numbers_are_not_in_order_is_refused():
    with pytest.raises(TypeError, match="numbers is not in C order"):
        pointed(Inner(np.zeros((3, 4)).T))
