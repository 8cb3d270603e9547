# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance, fourth part: blocking partitions in ranges, read again and again, by several readers, with true sizes.

Each case is read from another host and beside its producer: services may have different ways for the two.
"""

from __future__ import annotations

import pytest

from penstock.errors import PartitionError, PartitionReleasedError, ProtocolError
from penstock.shuffle import EndOfData, EndOfPartition, PartitionKind
from penstock.testing.conformance_exchange import (
    ConformanceExchange,
    Producer,
    WantedPartition,
    ends_of,
    events_of,
    numbers,
    rows_of,
)

SUBPARTITIONS = 7
HOSTS = ("b", "a")
"""A reader elsewhere, and one beside its producer."""


def _write(exchange: ConformanceExchange, written: WantedPartition) -> Producer:
    """Rows `100 * subpartition + k` in several turns, subpartition 3 without any."""
    producer = exchange.produce(written)
    for turn in range(3):
        for subpartition in range(written.subpartitions):
            if subpartition != 3:
                producer.writer.write(numbers(*(100 * subpartition + 2 * turn + k for k in range(2))), subpartition)
    producer.writer.finish()
    producer.writer.close()
    return producer


def _rows(first: int, count: int) -> list[int]:
    return sorted(100 * sub + k for sub in range(first, first + count) if sub != 3 for k in range(6))


class RangeConformance:
    """Ranges, re-reading, sizes. Mixed into `ShuffleServiceConformance`, which says what `blocking_kind` is."""

    def test_a_range_is_read_as_one_subpartition(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """Every cut of a partition into ranges gives each row once, in order of writing per subpartition."""
        producer = _write(exchange, WantedPartition(blocking_kind, subpartitions=SUBPARTITIONS))
        ranges = [(0, 1), (1, 2), (3, 1), (4, 3), (0, SUBPARTITIONS)]
        for host in HOSTS:
            consumer = exchange.consume([(producer.descriptor, *each) for each in ranges], host=host)
            received = consumer.drain()
            for channel, each in enumerate(ranges):
                found = [row["n"] for row in rows_of(item for item in received if item.channel == channel)]
                assert sorted(found) == _rows(*each)
                for subpartition in range(each[0], each[0] + each[1]):
                    own = [value for value in found if value // 100 == subpartition]
                    assert own == sorted(own), f"subpartition {subpartition} of the range {each} is out of order"

    def test_a_range_has_one_end_with_the_sums(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """One EndOfData, one EndOfPartition; rows, bytes and checksum are those of its subpartitions added up."""
        producer = _write(exchange, WantedPartition(blocking_kind, subpartitions=SUBPARTITIONS))
        channels = [*((producer.descriptor, sub, 1) for sub in range(1, 6)), (producer.descriptor, 1, 5)]
        for host in HOSTS:
            received = exchange.consume(channels, host=host).drain()
            ends = ends_of(received)
            parts, whole = [ends[channel] for channel in range(5)], ends[5]
            assert whole.rows == sum(end.rows for end in parts)
            assert whole.bytes == sum(end.bytes for end in parts)
            assert whole.checksum == sum(end.checksum for end in parts) % (1 << 64)
            assert [type(event) for event in events_of(received, 5)] == [EndOfData, EndOfPartition]

    def test_sizes_are_told_when_it_is_finished(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """`finish` gives the bytes that the readers' ends count."""
        producer = exchange.produce(WantedPartition(blocking_kind, subpartitions=3))
        producer.writer.write(numbers(1, 2, 3), 0)
        producer.writer.write(numbers(4), 2)
        sizes = list(producer.writer.finish().sizes)
        received = exchange.consume([(producer.descriptor, sub) for sub in range(3)]).drain()
        assert sizes == [ends_of(received)[sub].bytes for sub in range(3)]
        assert sizes[0] > 0
        assert sizes[1] == 0

    def test_broadcast_rows_are_in_every_subpartition_of_a_range(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """A range holds a broadcast row as often as it has subpartitions, as its figures say."""
        producer = exchange.produce(WantedPartition(blocking_kind, subpartitions=4))
        producer.writer.write(numbers(1), 1)
        producer.writer.broadcast(numbers(7, 8))
        producer.writer.write(numbers(2), 1)
        producer.writer.finish()
        for host in HOSTS:
            received = exchange.consume([(producer.descriptor, 0, 3)], host=host).drain()
            assert sorted(row["n"] for row in rows_of(received)) == [1, 2, *[7] * 3, *[8] * 3]
            assert ends_of(received)[0].rows == 8

    def test_ranges_that_overlap_are_read_at_once_and_again(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """Several gates in mid-data, one that ends early, and a later one: each gets all of its range."""
        producer = _write(exchange, WantedPartition(blocking_kind, subpartitions=SUBPARTITIONS))
        cuts = [(0, 4), (2, 5), (0, SUBPARTITIONS)]
        consumers = [exchange.consume([(producer.descriptor, *cut)], host=host) for cut in cuts for host in HOSTS]
        early = exchange.consume([(producer.descriptor, 0, SUBPARTITIONS)])
        early.batch()
        early.gate.close()
        firsts = [consumer.batch().to_pydict()["n"] for consumer in consumers]
        rests = [consumer.values() for consumer in consumers]
        expected = [_rows(*cut) for cut in cuts for _ in HOSTS]
        assert [sorted(first + rest) for first, rest in zip(firsts, rests, strict=True)] == expected
        assert sorted(exchange.consume([(producer.descriptor, 1, 2)]).values()) == _rows(1, 2)

    def test_empty_released_and_not_there_are_told_apart(
        self, exchange: ConformanceExchange, blocking_kind: PartitionKind
    ) -> None:
        """A range without rows is an end, one beyond the last subpartition an error; after the release it is gone."""
        producer = exchange.produce(WantedPartition(blocking_kind, subpartitions=SUBPARTITIONS))
        producer.writer.write(numbers(1), 0)
        producer.writer.finish()
        for host in HOSTS:
            received = exchange.consume([(producer.descriptor, 2, 5)], host=host).drain()
            assert rows_of(received) == []
            assert ends_of(received)[0] == EndOfPartition(0, 0, 0)
            with pytest.raises((PartitionError, ProtocolError), match=str(SUBPARTITIONS)):
                exchange.consume([(producer.descriptor, 5, 3)], host=host).next()
        exchange.host("a").release_partitions_locally([producer.descriptor.partition])
        exchange.wait_released("a")
        for host in HOSTS:
            with pytest.raises(PartitionReleasedError):
                exchange.consume([(producer.descriptor, 2, 5)], host=host).next()

    def test_a_pipelined_partition_has_no_sizes_and_no_ranges(
        self, exchange: ConformanceExchange, pipelined_kind: PartitionKind
    ) -> None:
        """A partition that is read while it is written goes to one reader per subpartition."""
        producer = exchange.produce(WantedPartition(pipelined_kind, subpartitions=3))
        for host in HOSTS:
            with pytest.raises((PartitionError, ProtocolError), match="pipelined"):
                exchange.consume([(producer.descriptor, 0, 2)], host=host).next()
        producer.writer.finish()

    def test_much_data_is_read_in_ranges(self, exchange: ConformanceExchange, blocking_kind: PartitionKind) -> None:
        """Sixteen megabytes over forty subpartitions, read by gates of four ranges."""
        producer = exchange.produce(WantedPartition(blocking_kind, subpartitions=40))
        batch = numbers(*range(4096))
        for n in range(512):
            producer.writer.write(batch, n % 40)
        producer.writer.finish()
        channels = [(producer.descriptor, first, 10) for first in range(0, 40, 10)]
        for host in HOSTS:
            received = exchange.consume(channels, host=host).drain()
            assert sum(end.rows for end in ends_of(received).values()) == 512 * 4096
            assert sum(item.batch.num_rows for item in received if item.batch is not None) == 512 * 4096
