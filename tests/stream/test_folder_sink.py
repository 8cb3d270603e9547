# SPDX-License-Identifier: Apache-2.0
"""The sink of files: readers of the folder see what complete checkpoints hold, each row once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from penstock.checkpoint.errors import CheckpointError
from penstock.shuffle.durable import sync_file
from penstock.shuffle.errors import PlanError, SettingError
from penstock.stream import folder_sink
from penstock.stream.chain import StepContext
from penstock.stream.folder_sink import FolderSink
from penstock.stream.noop import NoopSink
from penstock.stream.sinks import SinkOperator

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    """A batch of these numbers."""
    return pa.record_batch({"n": list(values)}, SCHEMA)


def sink(folder: Path, kind: str = "parquet") -> FolderSink:
    """The sink, as a task gets it."""
    made = FolderSink(pafs.LocalFileSystem(), str(folder), SCHEMA, "query1", kind)
    copy: FolderSink = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
    return copy


def seen(folder: Path, kind: str = "parquet") -> list[int]:
    """What a plain reader of the folder sees."""
    return sorted(
        ds.dataset(folder, SCHEMA, format="feather" if kind == "arrow" else kind).to_table()["n"].to_pylist()
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_are_seen_when_their_checkpoint_is_complete(tmp_path: Path, kind: str) -> None:
    """Neither when they are written nor when they are prepared; a later checkpoint publishes what an earlier left."""
    writer = sink(tmp_path, kind).open(0, 1, [])
    writer.write(batch(1, 2))
    writer.prepare(1)
    writer.write(batch(3))
    assert seen(tmp_path, kind) == []
    writer.prepare(2)
    writer.write(batch(4))
    writer.commit(2)
    assert seen(tmp_path, kind) == [1, 2, 3]
    writer.commit(2)
    writer.close()
    assert seen(tmp_path, kind) == [1, 2, 3]
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_late_task_of_an_earlier_driver_leaves_the_files_of_the_next_one(tmp_path: Path) -> None:
    """A driver has taken over, its sink has prepared a file; a task of the former one begins only now."""
    former, present = sink(tmp_path), sink(tmp_path)
    writer = present.open(0, 1, [])
    writer.write(batch(1))
    state = writer.prepare(1)
    former.open(0, 1, []).close()
    present.open(0, 1, [state]).close()
    assert seen(tmp_path) == [1]


@pytest.mark.parametrize("published", [True, False])
def test_an_attempt_begins_by_publishing_what_its_checkpoint_names(tmp_path: Path, published: bool) -> None:
    """Whether the one before had got to it or not; what it wrote behind that checkpoint is removed."""
    first = sink(tmp_path).open(0, 1, [])
    first.write(batch(1))
    state = first.prepare(1)
    first.write(batch(2))
    first.prepare(2)
    first.write(batch(3))
    if published:
        first.commit(1)
    again = sink(tmp_path).open(0, 1, [state])
    assert seen(tmp_path) == [1]
    assert len(list(tmp_path.iterdir())) == 1
    again.write(batch(2))
    again.prepare(2)
    again.commit(2)
    assert seen(tmp_path) == [1, 2]
    first.close()
    again.close()


def test_a_checkpoint_without_rows_has_no_file(tmp_path: Path) -> None:
    """Nothing is written for nothing."""
    writer = sink(tmp_path).open(0, 1, [])
    writer.prepare(1)
    writer.commit(1)
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_others_stay(tmp_path: Path) -> None:
    """A subtask removes its own, and those of subtasks that are no more; other queries' and users' files stay."""
    for subtask in range(3):
        writer = sink(tmp_path).open(subtask, 3, [])
        writer.write(batch(subtask))
        writer.prepare(1)
    other = ".part-query2-00000-0123456789abcdef.parquet"
    for name in (other, ".hidden"):
        (tmp_path / name).write_bytes(b"")
    sink(tmp_path).open(0, 2, []).close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left[0] == ".hidden"
    assert [name[:19] for name in left[1:]] == [".part-query1-00001-", other[:19]]


def test_files_are_on_the_disk_before_their_checkpoint_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that stores the checkpoint waits for the disk, and the task's does not; again changes nothing."""
    synced: list[str] = []

    def sync(path: str) -> None:
        sync_file(path)
        synced.append(Path(path).name)

    monkeypatch.setattr(folder_sink, "sync_file", sync)
    step = SinkOperator(sink(tmp_path)).step()
    step.open(StepContext(0, 1, 128, "sink"), [])
    list(step.process(batch(1)))
    ((_, first),) = step.snapshot(1)
    assert synced == []
    first()
    assert len(synced) == 1
    ((_, second),) = step.snapshot(2)
    step.completed(1)
    second()
    assert len(synced) == 1
    assert seen(tmp_path) == [1]
    step.close()


def test_a_prepared_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """Its rows would be lost, and nobody would know."""
    writer = sink(tmp_path).open(0, 1, [])
    writer.write(batch(1))
    state = writer.prepare(1)
    (hidden,) = tmp_path.iterdir()
    hidden.unlink()
    with pytest.raises(CheckpointError, match="was prepared for a checkpoint and is gone"):
        sink(tmp_path).open(0, 1, [state])


def test_what_can_name_no_file_is_refused(tmp_path: Path) -> None:
    """An unknown format, and a uid with a slash."""
    with pytest.raises(SettingError, match="one of parquet, arrow"):
        FolderSink(pafs.LocalFileSystem(), str(tmp_path), SCHEMA, "q", "xml")
    with pytest.raises(SettingError, match="uid"):
        FolderSink(pafs.LocalFileSystem(), str(tmp_path), SCHEMA, "../q")


def test_a_sink_is_the_last_step_of_a_chain(tmp_path: Path) -> None:
    """It gives no rows; without checkpoints both phases come at once; a batch job can't have one."""
    operator = SinkOperator(sink(tmp_path))
    step = operator.step()
    step.open(StepContext(0, 1, 128, "stage 1"), [])
    assert list(step.process(batch(7))) == []
    step.publish(1)
    assert seen(tmp_path) == [7]
    step.close()
    with pytest.raises(PlanError, match="sink of a streaming query"):
        operator.apply(iter(()))


def test_noop_takes_everything() -> None:
    """And has nothing to publish."""
    step = SinkOperator(NoopSink()).step()
    step.open(StepContext(0, 1, 128, "stage 1"), [])
    assert list(step.process(batch(7))) == []
    ((name, make),) = step.snapshot(1)
    assert (name, make()) == ("sink", b"")
    step.completed(1)
    step.close()
