# SPDX-License-Identifier: Apache-2.0
"""Keys to slots: each key that was ever seen has a number, and the numbers are dense.

State lies in arrays, one entry for each slot. Rows find their slots by an open-addressed table that is probed for a
whole batch at once, so no step is made for a row. One integer column (integers, dates, timestamps) is its own key;
all other keys are numbered within their batch first, and then found by their hash and compared.

Slots and their keys never change, and keys are only ever added: what `frozen_keys` gives stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.keys import group_rows, normalised, numbered
from penstock.record import word_hash
from penstock.record.layout import fixed_values, int64_array, null_mask
from penstock.stream.run_rows import is_joined, taken
from penstock.stream.state_place import bytes_of, settled_columns, zeros

Slots = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_NONE = -1
_LEAST = 1 << 10
_LEAST_BITS = 10
_MOVED_ROWS = 1 << 15
"""So many words move into a larger table with each step: a millisecond or two."""
_FEW_ROWS = 1 << 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class KeyIndex(Protocol):
    """The keys of one subtask."""

    def __len__(self) -> int:
        """The number of keys."""

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and of the tables to find them."""

    def slots(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row; keys that are new get the next ones."""

    def find(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row; -1 where its key has none."""

    def add(self, columns: Sequence[pa.Array]) -> Slots:
        """The slots of keys that are new, each once."""

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The keys of these slots, one array for each column."""

    def frozen_keys(self, start: int, end: int) -> list[pa.Array | pa.ChunkedArray]:
        """The keys of a range of slots, as values that never change."""


def key_index(types: Sequence[pa.DataType]) -> KeyIndex:
    """An index for key columns of these types."""
    if not types:
        return SingleKey()
    return IntegerKeys(types[0]) if len(types) == 1 and _is_word(types[0]) else ComposedKeys(types)


def _is_word(kind: pa.DataType) -> bool:
    is_plain = pt.is_integer(kind) or pt.is_date(kind) or pt.is_timestamp(kind) or pt.is_time(kind)
    return bool(is_plain or pt.is_duration(kind))


class Grown:
    """An array that grows at its end; what was given of it stays valid."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._values = zeros(_LEAST, dtype)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self._values.nbytes

    @property
    def values(self) -> npt.NDArray[Any]:
        """The values in use."""
        return self._values[: self._used]

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Add values at the end."""
        end = self._used + len(values)
        if end > len(self._values):
            grown = zeros(max(end, 2 * len(self._values)), self._values.dtype)
            grown[: self._used] = self.values
            self._values = grown
        self._values[self._used : end] = values
        self._used = end


class _Places:
    """An open-addressed table of slots: entry 0 is free, others are a slot plus one."""

    def __init__(self, slots: int) -> None:
        bits = max(_LEAST_BITS, (4 * slots - 1).bit_length())
        self._entries: npt.NDArray[np.int32] = zeros(1 << bits, np.int32)
        self._mask = (1 << bits) - 1
        self._shift = np.uint64(64 - bits)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return self._entries.nbytes

    def find(self, words: Words, known: Words) -> Slots:
        """The slot of each word, where `known` are those of all slots; -1 where there is none."""
        positions = self._first(words)
        found = self._entries[positions].astype(np.int64)
        found -= 1
        if not len(known):
            return found
        open_rows = np.flatnonzero((known[found] != words) & (found != _NONE))
        while len(open_rows):
            positions[open_rows] += 1
            slots = self._entries[positions[open_rows] & self._mask].astype(np.int64) - 1
            found[open_rows] = slots
            open_rows = open_rows[(known[slots] != words[open_rows]) & (slots != _NONE)]
        return found

    def insert(self, words: Words, slots: Slots) -> None:
        """Put slots in, each once."""
        positions = self._first(words)
        entries = (slots + 1).astype(np.int32)
        waiting = np.arange(len(words))
        while len(waiting):
            at = positions[waiting] & self._mask
            free = self._entries[at] == 0
            # Of several that want one place the last gets it, and the others go on to the next.
            self._entries[at[free]] = entries[waiting[free]]
            waiting = waiting[self._entries[at] != entries[waiting]]
            positions[waiting] += 1

    def _first(self, words: Words) -> npt.NDArray[np.int64]:
        positions = words * _GOLDEN
        positions >>= self._shift
        return positions.view(np.int64)


class WordTable:
    """Finds the slot of a 64-bit word. Several slots may have one word; then one of them is found.

    A table that is half full is replaced by a larger one, into which the words move some at a time, so that no step
    has to move them all; until then both are looked into.
    """

    def __init__(self) -> None:
        self._words = Grown(np.uint64)
        self._places = _Places(0)
        self._before: _Places | None = None
        self._moved = self._end = 0
        self._reserved = _NONE

    def __len__(self) -> int:
        return len(self._words)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return bytes_of((self._words, self._places, self._before))

    @property
    def words(self) -> Words:
        """The word of each slot."""
        return self._words.values

    def find(self, words: Words) -> Slots:
        """The slot of each word; -1 where there is none."""
        known = self._words.values
        found = self._places.find(words, known)
        if self._before is not None:
            missing = np.flatnonzero(found == _NONE)
            found[missing] = self._before.find(words[missing], known)
            self._move(_MOVED_ROWS)
        return found

    def add(self, words: Words) -> Slots:
        """Slots for new words, each once."""
        first = len(self._words)
        self._words.extend(words)
        slots = np.arange(first, len(self._words), dtype=np.int64)
        self._move(2 * len(words))  # more than come, so all have moved before the larger table is too small
        if 2 * len(self._words) > len(self._places):
            self._move(self._end)
            self._before, self._moved = self._places, 0
            self._places = _Places(len(self._words))
            self._end = first
        self._places.insert(words, slots)
        return slots

    def reserve(self) -> int:
        """A slot that no word finds."""
        self._words.extend(np.zeros(1, np.uint64))
        self._reserved = len(self._words) - 1
        return self._reserved

    def _move(self, rows: int) -> None:
        """Take so many of the words over into the larger table."""
        if self._before is None:
            return
        slots = np.arange(self._moved, min(self._end, self._moved + rows), dtype=np.int64)
        self._moved += len(slots)
        slots = slots[slots != self._reserved]
        self._places.insert(self._words.values[slots], slots)
        if self._moved == self._end:
            self._before = None


class IntegerKeys:
    """Keys of one column of integers, dates or times; null is a key too."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._dtype = np.dtype(f"{'u' if pt.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
        self._table = WordTable()
        self._null = _NONE
        """The slot of null: its word stands for no other key, as it is not in the table."""

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self._table.nbytes

    def slots(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row."""
        (column,) = columns
        words = fixed_values(column, self._dtype).astype(np.int64, copy=False).view(np.uint64)
        missing = null_mask(column)
        if missing is None:
            return self._slots_of(words)
        slots = np.empty(len(words), np.int64)
        slots[~missing] = self._slots_of(words[~missing])
        if self._null == _NONE:
            self._null = self._table.reserve()
        slots[missing] = self._null
        return slots

    def find(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row; -1 where there is none."""
        (column,) = columns
        words = fixed_values(column, self._dtype).astype(np.int64, copy=False).view(np.uint64)
        found = self._table.find(words)
        missing = null_mask(column)
        if missing is not None:
            found[missing] = self._null
        return found

    def add(self, columns: Sequence[pa.Array]) -> Slots:
        """The slots of keys that are new."""
        (column,) = columns
        if column.null_count:
            return self.slots(columns)
        return self._table.add(fixed_values(column, self._dtype).astype(np.int64, copy=False).view(np.uint64))

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The keys of these slots."""
        is_null = None if self._null == _NONE else slots == self._null
        return [self._array(self._table.words[slots], is_null)]

    def frozen_keys(self, start: int, end: int) -> list[pa.Array | pa.ChunkedArray]:
        """The keys of a range of slots."""
        is_null = None
        if start <= self._null < end:
            is_null = np.zeros(end - start, np.bool_)
            is_null[self._null - start] = True
        return [self._array(self._table.words[start:end], is_null)]

    def _slots_of(self, words: Words) -> Slots:
        slots = self._table.find(words)
        new = np.flatnonzero(slots == _NONE)
        if len(new):
            places, distinct = numbered(words[new].view(np.int64))
            slots[new] = self._table.add(distinct.view(np.uint64))[places]
        return slots

    def _array(self, words: Words, is_null: npt.NDArray[np.bool_] | None) -> pa.Array:
        values = np.ascontiguousarray(words.view(np.int64).astype(self._dtype, copy=False))
        validity = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        return pa.Array.from_buffers(self._kind, len(values), [validity, pa.py_buffer(values)])


class ComposedKeys:
    """Keys of any columns that rows can be grouped by."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = tuple(types)
        self._table = WordTable()
        self._keys: list[list[pa.Array]] = []
        """Per run of slots one array for each column; runs of similar size are joined, so that there are few."""

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self._table.nbytes + bytes_of(column for run in self._keys for column in run)

    def slots(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row."""
        if len(columns[0]) <= _FEW_ROWS:  # to number their keys first takes longer than all the rest
            found = self._found(
                [_as_type(normalised(key), kind) for key, kind in zip(columns, self._types, strict=True)]
            )
            if (found != _NONE).all():
                return found
        groups = group_rows(columns, len(columns[0]))
        keys = [_as_type(key, kind) for key, kind in zip(groups.keys, self._types, strict=True)]
        words = word_hash(keys)
        slots = self._compared(self._table.find(words), words, keys)
        new = np.flatnonzero(slots == _NONE)
        if len(new):
            slots[new] = self._table.add(words[new])
            self._append([key.take(int64_array(new)) for key in keys] if len(new) < len(slots) else keys)
        return slots[groups.codes]

    def find(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row; -1 where there is none."""
        groups = group_rows(columns, len(columns[0]))
        keys = [_as_type(key, kind) for key, kind in zip(groups.keys, self._types, strict=True)]
        found: Slots = self._found(keys)[groups.codes]
        return found

    def add(self, columns: Sequence[pa.Array]) -> Slots:
        """The slots of keys that are new."""
        return self.slots(columns)

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The keys of these slots."""
        return taken(self._keys, [len(run[0]) for run in self._keys], self._types, slots)

    def frozen_keys(self, start: int, end: int) -> list[pa.Array | pa.ChunkedArray]:
        """The keys of a range of slots."""
        columns = [pa.chunked_array([run[at] for run in self._keys], kind) for at, kind in enumerate(self._types)]
        return [column.slice(start, end - start) for column in columns]

    def _found(self, keys: Sequence[pa.Array]) -> Slots:
        words = word_hash(keys)
        return self._compared(self._table.find(words), words, keys)

    def _compared(self, slots: Slots, words: Words, keys: Sequence[pa.Array]) -> Slots:
        """The slots, where a key's hash is that of another key found by looking at all of that hash."""
        found = np.flatnonzero(slots != _NONE)
        if not len(found):
            return slots
        known = self.keys(slots[found])
        given = [key.take(int64_array(found)) for key in keys]
        for row in found[~_equal(known, given)].tolist():
            same = np.flatnonzero(self._table.words == words[row])
            one = [key.take(pa.array([row] * len(same), pa.int64())) for key in keys]
            matches = same[_equal(self.keys(same), one)]
            slots[row] = matches[0] if len(matches) else _NONE
        return slots

    def _append(self, keys: list[pa.Array]) -> None:
        self._keys.append(keys)
        while len(self._keys) > 1 and len(self._keys[-2][0]) < 2 * len(self._keys[-1][0]):
            if not is_joined(*(column.nbytes for run in self._keys[-2:] for column in run)):
                break
            last, before = self._keys.pop(), self._keys.pop()
            joined = [_joined([one, other], one.type) for one, other in zip(before, last, strict=True)]
            self._keys.append(settled_columns(joined))


class SingleKey:
    """All rows have one key: there are no key columns."""

    nbytes = 0

    def __init__(self) -> None:
        self._seen = 0

    def __len__(self) -> int:
        return self._seen

    def slots(self, columns: Sequence[pa.Array]) -> Slots:
        """One slot for all; `columns` may be any column, which tells the number of rows."""
        self._seen = 1
        return np.zeros(len(columns[0]), np.int64)

    def find(self, columns: Sequence[pa.Array]) -> Slots:
        """The only slot, if it has been asked for."""
        return np.full(len(columns[0]), self._seen - 1, np.int64)

    def add(self, columns: Sequence[pa.Array]) -> Slots:
        """The only slot."""
        return self.slots(columns)

    def keys(self, slots: Slots) -> list[pa.Array]:
        """No columns."""
        return []

    def frozen_keys(self, start: int, end: int) -> list[pa.Array | pa.ChunkedArray]:
        """No columns."""
        return []


def _as_type(key: pa.Array, kind: pa.DataType) -> pa.Array:
    return key if key.type == kind else key.cast(kind)


def _joined(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if not arrays:
        return pa.nulls(0, kind)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _equal(known: Sequence[pa.Array], given: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """A mask that is true where all columns of two sets of keys are the same, nulls and NaN among the values."""
    same = np.ones(len(known[0]), np.bool_)
    for column, given_column in zip(known, given, strict=True):
        if column.null_count == given_column.null_count == 0 and _is_word(column.type):
            words = np.dtype(f"i{column.type.bit_width // 8}")
            same &= fixed_values(column, words) == fixed_values(given_column, words)
            continue
        one, other = _bits(column), _bits(given_column)
        both_null = pc.and_(one.is_null(), other.is_null())
        equal = pc.or_(both_null, pc.fill_null(pc.equal(one, other), fill_value=False))
        same &= _mask(equal)
    return same


def _bits(column: pa.Array) -> pa.Array:
    """Floats as the integers of their bits, which are the same for all NaN once they are normalised."""
    if pt.is_floating(column.type):
        return normalised(column).view(pa.int64() if column.type == pa.float64() else pa.int32())
    return column


def _mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    packed = np.frombuffer(column.buffers()[1], np.uint8)
    bits = np.unpackbits(packed, bitorder="little")[column.offset : column.offset + len(column)]
    return bits.astype(np.bool_)
