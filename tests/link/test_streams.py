# SPDX-License-Identifier: Apache-2.0
"""Streaming writers and gates over a real environment: whole messages, sums, one place to wait, and its time."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from environment_thread import SEGMENT, EnvironmentThread, environment
from penstock.attachment.mailbox import AttachmentMailbox
from penstock.buffer import SegmentMemory
from penstock.environment.ports.inputs import WINDOW
from penstock.environment.task_frames import TaskFrames
from penstock.errors import IncompleteDataError, PenstockError, ProtocolError
from penstock.link import commands
from penstock.record.framing import HEADER, MessageAssembler
from penstock.services.local.in_flight import LEAST_BYTES, SegmentFill
from penstock.shuffle import (
    EndOfData,
    EpochEnd,
    EventKind,
    InputGate,
    PartitionId,
    Received,
    TaskEvent,
)
from penstock.shuffle.actions import StopSource
from penstock.testing import DEADLINE, wait_until
from stream_task import Clock, Task, numbers, task_of

TEXTS = pa.schema([("text", pa.string())])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[EnvironmentThread]:
    """An environment with small segments."""
    with environment(tmp_path, segments=256) as found:
        yield found


@pytest.fixture
def task(here: EnvironmentThread) -> Iterator[Task]:
    """A task of it."""
    found = task_of(here.attach())
    yield found
    found.attachment.close()
    wait_until(lambda: here.run(lambda: here.host.memory.pool.statistics().in_use) == 0, "all segments to come back")
    here.run(here.host.memory.references.check)


def next_of(gates: Sequence[InputGate], mailbox: AttachmentMailbox) -> Received:
    """The next thing of any gate, waited for at the one place."""
    while True:
        for gate in gates:
            received = gate.poll()
            if received is not None:
                return received
        mailbox.wait(DEADLINE)


def milliseconds(step: Callable[[], object], times: int) -> float:
    """The median time of a step."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin)
    return statistics.median(found) * 1000


def test_an_action_reaches_a_task_whose_rows_wait_for_room(here: EnvironmentThread, task: Task) -> None:
    """Nobody reads, the writer is full, the task waits: it is woken, and acts, twenty times."""
    writer = task.write()
    while writer.offer(numbers(*range(100)), 0):
        pass
    told = threading.Semaphore(0)
    asked: list[int] = []

    def tell() -> None:
        while told.acquire() and len(asked) < 20:
            asked.append(len(asked))
            here.run(lambda: here.host.obey(commands.TaskAction(task.owner.attempt, StopSource())))

    thread = threading.Thread(target=tell)
    thread.start()
    for _ in range(20):
        told.release()
        while not (actions := task.mailbox.take_actions()):
            task.mailbox.wait(DEADLINE)
        assert actions == [StopSource()]
        assert writer.offer(numbers(1), 0) == 0
    told.release()
    thread.join(DEADLINE)
    writer.close()


def test_four_idle_gates_cost_under_a_millisecond(task: Task) -> None:
    """A row through one gate, and through the same beside four others that nobody writes to."""
    writers = [task.write(number) for number in range(5)]
    gates = [task.read((number, 0)) for number in range(5)]

    def one_row(read: Sequence[InputGate]) -> None:
        writers[0].offer(numbers(1), 0)
        writers[0].flush()
        next_of(read, task.mailbox)

    alone, beside = [], []
    for _ in range(5):
        alone.append(milliseconds(lambda: one_row(gates[:1]), 40))
        beside.append(milliseconds(lambda: one_row([*gates[1:], gates[0]]), 40))
    assert min(beside) - min(alone) < 1.0
    for member in (*gates, *writers):
        member.close()


class Slices:
    """Keeps the slices that gates look at; a writer looks at whole segments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[bytes] = []
        look = SegmentMemory.view

        def keep(memory: SegmentMemory, segment: int, *slice_of_it: int) -> memoryview:
            view = look(memory, segment, *slice_of_it)
            if slice_of_it:
                self.found.append(bytes(view))
            return view

        monkeypatch.setattr(SegmentMemory, "view", keep)


def messages_in(data: bytes) -> int:
    """The number of messages in these bytes, which must be whole ones."""
    count = position = 0
    while position < len(data):
        length, _ = HEADER.unpack_from(data, position)
        position += HEADER.size + length + -length % 8
        count += 1
    assert position == len(data), f"{len(data)} bytes end in the middle of a message"
    return count


def test_a_slice_holds_whole_messages(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of all sizes, offered as room comes; what a segment does not hold is a figure."""
    slices = Slices(monkeypatch)
    writer, gate = task.write(subpartitions=2), task.read((0, 0), (0, 1))
    expected: list[int] = []
    found: list[int] = []
    given = 0
    for size in (1, 7, 40, 130, 600, 3, 2000, 90):
        rest = numbers(*range(len(expected), len(expected) + size))
        expected += rest.column(0).to_pylist()
        while rest.num_rows:
            rest = rest.slice(writer.offer(rest, size % 2))
            while (received := gate.poll()) is not None:
                given += received.batch is not None
                found += received.batch.column(0).to_pylist() if received.batch is not None else []
            task.mailbox.wait(0.001)
    writer.end_epoch(b"", EventKind.IN_ORDER)
    while len(found) < len(expected):
        received = next_of([gate], task.mailbox)
        given += received.batch is not None
        found += received.batch.column(0).to_pylist() if received.batch is not None else []
    assert sorted(found) == expected
    assert len(slices.found) > 4
    assert all(len(each) <= SEGMENT and messages_in(each) for each in slices.found)
    assert sum(map(messages_in, slices.found)) == given
    assert 0 < task.owner.metrics.values["bytes_unused"] < task.owner.metrics.values["bytes_out"]
    assert "rows_spanning" not in task.owner.metrics.values
    writer.close()
    gate.close()


def test_a_row_larger_than_a_segment_spans_and_is_counted(task: Task) -> None:
    """It is taken at once as far as there is room; the rest is given out by flushes, and no event cuts it."""
    writer, gate = task.write(schema=TEXTS), task.read((0, 0), schema=TEXTS)
    large = "x" * (40 * SEGMENT)
    assert writer.offer(pa.record_batch([pa.array([large])], schema=TEXTS), 0) == 1
    assert writer.has_pending
    assert writer.finish() is None
    for step in (lambda: writer.emit(EndOfData()), lambda: writer.end_epoch(b"", EventKind.BLOCKING)):
        with pytest.raises(ProtocolError, match="middle of a row"):
            step()
    received = None
    while received is None:
        received = gate.poll()
        writer.flush()
        task.mailbox.wait(0.001)
    assert received.batch is not None
    assert received.batch.column(0).to_pylist() == [large]
    assert not writer.has_pending
    assert task.owner.metrics.values["rows_spanning"] == 1
    writer.close()
    gate.close()


@pytest.mark.parametrize("fault", ["dropped", "doubled"])
def test_a_slice_that_is_lost_or_doubled_is_found_at_the_next_barrier(
    task: Task, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The epoch in which it happened fails, and says where it ends; the one before did not."""
    writer, gate = task.write(), task.read((0, 0))
    writer.offer(numbers(1), 0)
    writer.end_epoch(b"good", EventKind.IN_ORDER)
    next_of([gate], task.mailbox)
    assert isinstance(next_of([gate], task.mailbox).event, EpochEnd)
    monkeypatch.setattr(MessageAssembler, "feed", _dropped if fault == "dropped" else _doubled)
    writer.offer(numbers(2, 3), 0)
    writer.end_epoch(b"bad", EventKind.IN_ORDER)
    with pytest.raises(IncompleteDataError, match="ends after 2 messages"):
        _ = [next_of([gate], task.mailbox) for _ in range(3)]
    writer.close()
    gate.close()


FEED = MessageAssembler.feed


def _dropped(assembler: MessageAssembler, view: memoryview, **_: bool) -> list[pa.RecordBatch]:
    """A slice gets lost."""
    return []


def _doubled(assembler: MessageAssembler, view: memoryview, **_: bool) -> list[pa.RecordBatch]:
    """A slice is read twice."""
    return [*FEED(assembler, view), *FEED(assembler, view)]


def test_a_wide_exchange_gets_on_with_few_segments(tmp_path: Path) -> None:
    """Forty subpartitions in twenty segments: every row comes, in its subpartition."""
    with environment(tmp_path, segments=20) as small:
        task = task_of(small.attach())
        writer, gate = task.write(subpartitions=40), task.read(*((0, index) for index in range(40)))
        found: list[tuple[int, int]] = []
        for value in range(2000):
            while writer.offer(numbers(value), value % 40) == 0:
                task.mailbox.wait(DEADLINE)
                found += rows_there(gate)
        writer.end_epoch(b"", EventKind.IN_ORDER)
        while len(found) < 2000:
            task.mailbox.wait(DEADLINE)
            found += rows_there(gate)
        assert sorted(value for _, value in found) == list(range(2000))
        assert all(value % 40 == channel for channel, value in found)
        writer.close()
        gate.close()
        task.attachment.close()


def rows_there(gate: InputGate) -> list[tuple[int, int]]:
    """The rows that have come, with their channels."""
    found = []
    while (received := gate.poll()) is not None:
        if received.batch is not None:
            found += [(received.channel, value) for value in received.batch.column(0).to_pylist()]
    return found


def test_an_event_behind_a_full_window_is_handed_over(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many slices as a task may hold are out and none has come back: the barrier is there, and data is not."""
    events: list[bytes] = []
    said = TaskFrames.event

    def note(mailbox: TaskFrames, port: int, data_type: int, channel: int, payload: bytes) -> None:
        events.append(payload)
        said(mailbox, port, data_type, channel, payload)

    monkeypatch.setattr(TaskFrames, "event", note)
    writer, gate = task.write(), task.read((0, 0))
    for value in range(WINDOW):
        assert writer.offer(numbers(value), 0) == 1
        writer.flush()
    writer.end_epoch(b"barrier", EventKind.BLOCKING)
    wait_until(lambda: len(events) == 1, "the barrier to be handed over before anything was polled")
    things = [next_of([gate], task.mailbox) for _ in range(WINDOW + 1)]
    assert isinstance(things[-1].event, EpochEnd)
    writer.close()
    gate.close()


def test_a_producer_without_rows_is_announced_by_its_first_event(here: EnvironmentThread, task: Task) -> None:
    """Its consumers are deployed, so that its barriers reach them."""
    announced: list[PartitionId] = []
    here.host.master.report = lambda report: announced.append(report.partition)  # type: ignore[method-assign,assignment,union-attr]
    writer = task.write()
    writer.emit(TaskEvent(b"barrier"))
    wait_until(lambda: announced == [task.place(0).partition], "the partition to be announced")
    writer.close()


def test_rows_go_in_one_message_with_the_event_behind_them(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and the reader wake once for rows and their watermark."""
    writer, gate = task.write(), task.read((0, 0))
    plane = task.attachment.data_plane()
    sent: list[bytes] = []
    send = plane.send

    def noted(data: bytes) -> None:
        sent.append(data)
        send(data)

    monkeypatch.setattr(plane, "send", noted)
    assert writer.offer(numbers(1, 2), 0) == 2
    assert sent == []
    writer.emit(TaskEvent(b"behind"))
    assert len(sent) == 1
    assert next_of([gate], task.mailbox).batch is not None
    assert next_of([gate], task.mailbox).event == TaskEvent(b"behind")
    writer.close()
    gate.close()


def test_a_closed_writer_takes_nothing(task: Task) -> None:
    """And says in which state it is; closing it again changes nothing."""
    writer = task.write()
    writer.close()
    writer.close()
    with pytest.raises(PenstockError, match="closed"):
        writer.offer(numbers(1), 0)


def test_what_was_lent_to_a_writer_goes_back_although_it_has_ended(here: EnvironmentThread, task: Task) -> None:
    """A barrier has overtaken rows that the task has not given back when its writer fails; the task lives on."""
    writer = task.write()
    while writer.offer(numbers(*range(100)), 0):
        pass
    writer.end_epoch(b"1", EventKind.PRIORITY)
    writer.close(RuntimeError("it has to end"))
    wait_until(lambda: here.run(lambda: here.host.memory.pool.statistics().in_use) == 0, "what was lent")


def test_segments_are_filled_for_a_target_time() -> None:
    """The limit follows the rate, within a least size and the segment; without a target segments are always whole."""
    clock = Clock()
    fill, whole = SegmentFill(0.5, 10, 1 << 20, clock), SegmentFill(0.0, 10, 1 << 20, clock)
    assert fill.limit < whole.limit == 1 << 20
    for rate, limit in ((1 << 20, (1 << 20) // 20), (1 << 30, 1 << 20), (1 << 10, LEAST_BYTES)):
        for _ in range(40):
            clock.now += 0.5
            fill.took(rate // 2)
            whole.took(rate // 2)
        assert fill.limit == pytest.approx(limit, rel=0.01)
        assert whole.limit == 1 << 20
