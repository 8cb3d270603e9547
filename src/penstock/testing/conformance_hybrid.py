# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - this is test code that ships with the product
"""Conformance, fifth part: hybrid partitions, which are read while they are written and never stop their producer.

Each case is read from another host and beside its producer: services may have different ways for the two.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import PartitionError, ProducerFailedError
from penstock.shuffle import EndOfData, EndOfPartition, PartitionKind
from penstock.testing.conformance_exchange import (
    ConformanceExchange,
    Consumer,
    Producer,
    WantedPartition,
    ends_of,
    events_of,
    numbers,
    rows_of,
)
from penstock.testing.waiting import Running

HOSTS = ("b", "a")
"""A reader elsewhere, and one beside its producer."""
ROWS = 1 << 15
"""Rows of a large batch: 256 KiB."""


class HybridConformance:
    """Hybrid kinds, and fingerprints of all. Mixed into `ShuffleServiceConformance`, which names the kinds."""

    clog_limit: int

    @pytest.mark.parametrize("host", HOSTS)
    def test_hybrid_rows_arrive_while_the_producer_still_writes(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind, host: str
    ) -> None:
        """Flushed rows are readable before the partition is finished."""
        producer = exchange.produce(WantedPartition(hybrid_kind))
        consumer = exchange.consume([(producer.descriptor, 0)], host=host)
        for n in range(20):
            producer.writer.write(numbers(n), 0)
            producer.writer.flush()
            assert consumer.batch().to_pydict()["n"] == [n]
        producer.writer.finish()
        assert consumer.values() == []

    @pytest.mark.parametrize("host", HOSTS)
    def test_a_hybrid_producer_never_waits_for_its_readers(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind, host: str
    ) -> None:
        """With one reader that stands still and one that never comes, more is written than any memory holds."""
        producer = exchange.produce(WantedPartition(hybrid_kind, subpartitions=2))
        consumer = exchange.consume([(producer.descriptor, 0)], host=host)
        count = self._write_much(producer)
        late = exchange.consume([(producer.descriptor, 1)], host=host)
        for each, odd in ((late, 1), (consumer, 0)):
            assert _large_rows(each) == list(range(odd, count, 2))

    @pytest.mark.parametrize("host", HOSTS)
    def test_hybrid_data_is_consumed_while_more_of_it_is_written(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind, host: str
    ) -> None:
        """Readers that run beside the producer get each row once and in order, from wherever it is by then."""
        producer = exchange.produce(WantedPartition(hybrid_kind, subpartitions=2))
        consumers = [exchange.consume([(producer.descriptor, index)], host=host) for index in range(2)]
        readers = [Running(lambda consumer=consumer: _large_rows(consumer)) for consumer in consumers]  # type: ignore[misc]
        count = self._write_much(producer)
        assert [reader.join() for reader in readers] == [list(range(odd, count, 2)) for odd in range(2)]

    @pytest.mark.parametrize("host", HOSTS)
    def test_hybrid_broadcasts_reach_all_readers_among_their_own_rows(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind, host: str
    ) -> None:
        """Rows for all and rows for one keep their order for each reader, early or late."""
        producer = exchange.produce(WantedPartition(hybrid_kind, subpartitions=3))
        early = exchange.consume([(producer.descriptor, 0)], host=host)
        for n in range(60):
            producer.writer.write(numbers(*[n] * 5_000), n % 3)
            producer.writer.broadcast(numbers(*[1_000 + n] * 5_000))
        producer.writer.finish()
        consumers = [early, *(exchange.consume([(producer.descriptor, index)], host=host) for index in (1, 2))]
        for index, consumer in enumerate(consumers):
            expected = [value for n in range(60) for value in ((n, 1_000 + n) if n % 3 == index else (1_000 + n,))]
            received = consumer.drain()
            assert [row["n"] for row in rows_of(received)][::5_000] == expected
            assert ends_of(received)[0].rows == 5_000 * len(expected)

    @pytest.mark.parametrize("host", HOSTS)
    def test_a_hybrid_range_is_read_as_one_subpartition(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind, host: str
    ) -> None:
        """Begun before the producer's end or after it: one EndOfData, one EndOfPartition with the sums."""
        for index, begins_early in enumerate((True, False)):
            producer = exchange.produce(WantedPartition(hybrid_kind, subpartitions=5, index=index))
            consumer = exchange.consume([(producer.descriptor, 1, 3)], host=host) if begins_early else None
            for n in range(50):
                producer.writer.write(numbers(n), n % 5)
            producer.writer.broadcast(numbers(100))
            producer.writer.finish()
            producer.writer.close()
            received = (consumer or exchange.consume([(producer.descriptor, 1, 3)], host=host)).drain()
            expected = [n for n in range(50) if n % 5 in (1, 2, 3)] + [100] * 3
            assert sorted(row["n"] for row in rows_of(received)) == sorted(expected)
            assert [type(event) for event in events_of(received)] == [EndOfData, EndOfPartition]
            assert ends_of(received)[0].rows == len(expected)

    def test_a_kept_hybrid_partition_is_read_again_behind_its_spilling(
        self, exchange: ConformanceExchange, kept_kind: PartitionKind
    ) -> None:
        """Much data, several readers at once, one that ended early, and one that comes when all others have it."""
        producer = exchange.produce(WantedPartition(kept_kind, subpartitions=2))
        early = exchange.consume([(producer.descriptor, 0)])
        count = self._write_much(producer)
        producer.writer.close()
        early.batch()
        early.gate.close()
        both = [exchange.consume([(producer.descriptor, 0)], host=host) for host in HOSTS]
        readers = [Running(lambda consumer=consumer: _large_rows(consumer)) for consumer in both]  # type: ignore[misc]
        assert [reader.join() for reader in readers] == [list(range(0, count, 2))] * 2
        for consumer in both:
            consumer.gate.close()
        late = exchange.consume([(producer.descriptor, 0, 2)], host="a")
        assert sorted(_large_rows(late)) == list(range(count))

    @pytest.mark.parametrize("host", HOSTS)
    def test_a_selective_partition_has_one_reader_for_each_subpartition(
        self, exchange: ConformanceExchange, selective_kind: PartitionKind, host: str
    ) -> None:
        """A second one is refused, while the first reads and when it has left; the others are not disturbed."""
        producer = exchange.produce(WantedPartition(selective_kind, subpartitions=2))
        consumer = exchange.consume([(producer.descriptor, 0)], host=host)
        producer.writer.write(numbers(1), 0)
        producer.writer.write(numbers(2), 1)
        producer.writer.flush()
        assert consumer.batch().to_pydict()["n"] == [1]
        with pytest.raises(PartitionError, match="given to"):
            exchange.consume([(producer.descriptor, 0)], host=host).next()
        producer.writer.finish()
        assert consumer.values() == []
        with pytest.raises(PartitionError, match="given to"):
            exchange.consume([(producer.descriptor, 0)], host=host).next()
        assert exchange.consume([(producer.descriptor, 1)], host=host).values() == [2]

    def test_a_consumed_selective_partition_frees_itself(
        self, exchange: ConformanceExchange, selective_kind: PartitionKind
    ) -> None:
        """When every subpartition was read to its end, the host holds nothing, without a release."""
        producer = exchange.produce(WantedPartition(selective_kind, subpartitions=2))
        producer.writer.broadcast(numbers(1))
        producer.writer.finish()
        producer.writer.close()
        for index, host in enumerate(HOSTS):
            consumer = exchange.consume([(producer.descriptor, index)], host=host)
            assert consumer.values() == [1]
            consumer.gate.close()
        exchange.wait_released("a")

    @pytest.mark.parametrize("host", HOSTS)
    def test_a_hybrid_producer_that_fails_in_mid_write_fails_its_readers(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind, host: str
    ) -> None:
        """Wherever the data is by then, the reader gets the cause and never an end."""
        producer = exchange.produce(WantedPartition(hybrid_kind))
        consumer = exchange.consume([(producer.descriptor, 0)], host=host)
        for n in range(40):
            producer.writer.write(numbers(*[n] * ROWS), 0)
        assert consumer.batch().num_rows > 0
        producer.writer.close(ValueError("the user's function choked"))
        producer.writer.close()
        with pytest.raises(ProducerFailedError, match="choked"):
            consumer.drain()
        exchange.wait_released("a")

    def test_hybrid_sizes_are_told_when_it_is_finished(
        self, exchange: ConformanceExchange, hybrid_kind: PartitionKind
    ) -> None:
        """`finish` gives the bytes that the readers' ends count."""
        producer = exchange.produce(WantedPartition(hybrid_kind, subpartitions=3))
        producer.writer.write(numbers(1, 2, 3), 0)
        producer.writer.write(numbers(4), 2)
        sizes = list(producer.writer.finish().sizes)
        received = exchange.consume([(producer.descriptor, sub) for sub in range(3)]).drain()
        assert sizes == [ends_of(received)[sub].bytes for sub in range(3)]
        assert sizes[0] > 0 == sizes[1]

    def test_fingerprints_tell_attempts_with_other_data_apart(
        self, exchange: ConformanceExchange, kind: PartitionKind
    ) -> None:
        """Same batches, same number, in any order within a subpartition; other rows or places, another."""
        plain = [(numbers(1, 2), 0), (numbers(3), 1), (numbers(4), 0)]
        moved = [(numbers(1, 2), 1), (numbers(3), 0), (numbers(4), 1)]
        other = [(numbers(1, 2), 0), (numbers(3), 1), (numbers(5), 0)]
        found = [self._fingerprint(exchange, kind, parts) for parts in (plain, plain, moved, other, [])]
        assert found[0] == found[1]
        assert len(set(found)) == 4
        assert all(0 < number < 1 << 63 for number in found)

    def _fingerprint(
        self, exchange: ConformanceExchange, kind: PartitionKind, parts: list[tuple[pa.RecordBatch, int]]
    ) -> int:
        producer = exchange.produce(WantedPartition(kind, subpartitions=2))
        for batch, subpartition in parts:
            producer.writer.write(batch, subpartition)
        return producer.writer.finish().fingerprint

    def _write_much(self, producer: Producer) -> int:
        """Write batches to two subpartitions in turn, and finish, within the deadline; their number."""
        count = max(40, 2 * self.clog_limit // (8 * ROWS))

        def write() -> None:
            for n in range(count):
                producer.writer.write(numbers(*[n] * ROWS), n % 2)
            producer.writer.finish()

        Running(write).join()
        return count


def _large_rows(consumer: Consumer) -> list[int]:
    """The numbers of the large batches up to the end, once each; that each came whole is checked."""
    rows = 0
    values: list[int] = []
    for item in consumer.drain():
        if item.batch is not None:
            values += item.batch.column(0).to_numpy()[-rows % ROWS :: ROWS].tolist()
            rows += item.batch.num_rows
    assert rows == len(values) * ROWS
    return values
