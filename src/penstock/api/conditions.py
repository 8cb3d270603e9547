# SPDX-License-Identifier: Apache-2.0
"""Conditions that a reader of files may take over: a column compared with constants of its own type.

`pushdown` finds them in the filters after a source. Each reader has them in the words of its own library.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

COMPARISONS = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """True of rows whose column passes a test; `test` is a name out of COMPARISONS, In or IsNotNull.

    `values` are of the column's type, none of them is null: one for a comparison, none for IsNotNull.
    """

    test: str
    column: str
    values: pa.Array

    @property
    def expression(self) -> pc.Expression:
        """The condition as an expression of Arrow."""
        column = pc.field(self.column)
        if self.test == "IsNotNull":
            return column.is_valid()
        if self.test == "In":
            return column.isin(self.values)
        return COMPARISONS[self.test](column, self.values[0])
