# SPDX-License-Identifier: Apache-2.0
"""The chain of one task: its operators, and after its functions a copy that gives rows of their own (see `loans`).

An operator that is not named here as one that goes batch by batch holds on to its input, and so does a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.graph import Combine, Operator
from penstock.operators.aggregate_operators import PartialAggregate
from penstock.operators.batch_by_batch import BatchByBatch
from penstock.operators.cogroup import CoGroupApplyInArrow, CoGroupApplyInPandas
from penstock.operators.functions import GroupApplyInArrow, GroupApplyInPandas, MapInArrow, MapInPandas
from penstock.operators.loans import Keeps, Loan, OwnRows
from penstock.operators.verbs import Limit

_FUNCTIONS = (MapInArrow, MapInPandas, GroupApplyInArrow, GroupApplyInPandas)
_COMBINING_FUNCTIONS = (CoGroupApplyInArrow, CoGroupApplyInPandas)
_PASSING = (BatchByBatch, Limit)
"""These are through with a batch when they ask for the next one; what they give may lie in its memory."""


def chained(
    combine: Combine | None, operators: Sequence[Operator], keeps: Keeps
) -> tuple[Combine | None, list[Operator]]:
    """The parts of a chain whose functions lend what they give; `keeps` is asked for the chain's outputs."""
    loan: Loan | None = None
    if isinstance(combine, _COMBINING_FUNCTIONS):
        loan = Loan()
        combine = replace(combine, loan=loan)
    chain: list[Operator] = []
    for operator in operators:
        if loan is not None and not isinstance(operator, _PASSING):
            read = frozenset(operator.spec.plan.columns()) if isinstance(operator, PartialAggregate) else None
            chain.append(OwnRows(loan, read=read))
            loan = None
        if isinstance(operator, _FUNCTIONS):
            loan = Loan()
            operator = replace(operator, loan=loan)  # noqa: PLW2901 - the same one, with a loan
        chain.append(operator)
    if loan is not None:
        chain.append(OwnRows(loan, keeps))
    return combine, chain
