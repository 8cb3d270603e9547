# SPDX-License-Identifier: Apache-2.0
"""Expressions over Arrow batches: read by Spark's analyser, evaluated by Arrow's kernels."""

from penstock.operators.expressions.evaluation import FUNCTIONS, by_arrow, evaluate, probe, selected
from penstock.operators.expressions.tree import (
    ArrowExpression,
    Call,
    ColumnRef,
    Constant,
    Expression,
    UnsupportedError,
    ValuesError,
    columns_of,
    conjuncts,
)

__all__ = [
    "FUNCTIONS",
    "ArrowExpression",
    "Call",
    "ColumnRef",
    "Constant",
    "Expression",
    "UnsupportedError",
    "ValuesError",
    "by_arrow",
    "columns_of",
    "conjuncts",
    "evaluate",
    "probe",
    "selected",
]
