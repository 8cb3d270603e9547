# SPDX-License-Identifier: Apache-2.0
"""Kafka as source and sink, against librdkafka's mock cluster: each message once, whatever is killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from effort import some_of
from penstock.api.streaming.kafka import kafka_batch, kafka_source
from penstock.api.streaming.options import Options
from penstock.checkpoint.errors import CheckpointError
from penstock.errors import OutsideError, PlanError, ProducerFailedError, SettingError, TaskCancelledError
from penstock.graph import JobGraph
from penstock.operators.expressions import ColumnRef
from penstock.operators.verbs import Project
from penstock.record import PartitionerSpec
from penstock.stream.kafka_client import MARKERS, KafkaSettings, binary_column, kafka_library
from penstock.stream.kafka_offsets import EARLIEST, KafkaStart
from penstock.stream.kafka_sink import KafkaSink, KafkaWriter, _up_to, check_columns
from penstock.stream.kafka_source import HEADERS, KafkaReader, KafkaSource, _portions
from penstock.stream.sinks import SinkOperator
from penstock.testing import DEADLINE, wait_until
from penstock_torture.local_query import LocalQuery, linear_graph, location

brokers = pytest.importorskip("kafka_brokers")
OF_KILLS = (TaskCancelledError, ProducerFailedError, OutsideError)


@pytest.fixture
def cluster() -> Iterator[KafkaSettings]:
    """A mock cluster with a topic `in`."""
    with brokers.mock_cluster() as settings:
        yield settings


def source(settings: KafkaSettings, **more: object) -> KafkaSource:
    """Topic `in` from its beginning."""
    return KafkaSource(settings, ("in",), start=KafkaStart(EARLIEST), **more)  # type: ignore[arg-type]


def polled(reader: KafkaReader, rows: int) -> list[int]:
    """So many numbers."""
    found: list[int] = []

    def enough() -> bool:
        batch = reader.poll(rows - len(found))
        found.extend([] if batch is None else map(int, batch["value"].to_pylist()))
        return len(found) >= rows

    wait_until(enough, "the messages have come")
    return found


def polls(reader: KafkaReader) -> Iterator[pa.RecordBatch | None]:
    """All that it gives within a while."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        yield reader.poll(1000)


def graph(settings: KafkaSettings, width: int) -> JobGraph:
    """From `in` to `out`, by so many tasks and two; from offset 0, as the broker's word for the earliest may err."""
    beginning = KafkaStart(offsets={("in", number): 0 for number in range(4)})
    rows = KafkaSource(settings, ("in",), start=beginning)
    sink = SinkOperator(KafkaSink(settings, "q", "out", includes_transaction=True))
    sent = pa.schema([rows.schema.field("key"), rows.schema.field("value")])
    stages = [
        (width, (Project(tuple(ColumnRef(field.name, field.type) for field in sent), sent),), sent, None),
        (2, (sink,), sent, PartitionerSpec("rebalance")),
    ]
    return linear_graph(rows, stages)


@pytest.mark.parametrize("seed", some_of(range(24), 24))
def test_each_message_is_sent_once_whatever_is_killed(cluster: KafkaSettings, tmp_path: Path, seed: int) -> None:
    """In two runs with kills, with another number of readers; rows count whose transaction has a marker."""
    send_with_kills(cluster, tmp_path, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some_of(range(24), 24))
def test_each_message_is_sent_once_through_a_broker(tmp_path: Path, seed: int) -> None:
    """The same in another process, which isolates transactions: a plain reader sees each row once.

    The broker names the offset behind the first 500 rows as a partition's earliest in 1 of 10 runs; nobody asks it.
    And it hides transactions for ever after it has said that they are committed, where their writer was fenced just
    then (1 of 8 runs at load): such a run shows only that no row was sent twice.
    """
    with brokers.tansu(tmp_path) as settings:
        try:
            end = send_with_kills(settings, tmp_path, seed)
        except AssertionError:
            if brokers.hidden(settings, "out"):
                assert max(Counter(brokers.newest(settings, "out")).values()) == 1
                pytest.skip("the broker hides rows that it has committed")
            raise
        seen = [int(message.value()) for message in brokers.messages(settings, "out")]
        assert Counter(seen) == Counter(range(end))


def test_a_writer_that_was_replaced_sends_nothing_more(tmp_path: Path) -> None:
    """Its successor has fenced it, and has sent what the checkpoint named; a third one sends it no second time."""
    rows = pa.record_batch({"value": ["1", "2"]})
    with brokers.tansu(tmp_path) as settings:
        sink = KafkaSink(settings, "q", "out", includes_transaction=True).owned("000001-a")
        late = sink.open(0, 1, [])
        late.write(rows)
        state = late.prepare(7)
        writers = [sink.owned("000002-b").open(0, 1, [state]), sink.owned("000003-c").open(0, 1, [state])]
        with pytest.raises(kafka_library().KafkaException):
            late.commit(7)
        for writer in (late, *writers):
            writer.close()
        assert sorted(brokers.counting(settings, "out")) == [1, 2]


def test_a_writer_closes_that_hears_of_its_successor_only_then(tmp_path: Path) -> None:
    """The client tells of a fatal error wherever it is next asked: this time, that is as it is closed."""
    fenced = kafka_library().KafkaError._FENCED
    with brokers.tansu(tmp_path) as settings:
        sink = KafkaSink(settings, "q", "out").owned("000001-a")
        late = sink.open(0, 1, [])
        sink.owned("000002-b").open(0, 1, []).close()
        client = late._transactions._producer
        client.begin_transaction()
        client.produce("out", b"1")

        def is_fenced() -> bool:
            with pytest.raises(kafka_library().KafkaException) as refused:
                client.begin_transaction()
            return refused.value.args[0].code() == fenced

        wait_until(is_fenced, "the client is told that it was fenced")
        late.close()
        assert brokers.counting(settings, "out") == []


def test_markers_are_waited_for_while_another_writer_has_a_transaction_open(tmp_path: Path) -> None:
    """A reader of what is committed does not see behind it: rows that a marker covers are not sent again."""
    rows = pa.record_batch({"value": ["1", "2"]})
    with brokers.tansu(tmp_path) as settings:
        sink = KafkaSink(settings, "q", "out", includes_transaction=True)
        first = sink.owned("000001-a").open(0, 2, [])
        died = settings.producer(**{"transactional.id": "penstock-q-1"})
        died.init_transactions(DEADLINE)
        died.begin_transaction()
        died.produce(MARKERS, msgpack.packb((7, "never")), b"q-1", partition=0)
        died.flush(DEADLINE)
        first.write(rows)
        state = first.prepare(7)
        first.commit(7)
        first.close()
        opened: list[KafkaWriter] = []
        again = sink.owned("000002-b")
        waiting = threading.Thread(target=lambda: opened.append(again.open(0, 2, [state])))
        waiting.start()
        waiting.join(2.0)  # one that does not wait has sent by then
        assert waiting.is_alive()
        other = again.open(1, 2, [])  # it fences the one that died, which ends the wait
        waiting.join(DEADLINE)
        assert len(opened) == 1
        for writer in (*opened, other):
            writer.close()
        assert sorted(brokers.counting(settings, "out")) == [1, 2]


def send_with_kills(cluster: KafkaSettings, tmp_path: Path, seed: int) -> int:
    """Let a query send numbers from `in` to `out`, kill its tasks, and count; gives how many numbers there were."""
    chance, end = random.Random(seed), 0
    for width in (2, 3):
        with LocalQuery(graph(cluster, width), location(tmp_path)) as query:
            query.start()
            for _ in range(6):
                more = chance.choice([0, 3, 500])
                brokers.put(cluster, "in", range(end, end + more))
                end += more
                query.run(time.monotonic() + chance.uniform(0.0, 0.1))
                if chance.random() < 0.5:
                    query.kill(chance.choice([(0, 0), (1, 1)]))
            until = time.monotonic() + DEADLINE
            while len(brokers.counting(cluster, "out")) < end and time.monotonic() < until:
                query.run(time.monotonic() + 0.1)
            query.stop()
            query.run_through()
            assert not [error for error in query.failures if not isinstance(error, OF_KILLS)]
        assert Counter(brokers.counting(cluster, "out")) == Counter(range(end))
    return end


def test_positions_say_where_each_partition_goes_on(cluster: KafkaSettings) -> None:
    """By the number of readers that there were, and that there are now; the columns are Spark's."""
    brokers.put(cluster, "in", range(100))
    readers = [source(cluster).open(subtask, 2, []) for subtask in range(2)]
    found = [polled(readers[0], 50), polled(readers[1], 23)]
    assert all(len({number % 4 for number in numbers}) <= 2 for numbers in found)
    states = [reader.snapshot() for reader in readers]
    (alone,) = (source(cluster, with_headers=True).open(subtask, 1, states) for subtask in range(1))
    assert sorted(found[0] + found[1] + polled(alone, 27)) == list(range(100))
    brokers.put(cluster, "in", range(100, 101))
    batches: list[pa.RecordBatch] = []
    wait_until(lambda: bool(batches.extend(filter(None, [alone.poll(9)])) or batches), "the message has come")
    (row,) = batches[0].to_pylist()
    assert (row["key"], row["topic"], row["partition"], row["offset"], row["headers"]) == (b"100", "in", 0, 25, None)
    assert (time.time() - row["timestamp"].timestamp(), row["timestampType"]) < (60.0, 1)
    for reader in (*readers, alone):
        reader.close()


def test_batches_of_one_partition_each_where_event_time_needs_them(cluster: KafkaSettings) -> None:
    """Each row comes once, also to a reader that goes on in the middle of what the client had fetched."""
    brokers.put(cluster, "in", range(200))
    found: list[int] = []
    seen: dict[str, float] = {}
    states: list[bytes] = []
    while len(found) < 200:
        reader = source(cluster).open(0, 1, states)
        reader.read_by_partition()
        batch = next(filter(None, polls(reader)))
        assert {f"in/{number}" for number in batch["partition"].to_pylist()} == {reader.partition}
        found += map(int, batch["value"].to_pylist())
        seen, states = reader.partitions_waiting(), [reader.snapshot()]
        reader.close()
    assert sorted(found) == list(range(200))
    assert set(seen) == {f"in/{number}" for number in range(4)}


def waited(reader: KafkaReader) -> list[float]:
    """The seconds for which each partition has had nothing."""
    return [seconds or 0.0 for seconds in reader.partitions_waiting().values()]


def test_a_partition_without_messages_is_known_by_its_end(cluster: KafkaSettings) -> None:
    """It had none whenever the client was asked; of one that gives messages no second counts."""
    brokers.put(cluster, "in", range(40), partitions=2)
    reader = source(cluster).open(0, 1, [])
    reader.read_by_partition()
    assert sorted(polled(reader, 40)) == list(range(40))
    wait_until(lambda: reader.poll(9) is None and max(waited(reader)) > 0.1, "some had none")
    brokers.put(cluster, "in", range(40, 44), partitions=1)
    assert polled(reader, 4) == [40, 41, 42, 43]
    waiting = reader.partitions_waiting()
    assert waiting[reader.partition] is None
    assert max(waited(reader)) > 0.1
    reader.close()


def test_a_partition_whose_log_ends_with_the_record_of_a_transaction_is_known_by_its_end(tmp_path: Path) -> None:
    """No reader is given that record, so no message has the offset in front of the end."""
    with brokers.tansu(tmp_path) as settings:
        producer = settings.producer(**{"transactional.id": "t"})
        producer.init_transactions(DEADLINE)
        producer.begin_transaction()
        producer.produce("in", b"7", partition=2)
        producer.commit_transaction(DEADLINE)
        with closing(source(settings).open(0, 1, [])) as reader:
            reader.read_by_partition()
            assert polled(reader, 1) == [7]
            wait_until(lambda: reader.poll(9) is None and min(waited(reader)) > 0.0, "all have had none")


def test_no_partition_is_idle_while_the_brokers_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have is not known then. A run that ends says after a while whom it waits for, and begins anew."""
    monkeypatch.setattr("penstock.stream.kafka_threads.LIFE_SECONDS", 0.05)
    monkeypatch.setattr("penstock.stream.kafka_source.SILENT_SECONDS", 0.5)
    with ExitStack() as stack:
        with brokers.mock_cluster() as settings:
            brokers.put(settings, "in", range(8))
            reader = stack.enter_context(closing(source(settings).open(0, 1, [])))
            reader.read_by_partition()
            assert sorted(polled(reader, 8)) == list(range(8))
            wait_until(lambda: reader.poll(9) is None and min(waited(reader)) > 0.0, "all have had none")
            brokers.put(settings, "in", range(8, 16))
            one_by_one = (("fetch.message.max.bytes", "10"), ("queued.min.messages", "1"))
            small = source(KafkaSettings((*settings.given, *one_by_one))).available_now()
            ending = stack.enter_context(closing(small.open(0, 1, [])))
            wait_until(lambda: bool(ending.poll(9)), "it has some")
        wait_until(lambda: reader.poll(9) is None and max(waited(reader)) == 0.0, "none is known to have none")
        with pytest.raises(OutsideError, match=f"kafka: {settings.servers} has not answered for"):
            wait_until(lambda: ending.poll(9) is None and ending.is_ended, "it waits")


def test_a_pattern_means_no_topic_of_the_brokers_or_of_our_own() -> None:
    """Those of offsets, transactions and markers: a checkpoint that names them goes on without them."""
    inner = "__consumer_offsets"
    with brokers.mock_cluster(("in", inner)) as settings:
        brokers.put(settings, "in", range(3))
        brokers.put(settings, inner, range(3))
        everything = KafkaSource(settings, pattern=".*", start=KafkaStart(EARLIEST))
        assert {topic for topic, *_ in msgpack.unpackb(everything.first_position())} == {"in"}
        state = msgpack.packb([("in", 0, 1), (inner, 0, 0)])
        with closing(everything.open(0, 1, [state])) as reader:
            assert sorted(polled(reader, 2)) == [1, 2]
            assert {topic for topic, *_ in msgpack.unpackb(reader.snapshot())} == {"in"}


def test_what_is_available_ends_and_later_runs_go_on(cluster: KafkaSettings) -> None:
    """Messages that come meanwhile are the next run's, also those of partitions that had none."""
    brokers.put(cluster, "in", range(40), partitions=2)
    first = source(cluster).available_now().open(0, 1, [])
    brokers.put(cluster, "in", range(40, 60))
    assert sorted(polled(first, 40)) == list(range(40))
    wait_until(lambda: first.poll(9) is None and first.is_ended, "it has ended")
    second = source(cluster).available_now().open(0, 1, [first.snapshot()])
    assert sorted(polled(second, 20)) == list(range(40, 60))
    for reader in (first, second):
        reader.close()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (KafkaStart(), range(8, 12)),
        (KafkaStart(offsets={("in", 0): -1, ("in", 1): 1, ("in", 2): -2, ("in", 3): 2}), [8, 5, 9, 2, 6, 10, 11]),
    ],
)
def test_a_query_begins_where_it_was_started(
    cluster: KafkaSettings, start: KafkaStart, expected: Sequence[int]
) -> None:
    """Its readers were never told a position, and messages have come since; a later partition is read whole."""
    brokers.put(cluster, "in", range(8))
    begun = KafkaSource(cluster, ("in",), start=start)
    begun = begun.begun_at(begun.first_position())
    brokers.put(cluster, "in", range(8, 12))
    with closing(begun.open(0, 1, [])) as reader:
        assert sorted(polled(reader, len(expected))) == sorted(expected)
    with closing(replace(begun, begun=(("in", 0, 3), ("in", 1, 3), ("in", 2, 3))).open(0, 1, [])) as reader:
        assert sorted(polled(reader, 3)) == [3, 7, 11]


def test_an_offset_of_a_topic_that_is_not_read_is_refused(cluster: KafkaSettings) -> None:
    """It has a typo, or is one partition too many: of where to begin, also by time, and of where a job ends."""
    own = {("in", number): 0 for number in range(4)}
    for other in (("inn", 0), ("in", 4)):
        for start in (KafkaStart(offsets={**own, other: 1}), KafkaStart(times={**own, other: 1}, latest_else=True)):
            with pytest.raises(
                PlanError, match=rf"startingOffsets names partition {other[1]} of {other[0]}, which is"
            ):
                KafkaSource(cluster, ("in",), start=start).first_position()
        with pytest.raises(PlanError, match=rf"names partition {other[1]} of {other[0]}, which is not read"):
            source(cluster).bounded(KafkaStart(offsets={**own, other: 1}))


@pytest.mark.parametrize("is_available_now", [True, False])
def test_a_position_beyond_the_end_is_refused(cluster: KafkaSettings, is_available_now: bool) -> None:
    """A topic that was made anew is shorter; in every way of reading, as is an offset that somebody names."""
    brokers.put(cluster, "in", range(80))
    reader = source(cluster).open(0, 1, [])
    polled(reader, 80)
    state = reader.snapshot()
    reader.close()
    with brokers.mock_cluster() as anew:
        brokers.put(anew, "in", range(60))
        again = source(anew).available_now() if is_available_now else source(anew)
        with pytest.raises(PlanError, match="partition 0 of in is to be read from offset 20 on, and it ends at 15"):
            again.open(0, 1, [state])
        named = KafkaStart(offsets={("in", number): 15 + (number == 2) for number in range(4)})
        with pytest.raises(PlanError, match="partition 2 of in is to be read from offset 16 on, and it ends at 15"):
            KafkaSource(anew, ("in",), start=named).first_position()
        found = KafkaSource(anew, ("in",), start=named, fails_on_loss=False).first_position()
        assert [offset for _, _, offset in msgpack.unpackb(found)] == [15, 15, 0, 15]
        with closing(replace(again, fails_on_loss=False).open(0, 1, [state])) as reader:
            assert sorted(polled(reader, 60)) == list(range(60))


@pytest.mark.parametrize("is_available_now", [True, False])
def test_messages_that_go_while_they_are_read_are_passed_over(cluster: KafkaSettings, is_available_now: bool) -> None:
    """The broker says that it has no such message: an error, or with failOnDataLoss=false on at the first one."""
    brokers.put(cluster, "in", range(40), partitions=1)
    kind = source(cluster).available_now() if is_available_now else source(cluster)
    for loses in (False, True):
        with closing(replace(kind, fails_on_loss=not loses).open(0, 1, [])) as reader:
            polled(reader, 40 if not is_available_now else 5)
            reader._consumer.seek(kafka_library().TopicPartition("in", 0, 1_000))
            reader._fetched.clear()
            if loses:
                assert polled(reader, 40) == list(range(40))
                continue
            with pytest.raises(PlanError, match=r"has no such message.*or failOnDataLoss=false"):
                polled(reader, 1)


def test_a_batch_job_reads_between_two_places(cluster: KafkaSettings) -> None:
    """Both are asked for once: what comes later is not read, and each reader gives the same rows again."""
    brokers.put(cluster, "in", range(40))
    asked = Options("readKafka")
    given = {"kafka.bootstrap.servers": cluster.servers, "subscribe": "in", "endingOffsets": "latest"}
    given["startingOffsets"] = '{"in": {"0": 2, "1": -2, "2": -1, "3": 9}}'
    for name, value in given.items():
        asked.set(name, value)
    found = kafka_batch(asked)
    brokers.put(cluster, "in", range(40, 80))
    expected = [
        number for number in range(40) if number % 4 == 1 or (number % 4 == 0 and number >= 8) or number == 39
    ]
    for parallelism in (1, 3):
        batches = [batch for subtask in range(parallelism) for batch in found.read(subtask, parallelism)]
        assert sorted(int(value) for batch in batches for value in batch["value"].to_pylist()) == expected
    asked.set("endingOffsets", '{"in": {"0": 1, "1": 5, "2": 10, "3": 10}}')
    with pytest.raises(PlanError, match="partition 0 of in is to be read from offset 2 to 1, which is ahead of it"):
        kafka_batch(asked)
    asked.set("endingOffsets", '{"in": {"0": 5}}')
    with pytest.raises(PlanError, match="kafka: endingOffsets says nothing of partition 1 of in"):
        kafka_batch(asked)


def test_a_time_without_a_message_is_refused_or_the_end(cluster: KafkaSettings) -> None:
    """As `startingOffsetsByTimestampStrategy` says; the mock cluster knows the time of no message."""
    brokers.put(cluster, "in", range(8))
    late = KafkaSource(cluster, ("in",), start=KafkaStart(time=5))
    with pytest.raises(PlanError, match="partition 0 of in has no message of 5 ms since 1970 or later"):
        late.first_position()
    at_end = replace(late, start=KafkaStart(times={("in", number): 5 for number in range(4)}, latest_else=True))
    assert msgpack.unpackb(at_end.first_position()) == [["in", number, 2] for number in range(4)]


@pytest.mark.thorough
def test_a_query_begins_at_a_time(tmp_path: Path) -> None:
    """At the first message that is not older, as a broker in another process finds it, which tells seconds apart."""
    with brokers.tansu(tmp_path) as settings:
        brokers.put(settings, "in", range(8))
        newest = max(message.timestamp()[1] for message in brokers.messages(settings, "in"))
        wait_until(lambda: time.time() * 1000 > newest + 1200, "the clock has gone on")
        brokers.put(settings, "in", range(8, 12))
        begun = KafkaSource(settings, ("in",), start=KafkaStart(time=newest + 1100)).first_position()
    assert msgpack.unpackb(begun) == [["in", number, 2] for number in range(4)]


def test_starts_are_resolved_when_a_reader_is_opened(cluster: KafkaSettings) -> None:
    """The latest at that moment, wherever a snapshot is taken; an offset for each partition; a partition left out."""
    brokers.put(cluster, "in", range(8))
    latest = KafkaSource(cluster, ("in",)).open(0, 1, [])
    state = latest.snapshot()
    latest.close()
    brokers.put(cluster, "in", range(8, 12))
    again = KafkaSource(cluster, ("in",)).open(0, 1, [state])
    assert sorted(polled(again, 4)) == [8, 9, 10, 11]
    again.close()
    offsets = {("in", 0): -2, ("in", 1): -1, ("in", 2): 2, ("in", 3): -1}
    chosen = KafkaSource(cluster, ("in",), start=KafkaStart(offsets=offsets)).open(0, 1, [])
    assert sorted(polled(chosen, 4)) == [0, 4, 8, 10]
    chosen.close()
    with pytest.raises(PlanError, match="startingOffsets says nothing of partition 0 of in"):
        KafkaSource(cluster, ("in",), start=KafkaStart(offsets={("in", 3): 0})).open(0, 1, [])
    with pytest.raises(PlanError, match="there is no topic 'out'"):
        KafkaSource(cluster, ("out",)).splits()


def test_what_brokers_do_not_know_for_a_moment_is_awaited(
    cluster: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that came back may lack a topic, or a partition that was read; one that stays away ends the query."""
    known = [("in", number) for number in range(4)]
    looks = iter([PlanError("there is no topic 'in'"), known[:3], known])

    def look(*_: object) -> list[tuple[str, int]]:
        found = next(looks)
        if isinstance(found, PlanError):
            raise found
        return found

    state = msgpack.packb([(*each, 0) for each in known])
    brokers.put(cluster, "in", range(8))
    monkeypatch.setattr("penstock.stream.kafka_source.AGAIN_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.stream.kafka_source.partitions_of", look)
        reader = source(cluster).open(0, 1, [state])
    assert sorted(polled(reader, 8)) == list(range(8))
    reader.close()
    monkeypatch.setattr("penstock.stream.kafka_source.MISSED_SECONDS", 0.0)
    with pytest.raises(PlanError, match="there is no topic 'out'"):
        KafkaSource(cluster, ("out",)).open(0, 1, [state])
    gone = msgpack.packb([("in", 4, 0)])
    with pytest.raises(PlanError, match="partition 4 of in was read before, and is not there any more"):
        source(cluster).open(0, 1, [gone])


def test_a_topic_that_appears_is_found(cluster: KafkaSettings) -> None:
    """By its name, while the query runs, from its first message on."""
    reader = KafkaSource(cluster, pattern="in.*", discovery_seconds=0.05).open(0, 1, [])
    brokers.put(cluster, "in-two", range(12))
    assert sorted(polled(reader, 12)) == list(range(12))
    reader.close()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"subscribe": "a"}, PlanError, "needs option('kafka.bootstrap.servers', 'host:9092')"),
        ({"kafka.bootstrap.servers": "h:1"}, PlanError, "one of subscribe (topics) and subscribePattern"),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "kafka.auto.offset.reset": "earliest"},
            SettingError,
            "say startingOffsets",
        ),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": "a", "startingOffsets": "{}"}, SettingError, "is not valid"),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "maxOffsetsPerTrigger": "1"},
            SettingError,
            "has no option 'maxOffsetsPerTrigger': it bounds Spark's batches",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], error: type[Exception], words: str) -> None:
    """Without a broker."""
    given = Options("readStream")
    for name, value in options.items():
        given.set(name, value)
    with pytest.raises(error) as caught:
        kafka_source(given)
    assert words in str(caught.value)


def test_a_row_that_is_too_large_is_refused_ahead_of_its_checkpoint(cluster: KafkaSettings) -> None:
    """By its key, with the client's limit; a mended query goes on from a checkpoint that does not hold it."""
    pair = HEADERS.type.value_type
    rows = pa.record_batch(
        {
            "key": pa.array([b"1", None, b"3", b"4"]),
            "value": ["x", None, "y" * 1900, "z" * 1800],
            "headers": pa.array([None, [], None, [{"key": "h", "value": b"w" * 170}]], pa.list_(pair)),
        }
    )
    small = KafkaSettings((*cluster.given, ("message.max.bytes", "2000")))
    with closing(KafkaSink(small, "q", "out").owned("000001-a").open(0, 1, [])) as writer:
        writer.write(rows.slice(0, 3))
        for start, words in (
            (1, r"key b'4' is a message of 2,008 bytes, .* larger than kafka.message.max.bytes=2,000"),
        ):
            with pytest.raises(PlanError, match=words):
                writer.write(rows.slice(start))
        state = writer.prepare(1)
    KafkaSink(small, "q", "out").owned("000002-b").open(0, 1, [state]).close()
    assert {message.key() for message in brokers.messages(cluster, "out")} == {b"1", None, b"3"}


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("topic", None, "no topic"),
        ("topic", "", "no topic"),
        ("partition", -1, "a negative partition"),
        ("headers", [{"key": "h", "value": b"1"}, None], "a header without a key"),
        ("headers", [{"key": None, "value": b"1"}], "a header without a key"),
    ],
)
def test_a_row_that_is_no_message_is_refused_ahead_of_its_checkpoint(
    cluster: KafkaSettings, column: str, value: object, words: str
) -> None:
    """By its key; rows without what these have are taken, and a mended query goes on from its checkpoint."""
    rows = pa.table({"key": [b"1", b"2", b"3"], "value": ["x", "y", "z"]})
    rows = rows.append_column("topic", pa.array(["out", "out", value if column == "topic" else "out"]))
    if column != "topic":
        kind = pa.int32() if column == "partition" else HEADERS.type
        plain = 3 if column == "partition" else [{"key": "h", "value": None}]
        rows = rows.append_column(column, pa.array([None, plain, value], kind))
    (batch,) = rows.to_batches()
    sink = KafkaSink(cluster, "q")
    with closing(sink.owned("000001-a").open(0, 1, [])) as writer:
        writer.write(batch.slice(0, 2))
        with pytest.raises(PlanError, match=rf"the row with key b'3' has {words}, .* goes on from its checkpoint"):
            writer.write(batch.slice(1))
        state = writer.prepare(1)
    sink.owned("000002-b").open(0, 1, [state]).close()
    assert {message.key() for message in brokers.messages(cluster, "out")} == {b"1", b"2"}


def test_a_row_that_is_refused_for_good_is_named_and_is_sent_when_that_is_mended(cluster: KafkaSettings) -> None:
    """The client tells of it when the transaction ends, as of a topic that is not there, or as it takes the row."""
    given = (("allow.auto.create.topics", "false"), ("topic.metadata.propagation.max.ms", "100"))
    sink = KafkaSink(KafkaSettings((*cluster.given, *given)), "q")
    writer = sink.owned("000001-a").open(0, 1, [])
    with closing(writer):
        writer.write(pa.record_batch({"key": [b"1"], "topic": ["later"], "value": ["7"]}))
        state = writer.prepare(1)
        with pytest.raises(
            PlanError, match=r"row with key b'1' for topic later .*make the topic.* start the query again"
        ):
            writer.commit(1)
    brokers.put(cluster, "later", range(1), partitions=1)
    sink.owned("000002-b").open(0, 1, [state]).close()
    assert sorted(message.value() for message in brokers.messages(cluster, "later")) == [b"0", b"7"]


def test_rows_that_are_no_messages_are_refused() -> None:
    """By the column that is missing, or is no part of a message."""
    with pytest.raises(PlanError, match="rows need a column value"):
        check_columns(pa.schema([("key", pa.string())]), "out")
    with pytest.raises(PlanError, match=r"column 'n' is no part of a message"):
        check_columns(pa.schema([("value", pa.string()), ("n", pa.int64())]), "out")
    with pytest.raises(PlanError, match=r"say option\('topic', ...\)"):
        check_columns(pa.schema([("value", pa.string())]), "")


def test_messages_come_in_portions_of_bounded_bytes() -> None:
    """The client may hold ten thousand large ones."""
    sizes = [20 << 20] * 3 + [70 << 20] + [0] * 3
    found = [list(map(len, portion)) for portion in _portions([bytes(size) for size in sizes])]
    assert found == [*([[20 << 20]] * 3), [70 << 20], [0, 0, 0]]


def test_bytes_become_a_column() -> None:
    """With missing ones, empty ones, and none."""
    for values in ([], [b"a", None, b"", b"bc"], [b"x"] * 9, [None] * 9):
        column = binary_column(list(values))
        column.validate(full=True)
        assert column.to_pylist() == values


def test_rows_are_sent_to_the_place_for_which_they_were_prepared(cluster: KafkaSettings) -> None:
    """Another topic, other markers and another cluster are refused, and other servers where clusters have no ids."""
    sink = KafkaSink(cluster, "q", "out")
    writer = sink.open(0, 1, [])
    writer.write(pa.record_batch({"value": ["1"]}))
    state = writer.prepare(7)
    writer.close()
    sink.check([state])
    nameless = msgpack.packb({**msgpack.unpackb(state), "cluster": ""})
    sink.check([nameless])
    with brokers.mock_cluster() as settings:
        others = [
            (KafkaSink(cluster, "q", "out-two"), state),
            (KafkaSink(cluster, "q", "out", "markers"), state),
            (KafkaSink(settings, "q", "out"), state),
            (KafkaSink(settings, "q", "out"), nameless),
        ]
        for other, prepared in others:
            with pytest.raises(PlanError, match=r"has rows to commit to topic out with .*, and this query writes to"):
                other.check([prepared])
    turned = [KafkaSettings((("bootstrap.servers", servers),)) for servers in ("a:1,b:1", "b:1, a:1")]
    assert turned[0].sorted_servers == turned[1].sorted_servers


def test_a_query_that_has_sent_and_has_no_checkpoint_is_refused(cluster: KafkaSettings) -> None:
    """By its markers, and not by those of a query whose name begins with its own."""
    names = [("q", MARKERS), ("q", "none-yet"), ("q-1", MARKERS)]
    queries = [KafkaSink(cluster, name, "out", markers) for name, markers in names]
    for query in queries[:2]:
        query.check_anew()
    writer = queries[2].open(0, 1, [])
    writer.write(pa.record_batch({"value": ["1"]}))
    writer.prepare(1)
    writer.commit(1)
    writer.close()
    queries[0].check_anew()
    with pytest.raises(CheckpointError, match="the checkpointLocation is empty, and topic out with"):
        queries[2].check_anew()


class Unknown:
    """A consumer, and the one message that it gives: the error of a topic that a broker does not know."""

    def consume(self, _: int, __: float) -> list[Unknown]:
        """The message."""
        return [self]

    def error(self) -> Any:
        """The client's own error, which no broker of ours can be made to give."""
        return kafka_library().KafkaError(kafka_library().KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_markers_whose_topic_is_not_known_are_not_none() -> None:
    """A broker that does not know it yet: whether rows were sent is open, so the attempt ends."""
    with pytest.raises(OutsideError, match="the topic of markers is not there"):
        list(_up_to(0, Unknown()))
