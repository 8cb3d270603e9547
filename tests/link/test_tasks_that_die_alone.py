# SPDX-License-Identifier: Apache-2.0
"""Tasks that die one by one around a real environment: who is left goes on, and the sums say what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from environment_thread import EnvironmentThread, environment
from penstock.shuffle import (
    ChannelDescriptor,
    EpochEnd,
    EventKind,
    InputGate,
    InputGateDescriptor,
    PartitionKind,
)
from penstock.shuffle.events import Event, ProducerIs, Reattached
from penstock.testing import DEADLINE, wait_until
from stream_task import SCHEMA, Task, Writer, numbers, task_of

KIND = PartitionKind.PIPELINED_APPROXIMATE


@pytest.fixture
def here(tmp_path: Path) -> Iterator[EnvironmentThread]:
    """An environment with small segments, all of which come back."""
    with environment(tmp_path, segments=64) as found:
        yield found
        wait_until(
            lambda: found.run(lambda: found.host.memory.pool.statistics().in_use) == 0, "all segments to come back"
        )
        found.run(found.host.memory.references.check)


def write(task: Task, writer: Writer, first: int, count: int) -> None:
    """Write so many numbers, some at a time, and show them."""
    for number in range(first, first + count, 100):
        batch = numbers(*range(number, number + 100))
        while (taken := writer.offer(batch, 0)) < batch.num_rows:
            batch = batch.slice(taken)
            writer.raw.flush()
            task.mailbox.wait(DEADLINE)
    writer.raw.flush()


def read_until(task: Task, gate: InputGate, last: int | type[Event]) -> tuple[list[int], list[Event]]:
    """The numbers that come until this one, or until an event of this kind; and the events."""
    found: list[int] = []
    events: list[Event] = []
    while last not in (found[-1] if found else None, type(events[-1]) if events else None):
        received = gate.poll()
        if received is None:
            task.mailbox.wait(DEADLINE)
        elif received.batch is not None:
            found += received.batch.column("n").to_pylist()
        elif received.event is not None:
            events.append(received.event)
    return found, events


def test_a_producer_waits_for_no_reader_that_is_gone(here: EnvironmentThread) -> None:
    """It gives more than all memory holds; the next reader's first sums say exactly what nobody got."""
    producer, first, second = (task_of(here.attach(), number, KIND) for number in (5, 6, 7))
    writer = producer.write()
    gate = producer_gate(first, producer)
    write(producer, writer, 0, 1000)
    read, events = read_until(first, gate, 499)
    assert events == [ProducerIs(5)]
    first.attachment.close()
    write(producer, writer, 1000, 60_000)
    gate = producer_gate(second, producer)
    read_until(second, gate, Reattached)
    write(producer, writer, 61_000, 1000)
    writer.raw.end_epoch(b"\x01", EventKind.IN_ORDER)
    after, events = read_until(second, gate, EpochEnd)
    end = events[-1]
    assert isinstance(end, EpochEnd)
    assert end.rows == 62_000
    lost = end.rows - len(after) - len(read)
    assert lost == 62_000 - len({*read, *after}) >= 60_000 - 1000
    assert after == list(range(62_000 - len(after), 62_000))
    for task in (producer, second):
        task.attachment.close()


def test_a_reader_goes_on_with_the_next_attempt_of_its_producer(here: EnvironmentThread) -> None:
    """It hears of no failure, only which attempt follows; half a message is dropped, and sums begin anew."""
    reader, first, second = (task_of(here.attach(), number, KIND) for number in (5, 6, 7))
    writer = first.write()
    gate = producer_gate(reader, first)
    write(first, writer, 0, 1000)
    read_until(reader, gate, 999)
    first.attachment.close()
    writer = second.write()
    assert second.environment.update_partition_info(reader.owner.attempt, second.place(0))
    write(second, writer, 5000, 200)
    writer.raw.end_epoch(b"\x01", EventKind.IN_ORDER)
    read, events = read_until(reader, gate, EpochEnd)
    assert read == list(range(5000, 5200))
    assert [type(event) for event in events] == [ProducerIs, EpochEnd]
    assert events[0] == ProducerIs(7)
    for task in (reader, second):
        task.attachment.close()


def producer_gate(reader: Task, producer: Task) -> InputGate:
    """A gate of the one over the other's partition."""
    channels = (ChannelDescriptor(producer.place(0), 0),)
    (gate,) = reader.environment.create_input_gates(reader.owner, [InputGateDescriptor(0, SCHEMA, channels)])
    gate.setup()
    return gate
