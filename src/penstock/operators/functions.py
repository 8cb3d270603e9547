# SPDX-License-Identifier: Apache-2.0
"""The operators of a chain that call user functions: over batches, and over one group at a time.

Every function's output is made to fit the declared schema (see `conform`). An error that a function raises leaves
`apply` as it was raised. A function may end without reading all of its input, and may use the memory of what it gave
again.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any

import pyarrow as pa

from penstock.errors import PlanError, SchemaError
from penstock.operators.conform import Conformer
from penstock.operators.frame_keys import FrameKeys
from penstock.operators.frames import batch_of, frame_of, is_frame
from penstock.operators.groups import GroupCollector, Side
from penstock.operators.loans import Loan, lending, passing
from penstock.operators.memory import task_memory
from penstock.operators.zones import batches_in, schema_in
from penstock.record.copies import Copies
from penstock.record.joining import joined

_REGROUP_ROWS = 1 << 14
_REGROUP_BYTES = 8 << 20

Group = tuple[tuple[pa.Scalar, ...], list[pa.RecordBatch]]
"""A key and its rows."""


def function_name(function: Callable[..., object]) -> str:
    """The name that a function is shown by."""
    return getattr(function, "__name__", None) or type(function).__name__


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or an object of the class that was given in its place."""
    return function() if isinstance(function, type) else function


def iterated(result: object) -> object:
    """An iterator over what can be iterated over, such as a list, as PySpark takes it of the functions of a task."""
    return iter(result) if isinstance(result, Iterable) else result


def ending_by_itself(given: Iterable[Any], operator: str) -> Iterable[Any]:
    """The items that users' code gives; a StopIteration out of code that it calls, which would end them, is an error.

    So it is where a generator calls that code, by Python's own rule, and in a `map` of a function by none: rows after
    it would be lost without a word, as PySpark's users know. An iterator of a class raises it in its own `__next__`.
    """
    return given if isinstance(given, _ENDING) else _Items(iter(given), operator)


_ENDING = (GeneratorType, list, tuple)


class _Items:
    """The items of an iterator, up to its own end."""

    __slots__ = ("_items", "_operator")

    def __init__(self, items: Iterator[Any], operator: str) -> None:
        self._items = items
        self._operator = operator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration as end:
            inside = end.__traceback__ and end.__traceback__.tb_next
            function = inside.tb_frame.f_code.co_name if inside else "__next__"
            if function == "__next__":
                raise
            raise RuntimeError(
                f"{self._operator}: {function} raised StopIteration, which would end the rows and lose those after"
                " it: catch it there, or give next() a second argument"
            ) from end


def checked_iterator(result: object, expected: str, operator: str) -> Iterator[Any]:
    """The result if it is an iterator; raises SchemaError in PySpark's words, and what to write."""
    if not isinstance(result, Iterator):
        raise SchemaError(
            f"{operator}: return type of the user-defined function should be iterator of {expected}, "
            f"but is {type(result).__name__}: yield each one, or return iter([...])"
        )
    return iter(ending_by_itself(result, operator))


def checked_table(result: object, operator: str) -> pa.Table:
    """The result if it is a table; raises SchemaError in PySpark's words."""
    if not isinstance(result, pa.Table):
        raise _wrong_result(result, "pyarrow.Table", operator)
    return result


def checked_frame(result: object, operator: str) -> Any:
    """The result if it is a frame; raises SchemaError in PySpark's words."""
    if not is_frame(result):
        raise _wrong_result(result, "pandas.DataFrame", operator)
    return result


def _wrong_result(result: object, expected: str, operator: str) -> SchemaError:
    return SchemaError(
        f"{operator}: return type of the user-defined function should be {expected}, but is {type(result).__name__}: "
        f"return a {expected} with the declared columns"
    )


def _wrong_item(item: object, expected: str, operator: str) -> SchemaError:
    ways = "yield from table.to_batches()" if isinstance(item, pa.Table) else f"yield a {expected} each time"
    return SchemaError(
        f"{operator}: return type of the user-defined function should be iterator of {expected}, "
        f"but is iterator of {type(item).__name__}: {ways}"
    )


def _batches(result: object, conformer: Conformer, operator: str) -> Iterator[pa.RecordBatch]:
    for batch in checked_iterator(result, "pyarrow.RecordBatch", operator):
        if not isinstance(batch, pa.RecordBatch):
            raise _wrong_item(batch, "pyarrow.RecordBatch", operator)
        yield conformer.conform(batch)


@dataclass(frozen=True, slots=True)
class MapInArrow:
    """`fn(iterator of batches) -> iterator of batches`, or a class whose objects are called so."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    timezone: str = "UTC"
    loan: Loan | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"mapInArrow({function_name(self.function)})"

    def opened(self) -> MapInArrow:
        """With an object in the place of a class: its `__init__` runs here, and what it sets up serves all calls."""
        return replace(self, function=opened(self.function))

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the function yields; rows of their own if the function has no `loan`."""
        shown = batches_in(passing(self.loan, batches), self.timezone)
        given = iterated(opened(self.function)(shown))
        yield from lending(self.loan, _batches(given, Conformer(self.schema, self.name), self.name))


@dataclass(frozen=True, slots=True)
class MapInPandas:
    """`fn(iterator of frames) -> iterator of frames`, or a class whose objects are called so."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    schema: pa.Schema
    timezone: str = "UTC"
    loan: Loan | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"mapInPandas({function_name(self.function)})"

    def opened(self) -> MapInPandas:
        """With an object in the place of a class, as for `MapInArrow`."""
        return replace(self, function=opened(self.function))

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the function yields; rows of their own if the function has no `loan`."""
        frames = (frame_of(batch, self.timezone, mapped=True) for batch in passing(self.loan, batches))
        given = iterated(opened(self.function)(frames))
        yield from lending(self.loan, _frames(given, self.schema, self.timezone, self.name))


def _frames(result: object, schema: pa.Schema, timezone: str, operator: str) -> Iterator[pa.RecordBatch]:
    for frame in checked_iterator(result, "pandas.DataFrame", operator):
        if not is_frame(frame):
            raise _wrong_item(frame, "pandas.DataFrame", operator)
        yield batch_of(frame, schema, timezone, operator)


@dataclass(frozen=True, slots=True)
class GroupForm:
    """The form of a group function's call: with the key before the rows or not, the rows as an iterator or whole."""

    with_key: bool = False
    iterator: bool = False


def group_form(function: Callable[..., object], verb: str) -> GroupForm:
    """The form, by number of arguments and type hints as PySpark decides it; raises PlanError for others."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return GroupForm()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) not in (1, 2):
        raise PlanError(
            f"the function in {verb} must take either one argument (the rows) or two arguments (key, rows); "
            f"{function_name(function)} takes {len(positional)}"
        )
    return GroupForm(len(positional) == 2, _is_iterator(_hint(function, positional[-1])))


def _hint(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target).get(parameter.name, parameter.annotation)
    except (NameError, TypeError, AttributeError):
        return parameter.annotation


def _is_iterator(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.split("[")[0].rsplit(".", 1)[-1] == "Iterator"
    origin = typing.get_origin(annotation) or annotation
    return getattr(origin, "__name__", "") == "Iterator"


@dataclass(frozen=True, slots=True)
class GroupApply:
    """The common part of the group operators: the input's schema, the keys, the function, its rows' schema."""

    input_schema: pa.Schema
    keys: tuple[str, ...]
    function: Callable[..., Any]
    form: GroupForm
    schema: pa.Schema

    def groups(self, batches: Iterator[pa.RecordBatch], timezone: str = "UTC") -> Iterator[Group]:
        """Each group of the whole input, with its instants in a time zone."""
        collector = GroupCollector((Side(schema_in(self.input_schema, timezone), self.keys),), task_memory())
        for batch in batches_in(batches, timezone):
            collector.add(batch)
        return ((key, slices) for key, (slices,) in collector.groups())

    def call(self, key: tuple[object, ...], rows: object) -> Any:
        """The function's answer for one group."""
        return self.function(key, rows) if self.form.with_key else self.function(rows)


@dataclass(frozen=True, slots=True)
class GroupApplyInArrow:
    """`fn([key,] table) -> table`, or `fn([key,] iterator of batches) -> iterator of batches`, for each group."""

    group: GroupApply
    timezone: str = "UTC"
    loan: Loan | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"applyInArrow({function_name(self.group.function)}) by {', '.join(self.group.keys) or 'nothing'}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns for each group in first-seen order."""
        yield from regrouped(self._results(batches), self.loan)

    def _results(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        conformer = Conformer(self.group.schema, self.name)
        for key, slices in self.group.groups(batches, self.timezone):
            if self.group.form.iterator:
                yield from _batches(self.group.call(key, iter(slices)), conformer, self.name)
                continue
            table = checked_table(self.group.call(key, pa.Table.from_batches(slices)), self.name)
            for batch in table.to_batches():
                yield conformer.conform(batch)


@dataclass(frozen=True, slots=True)
class GroupApplyInPandas:
    """`fn([key,] frame) -> frame`, or over iterators of frames, for each group."""

    group: GroupApply
    timezone: str = "UTC"
    loan: Loan | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"applyInPandas({function_name(self.group.function)}) by {', '.join(self.group.keys) or 'nothing'}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns for each group in first-seen order."""
        yield from regrouped(self._results(batches), self.loan)

    def _results(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self.group.schema
        keys = FrameKeys([self.group.input_schema.field(key).type for key in self.group.keys], self.timezone)
        for scalars, slices in self.group.groups(batches):
            key = keys.of(scalars)
            if self.group.form.iterator:
                frames = (frame_of(batch, self.timezone) for batch in slices)
                yield from _frames(self.group.call(key, frames), schema, self.timezone, self.name)
                continue
            rows = frame_of(pa.Table.from_batches(slices), self.timezone)
            frame = checked_frame(self.group.call(key, rows), self.name)
            yield batch_of(frame, schema, self.timezone, self.name)


def regrouped(batches: Iterator[pa.RecordBatch], loan: Loan | None) -> Iterator[pa.RecordBatch]:
    """Joins small batches, because a group often gives one row and every later step costs per batch.

    Rows that wait here are copied, because the function is called again meanwhile; a large batch is lent.
    """
    small: list[pa.RecordBatch] = []
    rows = size = 0
    copies = Copies()
    for batch in batches:
        if not small and (batch.num_rows >= _REGROUP_ROWS or batch.nbytes >= _REGROUP_BYTES):
            yield from lending(loan, iter((batch,)))
            continue
        small.append(copies.of(batch))
        rows += batch.num_rows
        size += small[-1].get_total_buffer_size()
        if rows >= _REGROUP_ROWS or size >= _REGROUP_BYTES:
            yield from joined(small)
            small, rows, size = [], 0, 0
    if small:
        yield from joined(small)
