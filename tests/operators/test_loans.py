# SPDX-License-Identifier: Apache-2.0
"""The columns that are copied after a function, and that nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.graph import Operator
from penstock.operators.aggregate_operators import aggregate_pair
from penstock.operators.aggregate_states import Aggregation
from penstock.operators.expressions import ColumnRef
from penstock.operators.functions import GroupApply, GroupApplyInArrow, GroupForm, MapInArrow
from penstock.operators.loans import Loan
from penstock.operators.verbs import Limit, Project
from penstock.record.copies import Copies
from penstock.task.chain import chained

ROWS = 20_000
SCHEMA = pa.schema([("v", pa.int64()), ("w", pa.int64())])
INPUT = pa.RecordBatch.from_arrays(
    [pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(bytes(8 * ROWS))])] * 2, schema=SCHEMA
)
"""Over memory that can't be written into, as batches of an exchange are."""
Batches = Iterator[pa.RecordBatch]


def places(column: pa.Array) -> set[int]:
    """The addresses of the column's values, those of a dictionary included."""
    own = {buffer.address for buffer in column.buffers() if buffer is not None and buffer.size}
    return own | (places(column.dictionary) if pa.types.is_dictionary(column.type) else set())


def through(operators: list[Operator], kept: bool, batches: Batches) -> Batches:
    """These operators as a task runs them."""
    _, chain = chained(None, operators, lambda _: kept)
    for operator in chain:
        batches = operator.apply(batches)
    return batches


class Counting:
    """Writes the step's number over the same array, beside a column of its input."""

    def __init__(self) -> None:
        self.values = np.zeros(ROWS, np.int64)

    def __call__(self, batches: Batches) -> Batches:
        """Three batches for each."""
        for batch in batches:
            for step in range(3):
                self.values[:] = step
                yield pa.RecordBatch.from_arrays([pa.array(self.values), batch["w"]], schema=SCHEMA)


def test_nothing_is_copied_where_nobody_holds() -> None:
    """Outputs that are through with a batch get the function's memory itself, also after columns and limits."""
    narrow: list[Operator] = [Project((ColumnRef("v", pa.int64()),), SCHEMA.remove(1)), Limit(100_000)]
    for behind in ([], narrow):
        function = Counting()
        made = through([MapInArrow(function, SCHEMA), *behind], False, iter([INPUT]))
        assert [places(batch["v"]) for batch in made] == [{function.values.ctypes.data}] * 3


def test_what_is_held_is_copied_and_what_only_passes_is_not() -> None:
    """The array's column keeps its values; the input's, which nobody can write into, stays where it is."""
    function = Counting()
    made = list(through([MapInArrow(function, SCHEMA)], True, iter([INPUT])))
    assert [set(batch["v"].to_pylist()) for batch in made] == [{0}, {1}, {2}]
    assert all(places(batch["w"]) == places(INPUT["w"]) for batch in made)


def test_the_next_function_gets_rows_of_their_own() -> None:
    """A function may hold what it is given, so a copy is made for it, and one of a slice is of the slice."""
    held: list[pa.RecordBatch] = []

    def hold(batches: Batches) -> Batches:
        held.extend(batches)
        yield from held

    list(through([MapInArrow(Counting(), SCHEMA), Limit(50_000), MapInArrow(hold, SCHEMA)], False, iter([INPUT])))
    assert [(batch.num_rows, set(batch["v"].to_pylist())) for batch in held] == [
        (20_000, {0}),
        (20_000, {1}),
        (10_000, {2}),
    ]


def test_input_that_can_be_written_into_is_copied_where_it_is_passed_on() -> None:
    """A function may write into such a batch of its input after it gave it."""
    memory = pa.allocate_buffer(8 * ROWS)
    values = np.frombuffer(memory, np.int64)

    def edit(batches: Batches) -> Batches:
        for batch in batches:
            for step in range(2):
                values[:] = step
                yield batch

    schema = pa.schema([("v", pa.int64())])
    given = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), ROWS, [None, memory])], schema=schema)
    made = list(through([MapInArrow(edit, schema)], True, iter([given])))
    assert [set(batch["v"].to_pylist()) for batch in made] == [{0}, {1}]


def test_rows_that_an_operator_gathers_are_not_copied_again() -> None:
    """Rows that lie in no function's memory are no loan: gathered rows, the joined rows of small groups."""
    loan = Loan()
    for batch in loan.lending(iter([INPUT])):
        made = batch.take(pa.array(range(ROWS)))
        assert places(loan.own(made)["v"]) == places(made["v"])
        assert not places(loan.own(batch.slice(1, ROWS - 2))["v"]) & places(batch["v"])
    assert loan.own(INPUT) is INPUT  # nothing is lent any more
    grouped = GroupApplyInArrow(GroupApply(SCHEMA, ("v",), lambda table: table, GroupForm(), SCHEMA), loan=loan)
    for batch in grouped.apply(iter([INPUT.slice(0, 3), INPUT.slice(0, 2)])):
        assert loan.own(batch) is batch
    for batch in grouped.apply(iter([INPUT])):
        assert batch.num_rows == ROWS
        assert not places(loan.own(batch)["v"]) & places(batch["v"])


LETTERS = pa.array(["a" * 20, "b" * 30, None] * 4)
COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "integers": lambda: pa.array(range(12)),
    "strings": lambda: LETTERS,
    "views": lambda: LETTERS.cast(pa.string_view()),
    "dictionary": LETTERS.dictionary_encode,
    "lists": lambda: pa.array([[1, 2], None, [3]] * 4),
    "list views": lambda: pa.array([[1, 2], None, [3]] * 4, pa.list_view(pa.int64())),
    "lists of views": lambda: pa.array([["a" * 20]] * 12, pa.list_(pa.string_view())),
    "lists of a dictionary": lambda: pa.ListArray.from_arrays(
        pa.array(range(13), pa.int32()), COLUMNS["dictionary"]()
    ),
    "structs of a dictionary": lambda: pa.StructArray.from_arrays([COLUMNS["dictionary"]()], ["f"]),
    "maps": lambda: pa.array([[("k", 1)]] * 12, pa.map_(pa.string(), pa.int64())),
    "runs": lambda: pc.run_end_encode(pa.array([1, 1, 2] * 4)),
    "extension": lambda: pa.array([b"0" * 16] * 12, pa.uuid()),
    "nulls": lambda: pa.nulls(12),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_copy_shares_nothing(name: str) -> None:
    """All layouts, a slice of them too: equal values, and no byte of the memory that they had."""
    column = COLUMNS[name]()
    for part in (column, column.slice(2, 5)):
        batch = pa.RecordBatch.from_arrays([part, part], names=["a", "b"])
        copies = Copies()
        for made in (copies.of(batch), pa.RecordBatch.from_arrays([copies.of_column(part)] * 2, names=["a", "b"])):
            assert made.to_pydict() == batch.to_pydict()
            assert made.schema.equals(batch.schema)
            assert not places(made["a"]) & places(part)
    assert Copies().of(pa.record_batch({})).num_columns == 0


def test_an_aggregation_copies_what_it_reads() -> None:
    """A column that nobody reads afterwards stays where the function has it; the counts are right."""
    function = Counting()
    partial, *_ = aggregate_pair(SCHEMA, ("w",), (Aggregation("n", "*", "count"),))
    _, (first, kept, last) = chained(None, [MapInArrow(function, SCHEMA), partial], lambda _: False)
    for batch in kept.apply(first.apply(iter([INPUT]))):
        assert places(batch["v"]) == {function.values.ctypes.data}
    partial, *_ = aggregate_pair(SCHEMA, ("v",), (Aggregation("n", "*", "count"),))
    _, (first, kept, last) = chained(None, [MapInArrow(function, SCHEMA), partial], lambda _: False)
    states = [row for batch in last.apply(kept.apply(first.apply(iter([INPUT])))) for row in batch.to_pylist()]
    assert [tuple(row.values()) for row in states] == [(0, ROWS), (1, ROWS), (2, ROWS)]
