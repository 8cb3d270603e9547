# SPDX-License-Identifier: Apache-2.0
"""Partitioners: which rows of a batch go to which subpartition.

Rules: `split` gives each row exactly once (a broadcasting partitioner gives the whole batch, for `ALL`; a row that a
hash is to give to all is there once for each), rows that meet in a subpartition keep their order, and empty parts are
left out. A partitioner belongs to one subtask and one thread. The same spec, subtask and batches always give the same
parts, so a re-run producer repeats itself.

A spec is what travels between processes; a partitioner is built where it is used.
Range partitioning needs a sample first, so its rows come with their place in the order, see `operators/sorting.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError, SettingError
from penstock.record import layout, spark_hash, word_hash
from penstock.record.key_groups import GroupOwners
from penstock.shuffle.splits import ALL, Split

_FEW_SUBPARTITIONS = 16

RANGE_PLACES = 1 << 13
"""Places in an order, as the column of a range partitioner numbers them: 0 to one less."""

CustomFunction = Callable[[pa.RecordBatch], Any]


class Partitioner(Protocol):
    """Splits batches over subpartitions."""

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""

    def split(self, batch: pa.RecordBatch) -> Split:
        """Which rows go where; at most one run per subpartition, or one for `ALL`."""


@dataclass(frozen=True, slots=True)
class PartitionerSpec:
    """A partitioner before it is built: picklable where `function` is.

    `kind` is one of `KINDS`. `keys` and `spark_compatible` are for "hash", `function` is for "custom"; the one key of
    "range" is the column of places. With `groups` a "hash" deals out so many key groups, as streaming queries do.
    Its rows in whose column `to_all` something stands go to all subpartitions.
    """

    kind: str
    keys: tuple[str, ...] = ()
    function: object = None
    spark_compatible: bool = False
    groups: int = 0
    to_all: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(f"unknown partitioner {self.kind!r}: one of {', '.join(KINDS)}")
        if self.kind == "hash" and not self.keys:
            raise SettingError("a hash partitioner needs at least one key column")
        if self.kind == "range" and len(self.keys) != 1:
            raise SettingError("a range partitioner needs the one column that holds the places")
        if self.kind == "custom" and not callable(self.function):
            raise SettingError(f"a custom partitioner needs a function over a batch, not {self.function!r}")

    def build(self, subpartitions: int, subtask: int) -> Partitioner:
        """The partitioner of one subtask."""
        if subpartitions < 1:
            raise SettingError(f"{subpartitions} subpartitions: a partitioner needs at least one")
        if 0 < self.groups < subpartitions:
            raise SettingError(f"{self.groups} key groups for {subpartitions} tasks: some tasks would have none")
        return KINDS[self.kind](self, subpartitions, subtask)


class _ToChannel:
    """All rows to subpartition 0."""

    def __init__(self, subpartitions: int) -> None:
        self.subpartitions = subpartitions

    def split(self, batch: pa.RecordBatch) -> Split:
        return Split(batch, (0,), (batch.num_rows,)) if batch.num_rows else Split(batch, (), ())


class _Broadcast(_ToChannel):
    """All rows to all subpartitions."""

    def split(self, batch: pa.RecordBatch) -> Split:
        return Split.whole(batch, ALL) if batch.num_rows else Split(batch, (), ())


class _RoundRobin:
    """Contiguous slices of nearly equal size; the remainder goes round, so small batches spread evenly."""

    def __init__(self, subpartitions: int, start: int) -> None:
        self.subpartitions = subpartitions
        self._next = start % subpartitions

    def split(self, batch: pa.RecordBatch) -> Split:
        share, extra = divmod(batch.num_rows, self.subpartitions)
        first = self._next
        self._next = (first + extra) % self.subpartitions
        turns = range(self.subpartitions if share else extra)
        numbers = [(first + turn) % self.subpartitions for turn in turns]
        return Split(batch, numbers, [share + (turn < extra) for turn in turns])


class _Hash:
    """Rows by the hash of their keys."""

    def __init__(self, spec: PartitionerSpec, subpartitions: int) -> None:
        self.subpartitions = subpartitions
        self._keys = spec.keys
        self._owners = GroupOwners(spec.groups, subpartitions) if spec.groups else None
        self._hash = spark_hash.spark_partition_ids if spec.spark_compatible else word_hash.fast_partition_ids
        by_spark = spec.spark_compatible or spec.groups > 0
        self._refusal = spark_hash.unhashable if by_spark else word_hash.unhashable
        self._schema: pa.Schema | None = None
        self._columns: list[int] = []
        self._ids = np.empty(0, layout.index_dtype(subpartitions))

    def split(self, batch: pa.RecordBatch) -> Split:
        if self._schema is None or not batch.schema.equals(self._schema):
            self._bind(batch.schema)
        if self.subpartitions == 1 or batch.num_rows == 0:
            return _ToChannel(1).split(batch)
        if len(self._ids) < batch.num_rows:
            self._ids = np.empty(batch.num_rows, self._ids.dtype)
        ids = self._ids[: batch.num_rows]
        columns = [batch.column(i) for i in self._columns]
        if self._owners is None:
            self._hash(columns, self.subpartitions, ids)
        else:
            self._owners.of(columns, ids)
        return scatter(batch, ids, self.subpartitions)

    def _bind(self, schema: pa.Schema) -> None:
        columns = []
        for key in self._keys:
            found = schema.get_all_field_indices(key)
            if len(found) != 1:
                problem = "is there more than once" if found else "is missing"
                raise SchemaError(f"key column {key!r} {problem}; the columns are {', '.join(schema.names)}")
            reason = self._refusal(schema.field(found[0]).type)
            if reason is not None:
                raise SchemaError(
                    f"key column {key!r} of type {schema.field(found[0]).type} cannot be hashed: {reason}"
                )
            columns += found
        self._columns, self._schema = columns, schema


class _MarkedToAll:
    """Rows by the hash of their keys, but for marked ones, which all subpartitions get in their order."""

    broadcasts = False

    def __init__(self, others: _Hash, column: str) -> None:
        self.subpartitions = others.subpartitions
        self._others = others
        self._column = column

    def split(self, batch: pa.RecordBatch) -> Split:
        marked = layout.valid_mask(batch.column(self._column))
        if not marked.any():
            return self._others.split(batch)
        rest, places = np.flatnonzero(~marked), np.flatnonzero(marked)
        found = self._others.split(layout.take_batch(batch, layout.int64_array(rest)))
        order = rest if found.order is None else rest[layout.fixed_values(found.order, np.int64)]
        runs = [places] * self.subpartitions
        for number, own in zip(found.numbers.tolist(), np.split(order, np.cumsum(found.counts)[:-1]), strict=False):
            runs[number] = np.sort(np.concatenate([places, own]))
        numbers = layout.int64_array(np.concatenate(runs))
        return Split(batch, range(self.subpartitions), [len(run) for run in runs], numbers)


class _Random:
    """Rows at random, from a generator seeded by the subtask."""

    def __init__(self, subpartitions: int, subtask: int) -> None:
        self.subpartitions = subpartitions
        self._generator = np.random.default_rng(subtask)
        self._dtype = layout.index_dtype(subpartitions)

    def split(self, batch: pa.RecordBatch) -> Split:
        ids = self._generator.integers(0, self.subpartitions, batch.num_rows, dtype=self._dtype)
        return scatter(batch, ids, self.subpartitions)


class _Range:
    """Rows by their place: each subpartition has an equal share of the places, in order."""

    def __init__(self, column: str, subpartitions: int) -> None:
        self.subpartitions = subpartitions
        self._column = column
        self._dtype = layout.index_dtype(subpartitions)

    def split(self, batch: pa.RecordBatch) -> Split:
        column = batch.column(self._column)
        places = layout.fixed_values(column, column.type.to_pandas_dtype()).astype(np.uint64)
        ids = places * np.uint64(self.subpartitions) // np.uint64(RANGE_PLACES)
        return scatter(batch, ids.astype(self._dtype), self.subpartitions)


class _Custom:
    """Rows where the user's function says."""

    def __init__(self, function: CustomFunction, subpartitions: int) -> None:
        self.subpartitions = subpartitions
        self._function = function

    def split(self, batch: pa.RecordBatch) -> Split:
        ids = _checked_ids(self._function(batch), batch.num_rows, self.subpartitions)
        return scatter(batch, ids, self.subpartitions)


def scatter(batch: pa.RecordBatch, ids: npt.NDArray[Any], n: int) -> Split:
    """The split of a batch by subpartition ids below `n`.

    Sorting 8 and 16 bits is done by counting, which is why ids have the type that `layout.index_dtype` chooses.
    """
    if len(ids) == 0:
        return Split(batch, (), ())
    counts = _counts(ids, n)
    numbers = np.flatnonzero(counts)
    counts = counts[numbers]
    return Split(batch, numbers, counts, None if len(numbers) == 1 else layout.stable_order(ids), layout.take_batch)


def _counts(ids: npt.NDArray[Any], n: int) -> npt.NDArray[np.int64]:
    """Rows per subpartition; `bincount` first widens the ids, which for a few subpartitions costs more."""
    if n <= _FEW_SUBPARTITIONS:
        return np.array([np.count_nonzero(ids == channel) for channel in range(n)], np.int64)
    return np.bincount(ids, minlength=n)


def _checked_ids(result: Any, rows: int, n: int) -> npt.NDArray[Any]:
    ids = _as_ndarray(result)
    if ids.size == rows == 0:
        return np.empty(0, np.uint8)
    if ids.ndim != 1:
        raise SchemaError(f"the partition function returned {ids.ndim}-dimensional values, it must be one per row")
    if ids.dtype.kind not in "iu":
        row = next((i for i, value in enumerate(ids.tolist()) if not isinstance(value, int)), 0)
        raise SchemaError(
            f"the partition function returned {ids.tolist()[row]!r} for row {row} (values of type {ids.dtype}): "
            f"it must return one integer per row"
        )
    if len(ids) != rows:
        raise SchemaError(f"the partition function returned {len(ids)} values for a batch of {rows} rows")
    wrong = np.flatnonzero((ids < 0) | (ids >= n))
    if len(wrong):
        row = int(wrong[0])
        raise SchemaError(f"the partition function returned {ids[row]} for row {row}: it must be 0 to {n - 1}")
    return ids.astype(layout.index_dtype(n), copy=False)


def _as_ndarray(result: Any) -> npt.NDArray[Any]:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array):
        try:
            return np.asarray(result)
        except ValueError as error:
            raise SchemaError(f"the partition function returned no integer array: {error}") from error
    if result.null_count:
        row = int(np.flatnonzero(~layout.valid_mask(result))[0])
        raise SchemaError(f"the partition function returned null for row {row}: every row needs a subpartition")
    if len(result) and not pt.is_integer(result.type):
        raise SchemaError(
            f"the partition function returned {result[0]} for row 0 (values of type {result.type}): it must return "
            f"one integer per row"
        )
    if len(result) == 0:
        return np.empty(0, np.uint8)
    return layout.fixed_values(result, result.type.to_pandas_dtype())


def _build_hash(spec: PartitionerSpec, n: int, subtask: int) -> Partitioner:  # noqa: ARG001 - one signature
    return _MarkedToAll(_Hash(spec, n), spec.to_all) if spec.to_all else _Hash(spec, n)


def _build_custom(spec: PartitionerSpec, n: int, subtask: int) -> Partitioner:  # noqa: ARG001 - one signature
    return _Custom(cast("CustomFunction", spec.function), n)


KINDS: dict[str, Callable[[PartitionerSpec, int, int], Partitioner]] = {
    "hash": _build_hash,
    "rebalance": lambda _, n, subtask: _RoundRobin(n, subtask),
    "rescale": lambda _, n, __: _RoundRobin(n, 0),
    "forward": lambda _, n, __: _ToChannel(n),
    "broadcast": lambda _, n, __: _Broadcast(n),
    "random": lambda _, n, subtask: _Random(n, subtask),
    "to_one": lambda _, n, __: _ToChannel(n),
    "range": lambda spec, n, _: _Range(spec.keys[0], n),
    "custom": _build_custom,
}
"""Every kind of partitioner and how it is built from spec, subpartitions and subtask."""
