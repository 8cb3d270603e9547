# SPDX-License-Identifier: Apache-2.0
"""Filters and projections directly after Parquet files and Iceberg tables reach their readers.

Columns that nothing after the source reads are not read. Conditions that mean the same to the reader as to Spark are
given to it, which skips files and row groups by their statistics and drops rows while it decodes: comparisons of a
column with a constant, `IN`, and tests for null. NaN is above all numbers to Spark and beyond all statistics to
Parquet, so of floats only what NaN cannot satisfy is given. All other conditions stay in the task.

The source is changed in a plan, not in a stream: a stream that two others read is read whole, once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.conditions import COMPARISONS, Condition
from penstock.api.iceberg_scan import IcebergSource
from penstock.api.lineage import OperatorStep, SourceStep, Step, in_order, parents_of, with_parents
from penstock.api.parquet import ParquetSource
from penstock.graph import Operator
from penstock.operators.aggregate_operators import PartialAggregate
from penstock.operators.expressions import Call, ColumnRef, Constant, Expression, conjuncts
from penstock.operators.verbs import Limit, Project, Where, Widen

_TURNED = {
    "EqualTo": "EqualTo",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
_NEVER_NAN = ("EqualTo", "LessThan", "LessThanOrEqual")


def pushed_down(results: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same results; files and tables with one reader read no more than that needs."""
    steps = list(in_order(results))
    readers = Counter(id(parent) for step in steps for parent in parents_of(step))
    readers.update(id(step) for step in results)
    chains = {id(step): _chain(step, steps, readers) for step in steps if _is_table(step)}
    made: dict[int, Step] = {}
    for step in steps:
        chain = chains.get(id(step))
        if chain:
            made.update(_narrowed(step, chain))
        if id(step) not in made:
            made[id(step)] = with_parents(step, lambda parent: made[id(parent)])
    return tuple(made[id(step)] for step in results)


def _is_table(step: Step) -> bool:
    return isinstance(step, SourceStep) and isinstance(step.source, ParquetSource | IcebergSource)


def _chain(source: Step, steps: list[Step], readers: Counter[int]) -> list[OperatorStep]:
    """The operators after a source, as far as each is the only reader of the one before it."""
    found: list[OperatorStep] = []
    last = source
    while readers[id(last)] == 1:
        above = [step for step in steps if any(parent is last for parent in parents_of(step))]
        if not (above and isinstance(above[0], OperatorStep) and _is_understood(above[0])):
            break
        found.append(above[0])
        last = above[0]
        if isinstance(above[0].operator, PartialAggregate):
            break
    return found


def _is_understood(step: OperatorStep) -> bool:
    return isinstance(step.operator, Where | Project | Limit | Widen | PartialAggregate)


def _narrowed(step: Step, chain: list[OperatorStep]) -> dict[int, Step]:
    """The source with fewer columns and a filter, and the operators after it, by the steps they replace."""
    assert isinstance(step, SourceStep)  # noqa: S101 - for the type checker
    source = step.source
    assert isinstance(source, ParquetSource | IcebergSource)  # noqa: S101 - as above
    given, operators = _filtered(chain, source.whole)
    needed, operators = _pruned(chain, operators)
    # Batches without columns would lose the number of rows.
    columns = tuple(name for name in source.columns if name in needed) or source.columns[:1]
    narrow = source.narrowed(columns, given)
    limit, size = max(1, len(narrow.parts)), sum(part.bytes for part in narrow.parts)
    last: Step = replace(step, source=narrow, schema=narrow.schema, limit=limit, bytes=size)
    made: dict[int, Step] = {id(step): last}
    for above, operator in zip(chain, operators, strict=True):
        if isinstance(operator, Project | Widen):
            last = OperatorStep(last, operator, operator.schema)
        elif isinstance(operator, PartialAggregate):
            last = OperatorStep(last, PartialAggregate(replace(operator.spec, schema=last.schema)), above.schema)
        elif operator is not None:
            last = OperatorStep(last, operator, last.schema)
        made[id(above)] = last
    return made


def _filtered(chain: list[OperatorStep], own: pa.Schema) -> tuple[list[Condition], list[Operator | None]]:
    """The conditions ahead of any limit that the reader takes over, and the operators that are left."""
    given: list[Condition] = []
    operators: list[Operator | None] = []
    for step in chain:
        operator = step.operator
        if isinstance(operator, Limit):
            own = pa.schema([])
        elif isinstance(operator, Project):
            own = pa.schema([field for field in own if operator.keeps(field.name)])
        elif isinstance(operator, Where):
            parts = [(part, _for_reader(part, own)) for part in conjuncts(operator.condition)]
            given += [found for _, found in parts if found is not None]
            rest = [part for part, found in parts if found is None]
            operators.append(replace(operator, condition=reduce(_both, rest)) if rest else None)
            continue
        operators.append(operator)
    return given, operators


def _both(one: Expression, other: Expression) -> Expression:
    return Call("And", pa.bool_(), (one, other))


def _pruned(chain: list[OperatorStep], operators: list[Operator | None]) -> tuple[set[str], list[Operator | None]]:
    """The columns that are needed of the source, and the operators without columns that none after them needs."""
    needed = set(chain[-1].schema.names)
    pruned: list[Operator | None] = []
    for operator in reversed(operators):
        kept = operator
        if isinstance(operator, Where):
            needed |= set(operator.columns)
        elif isinstance(operator, Project):
            kept = _with_fields(operator, needed)
            needed = set(kept.columns)
        elif isinstance(operator, Widen):
            kept = operator.of(needed) if needed.intersection(operator.columns) else None
        elif isinstance(operator, PartialAggregate):
            names = operator.spec.schema.names
            needed = {names[place] for place in operator.spec.plan.columns()}
        pruned.append(kept)
    return needed, pruned[::-1]


def _with_fields(project: Project, names: set[str]) -> Project:
    kept = [place for place, name in enumerate(project.schema.names) if name in names]
    fields = [project.schema.field(place) for place in kept]
    return Project(tuple(project.expressions[place] for place in kept), pa.schema(fields))


def _for_reader(part: Expression, schema: pa.Schema) -> Condition | None:
    """A condition as the reader takes it; None where it would not mean the same to it."""
    if not isinstance(part, Call):
        return None
    if part.function == "Not" and isinstance(part.arguments[0], Call) and part.arguments[0].function == "IsNull":
        return _is_valid(part.arguments[0], schema)
    if part.function == "IsNotNull":
        return _is_valid(part, schema)
    if part.function == "In":
        return _in(part, schema)
    if part.function not in COMPARISONS:
        return None
    name, (left, right) = part.function, part.arguments
    if isinstance(left, Constant):
        name, left, right = _TURNED[name], right, left
    if not (_is_stored(left, schema) and isinstance(right, Constant) and right.array.null_count == 0):
        return None
    assert isinstance(left, ColumnRef)  # noqa: S101 - for the type checker
    if pt.is_floating(left.type) and (name not in _NEVER_NAN or right.scalar.as_py() != right.scalar.as_py()):
        return None
    return Condition(name, left.name, right.array)


def _is_stored(side: Expression, schema: pa.Schema) -> bool:
    """Tell whether it is a column of the file in the file's own type, so that both compare the same values."""
    return (
        isinstance(side, ColumnRef) and side.name in schema.names and schema.field(side.name).type.equals(side.type)
    )


def _is_valid(part: Call, schema: pa.Schema) -> Condition | None:
    (column,) = part.arguments
    if not isinstance(column, ColumnRef) or not _is_stored(column, schema):
        return None
    return Condition("IsNotNull", column.name, pa.nulls(0, column.type))


def _in(part: Call, schema: pa.Schema) -> Condition | None:
    column, *choices = part.arguments
    constants = [choice.array for choice in choices if isinstance(choice, Constant) and not choice.array.null_count]
    if not (isinstance(column, ColumnRef) and _is_stored(column, schema) and len(constants) == len(choices)):
        return None
    if pt.is_floating(column.type):
        return None
    return Condition("In", column.name, pa.concat_arrays(constants))
