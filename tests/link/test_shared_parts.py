# SPDX-License-Identifier: Apache-2.0
"""Parts of checkpoints that tasks hand over to a real environment, which stores several of them in one file."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environment_thread import EnvironmentThread, environment
from penstock.attachment.attachment import Attachment
from penstock.attachment.mailbox import AttachmentMailbox
from penstock.checkpoint.metadata import PartHandle, unpack_part
from penstock.checkpoint.storage import PartStorage
from penstock.environment.control import NoMaster
from penstock.environment.tasks import checkpoint_files
from penstock.errors import StaleError
from penstock.link import commands
from penstock.link.calls import GetStatistics
from penstock.link.master import AcknowledgeCheckpoint, DeclineCheckpoint
from penstock.link.wire import Done
from penstock.shuffle import AttemptId
from penstock.shuffle.actions import CheckpointGivenUp
from penstock.stream import storing
from penstock.stream.storing import SnapshotStore, TakenSnapshot
from penstock.testing import DEADLINE, wait_until
from underway import listed

TASKS = 3
SMALL = 1000


class Master:
    """The words to the JobMaster."""

    def __init__(self) -> None:
        self.acknowledged: queue.SimpleQueue[AcknowledgeCheckpoint] = queue.SimpleQueue()
        self.declined: queue.SimpleQueue[DeclineCheckpoint] = queue.SimpleQueue()
        self.refuses = False

    def parts(self, count: int) -> dict[int, PartHandle]:
        """So many acknowledged parts, by the subtask."""
        found = [self.acknowledged.get(timeout=DEADLINE) for _ in range(count)]
        return {each.attempt.subtask: unpack_part(each.handle) for each in found}


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Master:
    """The JobMaster that the environment asks."""
    found = Master()

    async def ask(_: NoMaster, request: Any) -> Any:
        await asyncio.sleep(0)
        if found.refuses:
            raise StaleError("the attempt was replaced")
        (found.declined if isinstance(request, DeclineCheckpoint) else found.acknowledged).put(request)
        return Done()

    monkeypatch.setattr(NoMaster, "ask", ask)
    return found


@pytest.fixture
def here(tmp_path: Path, master: Master) -> Iterator[EnvironmentThread]:
    """An environment with that JobMaster."""
    with environment(tmp_path) as found:
        yield found


class Task:
    """One task with its store; `number` is its subtask."""

    def __init__(self, here: EnvironmentThread, location: Path, number: int, attempt: int = 0) -> None:
        self.number = number
        self.attachment: Attachment = here.attach()
        self.attempt = AttemptId("job", 1, number, attempt)
        self.mailbox = AttachmentMailbox(self.attachment, self.attempt)
        self.store = SnapshotStore(str(location), "000001-ab", f"v1.{number}", self.mailbox, self.mailbox)
        self.attachment.ask(GetStatistics(), DEADLINE)  # after it: the environment knows of the task

    def take(self, checkpoint: int, size: int = SMALL, *, shares_file: bool = True) -> None:
        """Have a snapshot stored: a chunk of its own, and one in two pieces."""
        own = bytes([self.number]) * size
        chunks = [("own", lambda: own), ("pieces", lambda: [memoryview(b"ab"), b"c"])]
        self.store.store(TakenSnapshot(checkpoint, chunks, {"freeze_seconds": 1.0}, shares_file=shares_file))

    def is_answered(self) -> bool:
        """Tell whether it has heard of all that it has handed over."""
        self.mailbox.wait(0)
        return not self.store._handed

    def close(self) -> None:
        """End."""
        self.store.close()
        self.attachment.close()


@pytest.fixture
def tasks(here: EnvironmentThread, tmp_path: Path) -> Iterator[list[Task]]:
    """Some tasks of a query on this host."""
    found = [Task(here, tmp_path / "checkpoints", number) for number in range(TASKS)]
    yield found
    for task in found:
        task.close()


def files(folder: Path) -> list[str]:
    """The files of all checkpoints below a folder."""
    return sorted(path.name for path in listed(folder / "checkpoints", "chk-*/*"))


def content(folder: Path, handle: PartHandle) -> dict[str, bytes]:
    """The chunks of a part, checked as they are read."""
    return dict(PartStorage(str(folder / "checkpoints")).read(handle))


def test_the_parts_of_a_host_lie_in_one_file(tasks: list[Task], master: Master, tmp_path: Path) -> None:
    """Each is acknowledged with its place in there; the memory is given back when the task hears of it."""
    for checkpoint in (1, 2):
        for task in tasks:
            task.take(checkpoint)
        for number, handle in master.parts(TASKS).items():
            assert content(tmp_path, handle) == {"own": bytes([number]) * SMALL, "pieces": b"abc"}
            assert handle.size == TASKS * (SMALL + 3)
            assert handle.bytes == SMALL + 3
    assert len(files(tmp_path)) == 2
    for task in tasks:
        wait_until(task.is_answered, "its memory is given back")


def test_a_task_that_is_gone_costs_the_others_nothing(tasks: list[Task], master: Master, tmp_path: Path) -> None:
    """It has handed its part over or not: the file ends with those that are there, and so does the next one."""
    tasks[0].take(1)
    tasks[1].take(1)
    tasks[2].attachment.close()
    assert sorted(master.parts(2)) == [0, 1]
    tasks[0].take(2)
    wait_until(lambda: len(files(tmp_path)) == 2, "it is handed over")
    tasks[0].attachment.close()
    tasks[1].take(2)
    parts = master.parts(2)
    assert content(tmp_path, parts[1])["own"] == bytes([1]) * SMALL
    assert len(files(tmp_path)) == 2


def test_a_large_snapshot_has_a_file_of_its_own(
    tasks: list[Task], master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So has one whose barrier overtook nothing; the others share theirs without them."""
    monkeypatch.setattr(storing, "SHARED_BYTES", SMALL)
    tasks[0].take(1, 2 * SMALL)
    tasks[1].take(1, SMALL // 2, shares_file=False)
    tasks[2].take(1, SMALL // 2)
    parts = master.parts(TASKS)
    assert content(tmp_path, parts[0])["own"] == bytes([0]) * 2 * SMALL
    assert content(tmp_path, parts[2])["own"] == bytes([2]) * (SMALL // 2)
    assert [name.partition("-")[0] for name in files(tmp_path)] == ["host", "v1.0", "v1.1"]


def test_a_checkpoint_that_is_given_up_holds_no_file_open(
    here: EnvironmentThread, tasks: list[Task], master: Master
) -> None:
    """A part that was handed over is acknowledged, too late as ever; the next checkpoint is whole."""
    tasks[0].take(1)
    wait_until(lambda: tasks[0].store._handed, "it is handed over")
    command = commands.TaskAction(tasks[0].attempt, CheckpointGivenUp(1))
    here.run(lambda: here.host.obey(command))
    assert sorted(master.parts(1)) == [0]
    for task in tasks:
        task.take(2)
    assert sorted(master.parts(TASKS)) == [0, 1, 2]


def have_declined(tasks: list[Task], master: Master, tmp_path: Path) -> None:
    """Let the environment be unable to write a checkpoint; each task declines it and says why."""
    blocked = tmp_path / "checkpoints"
    blocked.write_text("a file in the place of the folder")
    for task in tasks:
        task.take(1)

    def all_have() -> bool:
        for task in tasks:
            task.mailbox.wait(0)
        return master.declined.qsize() == TASKS

    wait_until(all_have, "all have declined")
    said = sorted((master.declined.get() for _ in tasks), key=lambda each: each.attempt.subtask)
    causes = [each.cause for each in said]
    assert all("could not write" in cause and f"v1.{number}" in cause for number, cause in enumerate(causes))
    blocked.unlink()


def test_an_environment_that_cannot_write_has_the_checkpoint_declined(
    tasks: list[Task], master: Master, tmp_path: Path
) -> None:
    """Each task says why; from then on it stores its snapshots by itself."""
    have_declined(tasks, master, tmp_path)
    for task in tasks:
        task.take(2)
    assert len(master.parts(TASKS)) == TASKS
    assert files(tmp_path) == ["v1.0", "v1.1", "v1.2"]


def test_nobody_waits_for_tasks_that_have_ended_behind_such_a_checkpoint(
    here: EnvironmentThread, tasks: list[Task], master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes stay, for other tasks: the query's next attempt here has one file, at once."""
    monkeypatch.setattr(checkpoint_files, "WAIT_SECONDS", 10 * DEADLINE)
    have_declined(tasks, master, tmp_path)
    for task in tasks:
        task.store.close()
    again = [Task(here, tmp_path / "checkpoints", number, 1) for number in range(TASKS)]
    for task in again:
        task.take(2)
    try:
        assert sorted(master.parts(TASKS)) == [0, 1, 2]
    finally:
        for task in again:
            task.close()


def test_a_refused_acknowledgement_ends_the_task(tasks: list[Task], master: Master) -> None:
    """As one that the task has made: it hears of it where it waits."""
    master.refuses = True
    for task in tasks:
        task.take(1)
    with pytest.raises(StaleError):
        wait_until(lambda: bool(tasks[0].mailbox.wait(0)), "it hears of it")  # type: ignore[func-returns-value]
