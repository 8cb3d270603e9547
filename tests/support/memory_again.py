# SPDX-License-Identifier: Apache-2.0
"""Functions that write into the memory of what they gave as soon as they are asked for more, by kind of memory.

Each gives `STEPS` batches; the rows of a step have its number as their value.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

STEPS = 4
ROWS = 10
"""Of a small batch; an operator that joins such batches holds them."""
MANY_ROWS = 17_000
"""Of a batch that is large enough to look at its memory before it is copied."""
LARGE = 48 << 20

Batches = Iterator[pa.RecordBatch]


def integers(memory: Any, rows: int = ROWS) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """A column over some memory, and what may be written to it."""
    values = np.frombuffer(memory, np.int64, rows)
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(memory)]), values


def _again(column: pa.Array, write: Callable[[int], None], steps: int = STEPS) -> Batches:
    """The same column for each step, after its values were written."""
    for step in range(steps):
        write(step)
        yield pa.RecordBatch.from_arrays([column], names=["v"])


def _fill(values: np.ndarray[Any, Any]) -> Callable[[int], None]:
    def write(step: int) -> None:
        values[:] = step

    return write


def writable(_: Batches) -> Batches:
    """A NumPy array."""
    values = np.zeros(ROWS, np.int64)
    yield from _again(pa.array(values), _fill(values))


def read_only_view(_: Batches) -> Batches:
    """A view that can't be written into, of an array that can."""
    values = np.zeros(MANY_ROWS, np.int64)
    view = values[:]
    view.flags.writeable = False
    yield from _again(pa.array(view), _fill(values))


def byte_array(_: Batches) -> Batches:
    """A bytearray as a buffer."""
    column, values = integers(bytearray(ROWS * 8))
    yield from _again(column, _fill(values))


def mapped(_: Batches) -> Batches:
    """Mapped memory, as of a file that is written again."""
    memory = mmap.mmap(-1, MANY_ROWS * 8)
    _, values = integers(memory, MANY_ROWS)
    column = pa.Array.from_buffers(pa.int64(), MANY_ROWS, [None, pa.py_buffer(memoryview(memory).toreadonly())])
    yield from _again(column, _fill(values))


def arrows_own(_: Batches) -> Batches:
    """Memory of Arrow's pool, which NumPy can write into."""
    buffer = pa.allocate_buffer(ROWS * 8)
    column = pa.Array.from_buffers(pa.int64(), ROWS, [None, buffer])
    yield from _again(column, _fill(np.frombuffer(buffer, np.int64)))


def validity(_: Batches) -> Batches:
    """Only the bitmap of nulls is written again: the first `step` rows are valid."""
    bits = np.zeros(2, np.uint8)
    values = pa.py_buffer(np.arange(ROWS, dtype=np.int64))
    column = pa.Array.from_buffers(pa.int64(), ROWS, [pa.py_buffer(bits), values], null_count=-1)
    for step in range(STEPS):
        bits[0] = (1 << step) - 1
        yield pa.RecordBatch.from_arrays(
            [pa.Array.from_buffers(pa.int64(), ROWS, column.buffers())],
            names=["v"],
        )


def strings(_: Batches) -> Batches:
    """The bytes of strings of one letter; the step's number as text."""
    data = bytearray(MANY_ROWS)
    offsets = pa.py_buffer(np.arange(MANY_ROWS + 1, dtype=np.int32))
    column = pa.Array.from_buffers(
        pa.string(), MANY_ROWS, [None, offsets, pa.py_buffer(memoryview(data).toreadonly())]
    )

    def write(step: int) -> None:
        data[:] = b"%d" % step * MANY_ROWS

    yield from _again(column, write)


def lists(_: Batches) -> Batches:
    """The elements of lists."""
    column, values = integers(bytearray(ROWS * 16), ROWS * 2)
    offsets = pa.array(range(0, 2 * ROWS + 1, 2), pa.int32())
    yield from _again(pa.ListArray.from_arrays(offsets, column), _fill(values))


def structs(_: Batches) -> Batches:
    """The fields of structs."""
    column, values = integers(bytearray(ROWS * 8))
    yield from _again(pa.StructArray.from_arrays([column], ["f"]), _fill(values))


def slices(_: Batches) -> Batches:
    """Pieces of one batch; then all of it is written again."""
    values = np.zeros(ROWS * 2, np.int64)
    whole = pa.RecordBatch.from_arrays([pa.array(values)], names=["v"])
    for step in range(STEPS):
        values[:] = step
        yield whole.slice(3, ROWS)


def large(_: Batches) -> Batches:
    """Batches of 48 MB, of which one column is written again."""
    rows = LARGE >> 20
    values = np.zeros(rows, np.int64)
    view = values[:]
    view.flags.writeable = False
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) << 20)
    load = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(bytes(LARGE))])
    for step in range(STEPS):
        values[:] = step
        yield pa.RecordBatch.from_arrays([pa.array(view), load], names=["v", "load"])


def frames(_: Iterator[Any]) -> Iterator[Any]:
    """A pandas frame over an array."""
    import pandas as pd

    values = np.zeros(ROWS, np.int64)
    frame = pd.DataFrame({"v": values}, copy=False)
    for step in range(STEPS):
        values[:] = step
        yield frame


def frames_copied_on_write(_: Iterator[Any]) -> Iterator[Any]:
    """Frames that show their values read-only, over one array."""
    import pandas as pd

    values = np.zeros(MANY_ROWS, np.int64)
    for step in range(STEPS):
        values[:] = step
        view = values[:]
        view.flags.writeable = False
        yield pd.DataFrame({"v": pd.Series(view, copy=False)}, copy=False)


def frames_of_arrow(_: Iterator[Any]) -> Iterator[Any]:
    """Frames whose column is an Arrow array."""
    import pandas as pd

    column, values = integers(bytearray(ROWS * 8))
    for step in range(STEPS):
        values[:] = step
        yield pd.DataFrame({"v": pd.array(pd.arrays.ArrowExtensionArray(column))}, copy=False)


@dataclass(frozen=True)
class Kind:
    """A kind of memory: the function, its schema, and a step's value."""

    function: Callable[..., Any]
    schema: pa.Schema
    value: Callable[[int], Any] = int
    rows: int = ROWS

    @property
    def of_frames(self) -> bool:
        """True if the function gives frames."""
        return self.function.__name__.startswith("frames")

    def over(self, stream: Any) -> Any:
        """The function over a stream."""
        return (stream.mapInPandas if self.of_frames else stream.mapInArrow)(self.function, self.schema)

    def counts(self, tasks: int) -> Counter[str]:
        """The number of times that each value of `v` comes out of so many tasks."""
        if self.function is validity:
            valid = Counter(row for step in range(STEPS) for row in range(step))
            own = {repr(row): count * tasks for row, count in valid.items()}
            return Counter({**own, "None": tasks * (STEPS * ROWS - valid.total())})
        return Counter({repr(self.value(step)): self.rows * tasks for step in range(STEPS)})


def counts_of(values: pa.ChunkedArray) -> Counter[str]:
    """The number of times that each value is there."""
    if pa.types.is_nested(values.type):
        return Counter(map(repr, values.to_pylist()))
    found = values.value_counts()
    return Counter(
        dict(zip(map(repr, found.field("values").to_pylist()), found.field("counts").to_pylist(), strict=True))
    )


_INTEGERS = pa.schema([("v", pa.int64())])
KINDS = {
    kind.function.__name__: kind
    for kind in (
        *(Kind(each, _INTEGERS) for each in (writable, byte_array, arrows_own, validity)),
        *(Kind(each, _INTEGERS, rows=MANY_ROWS) for each in (read_only_view, mapped, frames_copied_on_write)),
        Kind(strings, pa.schema([("v", pa.string())]), str, MANY_ROWS),
        Kind(lists, pa.schema([("v", pa.list_(pa.int64()))]), lambda step: [step, step]),
        Kind(structs, pa.schema([("v", pa.struct([("f", pa.int64())]))]), lambda step: {"f": step}),
        Kind(slices, _INTEGERS),
        Kind(large, pa.schema([("v", pa.int64()), ("load", pa.binary())]), rows=LARGE >> 20),
        *(Kind(each, _INTEGERS) for each in (frames, frames_of_arrow)),
    )
}
