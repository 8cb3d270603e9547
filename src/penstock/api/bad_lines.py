# SPDX-License-Identifier: Apache-2.0
"""Lines that do not fit the schema, as Spark's `mode` says: kept with nulls, dropped, or the end of the job.

A line is bad where a value is none of its column's type, or where it has more or fewer values than there are columns.
PERMISSIVE keeps what could be read, and puts the line into the column for corrupt records if the schema has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SettingError
from penstock.operators.expressions.values import array_of

BadLineMode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: tuple[BadLineMode, ...] = get_args(BadLineMode)
CORRUPT = "_corrupt_record"

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BadLines:
    """The mode for bad lines, and the column that keeps them; `found` are columns whose types were inferred."""

    mode: str = MODES[0]
    column: str | None = CORRUPT
    found: frozenset[str] = frozenset()

    def data(self, schema: pa.Schema) -> pa.Schema:
        """The columns that lines have, without that for bad ones."""
        return pa.schema([field for field in schema if field.name != self.column])

    def check(self, schema: pa.Schema, verb: str) -> None:
        """Raise SettingError where the column for bad lines is no string."""
        kind = schema.field(self.column).type if self.column in schema.names else pa.string()
        if not pt.is_string(kind):
            raise SettingError(f"{verb}: column {self.column!r} keeps corrupt records, so it is a string, not {kind}")

    def refuse(self, line: str, why: str) -> None:
        """Raise pa.ArrowInvalid where bad lines end the job."""
        if self.mode == "FAILFAST":
            raise pa.ArrowInvalid(f"{why} in the line {line[:200]!r}, and mode is FAILFAST")

    def rows(self, columns: list[pa.Array], bad: Bools | None, lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of `data`'s columns as the mode wants them; `lines` are as many as rows."""
        if self.column in schema.names:
            good = np.ones(len(lines), np.bool_) if bad is None else ~bad
            places = array_of(np.arange(len(lines)), pa.int64(), good)
            columns = list(columns)
            columns.insert(schema.names.index(self.column), lines.take(places))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        if bad is not None and self.mode == "DROPMALFORMED":
            rows = rows.take(array_of(np.flatnonzero(~bad), pa.int64()))
        return rows


def bad_lines(mode: object, column: object, verb: str) -> BadLines:
    """Read the reader's options; raises SettingError for any other mode or column."""
    wanted = str(mode).upper() if isinstance(mode, str) else ""
    if wanted not in MODES:
        raise SettingError(f"{verb}: mode is one of {', '.join(MODES)}, not {mode!r}")
    if not (isinstance(column, str) and column):
        raise SettingError(f"{verb}: columnNameOfCorruptRecord is the name of a column, not {column!r}")
    return BadLines(wanted, column)
