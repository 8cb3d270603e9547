# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance, first part: what goes in comes out, whole, in order, of every Arrow type, with true figures."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.shuffle import EndOfData, EndOfPartition, PartitionKind
from penstock.testing.conformance_exchange import (
    ConformanceExchange,
    WantedPartition,
    ends_of,
    events_of,
    numbers,
    rows_of,
)

_DAY = dt.date(2024, 2, 29)
_TIME = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001 - a timestamp without zone is a type too
_ENTRY = {"k": 1, "v": ["a", None]}

TYPES: dict[str, list[tuple[pa.DataType, list[Any]]]] = {
    "fixed-width": [
        *((kind, [0, 1, None, 100]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((kind, [0, None, 200, 1]) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        *((kind, [0.5, None, float("inf"), -0.0]) for kind in (pa.float32(), pa.float64())),
        (pa.bool_(), [True, None, False, True]),
        (pa.null(), [None, None, None, None]),
        (pa.decimal128(38, 18), [Decimal("1.5"), None, Decimal("-0.000000000000000001"), Decimal(0)]),
        (pa.binary(3), [b"abc", None, b"\x00\x01\x02", b"xyz"]),
    ],
    "temporal": [
        (pa.date32(), [_DAY, None, _DAY, dt.date(1, 1, 1)]),
        (pa.time64("us"), [dt.time(1, 2, 3, 4), None, dt.time(), dt.time(23)]),
        (pa.timestamp("us"), [_TIME, None, _TIME, _TIME]),
        (pa.timestamp("us", tz="UTC"), [1_700_000_000_000_000, None, 0, -1]),
        (pa.duration("us"), [dt.timedelta(days=1, microseconds=1), None, dt.timedelta(), None]),
        (pa.month_day_nano_interval(), [(1, 2, 3_000), None, (0, 0, 0), (12, 30, 1_000)]),
    ],
    "variable-width": [
        *((kind, ["ä", None, "", "x" * 300]) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        *((kind, [b"\x00", None, b"", b"y" * 300]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    ],
    "nested": [
        *((kind, [[1, None], None, [], [2, 3]]) for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64()))),
        (pa.list_(pa.int32(), 2), [[1, 2], None, [3, None], [4, 5]]),
        (pa.list_view(pa.string()), [["a"], None, [], ["b", None]]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
            [{"a": 1, "b": None}, None, {"a": None, "b": "x"}, None],
        ),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [], [("b", None)]]),
        (
            pa.list_(pa.struct([("k", pa.int64()), ("v", pa.list_(pa.string()))])),
            [[_ENTRY], None, [], [_ENTRY, None]],
        ),
        (pa.struct([]), [{}, None, {}, {}]),
    ],
    "dictionary": [
        (pa.dictionary(pa.int32(), pa.string()), ["a", None, "b", "a"]),
        (pa.dictionary(pa.int8(), pa.int64()), [10, 20, None, 10]),
    ],
}


class DataConformance:
    """Round trips. Mixed into `ShuffleServiceConformance`, which says what `kind` and `exchange` are."""

    @pytest.mark.parametrize("family", sorted(TYPES))
    def test_every_arrow_type_survives(self, exchange: ConformanceExchange, kind: PartitionKind, family: str) -> None:
        """Values, nulls and types of each Arrow type arrive as written, whole and sliced."""
        columns = [pa.array(values, kind_of) for kind_of, values in TYPES[family]]
        batch = pa.record_batch(columns, names=[f"c{i}" for i in range(len(columns))])
        producer = exchange.produce(WantedPartition(kind, batch.schema))
        for written in (batch, batch.slice(1, 2), batch.slice(3)):
            producer.writer.write(written, 0)
        producer.writer.finish()
        rows = exchange.consume([(producer.descriptor, 0)], batch.schema).rows(batch.schema)
        expected = batch.to_pylist()
        assert rows == expected + expected[1:3] + expected[3:]

    def test_dictionaries_may_differ_from_batch_to_batch(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """Each batch is decoded with its own dictionary."""
        schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
        producer = exchange.produce(WantedPartition(kind, schema))
        for values in (["a", "b"], ["c"], ["b", None, "d"]):
            producer.writer.write(pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema), 0)
        producer.writer.finish()
        rows = exchange.consume([(producer.descriptor, 0)], schema).rows(schema)
        assert [row["d"] for row in rows] == ["a", "b", "c", "b", None, "d"]

    def test_order_is_kept_per_channel(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """Batches of one subpartition arrive in the order of their writing."""
        producer = exchange.produce(WantedPartition(kind))
        for n in range(8):
            producer.writer.write(numbers(2 * n, 2 * n + 1), 0)
        producer.writer.finish()
        assert exchange.consume([(producer.descriptor, 0)]).values() == list(range(16))

    def test_each_subpartition_gets_its_own_rows(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A row is read by the reader of the subpartition it was written to, and by no other."""
        producer = exchange.produce(WantedPartition(kind, subpartitions=3))
        for n in range(9):
            producer.writer.write(numbers(n), n % 3)
        producer.writer.finish()
        read = [exchange.consume([(producer.descriptor, index)]).values() for index in range(3)]
        assert read == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]

    def test_a_broadcast_batch_reaches_every_subpartition(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """All readers get all broadcast rows, in order with the rows that only they get."""
        producer = exchange.produce(WantedPartition(kind, subpartitions=3))
        producer.writer.write(numbers(1), 1)
        producer.writer.broadcast(numbers(10, 11))
        producer.writer.write(numbers(2), 1)
        producer.writer.broadcast(numbers(12))
        producer.writer.finish()
        read = [exchange.consume([(producer.descriptor, index)]).values() for index in range(3)]
        assert read == [[10, 11, 12], [1, 10, 11, 2, 12], [10, 11, 12]]

    def test_one_gate_reads_many_producers(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A gate gives each producer's rows under that producer's channel."""
        producers = [exchange.produce(WantedPartition(kind, index=index)) for index in range(3)]
        for index, producer in enumerate(producers):
            producer.writer.write(numbers(index, index + 10), 0)
            producer.writer.finish()
        received = exchange.consume([(producer.descriptor, 0) for producer in producers]).drain()
        for channel in range(3):
            rows = rows_of(item for item in received if item.channel == channel)
            assert [row["n"] for row in rows] == [channel, channel + 10]

    def test_an_empty_partition_ends_without_rows(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A writer that wrote nothing gives its readers the end, not an error and not silence."""
        producer = exchange.produce(WantedPartition(kind, subpartitions=2))
        producer.writer.finish()
        for index in range(2):
            received = exchange.consume([(producer.descriptor, index)]).drain()
            assert rows_of(received) == []
            assert ends_of(received)[0].rows == 0

    def test_batches_without_rows_are_no_end(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A batch of zero rows changes nothing for what follows it."""
        producer = exchange.produce(WantedPartition(kind))
        for batch in (numbers(), numbers(1), numbers(), numbers(2), numbers()):
            producer.writer.write(batch, 0)
        producer.writer.finish()
        received = exchange.consume([(producer.descriptor, 0)]).drain()
        assert [row["n"] for row in rows_of(received)] == [1, 2]
        assert ends_of(received)[0].rows == 2

    def test_batches_without_columns_keep_their_rows(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """A batch of zero columns still has a number of rows."""
        schema = pa.schema([])
        producer = exchange.produce(WantedPartition(kind, schema))
        for count in (3, 4):
            producer.writer.write(numbers(*range(count)).select([]), 0)
        producer.writer.finish()
        received = exchange.consume([(producer.descriptor, 0)], schema).drain()
        assert sum(item.batch.num_rows for item in received if item.batch is not None) == 7
        assert ends_of(received)[0].rows == 7

    def test_a_batch_larger_than_a_buffer_arrives_whole(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """Three megabytes in one batch, between two small ones."""
        values = list(range(393_216))
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])

        def write() -> None:
            producer.writer.write(numbers(-1), 0)
            producer.writer.write(numbers(*values), 0)
            producer.writer.write(numbers(-2), 0)
            producer.writer.finish()

        with exchange.running(write):
            assert consumer.values() == [-1, *values, -2]

    def test_one_row_may_be_larger_than_a_buffer(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A single value of two megabytes spans buffers too."""
        schema = pa.schema([("s", pa.string())])
        text = "0123456789abcdef" * 131_072
        producer = exchange.produce(WantedPartition(kind, schema))
        consumer = exchange.consume([(producer.descriptor, 0)], schema)

        def write() -> None:
            producer.writer.write(pa.record_batch([pa.array([text, "end"])], schema=schema), 0)
            producer.writer.finish()

        with exchange.running(write):
            assert [row["s"] for row in consumer.rows(schema)] == [text, "end"]

    def test_many_small_batches_arrive(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """Two thousand batches of one row each, over four subpartitions."""
        producer = exchange.produce(WantedPartition(kind, subpartitions=4))
        consumer = exchange.consume([(producer.descriptor, index) for index in range(4)])

        def write() -> None:
            for n in range(2_000):
                producer.writer.write(numbers(n), n % 4)
            producer.writer.finish()

        with exchange.running(write):
            assert sorted(consumer.values()) == list(range(2_000))

    def test_received_batches_outlive_the_gate(self, exchange: ConformanceExchange, kind: PartitionKind) -> None:
        """A reader may keep batches: what arrives later, or closing the gate, does not change them."""
        producer = exchange.produce(WantedPartition(kind))
        consumer = exchange.consume([(producer.descriptor, 0)])

        def write() -> None:
            for n in range(200):
                producer.writer.write(numbers(*[n] * 1_000), 0)
            producer.writer.finish()

        with exchange.running(write):
            received = consumer.drain()
        consumer.gate.close()
        consumer.environment.close()
        assert [row["n"] for row in rows_of(received)] == [n for n in range(200) for _ in range(1_000)]

    def test_the_end_comes_as_end_of_data_then_end_of_partition(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """Each channel ends with both events in this order; after the last one the gate gives None for good."""
        producer = exchange.produce(WantedPartition(kind))
        producer.writer.write(numbers(1), 0)
        producer.writer.finish()
        consumer = exchange.consume([(producer.descriptor, 0)])
        received = consumer.drain()
        assert [type(event) for event in events_of(received)] == [EndOfData, EndOfPartition]
        assert received[-1].event == ends_of(received)[0]
        assert consumer.next() is None
        assert consumer.next(0) is None

    def test_end_of_partition_counts_per_subpartition(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """The figures are the subpartition's own, broadcast rows included."""
        producer = exchange.produce(WantedPartition(kind, subpartitions=2))
        producer.writer.write(numbers(1, 2, 3), 0)
        producer.writer.broadcast(numbers(4))
        producer.writer.finish()
        ends = [ends_of(exchange.consume([(producer.descriptor, index)]).drain())[0] for index in range(2)]
        assert [end.rows for end in ends] == [4, 1]
        assert ends[0].bytes > ends[1].bytes > 0
        assert ends[0].checksum != ends[1].checksum

    def test_the_checksum_does_not_depend_on_the_order(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """The same batches in another order have the same figures; another value has another checksum.

        The batches are large, so that a service which merges small ones on the way leaves them as they are.
        """
        size = 65_536
        batches = [numbers(*range(n, n + size)) for n in range(0, 3 * size, size)]
        another = numbers(*range(2 * size, 3 * size - 1), -1)
        ends = []
        for index, order in enumerate((batches, batches[::-1], [batches[0], batches[1], another])):
            producer = exchange.produce(WantedPartition(kind, index=index))
            for batch in order:
                producer.writer.write(batch, 0)
                producer.writer.flush()
            producer.writer.finish()
            ends.append(ends_of(exchange.consume([(producer.descriptor, 0)]).drain())[0])
        assert ends[0] == ends[1]
        assert ends[0].checksum != ends[2].checksum
