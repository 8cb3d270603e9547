# SPDX-License-Identifier: Apache-2.0
"""A task attached to a real environment over a socket pair: what they say to each other, and what neither knows."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from environment_thread import EnvironmentThread, environment
from holdings import maps_of
from penstock.attachment.attachment import Attachment
from penstock.buffer import SegmentMemory
from penstock.environment.partitions.stored import StoredResult
from penstock.environment.ports.inputs import GatePort
from penstock.errors import (
    ControlError,
    EnvironmentLostError,
    PenstockError,
    ProtocolError,
    TaskCancelledError,
)
from penstock.link import calls
from penstock.link.commands import CancelTask
from penstock.link.frames import LinkFrameType, channel_frame, frame, segments_frame, slices_frame
from penstock.link.master import AwaitProducers
from penstock.link.rendezvous import Rendezvous
from penstock.link.welcome import Welcome
from penstock.link.wire import Done
from penstock.partition.registry import PartitionRegistry
from penstock.services.local.environment import LocalShuffleEnvironment
from penstock.services.local.port import Port
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
)
from penstock.shuffle.requests import Request
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingInput, BlockingWriter
from penstock.testing import DEADLINE

SCHEMA = pa.schema([("n", pa.int64())])
PORTS = 200_000


@pytest.fixture
def here(tmp_path: Path) -> Iterator[EnvironmentThread]:
    """An environment."""
    with environment(tmp_path) as found:
        yield found


def exchange(attachment: Attachment, number: int, kind: PartitionKind = PartitionKind.PIPELINED_BOUNDED) -> list[int]:
    """Write a partition of three subpartitions and read the second: what comes out."""
    environment = LocalShuffleEnvironment(attachment, Settings())
    owner = OwnerContext(AttemptId("job", 0, number, number), "test", MetricGroup("test"))
    partition = PartitionDescriptor(DatasetId("job", 0), number, kind, 3)
    place = ShuffleDescriptor(PartitionId(DatasetId("job", 0), number, number), "local", kind, attachment.environment)
    (writer,) = environment.create_result_partition_writers(
        owner, [ResultPartitionDescriptor(partition, place, SCHEMA)]
    )
    (gate,) = environment.create_input_gates(owner, [InputGateDescriptor(0, SCHEMA, (ChannelDescriptor(place, 1),))])
    rows, target = BlockingInput([gate], attachment), BlockingWriter(writer, attachment, owner.metrics)
    target.setup()
    gate.setup()
    for value in range(9):
        target.write(Split.whole(pa.record_batch([pa.array([value])], schema=SCHEMA), value % 3))
    target.finish()
    found = []
    while (received := rows.next(DEADLINE)) is not None:
        if received.batch is not None:
            found += received.batch.column(0).to_pylist()
    gate.close()
    writer.close()
    return found


def test_ports_do_not_run_out(here: EnvironmentThread) -> None:
    """After 200,000 ports of one attachment an exchange goes through ports of such high numbers, in each kind."""
    attachment = here.attach()
    quiet = Port("a port that nothing is said to")
    for _ in range(PORTS):
        attachment.data_plane().close_port(attachment.data_plane().open_port(quiet))
    assert exchange(attachment, 1) == [1, 4, 7]
    assert exchange(attachment, 2, PartitionKind.HYBRID_FULL) == [1, 4, 7]
    assert attachment.data_plane().open_port(quiet) > PORTS
    attachment.close()


def test_a_subpartition_that_nobody_reads_hides_no_row_of_the_others(here: EnvironmentThread) -> None:
    """The write into it waits for a buffer; what was written to its neighbour is read, without a flush."""
    writing, reading = here.attach(), here.attach()
    kind = PartitionKind.PIPELINED_BOUNDED
    place = ShuffleDescriptor(PartitionId(DatasetId("job", 0), 0, 1), "local", kind, writing.environment)
    owners = [OwnerContext(AttemptId("job", vertex, 0, 1), "test", MetricGroup("test")) for vertex in range(2)]
    (made,) = LocalShuffleEnvironment(writing, Settings()).create_result_partition_writers(
        owners[0], [ResultPartitionDescriptor(PartitionDescriptor(DatasetId("job", 0), 0, kind, 2), place, SCHEMA)]
    )
    (gate,) = LocalShuffleEnvironment(reading, Settings()).create_input_gates(
        owners[1], [InputGateDescriptor(0, SCHEMA, (ChannelDescriptor(place, 1),))]
    )
    writer, rows = BlockingWriter(made, writing, owners[0].metrics), BlockingInput([gate], reading)
    writer.setup()
    gate.setup()
    ends: list[type[BaseException]] = []
    full = pa.record_batch([pa.array(range(100_000))], schema=SCHEMA)

    def write() -> None:
        try:
            writer.write(Split.whole(pa.record_batch([pa.array([7])], schema=SCHEMA), 1))
            writer.write(Split.whole(full, 0))
        except PenstockError as error:
            ends.append(type(error))

    thread = threading.Thread(target=write)
    thread.start()
    received = rows.next(DEADLINE)
    assert received is not None
    assert received.batch is not None
    assert received.batch.column(0).to_pylist() == [7]
    assert thread.is_alive(), "it still waits"
    here.run(lambda: here.host.obey(CancelTask(owners[0].attempt, "the test is over")))
    thread.join(DEADLINE)
    assert ends == [TaskCancelledError]
    gate.close()
    reading.close()
    writing.close()


def test_calls_take_no_ports(here: EnvironmentThread) -> None:
    """Questions have numbers of their own."""
    attachment = here.attach()
    quiet = Port("a port that nothing is said to")
    first = attachment.data_plane().open_port(quiet)
    for _ in range(100):
        attachment.ask(calls.GetStatistics(), DEADLINE)
    assert attachment.data_plane().open_port(quiet) == first + 1
    attachment.close()


def whole_writer(owner: AttemptId, partition: PartitionId) -> calls.OpenWriter:
    """The question of a writer that stores everything."""
    return calls.OpenWriter(0, owner, partition, 1, False, PartitionKind.BLOCKING_SORT_MERGE)


def test_a_directory_whose_disk_took_no_more_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer says that it was the disk; the partitions that come next go to the other directory."""
    disks = [tmp_path / name for name in ("one", "two")]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, disks)))
    with environment(tmp_path) as here:
        attachment = here.attach()

        def disk_of(number: int) -> str:
            owner, partition = AttemptId("job", 0, number, 1), PartitionId(DatasetId("job", 0), number, 1)
            opened = attachment.ask(whole_writer(owner, partition), DEADLINE)
            return Path(opened.folder).relative_to(tmp_path).parts[0]

        assert {disk_of(0), disk_of(1)} == {"one", "two"}
        full = disk_of(2)
        attachment.ask(calls.FailWriter(PartitionId(DatasetId("job", 0), 2, 1), "full", is_storage=True), DEADLINE)
        (left,) = {"one", "two"} - {full}
        # The loop hands the word to a thread before it takes the next question.
        assert [disk_of(number) for number in range(3, 7)][1:] == [left] * 3
        attachment.close()


def test_an_error_is_raised_as_what_it_was(here: EnvironmentThread) -> None:
    """The environment's own errors are, and that of a question for which it has nobody to ask."""
    attachment = here.attach()
    with pytest.raises(PenstockError, match=r"job-e0\.7#1"):
        attachment.ask(calls.ReportMissingFile(PartitionId(DatasetId("job", 0), 7, 1), "gone"), DEADLINE)
    with pytest.raises(ControlError, match="no JobMaster"):
        attachment.ask(AwaitProducers(AttemptId("job", 0, 0, 1)), DEADLINE)
    attachment.close()


@dataclass(frozen=True, slots=True)
class Strange(Request[Done]):
    """A request that no environment knows."""


def test_a_call_that_nobody_knows_is_answered(here: EnvironmentThread) -> None:
    """The task is told, and goes on."""
    attachment = here.attach()
    with pytest.raises(ProtocolError, match=r"Strange"):
        attachment.ask(Strange(), DEADLINE)
    assert attachment.ask(calls.ListOccupying(), DEADLINE).partitions == ()
    attachment.close()


@pytest.mark.parametrize(
    "words",
    [
        frame(LinkFrameType.GRANT),
        channel_frame(LinkFrameType.RESUME, 99, 0),
        slices_frame(LinkFrameType.SLICES, [(99, 0, 0, 0, 0)]),
        frame(99),
    ],
    ids=["not a task's frame", "no such gate", "no such writer", "no such frame"],
)
def test_what_a_task_may_not_say_ends_its_session_alone(here: EnvironmentThread, words: bytes) -> None:
    """Its connection is closed; another task of the environment goes on."""
    wrong, right = here.attach(), here.attach()
    wrong.data_plane().send(words)
    with pytest.raises(PenstockError, match="gone"):
        wait_for_ever(wrong)
    assert exchange(right, 1) == [1, 4, 7]
    wrong.close()
    right.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (frame(LinkFrameType.CALL), "CALL is not for a task"),
        (segments_frame(LinkFrameType.GRANT, 99, [1]), "number 99 is used"),
        (slices_frame(LinkFrameType.DELIVER, [(99, 0, 0, 0, 0)]), "number 99 is used"),
        (frame(LinkFrameType.DELIVER, b"x"), "list of slices"),
        (frame(LinkFrameType.CHANNEL_EVENT, b"x"), "broke the protocol"),
        (frame(99), "a frame of type 99 is not for a task"),
    ],
)
def test_what_an_environment_may_not_say_is_raised_where_the_task_waits(words: bytes, told: str) -> None:
    """Nothing is dropped: a frame of another kind, for a port that never was, or that can't be read."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with SegmentMemory.create(1, 4096) as memory, theirs:
        attachment = _attachment(ours, memory)
        theirs.sendall(words)
        with pytest.raises(ProtocolError, match=told):
            wait_for_ever(attachment)
        attachment.close()


def test_frames_for_a_closed_port_are_dropped() -> None:
    """They crossed its closing on the way."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with SegmentMemory.create(1, 4096) as memory, theirs:
        attachment = _attachment(ours, memory)
        port = attachment.data_plane().open_port(Port("a port that nothing is said to"))
        attachment.data_plane().close_port(port)
        theirs.sendall(slices_frame(LinkFrameType.DELIVER, [(port, 0, 0, 0, 9)]))
        attachment.wait(0, 0.05)
        assert attachment.arrivals == 1
        attachment.close()


def test_what_is_not_for_a_port_is_an_error() -> None:
    """A slice for a port that takes none ends the attachment, and the error names the port."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with SegmentMemory.create(1, 4096) as memory, theirs:
        attachment = _attachment(ours, memory)
        port = attachment.data_plane().open_port(Port("the writer of partition 7"))
        theirs.sendall(slices_frame(LinkFrameType.DELIVER, [(port, 0, 0, 0, 9)]))
        with pytest.raises(ProtocolError, match=r"the writer of partition 7 was told \(0, 0, 0, 9\)"):
            wait_for_ever(attachment)
        attachment.close()


def wait_for_ever(attachment: Attachment) -> None:
    """Wait again and again; ends with what the wait raises."""
    while True:
        attachment.wait(attachment.arrivals, DEADLINE)


def _attachment(connection: socket.socket, memory: SegmentMemory) -> Attachment:
    welcome = Welcome("env", "", memory.count, memory.segment_size)
    return Attachment(connection, welcome, os.dup(memory.fd), Rendezvous(Path("/nowhere")), DEADLINE)


def test_a_fault_in_one_of_three_gates_ends_that_session_alone(
    here: EnvironmentThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tasks read at once; the environment fails at the second's gate: the others get everything."""
    tasks = [here.attach() for _ in range(3)]
    take_turn = GatePort.take_turn
    ends: dict[int, object] = {}

    def faulty(gate: GatePort) -> None:
        if gate.attempt.subtask == 1:
            raise KeyError("injected")
        take_turn(gate)

    def run(number: int) -> None:
        try:
            ends[number] = exchange(tasks[number], number)
        except PenstockError as error:
            ends[number] = error

    monkeypatch.setattr(GatePort, "take_turn", faulty)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert (ends[0], ends[2]) == ([1, 4, 7], [1, 4, 7])
    assert isinstance(ends[1], EnvironmentLostError)
    assert tasks[0].ask(calls.GetStatistics(), DEADLINE).figures["tasks"] == 2
    for task in tasks:
        task.close()
    here.run(here.host.memory.references.check)


def test_a_fault_while_a_task_is_served_ends_its_session_alone(
    here: EnvironmentThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error, raised by a call that is answered at once and by one that waits; nobody waits for ever."""
    wrong, waiting, right = here.attach(), here.attach(), here.attach()

    async def later(*_: object) -> None:
        raise KeyError("injected")

    def now(*_: object) -> None:
        raise AssertionError("injected")

    monkeypatch.setattr(PartitionRegistry, "occupying", now)
    monkeypatch.setattr(StoredResult, "make_folder", later)
    with pytest.raises(EnvironmentLostError):
        wrong.ask(calls.ListOccupying(), DEADLINE)
    question = whole_writer(AttemptId("job", 0, 0, 1), PartitionId(DatasetId("job", 0), 0, 1))
    with pytest.raises(EnvironmentLostError):
        waiting.ask(question, DEADLINE)
    assert exchange(right, 1) == [1, 4, 7]
    for task in (wrong, waiting, right):
        task.close()


def test_a_service_without_a_data_plane_maps_no_memory(here: EnvironmentThread) -> None:
    """A task asks and is told to stop over its line; the pool is mapped when a service asks for it, once."""
    memory = here.host.memory.segments.fd
    before = maps_of(memory)
    attachment = here.attach()
    attachment.ask(calls.GetStatistics(), DEADLINE)
    attachment.check_cancelled()
    assert maps_of(memory) == before
    assert attachment.data_plane() is attachment.data_plane()
    assert maps_of(memory) == before + 1
    attachment.close()
    assert maps_of(memory) == before
