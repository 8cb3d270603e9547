# SPDX-License-Identifier: Apache-2.0
"""The parts of an aggregate function: states that merge in any order, and the way from them to the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import ArithmeticOverflowError


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One result column: its name, the column it is made of, the function."""

    name: str
    column: str
    function: str

    @property
    def title(self) -> str:
        """The text that shows it."""
        return f"{self.name}={self.function}({self.column})"


@dataclass(frozen=True, slots=True)
class SumRules:
    """The rules for a sum that leaves its type: with `ansi` an error, else null for decimals.

    `title` names the result column. Integers wrap without `ansi`, as in Spark, so their sums have no rules then.
    """

    title: str
    ansi: bool = True

    def error(self, kind: pa.DataType) -> ArithmeticOverflowError:
        """The error for a sum that does not fit this type; begins as Spark's does."""
        what = "decimals" if pa.types.is_decimal(kind) else "integers"
        return ArithmeticOverflowError(
            f"[ARITHMETIC_OVERFLOW] Overflow in sum of {what}: {self.title} does not fit {kind}. Cast the column "
            'first, or, if necessary, set "spark.sql.ansi.enabled" to "false" to bypass this error. '
            "SQLSTATE: 22003"
        )


@dataclass(frozen=True, slots=True)
class State:
    """One state column: suffix and type, how it is lifted out of the input, how states merge.

    A sum with `rules` is checked when states merge. If its rules are not ANSI's, the next state is a boolean that is
    true for the groups whose sum has left the type for good, and null for the others.
    """

    suffix: str
    type: pa.DataType
    merge: str
    lift: Callable[[pa.Array], pa.Array]
    rules: SumRules | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """One function over one type: its states, its result's type, and how states become the result.

    `keeps_type` says that the result is one of the column's values, so it is whatever Spark knows the column to be.
    `may_be_null` says whether a group may have no result; what counts and what lists always has one.
    """

    states: tuple[State, ...]
    type: pa.DataType
    finish: Callable[..., pa.Array]
    keeps_type: bool = False
    may_be_null: bool = True
