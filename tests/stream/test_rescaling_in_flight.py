# SPDX-License-Identifier: Apache-2.0
"""Rows in flight dealt out to other numbers of tasks: each row once, where it belongs, in the promised order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import product

import pyarrow as pa
import pytest

from penstock.checkpoint.channel_state import FORMER, ChannelKey, Side
from penstock.checkpoint.errors import CheckpointError
from penstock.record import PartitionerSpec
from penstock.record.key_groups import GroupOwners, group_range
from penstock.stream.rescaling import EdgeChange, own_rows, partitioner_of, taken_by

WIDTHS = (1, 2, 3, 5)
GROUPS = 128
EDGE = "a->b:0"
BY_KEY = PartitionerSpec("hash", ("key",))
SCHEMA = pa.schema([("producer", pa.int64()), ("key", pa.int64()), ("number", pa.int64())])
KINDS = ("hash", "rebalance", "random")

Saved = dict[ChannelKey, list[pa.RecordBatch]]


def _spec(kind: str) -> PartitionerSpec:
    return BY_KEY if kind == "hash" else PartitionerSpec(kind)


@dataclass
class Exchange:
    """A model of one exchange at one width: rows are made, some are read, and the rest lies in its channels."""

    kind: str
    producers: int
    consumers: int
    chance: random.Random
    first: int = 0
    waiting: dict[int, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    """Restored rows of each consumer, read before all others."""
    channels: dict[tuple[int, int], list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    read: dict[int, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))

    def make(self, batches: int) -> int:
        """Each producer gives batches of numbered rows; returns the next number."""
        number = self.first
        change = EdgeChange(EDGE, _spec(self.kind), (1, 1), (1, self.consumers), GROUPS)
        for _ in range(batches):
            for producer in range(self.producers):
                rows = self.chance.randrange(1, 9)
                columns = [
                    [producer] * rows,
                    [self.chance.randrange(20) for _ in range(rows)],
                    range(number, number + rows),
                ]
                number += rows
                batch = pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)
                for consumer, part in partitioner_of(change).split(batch):
                    self.channels[producer, consumer].append(part)
        return number

    def consume(self) -> None:
        """Consumers read some of what waits, the restored rows first."""
        for consumer in range(self.consumers):
            rows = self.waiting[consumer]
            count = self.chance.randrange(len(rows) + 1)
            self.read[consumer] += rows[:count]
            del rows[:count]
            if rows:
                continue
            for producer in range(self.producers):
                channel = self.channels[producer, consumer]
                count = self.chance.randrange(len(channel) + 1)
                self.read[consumer] += channel[:count]
                del channel[:count]

    def save(self) -> Saved:
        """A snapshot: a random part of each channel has arrived, the rest was overtaken at the producer."""
        saved: Saved = {ChannelKey("in", EDGE, FORMER, c): rows for c, rows in self.waiting.items() if rows}
        for (producer, consumer), rows in self.channels.items():
            cut = self.chance.randrange(len(rows) + 1)
            halves: list[tuple[Side, list[pa.RecordBatch]]] = [("in", rows[:cut]), ("out", rows[cut:])]
            saved |= {ChannelKey(side, EDGE, producer, consumer): part for side, part in halves if part}
        return saved


def restored(kind: str, saved: Saved, before: Exchange, after: Exchange) -> None:
    """Give an exchange of another width what was saved."""
    change = EdgeChange(
        EDGE, _spec(kind), (before.producers, after.producers), (before.consumers, after.consumers), GROUPS
    )
    for consumer in range(after.consumers):
        for taken in taken_by(consumer, change, saved):
            rows = saved[taken.key]
            after.waiting[consumer] += own_rows(consumer, partitioner_of(change), rows) if taken.is_filtered else rows


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    """The rows' numbers."""
    return [number for batch in batches for number in batch.column("number").to_pylist()]


def check_order(batches: list[pa.RecordBatch]) -> None:
    """Rows of one key and producer come with rising numbers."""
    last: dict[tuple[int, int], int] = {}
    for batch in batches:
        for row in batch.to_pylist():
            place = (row["producer"], row["key"])
            assert last.get(place, -1) < row["number"], f"{place}: {row['number']} behind {last[place]}"
            last[place] = row["number"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_each_row_has_one_reader_at_any_widths_of_both_ends(kind: str, seed: int) -> None:
    """Changes of 1, 2, 3 and 5 producers and consumers at once: none lost, none doubled, keys at their owners."""
    chance = random.Random(seed)
    changes = list(product(WIDTHS, repeat=2))
    for producers, consumers in chance.sample(list(product(changes, changes)), 40):
        before = Exchange(kind, producers[0], consumers[0], chance)
        before.make(3)
        before.consume()
        saved = before.save()
        after = Exchange(kind, producers[1], consumers[1], chance)
        restored(kind, saved, before, after)
        found = Counter(number for rows in after.waiting.values() for number in numbers(rows))
        assert found == Counter(number for rows in saved.values() for number in numbers(rows))
        for consumer, rows in after.waiting.items():
            if kind == "hash":
                keys = [key for batch in rows for key in batch.column("key").to_pylist()]
                owners = GroupOwners(GROUPS, consumers[1]).of([pa.array(keys, pa.int64())])
                assert set(owners.tolist()) <= {consumer}
                check_order(rows)
            elif consumers[0] == 1 and producers[0] == 1:
                assert numbers(rows) == sorted(numbers(rows)), "a channel is never divided"


@pytest.mark.parametrize("seed", range(20))
def test_order_by_key_holds_over_several_restarts_in_the_middle_of_restored_rows(seed: int) -> None:
    """Rows that wait through three changes of width are read ahead of newer ones of their key, by whoever owns it."""
    chance = random.Random(seed)
    exchange = Exchange("hash", chance.choice(WIDTHS), chance.choice(WIDTHS), chance)
    read: list[list[pa.RecordBatch]] = []
    made = exchange.make(4)
    for _ in range(3):
        exchange.consume()
        read.append([batch for rows in exchange.read.values() for batch in rows])
        after = Exchange("hash", chance.choice(WIDTHS), chance.choice(WIDTHS), chance, first=made)
        restored("hash", exchange.save(), exchange, after)
        exchange = after
        made = exchange.make(2)
    while any(exchange.waiting.values()) or any(exchange.channels.values()):
        exchange.consume()
    read.append([batch for rows in exchange.read.values() for batch in rows])
    everything = [batch for attempt in read for batch in attempt]
    assert Counter(numbers(everything)) == Counter(range(made))
    check_order(everything)


def test_rows_of_one_consumer_are_filtered_only_where_its_keys_have_more_than_one_owner() -> None:
    """From two to four: each old channel is divided; from four to two: none is, and each is read by one task."""
    keys = [ChannelKey("in", EDGE, 0, consumer) for consumer in range(4)]
    up = EdgeChange(EDGE, BY_KEY, (1, 1), (2, 4), GROUPS)
    assert [[(t.key.consumer, t.is_filtered) for t in taken_by(c, up, keys[:2])] for c in range(4)] == [
        [(0, True)],
        [(0, True)],
        [(1, True)],
        [(1, True)],
    ]
    down = EdgeChange(EDGE, BY_KEY, (1, 1), (4, 2), GROUPS)
    assert [[(t.key.consumer, t.is_filtered) for t in taken_by(c, down, keys)] for c in range(2)] == [
        [(0, False), (1, False)],
        [(2, False), (3, False)],
    ]


def test_it_is_decided_for_each_exchange_by_itself() -> None:
    """A task with an input by key and one in turns: the first is filtered, the second dealt out whole."""
    keys = [ChannelKey("in", edge, 0, consumer) for edge in ("x->b:0", "y->b:0") for consumer in range(2)]
    by_key = EdgeChange("x->b:0", BY_KEY, (1, 1), (2, 3), GROUPS)
    in_turns = EdgeChange("y->b:0", PartitionerSpec("rebalance"), (1, 1), (2, 3), GROUPS)
    assert [(t.key.edge, t.key.consumer, t.is_filtered) for t in taken_by(1, by_key, keys)] == [
        ("x->b:0", 0, True),
        ("x->b:0", 1, True),
    ]
    assert [[t.key.consumer for t in taken_by(c, in_turns, keys)] for c in range(3)] == [[], [0], [1]]


@pytest.mark.parametrize("kind", ["forward", "rescale", "broadcast", "custom"])
def test_what_can_not_be_dealt_out_is_refused_by_name(kind: str) -> None:
    """Only where rows are there and the consumers' number changes; a user's function may be forced to filter."""
    spec = PartitionerSpec(kind, function=(lambda batch: batch.column("key")) if kind == "custom" else None)
    keys = [ChannelKey("out", EDGE, 0, 0)]
    with pytest.raises(CheckpointError, match=f"{EDGE}.*{kind}.*3 tasks instead of 2.*recoverWithoutInFlight"):
        taken_by(0, EdgeChange(EDGE, spec, (1, 1), (2, 3), GROUPS), keys)
    assert taken_by(0, EdgeChange(EDGE, spec, (1, 1), (2, 3), GROUPS), []) == []
    assert [t.key for t in taken_by(0, EdgeChange(EDGE, spec, (1, 2), (2, 2), GROUPS), keys)] == keys
    if kind == "custom":
        (taken,) = taken_by(2, EdgeChange(EDGE, spec, (1, 1), (2, 3), GROUPS, forced=True), keys)
        assert taken.is_filtered


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 7, 64, 127, 128])
def test_the_groups_of_a_task_are_a_run(tasks: int) -> None:
    """The same division as the partitioner's, and every group has one task."""
    owned = {group: task for task in range(tasks) for group in group_range(GROUPS, tasks, task)}
    assert owned == {group: group * tasks // GROUPS for group in range(GROUPS)}
