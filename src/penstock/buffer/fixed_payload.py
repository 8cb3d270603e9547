# SPDX-License-Identifier: Apache-2.0
"""Payloads of batches whose columns all have a fixed width, without Arrow's serializer.

A bare IPC record-batch message is a head (the metadata: lengths and offsets) and a body (the columns' buffers). If
all columns have a fixed width, everything in the head that differs between two batches of a schema is a number at a
known place. So the head is taken from Arrow once, and the numbers of many batches are filled in at once; the caller,
which has the columns' bytes, puts the body together.

Rules:

- A body is, for each column, a bitmap of the rows that are not null (empty where a batch is written without one) and
  the values; each is filled up with zeroes to a multiple of 8 bytes.
- Only columns with a validity bitmap and one buffer of values are meant: numbers, bools, times, decimals, binaries of
  fixed size. For any other schema there are no such payloads: `FixedPayloads.of` is None.
- A payload must be the one that Arrow's serializer builds: that is tried out once for each schema, on a small batch,
  and where an Arrow lays out its metadata otherwise there are no such payloads either.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

Ints = npt.NDArray[np.int64]

_PROBE_ROWS = (72, 3)
"""A head is taken from a batch of so many rows, and tried out on one of so many."""
_PREFIX = 8
"""The length of the bytes before the metadata: a marker and the metadata's length."""
_WORD = 8


class FixedPayloads:
    """The payloads of one schema. Life: `of`, then any number of `body_sizes` and `heads`."""

    __slots__ = ("_places", "_template", "head_size", "widths")

    def __init__(self, widths: tuple[int, ...], template: bytes, places: tuple[int, int, int, int]) -> None:
        self.widths = widths
        """The bytes of a value of each column, or 0 where it is a bit."""
        self.head_size = len(template)
        self._template = np.frombuffer(template, np.int64)
        self._places = places

    @classmethod
    def of(cls, schema: pa.Schema) -> FixedPayloads | None:
        """The payloads of a schema, or None where a column has no fixed width or there is no column."""
        if not len(schema) or not all(map(_is_fixed, schema.types)):
            return None
        widths = tuple(0 if pt.is_boolean(kind) else int(kind.bit_width) // 8 for kind in schema.types)
        message = _probe(schema, widths, _PROBE_ROWS[0]).serialize()
        (length,) = struct.unpack_from("<i", message, 4)
        template = message.slice(0, _PREFIX + length).to_pybytes()
        payloads = cls(widths, template, _places(template))
        return payloads if payloads._builds(_probe(schema, widths, _PROBE_ROWS[1])) else None

    def body_sizes(self, rows: Ints, flagged: Sequence[bool]) -> Ints:
        """Bytes of each of a body's buffers, without what fills them up: a line per batch of so many rows.

        `flagged` says which columns are written with a bitmap.
        """
        bits = (rows + 7) >> 3
        sizes = np.zeros((len(rows), 2 * len(self.widths)), np.int64)
        for at, (width, has_bitmap) in enumerate(zip(self.widths, flagged, strict=True)):
            if has_bitmap:
                sizes[:, 2 * at] = bits
            sizes[:, 2 * at + 1] = rows * width if width else bits
        return sizes

    def heads(self, rows: Ints, nulls: Ints, sizes: Ints) -> npt.NDArray[np.uint8]:
        """The heads of batches, one a line: of so many rows, with so many nulls in each column, of such bodies."""
        columns = len(self.widths)
        words = np.tile(self._template, (len(rows), 1))
        filled = filled_up(sizes)
        body, count, nodes, buffers = self._places
        words[:, body] = filled.sum(axis=1)
        words[:, count] = rows
        words[:, nodes : nodes + 2 * columns : 2] = rows[:, None]
        words[:, nodes + 1 : nodes + 1 + 2 * columns : 2] = nulls
        words[:, buffers : buffers + 4 * columns : 2] = np.cumsum(filled, axis=1) - filled
        words[:, buffers + 1 : buffers + 1 + 4 * columns : 2] = sizes
        return words.view(np.uint8)

    def _builds(self, probe: pa.RecordBatch) -> bool:
        """Tell whether this batch, which holds zeroes and no nulls, gets the bytes that Arrow gives it."""
        sizes = self.body_sizes(np.array([probe.num_rows]), [False] * len(self.widths))
        head = self.heads(np.array([probe.num_rows]), np.zeros((1, len(self.widths)), np.int64), sizes)
        return bool(head.tobytes() + bytes(int(filled_up(sizes).sum())) == probe.serialize().to_pybytes())


def filled_up(sizes: Ints) -> Ints:
    """Sizes with what fills them up to a multiple of 8."""
    return (sizes + 7) & ~7


def _is_fixed(kind: pa.DataType) -> bool:
    if pt.is_fixed_size_binary(kind):
        return bool(kind.byte_width > 0)
    return bool(pt.is_primitive(kind) or pt.is_decimal(kind)) and not isinstance(kind, pa.BaseExtensionType)


def _probe(schema: pa.Schema, widths: tuple[int, ...], rows: int) -> pa.RecordBatch:
    columns = []
    for kind, width in zip(schema.types, widths, strict=True):
        values = pa.py_buffer(bytes(rows * width if width else (rows + 7) // 8))
        columns.append(pa.Array.from_buffers(kind, rows, [None, values]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _places(template: bytes) -> tuple[int, int, int, int]:
    """The places in a head, in words of 8 bytes: of the body's length, rows, the columns' figures, the buffers'.

    A flatbuffer: a table begins with the way back to a list of its fields' places, a vector with its length.
    """

    def number(form: str, at: int) -> int:
        found: tuple[Any, ...] = struct.unpack_from(form, template, at)
        return int(found[0])

    def field(table: int, slot: int) -> int:
        return table + number("<H", table - number("<i", table) + 4 + 2 * slot)

    def target(place: int) -> int:
        return place + number("<I", place)

    message = target(_PREFIX)
    batch = target(field(message, 2))
    places = field(message, 3), field(batch, 0), target(field(batch, 1)) + 4, target(field(batch, 2)) + 4
    body, rows, nodes, buffers = (place // _WORD for place in places)
    return body, rows, nodes, buffers
