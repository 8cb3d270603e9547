# SPDX-License-Identifier: Apache-2.0
"""The way from lines of text to rows, and which files of lines are compressed: for batches and for streams."""

from __future__ import annotations

from typing import Final, Protocol

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.record.row_sizes import MOST_BYTES, RowSizes

COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".br")
"""Endings of files that Arrow uncompresses as it reads them; such a file can't be read from its middle."""
_NOT_READ = (".deflate", ".snappy")
"""Endings of files that Spark compresses, and that Arrow can't read."""


def refuse_compressed(path: str, reader: str) -> None:
    """Raise SchemaError for a file whose bytes would be taken for lines."""
    if path.endswith(_NOT_READ):
        raise SchemaError(
            f"{reader}: {path} is compressed in a way that only Spark reads: read it by spark.read, or write it as"
            " .gz, .bz2 or .zst"
        )


def most_lines(schema: pa.Schema) -> int:
    """So many lines, however short, make rows of no more bytes than a batch has, but for texts and lists."""
    return max(1, MOST_BYTES // max(1, RowSizes(pa.nulls(0, each.type) for each in schema).fixed))


class LineFormat(Protocol):
    """The way from lines to rows; picklable."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    @property
    def skips_first(self) -> bool:
        """True if the first line of a file is no row."""

    def rows(self, lines: bytes) -> pa.RecordBatch:
        r"""The rows of whole lines that end with `\n`; raises pa.ArrowInvalid for lines that do not fit."""
